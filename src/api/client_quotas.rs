//! DescribeClientQuotas and AlterClientQuotas 0–1 (KIP-546). Described is what this shard's image has
//! (`ClientQuotasImage.describe`, its words too); a change is a command to the controller.

use std::collections::BTreeMap;

use kafka_protocol::messages::{
    AlterClientQuotasRequest, AlterClientQuotasResponse, DescribeClientQuotasRequest,
    DescribeClientQuotasResponse, alter_client_quotas_request, alter_client_quotas_response,
    describe_client_quotas_request, describe_client_quotas_response,
};
use kafka_protocol::protocol::StrBytes;

use super::answer_room::AnswerRoom;
use super::cluster_view::text;
use super::{Client, TOO_LONG};
use crate::metadata::{
    AlterClientQuotas, Command, QuotaChange, QuotaEntity, QuotaLimit, QuotaLimits, QuotaName, QuotaTarget,
    Refusal,
};
use crate::wire::ErrorCode;

/// What is asked of a part of an entity (`MatchType`).
mod match_type {
    pub const EXACT: i8 = 0;
    pub const DEFAULT: i8 = 1;
    pub const SPECIFIED: i8 = 2;
}

/// What a described entity takes beside its names, about.
const ENTRY_BYTES: usize = 400;

/// Which entities are asked for.
#[derive(PartialEq, Debug)]
struct Filter {
    parts: BTreeMap<Part, Match>,
    /// No part beside those named.
    is_strict: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Part {
    User,
    ClientId,
    Ip,
}

#[derive(PartialEq, Debug)]
enum Match {
    Exact(QuotaName),
    Any,
}

/// Serves DescribeClientQuotas.
pub async fn describe(client: &Client, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse {
    let filter = match Filter::of(&request) {
        Ok(filter) => filter,
        Err(refusal) => return failure(&refusal),
    };
    let image = client.shard.image();
    let mut room = AnswerRoom::new(client);
    let mut entries = Vec::new();
    for (entity, limits) in image.client_quotas().iter().filter(|(entity, _)| filter.matches(entity)) {
        let names = named(entity).map(|(_, name)| match name {
            QuotaName::Default => 0,
            QuotaName::Of(name) => name.len(),
        });
        if !room.add(ENTRY_BYTES + 2 * names.sum::<usize>()).await {
            return failure(&Refusal::new(ErrorCode::InvalidRequest, TOO_LONG));
        }
        entries.push(entry(entity, limits));
    }
    DescribeClientQuotasResponse::default()
        .with_error_message(Some(StrBytes::new()))
        .with_entries(Some(entries))
}

/// Serves AlterClientQuotas.
pub async fn alter(client: &Client, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse {
    let command = command(&request);
    let targets: Vec<QuotaTarget> = command.changes.iter().map(|change| change.target.clone()).collect();
    let results = match client.command(Command::AlterClientQuotas(command)).await {
        Ok(response) => response.quotas_altered(),
        Err(refusal) => targets.into_iter().map(|target| (target, Err(refusal.clone()))).collect(),
    };
    AlterClientQuotasResponse::default().with_entries(results.into_iter().map(altered).collect())
}

fn command(request: &AlterClientQuotasRequest) -> AlterClientQuotas {
    let change = |entry: &alter_client_quotas_request::EntryData| {
        let part = |part: &alter_client_quotas_request::EntityData| {
            (part.entity_type.to_string(), part.entity_name.as_ref().map(|name| name.to_string()))
        };
        let op = |op: &alter_client_quotas_request::OpData| {
            (op.key.to_string(), (!op.remove).then(|| QuotaLimit::new(op.value)))
        };
        // Of a type that is named twice the last counts, as in Kafka.
        QuotaChange {
            target: entry.entity.iter().map(part).collect(),
            ops: entry.ops.iter().map(op).collect(),
        }
    };
    AlterClientQuotas {
        changes: request.entries.iter().map(change).collect(),
        validate_only: request.validate_only,
    }
}

fn altered((target, result): (QuotaTarget, Result<(), Refusal>)) -> alter_client_quotas_response::EntryData {
    let part = |(kind, name): (String, Option<String>)| {
        alter_client_quotas_response::EntityData::default()
            .with_entity_type(StrBytes::from_string(kind))
            .with_entity_name(name.map(StrBytes::from_string))
    };
    let entry = alter_client_quotas_response::EntryData::default()
        .with_entity(target.into_iter().map(part).collect())
        .with_error_message(None);
    match result {
        Ok(()) => entry,
        Err(refusal) => {
            entry.with_error_code(refusal.code.code()).with_error_message(Some(text(&refusal.message)))
        }
    }
}

fn failure(refusal: &Refusal) -> DescribeClientQuotasResponse {
    DescribeClientQuotasResponse::default()
        .with_error_code(refusal.code.code())
        .with_error_message(Some(text(&refusal.message)))
        .with_entries(None)
}

fn entry(entity: &QuotaEntity, limits: &QuotaLimits) -> describe_client_quotas_response::EntryData {
    let part = |(part, name): (Part, &QuotaName)| {
        describe_client_quotas_response::EntityData::default()
            .with_entity_type(StrBytes::from_static_str(part.name()))
            .with_entity_name(match name {
                QuotaName::Default => None,
                QuotaName::Of(name) => Some(text(name)),
            })
    };
    let value = |(key, limit): (&crate::metadata::QuotaKey, &QuotaLimit)| {
        describe_client_quotas_response::ValueData::default()
            .with_key(StrBytes::from_static_str(key.name()))
            .with_value(limit.get())
    };
    describe_client_quotas_response::EntryData::default()
        .with_entity(named(entity).map(part).collect())
        .with_values(limits.iter().map(value).collect())
}

/// The parts of an entity.
fn named(entity: &QuotaEntity) -> impl Iterator<Item = (Part, &QuotaName)> {
    let parts = [(Part::User, &entity.user), (Part::ClientId, &entity.client_id), (Part::Ip, &entity.ip)];
    parts.into_iter().filter_map(|(part, name)| Some((part, name.as_ref()?)))
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::User => "user",
            Part::ClientId => "client-id",
            Part::Ip => "ip",
        }
    }
}

impl Filter {
    fn of(request: &DescribeClientQuotasRequest) -> Result<Self, Refusal> {
        let mut parts = BTreeMap::new();
        for component in &request.components {
            let (part, wanted) = Self::part(component, &parts)?;
            parts.insert(part, wanted);
        }
        let of_clients = parts.contains_key(&Part::User) || parts.contains_key(&Part::ClientId);
        if parts.contains_key(&Part::Ip) && of_clients {
            return invalid(
                "Invalid entity filter component combination. IP filter component should not be used with \
                 user or clientId filter component."
                    .to_owned(),
            );
        }
        Ok(Self { parts, is_strict: request.strict })
    }

    fn part(
        component: &describe_client_quotas_request::ComponentData,
        known: &BTreeMap<Part, Match>,
    ) -> Result<(Part, Match), Refusal> {
        let kind = &*component.entity_type;
        let part = match kind {
            "" => return invalid("Invalid empty entity type.".to_owned()),
            "user" => Part::User,
            "client-id" => Part::ClientId,
            "ip" => Part::Ip,
            _ => {
                let words = format!("Unsupported entity type {kind}");
                return Err(Refusal::new(ErrorCode::UnsupportedVersion, words));
            }
        };
        if known.contains_key(&part) {
            return invalid(format!("Entity type {kind} cannot appear more than once in the filter."));
        }
        let wanted = match (component.match_type, &component._match) {
            (match_type::EXACT, Some(name)) => Match::Exact(QuotaName::Of(name.to_string())),
            (match_type::EXACT, None) => {
                return invalid(
                    "Request specified MATCH_TYPE_EXACT, but set match string to null.".to_owned(),
                );
            }
            (match_type::DEFAULT, None) => Match::Exact(QuotaName::Default),
            (match_type::SPECIFIED, None) => Match::Any,
            (match_type::DEFAULT, Some(_)) => return with_name("MATCH_TYPE_DEFAULT"),
            (match_type::SPECIFIED, Some(_)) => return with_name("MATCH_TYPE_SPECIFIED"),
            (unknown, _) => return invalid(format!("Unknown match type {unknown}")),
        };
        Ok((part, wanted))
    }

    fn matches(&self, entity: &QuotaEntity) -> bool {
        let of_part = |part| match part {
            Part::User => &entity.user,
            Part::ClientId => &entity.client_id,
            Part::Ip => &entity.ip,
        };
        let is_met = |(part, wanted): (&Part, &Match)| match (of_part(*part), wanted) {
            (Some(name), Match::Exact(exact)) => name == exact,
            (Some(_), Match::Any) => true,
            (None, _) => false,
        };
        (!self.is_strict || named(entity).count() == self.parts.len()) && self.parts.iter().all(is_met)
    }
}

fn with_name<T>(kind: &str) -> Result<T, Refusal> {
    invalid(format!("Request specified {kind}, but also specified a match string."))
}

fn invalid<T>(words: String) -> Result<T, Refusal> {
    Err(Refusal::new(ErrorCode::InvalidRequest, words))
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use kafka_protocol::protocol::{Decodable, Encodable};

    use super::describe_client_quotas_request::ComponentData;
    use super::*;
    use crate::metadata::QuotaKey;
    use crate::wire::guard;
    use crate::wire::header::CorrelationId;

    fn component(kind: &str, match_type: i8, name: Option<&str>) -> ComponentData {
        ComponentData::default()
            .with_entity_type(text(kind))
            .with_match_type(match_type)
            .with_match(name.map(text))
    }

    fn filter(strict: bool, components: Vec<ComponentData>) -> Result<Filter, (ErrorCode, String)> {
        let request = DescribeClientQuotasRequest::default().with_strict(strict).with_components(components);
        Filter::of(&request).map_err(|refusal| (refusal.code, refusal.message))
    }

    fn entity(user: Option<&str>, client_id: Option<&str>, ip: Option<&str>) -> QuotaEntity {
        let name = |name: &str| match name {
            "*" => QuotaName::Default,
            name => QuotaName::Of(name.to_owned()),
        };
        QuotaEntity { user: user.map(name), client_id: client_id.map(name), ip: ip.map(name) }
    }

    #[test]
    fn a_filter_finds_what_has_all_its_parts_and_a_strict_one_nothing_more() {
        let entities = [
            entity(Some("u"), None, None),
            entity(Some("*"), None, None),
            entity(Some("u"), Some("c"), None),
            entity(Some("u"), Some("*"), None),
            entity(None, Some("c"), None),
            entity(None, None, Some("10.0.0.1")),
        ];
        let found = |strict, components| -> Vec<usize> {
            let filter = filter(strict, components).unwrap();
            (0..entities.len()).filter(|place| filter.matches(&entities[*place])).collect()
        };
        assert_eq!(found(false, vec![]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(found(true, vec![]), [0; 0]);
        let user = || component("user", 0, Some("u"));
        assert_eq!(found(false, vec![user()]), [0, 2, 3]);
        assert_eq!(found(true, vec![user()]), [0]);
        assert_eq!(found(true, vec![component("user", 1, None)]), [1]);
        assert_eq!(found(false, vec![component("user", 2, None)]), [0, 1, 2, 3]);
        assert_eq!(found(true, vec![user(), component("client-id", 2, None)]), [2, 3]);
        assert_eq!(found(true, vec![user(), component("client-id", 1, None)]), [3]);
        assert_eq!(found(false, vec![component("ip", 2, None)]), [5]);
    }

    #[test]
    fn what_kafka_refuses_is_refused_in_its_words() {
        let refused = |components| filter(true, components).unwrap_err();
        let invalid = |words: &str| (ErrorCode::InvalidRequest, words.to_owned());
        assert_eq!(refused(vec![component("", 0, Some("x"))]), invalid("Invalid empty entity type."));
        assert_eq!(
            refused(vec![component("group", 0, Some("x"))]),
            (ErrorCode::UnsupportedVersion, "Unsupported entity type group".to_owned())
        );
        assert_eq!(
            refused(vec![component("user", 0, Some("x")), component("user", 2, None)]),
            invalid("Entity type user cannot appear more than once in the filter.")
        );
        assert_eq!(
            refused(vec![component("user", 0, None)]),
            invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
        );
        assert_eq!(
            refused(vec![component("user", 1, Some("x"))]),
            invalid("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
        );
        assert_eq!(
            refused(vec![component("user", 2, Some("x"))]),
            invalid("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
        );
        assert_eq!(refused(vec![component("user", 3, None)]), invalid("Unknown match type 3"));
        assert_eq!(
            refused(vec![component("user", 2, None), component("ip", 2, None)]),
            invalid(
                "Invalid entity filter component combination. IP filter component should not be used with \
                 user or clientId filter component."
            )
        );
    }

    #[test]
    fn every_field_of_a_change_reaches_the_command_in_every_version() {
        let part = |kind: &str, name: Option<&str>| {
            alter_client_quotas_request::EntityData::default()
                .with_entity_type(text(kind))
                .with_entity_name(name.map(text))
        };
        let op = |key: &str, value: f64, remove: bool| {
            alter_client_quotas_request::OpData::default()
                .with_key(text(key))
                .with_value(value)
                .with_remove(remove)
        };
        let entry = alter_client_quotas_request::EntryData::default()
            .with_entity(vec![part("user", Some("u")), part("client-id", None)])
            .with_ops(vec![op("request_percentage", 0.5, false), op("x", 7.0, true)]);
        let request = AlterClientQuotasRequest::default().with_entries(vec![entry]).with_validate_only(true);
        let target: QuotaTarget =
            [("user".to_owned(), Some("u".to_owned())), ("client-id".to_owned(), None)].into();
        let ops = vec![("request_percentage".to_owned(), Some(QuotaLimit::new(0.5))), ("x".to_owned(), None)];
        let expected = AlterClientQuotas { changes: vec![QuotaChange { target, ops }], validate_only: true };
        for version in 0..=1 {
            let mut body = BytesMut::new();
            request.encode(&mut body, version).unwrap();
            let decoded = guard::decode::<AlterClientQuotasRequest>(version, &body.freeze()).unwrap();
            assert_eq!(command(&decoded), expected);
        }
    }

    /// The body of an encoded answer.
    fn body(frame: &Bytes, version: i16) -> Bytes {
        frame.slice(if version >= 1 { 9 } else { 8 }..)
    }

    #[test]
    fn every_version_of_the_answers_can_be_encoded() {
        let limits = QuotaLimits::from([
            (QuotaKey::ProducerByteRate, QuotaLimit::new(1.0)),
            (QuotaKey::RequestPercentage, QuotaLimit::new(2.5)),
        ]);
        let entity = entity(Some("u"), Some("*"), None);
        let described =
            DescribeClientQuotasResponse::default().with_entries(Some(vec![entry(&entity, &limits)]));
        let refusal = Refusal::new(ErrorCode::InvalidRequest, "why");
        let target: QuotaTarget = [("user".to_owned(), None)].into();
        let answered = AlterClientQuotasResponse::default()
            .with_entries(vec![altered((target.clone(), Ok(()))), altered((target, Err(refusal.clone())))]);
        for version in 0..=1 {
            let frame = guard::encode(version, CorrelationId(1), &described).unwrap();
            let back = DescribeClientQuotasResponse::decode(&mut body(&frame, version), version).unwrap();
            let back = back.entries.unwrap().remove(0);
            let parts: Vec<(&str, Option<&str>)> =
                back.entity.iter().map(|part| (&*part.entity_type, part.entity_name.as_deref())).collect();
            assert_eq!(parts, [("user", Some("u")), ("client-id", None)]);
            let values: Vec<(&str, f64)> =
                back.values.iter().map(|value| (&*value.key, value.value)).collect();
            assert_eq!(values, [("producer_byte_rate", 1.0), ("request_percentage", 2.5)]);
            let frame = guard::encode(version, CorrelationId(1), &failure(&refusal)).unwrap();
            let back = DescribeClientQuotasResponse::decode(&mut body(&frame, version), version).unwrap();
            assert_eq!((back.error_code, back.entries), (42, None));
            let frame = guard::encode(version, CorrelationId(1), &answered).unwrap();
            let back = AlterClientQuotasResponse::decode(&mut body(&frame, version), version).unwrap();
            let told: Vec<(i16, Option<&str>)> =
                back.entries.iter().map(|entry| (entry.error_code, entry.error_message.as_deref())).collect();
            assert_eq!(told, [(0, None), (42, Some("why"))]);
        }
    }
}

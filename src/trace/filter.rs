//! Which requests and responses are printed.

use std::collections::BTreeSet;

use super::decode::Mentions;
use super::schema::Schemas;

/// Everything passes what is empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    apis: BTreeSet<i16>,
    clients: BTreeSet<Vec<u8>>,
    topics: BTreeSet<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("there is no API named {0}")]
pub struct FilterError(String);

impl Filter {
    /// APIs by name or key, client ids, topics.
    pub fn new(apis: &[String], clients: &[String], topics: &[String]) -> Result<Self, FilterError> {
        let schemas = Schemas::new();
        let key = |name: &String| {
            let key = name.parse().ok().or_else(|| schemas.key_of(name));
            key.ok_or_else(|| FilterError(name.clone()))
        };
        Ok(Self {
            apis: apis.iter().map(key).collect::<Result<_, _>>()?,
            clients: clients.iter().map(|client| client.as_bytes().to_vec()).collect(),
            topics: topics.iter().cloned().collect(),
        })
    }

    /// What the header of a request tells.
    pub fn wants_request(&self, key: i16, client_id: Option<&[u8]>) -> bool {
        let client = || client_id.is_some_and(|client| self.clients.contains(client));
        (self.apis.is_empty() || self.apis.contains(&key)) && (self.clients.is_empty() || client())
    }

    /// What a body tells.
    pub fn wants_body(&self, mentions: &Mentions) -> bool {
        self.topics.is_empty() || mentions.topics.iter().any(|topic| self.topics.contains(topic))
    }

    /// Whether something that names no topic, as bytes that are not decoded, is printed.
    pub fn wants_unknown(&self) -> bool {
        self.topics.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn an_empty_filter_passes_everything() {
        let filter = Filter::default();
        assert!(
            filter.wants_request(99, None)
                && filter.wants_body(&Mentions::default())
                && filter.wants_unknown()
        );
    }

    #[test]
    fn apis_go_by_name_or_key_and_clients_and_topics_by_name() {
        let filter = Filter::new(&texts(&["fetch", "3"]), &texts(&["me"]), &texts(&["t"])).expect("known");
        assert!(filter.wants_request(1, Some(b"me")) && filter.wants_request(3, Some(b"me")));
        assert!(!filter.wants_request(0, Some(b"me")) && !filter.wants_request(1, Some(b"you")));
        assert!(!filter.wants_request(1, None));
        let of =
            |topic: &str| Mentions { topics: texts(&[topic]).into_iter().collect(), ..Mentions::default() };
        assert!(filter.wants_body(&of("t")) && !filter.wants_body(&of("u")));
        assert_eq!(Filter::new(&texts(&["nope"]), &[], &[]), Err(FilterError("nope".into())));
    }
}

use super::super::super::command::{
    CreatePartitions, CreateTopics, DeleteTopics, MorePartitions, NewTopic, TopicRef,
};
use super::super::testing::Cluster;
use super::*;

type Op<'a> = (&'a str, Option<f64>);

fn target(parts: &[(&str, Option<&str>)]) -> QuotaTarget {
    parts.iter().map(|(kind, name)| ((*kind).to_owned(), name.map(str::to_owned))).collect()
}

fn change_of(parts: &[(&str, Option<&str>)], ops: &[Op<'_>]) -> QuotaChange {
    let ops = ops.iter().map(|(key, limit)| ((*key).to_owned(), limit.map(QuotaLimit::new))).collect();
    QuotaChange { target: target(parts), ops }
}

fn alter(cluster: &mut Cluster, changes: &[QuotaChange], validate_only: bool) -> Vec<Result<(), String>> {
    let request = AlterClientQuotas { changes: changes.to_vec(), validate_only };
    let results = cluster.run(Command::AlterClientQuotas(request)).unwrap().quotas_altered();
    results
        .into_iter()
        .map(|(_, result)| {
            result.map_err(|refusal| {
                assert_eq!(refusal.code, ErrorCode::InvalidRequest);
                refusal.message
            })
        })
        .collect()
}

fn one(cluster: &mut Cluster, parts: &[(&str, Option<&str>)], ops: &[Op<'_>]) -> Result<(), String> {
    alter(cluster, &[change_of(parts, ops)], false).remove(0)
}

fn limit_of(cluster: &Cluster, key: QuotaKey, user: &str, client_id: &str) -> Option<f64> {
    let quotas = cluster.state.image().client_quotas();
    quotas.of_client(key, user, client_id).map(|found| found.limit.get())
}

#[test]
fn quotas_are_set_changed_and_taken_away() {
    let mut cluster = Cluster::of(1);
    let user = [("user", Some("ann"))];
    one(&mut cluster, &user, &[("producer_byte_rate", Some(1000.0)), ("request_percentage", Some(0.5))])
        .unwrap();
    assert_eq!(limit_of(&cluster, QuotaKey::ProducerByteRate, "ann", "c"), Some(1000.0));
    assert_eq!(limit_of(&cluster, QuotaKey::RequestPercentage, "ann", "c"), Some(0.5));
    one(&mut cluster, &user, &[("producer_byte_rate", Some(2000.0)), ("request_percentage", None)]).unwrap();
    assert_eq!(limit_of(&cluster, QuotaKey::ProducerByteRate, "ann", "c"), Some(2000.0));
    assert_eq!(limit_of(&cluster, QuotaKey::RequestPercentage, "ann", "c"), None);
    // The same again, and what was never set, make no record.
    let version = cluster.state.image().client_quotas().clone();
    one(&mut cluster, &user, &[("producer_byte_rate", Some(2000.0)), ("nonsense", None)]).unwrap();
    assert!(std::sync::Arc::ptr_eq(&version, cluster.state.image().client_quotas()));
    one(&mut cluster, &user, &[("producer_byte_rate", None)]).unwrap();
    assert_eq!(cluster.state.image().client_quotas().iter().count(), 0);
}

#[test]
fn validate_only_changes_nothing() {
    let mut cluster = Cluster::of(1);
    let good = change_of(&[("client-id", None)], &[("consumer_byte_rate", Some(5.0))]);
    let bad = change_of(&[("client-id", Some("c"))], &[("consumer_byte_rate", Some(0.0))]);
    let results = alter(&mut cluster, &[good.clone(), bad.clone()], true);
    assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false]);
    assert_eq!(cluster.state.image().client_quotas().iter().count(), 0);
    // One that is refused does not hold the others up.
    alter(&mut cluster, &[bad, good], false);
    assert_eq!(limit_of(&cluster, QuotaKey::ConsumerByteRate, "u", "x"), Some(5.0));
}

#[test]
fn what_kafka_refuses_is_refused_in_its_words() {
    let mut cluster = Cluster::of(1);
    let user = &[("user", Some("ann"))][..];
    let ip = &[("ip", Some("10.0.0.1"))][..];
    for (parts, key, limit, words) in [
        (user, "nonsense", 1.0, "Invalid configuration key nonsense"),
        (user, "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        (ip, "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        (user, "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        (user, "request_percentage", -1.0, "Quota request_percentage must be greater than 0"),
        (user, "request_percentage", f64::NAN, "Quota request_percentage must be greater than 0"),
        (user, "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        (user, "producer_byte_rate", 1e19, "Proposed value for producer_byte_rate is too large for a LONG."),
        (
            ip,
            "connection_creation_rate",
            3e9,
            "Proposed value for connection_creation_rate is too large for an INT.",
        ),
        (&[][..], "producer_byte_rate", 1.0, "Invalid empty client quota entity"),
        (&[("group", Some("g"))][..], "producer_byte_rate", 1.0, "Unhandled client quota entity type: group"),
        (&[("user", Some(""))][..], "producer_byte_rate", 1.0, "Empty user not supported"),
        (
            &[("ip", Some("1.1.1.1.1"))][..],
            "connection_creation_rate",
            1.0,
            "1.1.1.1.1 is not a valid IP or resolvable host.",
        ),
        (
            &[("ip", Some("10.0.0.1")), ("user", Some("ann"))][..],
            "connection_creation_rate",
            1.0,
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
    ] {
        assert_eq!(one(&mut cluster, parts, &[(key, Some(limit))]), Err(words.to_owned()), "{key}");
    }
    one(&mut cluster, ip, &[("connection_creation_rate", Some(5.0))]).unwrap();
    one(&mut cluster, &[("ip", None)], &[("connection_creation_rate", Some(5.0))]).unwrap();
    one(&mut cluster, user, &[("controller_mutation_rate", Some(0.25))]).unwrap();
}

#[test]
fn who_is_named_twice_is_changed_once_and_told_so() {
    let mut cluster = Cluster::of(1);
    let user = [("user", Some("ann"))];
    let first = change_of(&user, &[("producer_byte_rate", Some(1.0))]);
    let second = change_of(&user, &[("producer_byte_rate", Some(2.0))]);
    let words = "Ignoring duplicate entity ClientQuotaEntity(entries={user=ann})";
    assert_eq!(alter(&mut cluster, &[first, second], false), [Err(words.to_owned())]);
    assert_eq!(limit_of(&cluster, QuotaKey::ProducerByteRate, "ann", "c"), Some(1.0));
    let twice = [("consumer_byte_rate", Some(1.0)), ("consumer_byte_rate", Some(2.0))];
    assert_eq!(one(&mut cluster, &user, &twice), Err(words.to_owned()));
    assert_eq!(limit_of(&cluster, QuotaKey::ConsumerByteRate, "ann", "c"), None);
}

fn create(name: &str, partitions: i32) -> Command {
    let topic = NewTopic {
        name: name.into(),
        partitions,
        replication_factor: 1,
        assignment: Vec::new(),
        configs: Vec::new(),
    };
    Command::CreateTopics(CreateTopics { topics: vec![topic], validate_only: false })
}

fn limited(cluster: &mut Cluster, is_strict: bool, command: Command) -> (u128, Response) {
    let quota = MutationQuota { user: "ann".into(), client_id: "c".into(), is_strict };
    let (throttle, response) = cluster.run(Command::Limited(quota, Box::new(command))).unwrap().limited();
    (throttle.as_millis(), response)
}

fn created(response: Response) -> Option<ErrorCode> {
    response.topics_created().remove(0).1.err().map(|refusal| refusal.code)
}

#[test]
fn over_its_quota_a_strict_client_is_refused_until_its_permits_are_back() {
    let mut cluster = Cluster::of(1);
    // A burst of 11 partitions, one more each second.
    one(&mut cluster, &[("user", Some("ann"))], &[("controller_mutation_rate", Some(1.0))]).unwrap();
    let (throttle, response) = limited(&mut cluster, true, create("a", 20));
    assert_eq!((throttle, created(response)), (0, None), "it is not overdrawn before");
    let exceeded = Some(ErrorCode::ThrottlingQuotaExceeded);
    let (throttle, response) = limited(&mut cluster, true, create("b", 1));
    assert_eq!((throttle, created(response)), (9000, exceeded));
    cluster.pass(4);
    let more = MorePartitions { name: "a".into(), count: 21, assignment: None };
    let more = CreatePartitions { topics: vec![more], validate_only: false };
    let (throttle, response) = limited(&mut cluster, true, Command::CreatePartitions(more));
    let code = response.partitions_created().remove(0).1.err().map(|refusal| refusal.code);
    assert_eq!((throttle, code), (5000, exceeded));
    let delete = || Command::DeleteTopics(DeleteTopics { topics: vec![TopicRef::Name("a".into())] });
    let (throttle, response) = limited(&mut cluster, true, delete());
    let code = response.topics_deleted().remove(0).1.err().map(|refusal| refusal.code);
    assert_eq!((throttle, code), (5000, exceeded));
    cluster.pass(5);
    let (throttle, response) = limited(&mut cluster, true, delete());
    assert!(response.topics_deleted().remove(0).1.is_ok());
    assert_eq!(throttle, 0);
    let (throttle, _) = limited(&mut cluster, true, create("b", 1));
    assert_eq!(throttle, 20_000, "what was deleted counts too");
}

#[test]
fn an_old_client_over_its_quota_is_served_and_has_to_wait() {
    let mut cluster = Cluster::of(1);
    one(&mut cluster, &[("client-id", None)], &[("controller_mutation_rate", Some(1.0))]).unwrap();
    let (throttle, response) = limited(&mut cluster, false, create("a", 13));
    assert_eq!((throttle, created(response)), (2000, None));
    let (throttle, response) = limited(&mut cluster, false, create("b", 1));
    assert_eq!((throttle, created(response)), (3000, None));
}

#[test]
fn what_is_refused_anyway_costs_no_permit_and_others_have_their_own() {
    let mut cluster = Cluster::of(1);
    one(&mut cluster, &[("user", None)], &[("controller_mutation_rate", Some(1.0))]).unwrap();
    let (throttle, response) = limited(&mut cluster, false, create("no/name", 100));
    assert_eq!((throttle, created(response)), (0, Some(ErrorCode::InvalidTopicException)));
    let (throttle, _) = limited(&mut cluster, false, create("a", 12));
    assert_eq!(throttle, 1000);
    let other = MutationQuota { user: "bob".into(), client_id: "c".into(), is_strict: false };
    let (throttle, _) = cluster.run(Command::Limited(other, Box::new(create("b", 11)))).unwrap().limited();
    assert!(throttle.is_zero());
    // Without a quota nobody waits.
    cluster.run(create("c", 1000)).unwrap();
    one(&mut cluster, &[("user", None)], &[("controller_mutation_rate", None)]).unwrap();
    let (throttle, response) = limited(&mut cluster, true, create("d", 1));
    assert_eq!((throttle, created(response)), (0, None));
}

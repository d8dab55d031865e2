//! `kuring cluster` and `kuring partition` against three processes; what a single broker can answer also against that.

use std::path::PathBuf;

use serde_json::Value;

use super::cluster::{Cluster, KILLS, partitions};
use super::cluster_elections::{await_replicas, create};
use super::harness::batch::Batch;
use super::harness::broker::kuring;
use super::harness::raw::Raw;
use super::harness::{Broker, eventually};

const NONE: i16 = 0;

/// How it ended, its output, what it said on standard error.
fn run(cluster: &Cluster, arguments: &[&str]) -> (Option<i32>, String, String) {
    let addresses: Vec<&str> = cluster.running().map(|(_, node)| node.bootstrap()).collect();
    let (status, out, errors) = kuring(arguments, &["--bootstrap", &addresses.join(",")], b"");
    (status.code(), String::from_utf8(out).expect("text"), errors)
}

#[track_caller]
pub(super) fn done(cluster: &Cluster, arguments: &[&str]) -> String {
    let (code, out, errors) = run(cluster, arguments);
    assert_eq!(code, Some(0), "{arguments:?}: {out}{errors}");
    out
}

#[track_caller]
fn refused(cluster: &Cluster, arguments: &[&str]) -> String {
    let (code, out, errors) = run(cluster, arguments);
    assert_eq!(code, Some(1), "{arguments:?}: {out}{errors}");
    errors
}

fn object(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn in_file(directory: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, text).expect("a temporary file");
    path
}

fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("kuring-test-").tempdir().expect("a temporary directory")
}

/// A plan with partition 0 of a topic on these brokers.
fn plan_of(topic: &str, replicas: &[i32]) -> String {
    format!(r#"{{"version":1,"partitions":[{{"topic":"{topic}","partition":0,"replicas":{replicas:?}}}]}}"#)
}

/// The value that was set on a resource, not inherited.
fn setting(node: &Broker, kind: i8, resource: &str, name: &str) -> Option<String> {
    use kafka_protocol::messages::DescribeConfigsRequest;
    use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
    use kafka_protocol::protocol::StrBytes;
    let text = |text: &str| StrBytes::from_string(text.to_owned());
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(resource))
        .with_configuration_keys(Some(vec![text(name)]));
    let request = DescribeConfigsRequest::default().with_resources(vec![resource]);
    let answer = Raw::connect(node).call(4, &request).results.remove(0);
    assert_eq!(answer.error_code, NONE);
    let config = answer.configs.into_iter().next()?;
    // Of the topic, or of this broker.
    [1, 2].contains(&config.config_source).then(|| config.value.expect("it is told").to_string())
}

#[test]
fn the_state_of_one_broker_is_told() {
    let broker = Broker::start();
    broker.kuring(&["topic", "create", "t", "-p", "3"], b"");
    Raw::connect(&broker).produce("t", 0, -1, Batch::now(&["a"]).encode());
    let status = String::from_utf8(broker.kuring(&["cluster", "status"], b"")).expect("text");
    assert!(status.contains("1 alive, 0 fenced") && status.contains("1, 3 partitions"), "{status}");
    let status =
        object(&String::from_utf8(broker.kuring(&["cluster", "status", "--json"], b"")).expect("text"));
    assert_eq!(
        (&status["topics"], &status["partitions"], &status["faults"]),
        (&1.into(), &3.into(), &Value::Array(vec![]))
    );
    let brokers =
        object(&String::from_utf8(broker.kuring(&["cluster", "brokers", "--json"], b"")).expect("text"));
    let only = &brokers["brokers"][0];
    assert_eq!((&only["leads"], &only["replicas"], &only["fenced"]), (&3.into(), &3.into(), &false.into()));
    assert!(only["log_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{only}");
    let elected = broker.kuring(&["partition", "elect", "--type", "preferred", "--all"], b"");
    assert_eq!(String::from_utf8(elected).expect("text"), "no election is needed\n");
    let (code, _, errors) = kuring(
        &["partition", "elect", "--type", "unclean", "--topic", "nowhere"],
        &["--bootstrap", broker.bootstrap()],
        b"",
    );
    assert_eq!((code.code(), &*errors), (Some(1), "kuring: topic nowhere: UNKNOWN_TOPIC_OR_PARTITION\n"));
}

#[test]
fn a_broker_that_is_gone_is_told_until_it_is_back_and_then_leads_again_on_demand() {
    if Broker::is_kafka() {
        return;
    }
    let mut cluster = Cluster::start_with(&[&KILLS[..], &[("broker.rack", "r{node}")]].concat());
    cluster.await_brokers(&[1, 2, 3]);
    let first = cluster.controller() as i32 + 1;
    let [gone, other] = [first % 3 + 1, (first + 1) % 3 + 1];
    create(&cluster, "t", &[&[gone, first, other], &[first, other, gone], &[other, gone, first]]);
    create(&cluster, "strict", &[&[gone, other]]);
    Raw::connect(&cluster.nodes[0]).set_topic_config("strict", "min.insync.replicas", Some("2"));
    create(&cluster, "alone", &[&[gone]]);
    let status = done(&cluster, &["cluster", "status", "--wait", "30"]);
    assert!(status.contains("3 alive, 0 fenced") && status.contains("3, 5 partitions"), "{status}");
    assert!(status.contains(&format!("controller                    broker {first}\n")), "{status}");

    let quorum = object(&done(&cluster, &["cluster", "quorum", "--json"]));
    let members = quorum["members"].as_array().expect("a list");
    let of_all = |field: &str| members.iter().map(|member| member[field].clone()).collect::<Vec<_>>();
    assert_eq!((&quorum["leader"], members.len()), (&first.into(), 3));
    assert_eq!(of_all("role"), ["leader", "follower", "follower"]);
    assert!(of_all("last_caught_up_ms").iter().all(|ms| ms.as_i64().is_some_and(|ms| ms > 0)), "{quorum}");

    cluster.nodes[gone as usize - 1].kill();
    let (status, errors) = eventually("what it had is missed", || {
        let (code, out, errors) = run(&cluster, &["cluster", "status", "--json"]);
        let status = object(&out);
        let counts =
            ["fenced", "offline", "under_replicated"].map(|list| status[list].as_array().map(Vec::len));
        let is_all = counts == [1, 1, 5].map(Some);
        assert!(!is_all || code == Some(1), "{errors}");
        is_all.then_some((status, errors))
    });
    assert_eq!(status["fenced"], Value::from(vec![gone]));
    assert_eq!(status["offline"], Value::from(vec!["alone-0"]));
    assert_eq!(status["under_min_isr"], Value::from(vec!["strict-0"]));
    let is_told = |errors: &str| {
        // After a while it is missed as a voter, too.
        let begin = format!("kuring: not all is well: 1 broker is fenced ({gone}), ");
        let end = "1 partition is offline, 1 partition is under min ISR, 5 partitions are under-replicated\n";
        assert!(errors.starts_with(&begin) && errors.ends_with(end), "{errors}");
    };
    is_told(&errors);
    is_told(&refused(&cluster, &["cluster", "status", "--wait", "1"]));
    let brokers = object(&done(&cluster, &["cluster", "brokers", "--json"]));
    let of_gone = &brokers["brokers"][gone as usize - 1];
    assert_eq!((&of_gone["fenced"], &of_gone["log_bytes"]), (&true.into(), &Value::Null));
    assert_eq!((&of_gone["leads"], &of_gone["replicas"]), (&0.into(), &5.into()));
    assert_eq!(of_gone["rack"], Value::from(format!("r{gone}")));
    let elect = ["partition", "elect", "--type", "preferred", "--topic", "t", "--partition", "0", "-p", "1"];
    let (code, out, errors) = run(&cluster, &elect);
    assert_eq!((code, &*errors), (Some(1), "kuring: 1 of 2 elections failed\n"));
    assert!(out.starts_with("t-0: PREFERRED_LEADER_NOT_AVAILABLE"), "{out}");
    assert!(out.ends_with("t-1: not needed\n"), "{out}");

    // Whoever waits learns of its return.
    let addresses: Vec<String> = cluster.running().map(|(_, node)| node.bootstrap().to_owned()).collect();
    let waiting = std::thread::spawn(move || {
        kuring(&["cluster", "status", "--wait", "60"], &["--bootstrap", &addresses.join(",")], b"")
    });
    cluster.start_stopped();
    let (status, out, errors) = waiting.join().expect("it ends");
    let out = String::from_utf8(out).expect("text");
    assert!(status.success(), "{out}{errors}");
    assert!(out.contains("not led by the first replica  2: strict-0 t-0\n"), "{out}");
    let elected = done(&cluster, &["partition", "elect", "--type", "preferred", "--all"]);
    assert_eq!(elected, "strict-0: elected\nt-0: elected\n");
    done(&cluster, &["cluster", "status", "--wait", "30"]);
}

#[test]
fn a_plan_is_made_executed_verified_and_taken_back() {
    if Broker::is_kafka() {
        return;
    }
    let files = scratch();
    let cluster = Cluster::start();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", &[&[1, 2], &[2, 1], &[1, 2]]);
    create(&cluster, "u", &[&[1, 2, 3]]);
    let back = files.path().join("back.json");
    let back = back.to_str().expect("text");
    let plan = ["partition", "reassign", "plan", "--brokers", "1,2,3", "--topics"];
    let (code, planned, errors) = run(&cluster, &[&plan[..], &["t", "--rollback", back]].concat());
    assert!(code == Some(0) && errors.ends_with(" partitions change, 2 replicas are copied\n"), "{errors}");
    let file = in_file(&files, "plan.json", &planned);
    let file = ["--file", file.to_str().expect("text")];
    let verify = [&["partition", "reassign", "verify"][..], &file].concat();
    let told = refused(&cluster, &verify);
    assert!(told.starts_with("kuring: in progress: 0, not as planned: "), "{told}");

    let begun = done(&cluster, &[&["partition", "reassign", "execute"][..], &file].concat());
    let before = std::fs::read_to_string(back).expect("it was written");
    assert!(begun.contains(&before), "{begun}");
    let verified = done(&cluster, &[&verify[..], &["--wait", "60"]].concat());
    let told: Vec<&str> = verified.lines().collect();
    let changed = planned.matches("\"topic\"").count();
    assert_eq!((told.len(), told[changed]), (changed + 1, "no throttle is left"));
    assert!(told[..changed].iter().all(|line| line.ends_with(": done")), "{verified}");
    let (code, planned, errors) = run(&cluster, &[&plan[..], &["t,u"]].concat());
    assert_eq!((code, &*planned, &*errors), (Some(0), "", "all is balanced: nothing moves\n"));

    let back = ["--file", back];
    done(&cluster, &[&["partition", "reassign", "execute"][..], &back].concat());
    done(&cluster, &[&["partition", "reassign", "verify", "--wait", "60"][..], &back].concat());
    await_replicas(&cluster, "t", &[1, 2]);
}

#[test]
fn what_moves_is_throttled_until_it_is_done_or_given_up() {
    if Broker::is_kafka() {
        return;
    }
    // A rate that lets a request pass in each round of windows, which are longer than the test lasts.
    let windows = [("replication.quota.window.size.seconds", "60")];
    let cluster = Cluster::start_with(&windows);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", &[&[1]]);
    await_replicas(&cluster, "t", &[1]);
    let value = "x".repeat(500_000);
    for _ in 0..16 {
        eventually("its leader takes it", || {
            let batch = Batch::now(&[&value]).encode();
            (Raw::connect(&cluster.nodes[0]).produce("t", 0, -1, batch).error_code == NONE).then_some(())
        });
    }
    let files = scratch();
    let file = in_file(&files, "plan.json", &plan_of("t", &[2]));
    let file = ["--file", file.to_str().expect("text")];
    let command = |name: &'static str| [&["partition", "reassign", name][..], &file].concat();
    done(&cluster, &[&command("execute")[..], &["--throttle", "1000"]].concat());
    let of_topic = |name: &str| setting(&cluster.nodes[0], 2, "t", name);
    let of_brokers =
        |name: &str| [0, 1, 2].map(|at| setting(&cluster.nodes[at], 4, &(at + 1).to_string(), name));
    let are_set = || {
        let rate = Some("1000".to_owned());
        of_topic("leader.replication.throttled.replicas").as_deref() == Some("0:1")
            && of_topic("follower.replication.throttled.replicas").as_deref() == Some("0:2")
            && of_brokers("leader.replication.throttled.rate") == [rate.clone(), rate.clone(), None]
            && of_brokers("follower.replication.throttled.rate") == [rate.clone(), rate, None]
    };
    eventually("the throttles are set", || are_set().then_some(()));
    let (code, out, errors) = run(&cluster, &command("verify"));
    assert_eq!((code, &*out), (Some(1), "t-0: in progress, not yet in sync: 2\n"), "{errors}");
    assert_eq!(errors, "kuring: in progress: 1, not as planned: 0\n");
    // It is no fault, and no other plan is executed beside it by mistake.
    let status = object(&done(&cluster, &["cluster", "status", "--json"]));
    assert_eq!(status["reassigning"], Value::from(vec!["t-0"]));
    let told = refused(&cluster, &command("execute"));
    assert!(told.starts_with("kuring: t-0 is being reassigned: with --additional"), "{told}");
    let plan = ["partition", "reassign", "plan", "--topics", "t", "--brokers", "1,2,3"];
    assert!(refused(&cluster, &plan).starts_with("kuring: t-0 is being reassigned: wait"));
    assert!(are_set(), "they stay while something is under way");

    let given_up = done(&cluster, &command("cancel"));
    assert_eq!(given_up, "t-0: given up\nno throttle is left\n");
    eventually("the throttles are gone", || {
        let lists =
            ["leader", "follower"].map(|end| of_topic(&format!("{end}.replication.throttled.replicas")));
        let rates =
            ["leader", "follower"].map(|end| of_brokers(&format!("{end}.replication.throttled.rate")));
        (lists == [None, None] && rates.iter().flatten().all(Option::is_none)).then_some(())
    });
    await_replicas(&cluster, "t", &[1]);
    assert_eq!(done(&cluster, &command("cancel")), "nothing of the plan is under way\nno throttle is left\n");

    // A higher rate for what is under way.
    done(&cluster, &[&command("execute")[..], &["--throttle", "1000"]].concat());
    let faster = ["--throttle", "1000000000", "--additional"];
    done(&cluster, &[&command("execute")[..], &faster].concat());
    let verified =
        done(&cluster, &[&command("verify")[..], &["--wait", "60", "--preserve-throttles"]].concat());
    assert_eq!(verified, "t-0: done\n");
    assert!(of_topic("leader.replication.throttled.replicas").is_some());
    let verified = done(&cluster, &command("verify"));
    assert_eq!(verified, "t-0: done\nno throttle is left\n");
    await_replicas(&cluster, "t", &[2]);
}

#[test]
fn plans_that_cannot_be_meant_are_refused_and_nothing_is_changed() {
    if Broker::is_kafka() {
        return;
    }
    let cluster = Cluster::start();
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", &[&[1, 2]]);
    await_replicas(&cluster, "t", &[1, 2]);
    let files = scratch();
    let one = r#"{"topic":"t","partition":0,"replicas":[2,3]}"#;
    let with = |entries: &str| format!(r#"{{"version":1,"partitions":[{entries}]}}"#);
    for (text, reason) in [
        (plan_of("t", &[1, 9]), "there is no broker 9 that is alive"),
        (plan_of("nowhere", &[1]), "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"),
        (with(&one.replace(":0,", ":5,")), "there is no partition t-5"),
        (with(&format!("{one},{one}")), "partition t-0 is named twice"),
        (plan_of("t", &[]), "partition t-0 has no replicas"),
        (plan_of("t", &[2, 2]), "partition t-0 has broker 2 twice"),
        (with(""), "it names no partition"),
        ("plan".to_owned(), "not a plan: "),
    ] {
        let file = in_file(&files, "plan.json", &text);
        let file = file.to_str().expect("text");
        let told = refused(&cluster, &["partition", "reassign", "execute", "--file", file]);
        assert!(told.contains(reason) && told.lines().count() == 1, "{told}");
    }
    let file = in_file(&files, "plan.json", &plan_of("t", &[1, 2, 3]));
    let execute = ["partition", "reassign", "execute", "--file", file.to_str().expect("text")];
    let told = run(&cluster, &[&execute[..], &["--disallow-replication-factor-change"]].concat());
    assert!(told.1.contains("t-0: INVALID_REPLICATION_FACTOR"), "{told:?}");
    assert_eq!(told.2, "kuring: 1 of 1 partitions failed\n");
    let plan = ["partition", "reassign", "plan", "--topics"];
    for (rest, reason) in [
        (["t", "--brokers", "1,9"], "there is no broker 9"),
        (["t", "--brokers", "1"], "partition t-0 has 2 replicas, more than the 1 brokers"),
        (["t", "--brokers", "1,2,1"], "broker 1 is named twice"),
        (["t,t", "--brokers", "1,2"], "topic t is named twice"),
        (["nowhere", "--brokers", "1,2"], "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION"),
    ] {
        assert_eq!(refused(&cluster, &[&plan[..], &rest].concat()), format!("kuring: {reason}\n"));
    }
    let found = partitions(&mut Raw::connect(&cluster.nodes[0]), "t").expect("it is there");
    assert_eq!(found[0].replica_nodes.iter().map(|id| id.0).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn replicas_go_to_the_log_directories_that_a_plan_names() {
    if Broker::is_kafka() {
        return;
    }
    let settings = [("log.dirs", "~/data,~/second"), ("kuring.reserve.bytes", "0")];
    let cluster = Cluster::start_with(&settings);
    cluster.await_brokers(&[1, 2, 3]);
    create(&cluster, "t", &[&[1]]);
    await_replicas(&cluster, "t", &[1]);
    let node = &cluster.nodes[1];
    let [first, second] = [node.data(), node.home().join("second")];
    let files = scratch();
    let execute = |directory: &std::path::Path| {
        let entry =
            format!(r#"{{"topic":"t","partition":0,"replicas":[1,2],"log_dirs":["any",{directory:?}]}}"#);
        let file = in_file(&files, "plan.json", &format!(r#"{{"version":1,"partitions":[{entry}]}}"#));
        let file = file.to_str().expect("text").to_owned();
        let begun = run(&cluster, &["partition", "reassign", "execute", "--file", &file]);
        let verified = run(&cluster, &["partition", "reassign", "verify", "--file", &file, "--wait", "60"]);
        (begun, verified)
    };
    for directory in [&second, &first, &second] {
        let (begun, verified) = execute(directory);
        assert_eq!(begun.0, Some(0), "{begun:?}");
        assert!(begun.1.ends_with("t-0: begun\nt-0 on broker 2: goes to its directory\n"), "{begun:?}");
        let expected = "t-0: done\nt-0 on broker 2: in its directory\nno throttle is left\n";
        assert_eq!((verified.0, &*verified.1), (Some(0), expected), "{verified:?}");
        assert!(directory.join("t-0").exists());
    }
    let (begun, verified) = execute(&node.home().join("nowhere"));
    assert_eq!(begun.0, Some(1));
    assert!(begun.1.ends_with("t-0: LOG_DIR_NOT_FOUND (on broker 2)\n"), "{begun:?}");
    assert_eq!(begun.2, "kuring: 1 replicas do not go to their directories\n");
    let expected = format!(
        "t-0: done\nt-0 on broker 2: in {}, which is not planned, and not on its way\nno throttle is left\n",
        second.display()
    );
    assert_eq!((verified.0, verified.1), (Some(1), expected));
    assert_eq!(verified.2, "kuring: in progress: 0, not as planned: 1\n");
}

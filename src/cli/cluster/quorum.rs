//! `kuring cluster quorum`.

use serde_json::{Value, json};

use super::ShowArguments;
use crate::base::TopicId;
use crate::base::clock::{Timestamp, wall};
use crate::cli::output::{Failure, Output, table};
use crate::client::{ClientError, Quorum, QuorumReplica};

const HEADINGS: [&str; 7] =
    ["NODE", "ROLE", "LOG END", "LAG", "LAST FETCH", "LAST CAUGHT UP", "DIRECTORY ID"];

pub fn run(arguments: &ShowArguments, out: &mut Output) -> Result<(), Failure> {
    let quorum = match arguments.connect.cluster()?.describe_quorum() {
        Ok(quorum) => quorum,
        Err(ClientError::NoCommonVersion { address, .. }) => {
            return Err(Failure::Told(format!("{address} does not tell of its quorum (no DescribeQuorum)")));
        }
        Err(error) => return Err(error.into()),
    };
    if arguments.json {
        out.line(as_json(&quorum))?;
    } else {
        let Quorum { leader, epoch, high_watermark, .. } = &quorum;
        out.line(format_args!("leader {leader}, epoch {epoch}, high watermark {high_watermark}"))?;
        let now = leaders_time(&quorum).unwrap_or_else(wall);
        let rows: Vec<_> = members(&quorum).map(|(role, one)| as_row(role, one, &quorum, now)).collect();
        out.write(table(&HEADINGS, &rows).as_bytes())?;
    }
    out.flush()
}

/// Its own entry has the time of its answer.
fn leaders_time(quorum: &Quorum) -> Option<Timestamp> {
    of_leader(quorum)?.last_caught_up
}

fn of_leader(quorum: &Quorum) -> Option<&QuorumReplica> {
    quorum.voters.iter().find(|voter| voter.id == quorum.leader)
}

/// The leader first.
fn members(quorum: &Quorum) -> impl Iterator<Item = (&'static str, &QuorumReplica)> {
    let followers = quorum.voters.iter().filter(|voter| voter.id != quorum.leader);
    let leader = of_leader(quorum).into_iter().map(|leader| ("leader", leader));
    let followers = followers.map(|follower| ("follower", follower));
    leader.chain(followers).chain(quorum.observers.iter().map(|observer| ("observer", observer)))
}

fn lag(one: &QuorumReplica, quorum: &Quorum) -> Option<i64> {
    let end = of_leader(quorum)?.log_end;
    (one.log_end.0 >= 0).then(|| end.0.saturating_sub(one.log_end.0))
}

fn as_row(role: &str, one: &QuorumReplica, quorum: &Quorum, now: Timestamp) -> Vec<String> {
    let known = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let ago =
        |time: Option<Timestamp>| time.map(|time| format!("{} ms ago", now.0.saturating_sub(time.0).max(0)));
    vec![
        one.id.to_string(),
        role.to_owned(),
        one.log_end.to_string(),
        known(lag(one, quorum).map(|lag| lag.to_string())),
        known(ago(one.last_fetch)),
        known(ago(one.last_caught_up)),
        known((one.directory != TopicId::ZERO).then(|| one.directory.to_string())),
    ]
}

fn as_json(quorum: &Quorum) -> Value {
    let member = |(role, one): (&str, &QuorumReplica)| {
        json!({
            "id": one.id.0,
            "role": role,
            "directory_id": (one.directory != TopicId::ZERO).then(|| one.directory.to_string()),
            "log_end_offset": one.log_end.0,
            "lag": lag(one, quorum),
            "last_fetch_ms": one.last_fetch.map(|time| time.0),
            "last_caught_up_ms": one.last_caught_up.map(|time| time.0),
        })
    };
    json!({
        "leader": quorum.leader.0,
        "epoch": quorum.epoch.0,
        "high_watermark": quorum.high_watermark.0,
        "members": members(quorum).map(member).collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{BrokerId, LeaderEpoch, Offset};

    #[test]
    fn members_are_shown_with_what_they_lack() {
        let member = |id: i32, log_end: i64, caught_up: Option<i64>| QuorumReplica {
            id: BrokerId(id),
            directory: TopicId::ZERO,
            log_end: Offset(log_end),
            last_fetch: caught_up.map(Timestamp),
            last_caught_up: caught_up.map(Timestamp),
        };
        let quorum = Quorum {
            leader: BrokerId(2),
            epoch: LeaderEpoch(4),
            high_watermark: Offset(9),
            voters: vec![member(1, 7, Some(900)), member(2, 10, Some(1000)), member(3, -1, None)],
            observers: vec![member(9, 10, Some(1001))],
        };
        let now = leaders_time(&quorum).expect("the leader tells");
        let rows: Vec<_> =
            members(&quorum).map(|(role, one)| as_row(role, one, &quorum, now).join(" ")).collect();
        let expected = [
            "2 leader 10 0 0 ms ago 0 ms ago -",
            "1 follower 7 3 100 ms ago 100 ms ago -",
            "3 follower -1 - - - -",
            "9 observer 10 0 0 ms ago 0 ms ago -",
        ];
        assert_eq!(rows, expected);
        assert_eq!(as_json(&quorum)["members"][1]["lag"], 3);
    }
}

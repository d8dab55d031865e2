//! Which replicas are throttled while partitions move, and where: those that have the data send it slowly, those that
//! come take it slowly, and nobody else is held up (`ReassignPartitionsCommand.calculateProposedMoveMap`).

use std::collections::{BTreeMap, BTreeSet};

use super::{Assignment, UnderWay};
use crate::base::{BrokerId, TopicName, TopicPartition};

/// Values for the topics' lists of throttled replicas, and the brokers whose rates are to be set.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Throttles {
    /// `leader.replication.throttled.replicas` and `follower.replication.throttled.replicas` of each topic.
    pub topics: BTreeMap<TopicName, (String, String)>,
    pub brokers: BTreeSet<BrokerId>,
}

/// Those that have the data of a partition, and those that are to get it.
struct Move {
    sources: BTreeSet<BrokerId>,
    destinations: BTreeSet<BrokerId>,
}

/// Of all that is under way and of what is wanted beside it; `present` has the partitions that are wanted.
pub fn throttles(
    under_way: &BTreeMap<TopicPartition, UnderWay>,
    present: &Assignment,
    wanted: &Assignment,
) -> Throttles {
    let mut moves: BTreeMap<&TopicPartition, Move> =
        under_way.iter().map(|(partition, one)| (partition, of_under_way(one))).collect();
    for (partition, replicas) in wanted {
        let sources = match moves.remove(partition) {
            Some(under_way) => under_way.sources,
            None => present.get(partition).into_iter().flatten().copied().collect(),
        };
        let destinations = replicas.iter().filter(|id| !sources.contains(*id)).copied().collect();
        moves.insert(partition, Move { sources, destinations });
    }
    let mut throttles = Throttles::default();
    let mut lists: BTreeMap<&TopicName, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for (partition, one) in &moves {
        let pair = |id: &BrokerId| format!("{}:{id}", partition.partition);
        let (leaders, followers) = lists.entry(&partition.topic).or_default();
        leaders.extend(one.sources.iter().map(pair));
        followers.extend(one.destinations.iter().map(pair));
        throttles.brokers.extend(one.sources.iter().chain(&one.destinations));
    }
    let joined = |(topic, (leaders, followers)): (&TopicName, (Vec<String>, Vec<String>))| {
        (topic.clone(), (leaders.join(","), followers.join(",")))
    };
    throttles.topics = lists.into_iter().map(joined).collect();
    throttles
}

fn of_under_way(one: &UnderWay) -> Move {
    let sources = one.replicas.iter().filter(|id| !one.adding.contains(id)).copied().collect();
    Move { sources, destinations: one.adding.iter().copied().collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::PartitionIndex;

    fn ids(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    fn partition(topic: &str, index: i32) -> TopicPartition {
        TopicPartition::new(topic, PartitionIndex(index))
    }

    #[test]
    fn who_has_the_data_sends_slowly_and_who_comes_takes_slowly() {
        let present = Assignment::from([
            (partition("a", 0), ids(&[1, 2])),
            (partition("a", 10), ids(&[2, 3])),
            (partition("b", 0), ids(&[7])),
        ]);
        let wanted = Assignment::from([
            (partition("a", 0), ids(&[2, 4])),
            (partition("a", 10), ids(&[3, 2])),
            (partition("b", 0), ids(&[8])),
        ]);
        let made = throttles(&BTreeMap::new(), &present, &wanted);
        let lists = |leaders: &str, followers: &str| (leaders.to_owned(), followers.to_owned());
        assert_eq!(made.topics[&TopicName::new("a")], lists("0:1,0:2,10:2,10:3", "0:4"));
        assert_eq!(made.topics[&TopicName::new("b")], lists("0:7", "0:8"));
        assert_eq!(made.brokers.into_iter().collect::<Vec<_>>(), ids(&[1, 2, 3, 4, 7, 8]));
    }

    #[test]
    fn what_is_under_way_stays_throttled_and_has_its_data_where_it_was() {
        let moving = |replicas: &[i32], adding: &[i32], removing: &[i32]| UnderWay {
            replicas: ids(replicas),
            adding: ids(adding),
            removing: ids(removing),
        };
        let under_way = BTreeMap::from([
            (partition("a", 0), moving(&[3, 1, 2], &[3], &[1])),
            (partition("b", 1), moving(&[5, 4], &[5], &[4])),
        ]);
        let present = Assignment::from([(partition("a", 0), ids(&[3, 1, 2]))]);
        let wanted = Assignment::from([(partition("a", 0), ids(&[6, 2]))]);
        let made = throttles(&under_way, &present, &wanted);
        assert_eq!(made.topics[&TopicName::new("a")], ("0:1,0:2".to_owned(), "0:6".to_owned()));
        assert_eq!(made.topics[&TopicName::new("b")], ("1:4".to_owned(), "1:5".to_owned()));
        assert_eq!(made.brokers.into_iter().collect::<Vec<_>>(), ids(&[1, 2, 4, 5, 6]));
    }
}

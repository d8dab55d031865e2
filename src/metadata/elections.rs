//! One rule for every change of a partition: who is in sync, who leads, when a reassignment is done
//! (`PartitionChangeBuilder`). Pure. Whoever wants something of a partition says so with a [`Target`]; [`change`]
//! makes of it what may be, and tells what differs.

use super::image::PartitionImage;
use crate::base::{BrokerId, LeaderEpoch};

/// What is on its way with a partition, beside what every partition has.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Transit {
    /// Replicas that a reassignment adds and takes away; both kinds are among the replicas meanwhile.
    pub adding: Vec<BrokerId>,
    pub removing: Vec<BrokerId>,
    /// Eligible leader replicas (KIP-966): they left the ISR when it had fewer than the least number, so they have
    /// all that was acknowledged.
    pub elr: Vec<BrokerId>,
    /// Who led when nobody was left.
    pub last_known: Option<BrokerId>,
    /// The leader was elected without being sure of all that was acknowledged, and has not said yet that it is ready.
    pub recovering: bool,
}

/// Of a partition that has nothing on its way.
pub static NO_TRANSIT: Transit = Transit {
    adding: Vec::new(),
    removing: Vec::new(),
    elr: Vec::new(),
    last_known: None,
    recovering: false,
};

/// What a partition shall become, as far as the rules allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub replicas: Vec<BrokerId>,
    pub isr: Vec<BrokerId>,
    pub adding: Vec<BrokerId>,
    pub removing: Vec<BrokerId>,
    /// A replica that came back without all that it had: in no case eligible.
    pub unclean: Option<BrokerId>,
    /// As the leader says.
    pub recovering: bool,
}

impl Target {
    /// Everything as it is.
    pub fn of(partition: &PartitionImage, transit: &Transit) -> Self {
        Self {
            replicas: partition.replicas.to_vec(),
            isr: partition.isr.to_vec(),
            adding: transit.adding.clone(),
            removing: transit.removing.clone(),
            unclean: None,
            recovering: transit.recovering,
        }
    }
}

/// Who may lead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Election {
    /// Whoever leads goes on; else the first that may.
    Online,
    /// The first replica, if it may.
    Preferred,
    /// If nobody may, the first that is there at all.
    Unclean,
}

/// What the rules depend on.
pub struct Rules<'a> {
    pub election: Election,
    /// Whether eligible leader replicas are kept; an ISR may become empty then.
    pub elr: bool,
    /// `min.insync.replicas` of the topic.
    pub min_isr: usize,
    /// Whether a broker serves its replica: unfenced, not shutting down, the directory online.
    pub serves: &'a dyn Fn(BrokerId) -> bool,
}

/// What becomes another.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Change {
    /// With it the leader epoch grows, also where the leader stays.
    pub leader: Option<Option<BrokerId>>,
    pub isr: Option<Box<[BrokerId]>>,
    pub replicas: Option<Box<[BrokerId]>>,
    pub transit: Option<Transit>,
    /// The new leader may lack what was acknowledged.
    pub is_unclean: bool,
}

impl Change {
    /// The partition as it is then.
    pub fn apply_to(self, partition: &PartitionImage) -> PartitionImage {
        let mut changed = partition.clone();
        if let Some(leader) = self.leader {
            changed.leader = leader;
            changed.leader_epoch = LeaderEpoch(changed.leader_epoch.0 + 1);
        }
        changed.partition_epoch += 1;
        if let Some(isr) = self.isr {
            changed.isr = isr;
        }
        if let Some(replicas) = self.replicas {
            if !partition.directories.is_empty() {
                changed.directories = replicas.iter().map(|broker| partition.directory_of(*broker)).collect();
            }
            changed.replicas = replicas;
        }
        if let Some(transit) = self.transit {
            changed.transit = (transit != NO_TRANSIT).then(|| Box::new(transit));
        }
        changed
    }
}

/// What `target` makes of a partition; `None` when nothing changes.
pub fn change(
    partition: &PartitionImage,
    transit: &Transit,
    mut target: Target,
    rules: &Rules<'_>,
) -> Option<Change> {
    if target.isr.is_empty() && !rules.elr {
        // The last one stays: it alone has everything.
        target.isr =
            partition.isr.iter().copied().filter(|broker| target.replicas.contains(broker)).collect();
    }
    complete_reassignment(&mut target);
    let Target { replicas, mut isr, adding, removing, unclean, mut recovering } = target;
    let mut elr = eligible(partition, transit, &replicas, &isr, unclean, rules);
    let chosen = choose(partition, transit, &replicas, &isr, &elr, rules);
    match chosen {
        Chosen::InSync(_) | Chosen::Nobody => {}
        Chosen::Eligible(leader) => {
            isr = vec![leader];
            elr.retain(|broker| *broker != leader);
        }
        Chosen::Unclean(leader) => {
            isr = vec![leader];
            elr.clear();
            recovering = true;
        }
    }
    let leader = chosen.leader();
    let last_known = match leader {
        None if isr.is_empty() => partition.leader.or(transit.last_known),
        _ => None,
    };
    let lost_a_replica = partition.replicas.iter().any(|broker| !replicas.contains(broker));
    let after = Transit { adding, removing, elr, last_known, recovering };
    let change = Change {
        leader: (leader != partition.leader || lost_a_replica).then_some(leader),
        isr: (*isr != *partition.isr).then(|| isr.into()),
        replicas: (*replicas != *partition.replicas).then(|| replicas.into()),
        transit: (after != *transit).then_some(after),
        is_unclean: matches!(chosen, Chosen::Unclean(_)),
    };
    (change != Change::default()).then_some(change)
}

/// A reassignment is done when all replicas that are to stay are in sync.
fn complete_reassignment(target: &mut Target) {
    if target.adding.is_empty() && target.removing.is_empty() {
        return;
    }
    let stays = |broker: &&BrokerId| !target.removing.contains(broker);
    let isr: Vec<BrokerId> = target.isr.iter().filter(stays).copied().collect();
    let replicas: Vec<BrokerId> = target.replicas.iter().filter(stays).copied().collect();
    if !isr.is_empty() && replicas.iter().all(|broker| isr.contains(broker)) {
        (target.isr, target.replicas) = (isr, replicas);
        target.adding.clear();
        target.removing.clear();
    }
}

/// The eligible leader replicas, in the order of the replicas.
fn eligible(
    partition: &PartitionImage,
    transit: &Transit,
    replicas: &[BrokerId],
    isr: &[BrokerId],
    unclean: Option<BrokerId>,
    rules: &Rules<'_>,
) -> Vec<BrokerId> {
    if !rules.elr || isr.len() >= rules.min_isr.min(replicas.len()) {
        return Vec::new();
    }
    // Nobody else has what the only replica lacks: it leads with what it has.
    let unclean = unclean.filter(|_| replicas.len() > 1);
    let was_in_sync = |broker: &BrokerId| transit.elr.contains(broker) || partition.isr.contains(broker);
    let is_eligible =
        |broker: &BrokerId| was_in_sync(broker) && !isr.contains(broker) && Some(*broker) != unclean;
    replicas.iter().copied().filter(is_eligible).collect()
}

#[derive(Clone, Copy)]
enum Chosen {
    InSync(BrokerId),
    /// Not in sync, but with all that was acknowledged.
    Eligible(BrokerId),
    Unclean(BrokerId),
    Nobody,
}

impl Chosen {
    fn leader(self) -> Option<BrokerId> {
        match self {
            Chosen::InSync(leader) | Chosen::Eligible(leader) | Chosen::Unclean(leader) => Some(leader),
            Chosen::Nobody => None,
        }
    }
}

fn choose(
    partition: &PartitionImage,
    transit: &Transit,
    replicas: &[BrokerId],
    isr: &[BrokerId],
    elr: &[BrokerId],
    rules: &Rules<'_>,
) -> Chosen {
    let serves = |broker: &BrokerId| (rules.serves)(*broker);
    let may_lead = |broker: &BrokerId| {
        replicas.contains(broker)
            && serves(broker)
            && (isr.contains(broker) || (isr.is_empty() && elr.contains(broker)))
    };
    let preferred = replicas.first().copied().filter(|_| rules.election == Election::Preferred);
    let mut in_order = preferred.into_iter().chain(partition.leader).chain(replicas.iter().copied());
    if let Some(leader) = in_order.find(may_lead) {
        return if isr.contains(&leader) { Chosen::InSync(leader) } else { Chosen::Eligible(leader) };
    }
    let last_known = transit.last_known.or(partition.leader).filter(|last| replicas.contains(last));
    match last_known.filter(serves) {
        // Nobody is left who surely has everything; whoever led last has the most.
        Some(last) if rules.elr && isr.is_empty() && elr.is_empty() => Chosen::Unclean(last),
        _ if rules.election == Election::Unclean => match replicas.iter().copied().find(serves) {
            Some(first) => Chosen::Unclean(first),
            None => Chosen::Nobody,
        },
        _ => Chosen::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::LeaderEpoch;

    fn brokers(ids: &[i32]) -> Vec<BrokerId> {
        ids.iter().copied().map(BrokerId).collect()
    }

    fn partition(replicas: &[i32], isr: &[i32], leader: Option<i32>) -> PartitionImage {
        PartitionImage {
            replicas: brokers(replicas).into(),
            isr: brokers(isr).into(),
            leader: leader.map(BrokerId),
            leader_epoch: LeaderEpoch(5),
            partition_epoch: 9,
            directories: Box::default(),
            transit: None,
        }
    }

    /// A row: replicas 1, 2, 3 with this ISR, leader and ELR; the ISR that is wanted; who serves; the election; and
    /// then the leader, ISR and ELR that come of it.
    struct Row {
        what: &'static str,
        before: (&'static [i32], Option<i32>, &'static [i32]),
        wanted: &'static [i32],
        serve: &'static [i32],
        election: Election,
        after: (Option<i32>, &'static [i32], &'static [i32]),
    }

    const fn row(
        what: &'static str,
        before: (&'static [i32], Option<i32>, &'static [i32]),
        wanted: &'static [i32],
        serve: &'static [i32],
        election: Election,
        after: (Option<i32>, &'static [i32], &'static [i32]),
    ) -> Row {
        Row { what, before, wanted, serve, election, after }
    }

    use Election::{Online, Preferred, Unclean};

    /// With eligible leader replicas and two as the least number in sync.
    const WITH_ELR: &[Row] = &[
        row(
            "nothing is to be done",
            (&[1, 2, 3], Some(1), &[]),
            &[1, 2, 3],
            &[1, 2, 3],
            Online,
            (Some(1), &[1, 2, 3], &[]),
        ),
        row(
            "a follower leaves",
            (&[1, 2, 3], Some(1), &[]),
            &[1, 2],
            &[1, 2],
            Online,
            (Some(1), &[1, 2], &[]),
        ),
        row(
            "below the least number it is eligible",
            (&[1, 2], Some(1), &[]),
            &[1],
            &[1],
            Online,
            (Some(1), &[1], &[2]),
        ),
        row(
            "the leader leaves",
            (&[1, 2, 3], Some(1), &[]),
            &[2, 3],
            &[2, 3],
            Online,
            (Some(2), &[2, 3], &[]),
        ),
        row("the last leaves", (&[2], Some(2), &[1]), &[], &[], Online, (None, &[], &[1, 2])),
        row("an eligible one comes back", (&[], None, &[1, 2]), &[], &[1, 3], Online, (Some(1), &[1], &[2])),
        row("one that is not eligible waits", (&[], None, &[1, 2]), &[], &[3], Online, (None, &[], &[1, 2])),
        row("unless it may be unclean", (&[], None, &[1, 2]), &[], &[3], Unclean, (Some(3), &[3], &[])),
        row(
            "unclean only where it must be",
            (&[1, 2], Some(1), &[]),
            &[2],
            &[2, 3],
            Unclean,
            (Some(2), &[2], &[1]),
        ),
        row(
            "the first is preferred",
            (&[1, 2, 3], Some(2), &[]),
            &[1, 2, 3],
            &[1, 2, 3],
            Preferred,
            (Some(1), &[1, 2, 3], &[]),
        ),
        row(
            "if it is in sync",
            (&[2, 3], Some(2), &[]),
            &[2, 3],
            &[1, 2, 3],
            Preferred,
            (Some(2), &[2, 3], &[]),
        ),
        row(
            "and serves",
            (&[1, 2, 3], Some(2), &[]),
            &[1, 2, 3],
            &[2, 3],
            Preferred,
            (Some(2), &[1, 2, 3], &[]),
        ),
        row(
            "in sync again, all are",
            (&[1], Some(1), &[2]),
            &[1, 2],
            &[1, 2],
            Online,
            (Some(1), &[1, 2], &[]),
        ),
    ];

    const WITHOUT_ELR: &[Row] = &[
        row("the last stays in sync", (&[2], Some(2), &[]), &[], &[], Online, (None, &[2], &[])),
        row("and leads when it is back", (&[2], None, &[]), &[2], &[2, 3], Online, (Some(2), &[2], &[])),
        row("others wait for it", (&[2], None, &[]), &[2], &[1, 3], Online, (None, &[2], &[])),
        row("unless one may be unclean", (&[2], None, &[]), &[2], &[1, 3], Unclean, (Some(1), &[1], &[])),
        row("nobody is eligible", (&[1, 2], Some(1), &[]), &[1], &[1], Online, (Some(1), &[1], &[])),
    ];

    fn check(rows: &[Row], elr: bool) {
        for Row { what, before: (isr, leader, eligible), wanted, serve, election, after } in rows {
            let before = partition(&[1, 2, 3], isr, *leader);
            let transit = Transit { elr: brokers(eligible), ..Transit::default() };
            let target = Target { isr: brokers(wanted), ..Target::of(&before, &transit) };
            let serve = brokers(serve);
            let serves = |broker: BrokerId| serve.contains(&broker);
            let rules = Rules { election: *election, elr, min_isr: 2, serves: &serves };
            let change = change(&before, &transit, target, &rules).unwrap_or_default();
            let found = (
                change.leader.unwrap_or(before.leader),
                change.isr.clone().unwrap_or(before.isr.clone()).to_vec(),
                change.transit.clone().unwrap_or(transit).elr,
            );
            let expected = (after.0.map(BrokerId), brokers(after.1), brokers(after.2));
            assert_eq!(found, expected, "{what}");
            let has_changed = (before.leader, before.isr.to_vec(), brokers(eligible)) != found;
            assert!(has_changed || change.isr.is_none() && change.leader.is_none(), "{what}");
        }
    }

    #[test]
    fn leaders_follow_from_who_is_in_sync_eligible_and_there() {
        check(WITH_ELR, true);
        check(WITHOUT_ELR, false);
    }

    fn with(serve: &[i32], elr: bool, run: impl FnOnce(&Rules<'_>)) {
        let serve = brokers(serve);
        let serves = |broker: BrokerId| serve.contains(&broker);
        run(&Rules { election: Election::Online, elr, min_isr: 2, serves: &serves });
    }

    #[test]
    fn a_replica_that_lost_something_is_not_eligible_but_where_it_is_the_only_one() {
        with(&[], true, |rules| {
            let before = partition(&[1, 2, 3], &[1], Some(1));
            let transit = Transit { elr: brokers(&[2]), ..Transit::default() };
            let target =
                Target { isr: Vec::new(), unclean: Some(BrokerId(1)), ..Target::of(&before, &transit) };
            let after = change(&before, &transit, target, rules).unwrap();
            assert_eq!((after.leader, after.isr.as_deref()), (Some(None), Some(&[][..])));
            let transit = after.transit.unwrap();
            assert_eq!((transit.elr, transit.last_known), (brokers(&[2]), Some(BrokerId(1))));
            let before = partition(&[1], &[1], Some(1));
            let target = Target {
                isr: Vec::new(),
                unclean: Some(BrokerId(1)),
                ..Target::of(&before, &Transit::default())
            };
            let after = change(&before, &Transit::default(), target, rules).unwrap();
            assert_eq!(after.transit.unwrap().elr, brokers(&[1]));
        });
    }

    #[test]
    fn when_nobody_is_left_the_last_leader_leads_as_soon_as_it_serves() {
        let before = partition(&[1, 2, 3], &[], None);
        let transit = Transit { last_known: Some(BrokerId(2)), ..Transit::default() };
        with(&[1, 3], true, |rules| {
            assert_eq!(change(&before, &transit, Target::of(&before, &transit), rules), None);
        });
        with(&[1, 2], true, |rules| {
            let after = change(&before, &transit, Target::of(&before, &transit), rules).unwrap();
            assert_eq!((after.leader, after.is_unclean), (Some(Some(BrokerId(2))), true));
            assert_eq!(after.isr.as_deref(), Some(&brokers(&[2])[..]));
            let expected = Transit { recovering: true, ..Transit::default() };
            assert_eq!(after.transit, Some(expected));
        });
    }

    #[test]
    fn a_reassignment_is_done_when_all_that_stay_are_in_sync() {
        let before = partition(&[1, 2, 3, 4], &[1, 2], Some(1));
        let transit = Transit { adding: brokers(&[3, 4]), removing: brokers(&[1, 2]), ..Transit::default() };
        with(&[1, 2, 3, 4], true, |rules| {
            let with_isr = |isr: &[i32]| Target { isr: brokers(isr), ..Target::of(&before, &transit) };
            let half = change(&before, &transit, with_isr(&[1, 2, 3]), rules).unwrap();
            assert_eq!((half.leader, half.replicas), (None, None));
            let done = change(&before, &transit, with_isr(&[1, 2, 3, 4]), rules).unwrap();
            assert_eq!(done.replicas.as_deref(), Some(&brokers(&[3, 4])[..]));
            assert_eq!(done.isr.as_deref(), Some(&brokers(&[3, 4])[..]));
            assert_eq!((done.leader, done.transit), (Some(Some(BrokerId(3))), Some(Transit::default())));
        });
        // The leader stays, and its epoch grows all the same: a replica that is gone must not fetch on.
        let before = partition(&[1, 2, 3], &[1, 2, 3], Some(1));
        let transit = Transit { removing: brokers(&[3]), ..Transit::default() };
        with(&[1, 2, 3], true, |rules| {
            let done = change(&before, &transit, Target::of(&before, &transit), rules).unwrap();
            assert_eq!(done.leader, Some(Some(BrokerId(1))));
        });
    }

    proptest! {
        /// Whatever is wanted and whoever serves: what comes of it can be, and comes of nothing else again.
        #[test]
        fn every_outcome_is_sound_and_stands(
            isr in prop::collection::btree_set(1..4i32, 0..4),
            wanted in prop::collection::btree_set(1..4i32, 0..4),
            serve in prop::collection::btree_set(1..5i32, 0..5),
            removing in prop::option::of(1..4i32),
            elr: bool,
            leads: prop::sample::Index,
            kind in 0..3usize,
        ) {
            let isr: Vec<i32> = isr.into_iter().collect();
            prop_assume!(elr || !isr.is_empty());
            let leader = (!isr.is_empty()).then(|| isr[leads.index(isr.len())]);
            let before = partition(&[1, 2, 3], &isr, leader);
            let transit = Transit { removing: removing.map(BrokerId).into_iter().collect(), ..Transit::default() };
            let wanted: Vec<i32> = wanted.into_iter().collect();
            let target = Target { isr: brokers(&wanted), ..Target::of(&before, &transit) };
            let serves = |broker: BrokerId| serve.contains(&broker.0);
            let election = [Online, Preferred, Unclean][kind];
            let rules = Rules { election, elr, min_isr: 2, serves: &serves };
            let Some(found) = change(&before, &transit, target, &rules) else { return Ok(()) };
            let mut before = before;
            before.transit = Some(Box::new(transit));
            let is_unclean = found.is_unclean;
            let after = found.apply_to(&before);
            let transit = after.transit().clone();
            prop_assert!(after.isr.iter().all(|broker| after.replicas.contains(broker)));
            prop_assert!(after.leader.is_none_or(|leader| after.isr.contains(&leader) && serves(leader)));
            prop_assert!(transit.elr.iter().all(|broker| after.replicas.contains(broker) && !after.isr.contains(broker)));
            prop_assert!(elr || (transit.elr.is_empty() && !after.isr.is_empty()));
            prop_assert!(!is_unclean || *after.isr == [after.leader.unwrap()]);
            let again = change(&after, &transit, Target::of(&after, &transit), &rules);
            prop_assert_eq!(again, None);
        }
    }
}

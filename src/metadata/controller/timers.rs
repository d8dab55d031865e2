//! What the controller of a cluster looks for by itself from time to time, while it leads (Kafka's
//! `PeriodicTaskControlManager`). Pure.

use std::time::Duration;

use super::super::command::Command;
use super::super::image::Image;
use super::super::record::Record;
use super::elect::ELECTIONS_PER_TURN_MAX;
use super::{ClusterSettings, Controller, elect};
use crate::base::clock::Monotonic;

/// When there were more leaders to be elected than one turn elects.
const SOON: Duration = Duration::from_millis(10);

/// The setting that lets a replica lead that may lack records.
const UNCLEAN_ELECTION: &str = "unclean.leader.election.enable";

/// When it looks next; never, on a node alone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Timers {
    /// For leaders that are not the first replicas.
    balance: Option<Monotonic>,
    /// For partitions without a leader.
    unclean: Option<Monotonic>,
}

impl Timers {
    /// This node has begun to lead. Whether a setting was changed under the leader before it is not known: partitions
    /// without a leader are looked for at once.
    pub(super) fn begin(settings: &ClusterSettings, now: Monotonic) -> Self {
        let balance = settings.rebalance_interval.map(|interval| now.plus(interval));
        Self { balance, unclean: Some(now) }
    }

    pub(super) fn next(&self) -> Option<Monotonic> {
        self.balance.into_iter().chain(self.unclean).min()
    }
}

impl Controller {
    /// What the time has come for, if there is anything to do about it.
    pub(super) fn periodic(&mut self, image: &Image, now: Monotonic) -> Option<Command> {
        let cluster = self.settings.cluster?;
        let is_due = |at: Option<Monotonic>| at.is_some_and(|at| at <= now);
        if is_due(self.timers.unclean) {
            self.timers.unclean = Some(now.plus(cluster.unclean_interval));
            if !elect::elect_unclean(image, &cluster.stamp).is_empty() {
                return Some(Command::ElectUnclean);
            }
        }
        if is_due(self.timers.balance) {
            self.timers.balance = cluster.rebalance_interval.map(|interval| now.plus(interval));
            if !elect::balance(image, &cluster.stamp).is_empty() {
                return Some(Command::BalanceLeaders);
            }
        }
        None
    }

    pub(super) fn balance_leaders(&mut self, image: &Image, now: Monotonic) -> Vec<Record> {
        let records = elect::balance(image, &self.stamp());
        if records.len() == ELECTIONS_PER_TURN_MAX && self.timers.balance.is_some() {
            self.timers.balance = Some(now.plus(SOON));
        }
        records
    }

    pub(super) fn elect_unclean_leaders(&mut self, image: &Image, now: Monotonic) -> Vec<Record> {
        let records = elect::elect_unclean(image, &self.stamp());
        if records.len() == ELECTIONS_PER_TURN_MAX {
            self.look_for_leaderless(now.plus(SOON));
        }
        records
    }

    /// Settings are about to change: where partitions may be led by more replicas than before, some are looked for as
    /// soon as they have.
    pub(super) fn note_settings(&mut self, records: &[Record], now: Monotonic) {
        let is_unclean =
            |record: &Record| matches!(record, Record::Config { name, .. } if name == UNCLEAN_ELECTION);
        if records.iter().any(is_unclean) {
            self.look_for_leaderless(now);
        }
    }

    fn look_for_leaderless(&mut self, at: Monotonic) {
        if let Some(unclean) = &mut self.timers.unclean {
            *unclean = at.min(*unclean);
        }
    }
}

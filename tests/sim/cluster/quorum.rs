//! The metadata log as a model: ordered and durable, with a leader that moves. What is decided and applied is the
//! production code's; that a log behaves so is tested in `src/raft/cluster_tests.rs`.

use std::rc::Rc;
use std::time::Duration;

use kuring::base::BrokerId;
use kuring::base::clock::Monotonic;
use kuring::base::random::Random;
use kuring::metadata::{
    ClusterSettings, Command, ConfigResource, ConfigRules, Controller, ControllerSettings, IdSource, Image,
    Overrides, PartitionChange, Record, Refusal, Response, Stamp, State,
};
use kuring::wire::ErrorCode;

use super::checker::Checker;
use super::planted::Planted;
use crate::home::text;

pub const CLUSTER: &str = "simulated";

/// Takes every config; none is a list.
struct AnyConfig;

impl ConfigRules for AnyConfig {
    fn check_change(&self, _: &ConfigResource, _: &str, _: Option<&str>) -> Result<(), Refusal> {
        Ok(())
    }

    fn check_all(&self, _: &ConfigResource, _: &Overrides) -> Result<(), Refusal> {
        Ok(())
    }

    fn is_list(&self, _: &ConfigResource, _: &str) -> bool {
        false
    }

    fn default_value(&self, _: &ConfigResource, _: &str) -> Option<String> {
        None
    }
}

pub struct Quorum {
    /// Entry `n` has index `n + 1`.
    pub log: Vec<Vec<Record>>,
    state: State,
    /// The node that leads, and its controller.
    leads: Option<(usize, Controller)>,
    settings: ClusterSettings,
    random: Random,
    planted: Option<Planted>,
}

impl Quorum {
    pub fn new(session_timeout: Duration, mut random: Random, planted: Option<Planted>) -> Self {
        let settings = ClusterSettings {
            session_timeout,
            rebalance_interval: Some(Duration::from_millis(2_000 + random.below(3_000))),
            unclean_interval: Duration::from_millis(500),
            stamp: Stamp { elr: true, min_isr: 2, unclean_election: false },
        };
        let begin = vec![Record::Cluster { id: CLUSTER.to_owned() }];
        let mut state = State::default();
        state.apply(1, &begin).expect("a new cluster");
        Self { log: vec![begin], state, leads: None, settings, random, planted }
    }

    pub fn image(&self) -> &Image {
        self.state.image()
    }

    pub fn leader(&self) -> Option<usize> {
        self.leads.as_ref().map(|(leader, _)| *leader)
    }

    pub fn depose(&mut self) {
        self.leads = None;
    }

    pub fn elect(&mut self, node: usize, now: Monotonic) {
        let settings = ControllerSettings {
            default_partitions: 2,
            default_replication_factor: 3,
            cluster: Some(self.settings),
            ..ControllerSettings::default()
        };
        let ids = IdSource::Seeded(Random::seeded(self.random.next_u64()));
        let random = Random::seeded(self.random.next_u64());
        let mut controller = Controller::new(settings, Rc::new(AnyConfig), ids, random);
        controller.activate(self.state.image(), now);
        self.leads = Some((node, controller));
    }

    /// A heartbeat has come.
    pub fn touch(&self, command: &Command, now: Monotonic) {
        if let (Some((_, controller)), Command::Heartbeat(beat)) = (&self.leads, command) {
            controller.sessions().borrow_mut().touch(beat.id, beat.epoch, now);
        }
    }

    /// Decides a command and commits what it takes.
    pub fn submit(
        &mut self,
        mut command: Command,
        now: Monotonic,
        checker: &mut Checker,
    ) -> Result<Response, Refusal> {
        if self.planted == Some(Planted::StaleEpochAccepted) {
            forge(self.state.image(), &mut command);
        }
        let image = self.state.image().clone();
        let Some((_, controller)) = &mut self.leads else {
            return Err(Refusal::new(ErrorCode::NotController, ""));
        };
        let outcome = controller.handle(&image, command, now)?;
        self.commit(outcome.records, checker);
        if self.planted == Some(Planted::ElectedOutsideIsr) {
            let records = anybody(self.state.image());
            self.commit(records, checker);
        }
        Ok(outcome.response)
    }

    /// What the controller asks of itself.
    pub fn run_due(&mut self, now: Monotonic, checker: &mut Checker) {
        for _ in 0..20 {
            let image = self.state.image().clone();
            let Some((_, controller)) = &mut self.leads else { return };
            let Some(due) = controller.next_due(&image).filter(|due| *due <= now) else { return };
            controller.sessions().borrow_mut().forgive(due, now);
            let Some(command) = controller.due(&image, now) else { continue };
            if let Err(refusal) = self.submit(command, now, checker) {
                checker.fail(format!("the controller's own command failed: {refusal}"));
            }
        }
    }

    fn commit(&mut self, records: Vec<Record>, checker: &mut Checker) {
        if records.is_empty() {
            return;
        }
        let old = self.state.image().clone();
        let index = self.log.len() as u64 + 1;
        if let Err(error) = self.state.apply(index, &records) {
            checker.fail(format!("what the controller decided cannot be applied: {}", text(error)));
        }
        self.log.push(records);
        checker.image_changed(&old, self.state.image());
    }
}

/// Makes a leader's proposal one of the present leadership, whose ever it is.
fn forge(image: &Image, command: &mut Command) {
    let Command::AlterPartition(request) = command else { return };
    for wanted in &mut request.partitions {
        let partition = image.topic_by_id(wanted.topic).and_then(|topic| topic.partition(wanted.index));
        let Some(partition) = partition else { continue };
        let Some(leader) = partition.leader.and_then(|id| image.broker(id)) else { continue };
        (request.broker, request.epoch) = (leader.id, leader.epoch);
        (wanted.leader_epoch, wanted.partition_epoch) = (partition.leader_epoch, partition.partition_epoch);
        if !wanted.isr.iter().any(|(member, _)| *member == leader.id) {
            wanted.isr.push((leader.id, leader.epoch));
        }
    }
}

/// Has the last replica that serves lead, where nobody does.
fn anybody(image: &Image) -> Vec<Record> {
    let mut records = Vec::new();
    for topic in image.topics() {
        for (index, partition) in topic.numbered() {
            let serves = |id: &BrokerId| image.broker(*id).is_some_and(|broker| broker.serves());
            let found = partition.replicas.iter().rev().copied().find(serves);
            let Some(leader) = found.filter(|_| partition.leader.is_none()) else { continue };
            records.push(Record::PartitionChanged(PartitionChange {
                topic: topic.id,
                index,
                leader: Some(Some(leader)),
                isr: Some([leader].into()),
                replicas: None,
                directories: None,
                transit: Some(Default::default()),
            }));
        }
    }
    records
}

//! Who is in sync, as leaders would have it, on the way to the controller and back (AlterPartition, KIP-497). One
//! request is under way from a shard; what comes meanwhile goes with the next. A proposal is brought until the
//! controller has decided it, or the metadata has overtaken it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::Shard;
use super::messages::{ControlReply, ControlRequest, Reply, Request};
use super::placement::PartitionKey;
use crate::base::{BrokerEpoch, BrokerId, ShardId, clock, fatal};
use crate::io::runtime::{Queue, spawn, yield_if_needed};
use crate::metadata::{AlterIsr, AlterPartition, AlteredPartition, Command};
use crate::partition::{AlteredIsr, IsrProposal};
use crate::wire::ErrorCode;

/// Partitions of one request at most.
const PARTITIONS_PER_REQUEST_MAX: usize = 2_000;

/// The pause after a request that no controller has decided.
const AGAIN_AFTER: Duration = Duration::from_millis(50);

/// What waits for the next request.
#[derive(Default)]
pub(super) struct Proposals {
    waiting: RefCell<Vec<(PartitionKey, IsrProposal)>>,
    is_running: Cell<bool>,
}

/// What the controller has made of some proposals.
#[derive(Debug)]
pub struct Decided {
    /// It has not decided these: they are brought again.
    pub again: Vec<(PartitionKey, IsrProposal)>,
    pub altered: Vec<(PartitionKey, IsrProposal, Result<AlteredIsr, ErrorCode>)>,
}

/// How the controller is asked for what the leaders on this broker, in this registration, propose.
pub fn request_of(
    broker: BrokerId,
    epoch: BrokerEpoch,
    proposals: &[(PartitionKey, IsrProposal)],
) -> AlterPartition {
    let wanted = proposals.iter().map(|(key, proposal)| AlterIsr {
        topic: key.topic,
        index: key.partition,
        leader_epoch: proposal.leader_epoch,
        partition_epoch: proposal.partition_epoch,
        isr: proposal.isr.clone(),
        recovering: false,
    });
    AlterPartition { broker, epoch, partitions: wanted.collect() }
}

/// Puts its answers to these proposals, which come in their order.
pub fn decided(
    proposals: Vec<(PartitionKey, IsrProposal)>,
    answers: Vec<Result<AlteredPartition, ErrorCode>>,
) -> Decided {
    let mut decided = Decided { again: Vec::new(), altered: Vec::new() };
    for ((key, proposal), answer) in proposals.into_iter().zip(answers) {
        if answer.as_ref().is_err_and(|code| !IsrProposal::is_decided_by(*code)) {
            decided.again.push((key, proposal));
            continue;
        }
        let answer = answer.map(|altered| AlteredIsr {
            leader_epoch: altered.leader_epoch,
            partition_epoch: altered.partition_epoch,
            isr: altered.isr.into_vec(),
        });
        decided.altered.push((key, proposal, answer));
    }
    decided
}

/// Starts to look, from time to time, whether followers have fallen behind.
pub(super) fn start_sweep(shard: &Rc<Shard>) {
    let shard = shard.clone();
    spawn(Queue::Back, "isr sweep", async move {
        let every = shard.brokers.lag_max() / 2;
        while !shard.is_stopping() {
            shard.sleep(every).await;
            let keys: Vec<PartitionKey> = shard.replicas.borrow().keys().copied().collect();
            for key in keys {
                let Some(replica) = shard.replica(key) else { continue };
                if let Ok(Some(proposal)) = replica.with(|partition| partition.shrink_isr(clock::now())) {
                    shard.counters.isr_shrinks.increment();
                    tracing::info!(partition = %replica.topic_partition, isr = ?proposal.isr, "a follower has fallen behind");
                    shard.propose_isr(key, proposal);
                }
                yield_if_needed().await;
            }
        }
    })
    .detach();
}

impl Shard {
    /// Has the controller decide.
    pub(super) fn propose_isr(self: &Rc<Self>, key: PartitionKey, proposal: IsrProposal) {
        self.proposals.waiting.borrow_mut().push((key, proposal));
        if !self.proposals.is_running.replace(true) {
            let shard = self.clone();
            spawn(Queue::Control, "alter isr", async move { shard.bring_proposals().await }).detach();
        }
    }

    async fn bring_proposals(self: &Rc<Self>) {
        loop {
            let batch = {
                let mut waiting = self.proposals.waiting.borrow_mut();
                waiting.retain(|(key, proposal)| self.is_proposed(*key, proposal));
                let count = waiting.len().min(PARTITIONS_PER_REQUEST_MAX);
                waiting.drain(..count).collect::<Vec<_>>()
            };
            if batch.is_empty() || self.is_stopping() {
                self.proposals.is_running.set(false);
                return;
            }
            let undecided = self.bring(batch).await;
            if !undecided.is_empty() {
                self.proposals.waiting.borrow_mut().splice(0..0, undecided);
                self.sleep(AGAIN_AFTER).await;
            }
        }
    }

    /// Brings proposals to the controller; those that it has not decided.
    async fn bring(
        self: &Rc<Self>,
        batch: Vec<(PartitionKey, IsrProposal)>,
    ) -> Vec<(PartitionKey, IsrProposal)> {
        let broker = self.settings.broker;
        let Some(epoch) = self.image().broker(broker).map(|broker| broker.epoch) else { return batch };
        let command = Command::AlterPartition(request_of(broker, epoch, &batch));
        let request = Request::Control(ControlRequest::Command(command));
        let answers = match self.ask(ShardId::CONTROL, request).await {
            Reply::Control(ControlReply::Command(Ok(response))) => response.partitions_altered(),
            Reply::Control(ControlReply::Command(Err(refusal))) => {
                tracing::debug!("nobody has decided who is in sync: {refusal}");
                return batch;
            }
            _ => fatal("a proposal of those in sync got another request's answer"),
        };
        let Decided { again, altered } = decided(batch, answers);
        for (key, proposal, answer) in altered {
            self.isr_altered(key, &proposal, answer);
        }
        again
    }

    fn is_proposed(&self, key: PartitionKey, proposal: &IsrProposal) -> bool {
        let replica = self.replica(key);
        replica.is_some_and(|replica| replica.with(|partition| partition.is_proposed(proposal)) == Ok(true))
    }

    fn isr_altered(
        self: &Rc<Self>,
        key: PartitionKey,
        proposal: &IsrProposal,
        answer: Result<AlteredIsr, ErrorCode>,
    ) {
        let Some(replica) = self.replica(key) else { return };
        if let Err(code) = &answer {
            tracing::debug!(partition = %replica.topic_partition, ?code, "those in sync stay as they are");
        }
        let mut committed = Vec::new();
        let moved =
            replica.with(|partition| partition.isr_altered(proposal, answer, clock::now(), &mut committed));
        self.finish_appends(committed);
        if moved == Ok(true) {
            self.wake_fetches(key);
        }
    }
}

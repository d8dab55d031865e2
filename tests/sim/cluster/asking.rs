//! What a broker asks the controller: to be registered, to live on, who is in sync, producer ids. One question of a kind at
//! a time; what is not answered is asked again.

use std::collections::BTreeSet;

use kuring::base::{BrokerEpoch, ProducerId};
use kuring::metadata::{Command, Refusal, Response};
use kuring::partition::IsrProposal;
use kuring::replica::{Effect, Lifecycle};
use kuring::shard::{PartitionKey, isr};

use super::broker::{Broker, Context, HEARTBEAT};
use super::coordinating::IdFor;
use super::messages::{Attempt, Message, Place};
use super::planted::Planted;
use super::replica::Answers;

/// A question without an answer is asked again after this.
const ANSWER_TIME_US: u64 = 300_000;
/// The pause after a refusal.
const AGAIN_AFTER_US: u64 = 50_000;

/// What the controller was asked, which answers one question of a kind at a time.
#[derive(Default)]
pub struct Pending {
    pub attempt: Attempt,
    until: u64,
    proposals: Vec<(PartitionKey, IsrProposal)>,
}

impl Pending {
    fn is_open(&self, time: u64) -> bool {
        time < self.until
    }
}

impl Broker {
    pub fn ask_controller(&mut self, cx: &mut Context<'_>) {
        if self.epoch.is_none() {
            if !self.registering.is_open(cx.time) {
                let command = Command::RegisterBroker(self.registration.clone());
                self.registering.attempt = self.ask(command, cx);
                self.registering.until = cx.time + ANSWER_TIME_US;
            }
            return;
        }
        let version = self.image.version();
        let beat =
            self.life.as_ref().filter(|life| life.due() <= cx.now.monotonic).map(|life| life.beat(version));
        if let Some(beat) = beat {
            if self.beating.until > 0 && !self.beating.is_open(cx.time) {
                // The last one was not answered.
                self.beating.until = 0;
                if let Some(life) = &mut self.life {
                    life.failed(None, cx.now.monotonic);
                }
            } else if self.beating.until == 0 {
                self.beating.attempt = self.ask(Command::Heartbeat(beat), cx);
                self.beating.until = cx.time + ANSWER_TIME_US;
            }
        }
        self.bring_proposals(cx);
        if !self.wait_for_ids.is_empty() && !self.allocating.is_open(cx.time) {
            let epoch = self.epoch.unwrap_or(BrokerEpoch(-1));
            self.allocating.attempt = self.ask(Command::AllocateProducerIds { broker: self.id, epoch }, cx);
            self.allocating.until = cx.time + ANSWER_TIME_US;
        }
    }

    fn ask(&mut self, command: Command, cx: &mut Context<'_>) -> Attempt {
        let attempt = self.attempt();
        if let Some(controller) = cx.controller {
            cx.send(Place::Node(controller), Message::Command { attempt, command });
        }
        attempt
    }

    pub fn bring_proposals(&mut self, cx: &mut Context<'_>) {
        if self.proposing.is_open(cx.time) {
            return;
        }
        // The last ones were not answered.
        let lost = std::mem::take(&mut self.proposing.proposals);
        self.proposals.splice(0..0, lost);
        if !matches!(cx.planted, Some(Planted::LaggardInSync | Planted::StaleEpochAccepted)) {
            let replicas = &self.replicas;
            self.proposals.retain(|(key, proposal)| {
                replicas.get(key).is_some_and(|replica| replica.partition.is_proposed(proposal))
            });
        }
        let Some(epoch) = self.image.broker(self.id).map(|broker| broker.epoch) else { return };
        let mut seen = BTreeSet::new();
        let proposals = std::mem::take(&mut self.proposals);
        let proposals: Vec<_> = proposals.into_iter().filter(|(key, _)| seen.insert(*key)).collect();
        if proposals.is_empty() {
            return;
        }
        let command = Command::AlterPartition(isr::request_of(self.id, epoch, &proposals));
        self.proposing =
            Pending { attempt: self.ask(command, cx), until: cx.time + ANSWER_TIME_US, proposals };
    }

    /// The controller's answer to one of the questions.
    pub fn decided(&mut self, attempt: Attempt, result: Result<Response, Refusal>, cx: &mut Context<'_>) {
        let code = result.as_ref().err().map(|refusal| refusal.code);
        if attempt == self.registering.attempt {
            match result {
                Ok(response) => self.registered(response.broker_epoch(), cx),
                Err(_) => self.registering.until = cx.time + AGAIN_AFTER_US,
            }
        } else if attempt == self.beating.attempt {
            self.beating.until = 0;
            let Some(life) = &mut self.life else { return };
            match result {
                Ok(response) => life.answered(response.broker_state(), cx.now.monotonic),
                Err(_) => {
                    if life.failed(code, cx.now.monotonic) == Effect::RegisterAgain {
                        self.epoch = None;
                    }
                }
            }
        } else if attempt == self.proposing.attempt {
            self.altered(result.ok(), cx);
        } else if attempt == self.allocating.attempt {
            self.allocating.until = 0;
            let Ok(response) = result else { return };
            let mut block = response.producer_ids();
            if cx.planted == Some(Planted::ProducerIdReused) {
                block.first = ProducerId(0);
            }
            self.ids.refill(block);
            self.give_ids(cx);
        }
    }

    fn registered(&mut self, epoch: BrokerEpoch, cx: &mut Context<'_>) {
        self.epoch = Some(epoch);
        match &mut self.life {
            Some(life) => life.registered(epoch, cx.now.monotonic),
            None => self.life = Some(Lifecycle::new(self.id, epoch, HEARTBEAT, cx.now.monotonic)),
        }
    }

    fn altered(&mut self, response: Option<Response>, cx: &mut Context<'_>) {
        let Pending { proposals, .. } = std::mem::take(&mut self.proposing);
        let Some(response) = response else {
            self.proposals.splice(0..0, proposals);
            self.proposing.until = cx.time + AGAIN_AFTER_US;
            return;
        };
        let isr::Decided { again, altered } = isr::decided(proposals, response.partitions_altered());
        self.proposals.extend(again);
        let mut answers = Answers::new();
        for (key, proposal, answer) in altered {
            if let Some(replica) = self.replicas.get_mut(&key) {
                replica.partition.isr_altered(&proposal, answer, cx.now, &mut answers);
            }
        }
        self.answer(answers, cx);
    }

    pub fn init_producer(&mut self, from: Place, cx: &mut Context<'_>) {
        if !self.wait_for_ids.contains(&IdFor::Client(from)) {
            self.wait_for_ids.push(IdFor::Client(from));
        }
        self.give_ids(cx);
    }

    pub fn give_ids(&mut self, cx: &mut Context<'_>) {
        while let Some(to) = self.wait_for_ids.first().copied() {
            let Some(id) = self.ids.take() else { return };
            self.wait_for_ids.remove(0);
            cx.checker.given_out(id);
            match to {
                IdFor::Client(to) => cx.send(to, Message::ProducerIs(id)),
                IdFor::Coordinator(ticket) => self.give_id_to(ticket, id, cx),
            }
        }
    }
}

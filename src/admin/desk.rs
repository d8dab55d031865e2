//! The shard's end: a task that waits in a mailbox for questions of the admin thread and answers each with a
//! copy. It costs nothing while nobody asks.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::channel::oneshot;

use crate::api::{group_driver, txn_driver};
use crate::coordinator::{Committed, transactions};
use crate::io::runtime::{Mailbox, Queue, Sender, mailbox, spawn, yield_if_needed};
use crate::metadata::{CommandKind, Image};
use crate::net::{ConnectionFigures, Connections};
use crate::raft::Quorum;
use crate::shard::{Figures, Shard, WantedFigures};

/// Questions that a shard has not answered; more are not asked: it does not answer.
const UNANSWERED_MAX: usize = 8;

/// Committed offsets that are copied before others get a turn.
const OFFSETS_PER_TURN: usize = 4096;

/// Committed offsets that are looked at in all.
const OFFSETS_MAX: usize = 500_000;

/// A question to a shard.
pub(super) enum Question {
    /// Whether it runs.
    Ping(Reply<()>),
    Figures(WantedFigures, Reply<ShardReport>),
    /// To shard 0.
    Control {
        committed_offsets: bool,
        reply: Reply<ControlReport>,
    },
}

/// What one shard tells.
#[derive(Clone, Debug)]
pub(super) struct ShardReport {
    pub(super) figures: Figures,
    pub(super) connections: ConnectionFigures,
}

/// What shard 0 tells of the cluster, of the groups and of transactions.
#[derive(Clone, Debug)]
pub(super) struct ControlReport {
    pub(super) image: Arc<Image>,
    /// As [`Quorum::silence`].
    pub(super) silence: Duration,
    pub(super) commands: Vec<CommandSums>,
    pub(super) groups: BTreeMap<&'static str, u64>,
    pub(super) committed: Vec<Committed>,
    pub(super) transactions: transactions::Figures,
}

/// The controller's commands of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct CommandSums {
    pub(super) kind: CommandKind,
    pub(super) count: u64,
    pub(super) queue_us: u64,
    pub(super) run_us: u64,
}

/// The way back for one answer.
pub(super) struct Reply<T> {
    reply: Option<oneshot::Sender<T>>,
    unanswered: Arc<AtomicUsize>,
}

impl<T> Reply<T> {
    fn send(mut self, answer: T) {
        if let Some(reply) = self.reply.take() {
            // Nobody may be waiting any more: the time was up.
            let _ = reply.send(answer);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The asking end of one shard's desk; any thread.
#[derive(Clone)]
pub struct Line {
    questions: Sender<Question>,
    unanswered: Arc<AtomicUsize>,
}

/// The answering end, on its way to its shard.
pub struct Desk {
    questions: Mailbox<Question>,
}

/// What only shard 0 has.
#[derive(Clone)]
pub struct ControlSources {
    pub quorum: Rc<Quorum>,
    pub groups: Rc<group_driver::Driver>,
    pub transactions: Rc<txn_driver::Driver>,
}

/// Makes the two ends.
pub fn desk() -> (Line, Desk) {
    let (sender, questions) = mailbox();
    (Line { questions: sender, unanswered: Arc::default() }, Desk { questions })
}

impl Line {
    /// Puts a question; `None` when the shard has stopped or owes too many answers already.
    pub(super) fn ask<T>(&self, question: impl FnOnce(Reply<T>) -> Question) -> Option<oneshot::Receiver<T>> {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) >= UNANSWERED_MAX {
            self.unanswered.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let (sender, answer) = oneshot::channel();
        let reply = Reply { reply: Some(sender), unanswered: self.unanswered.clone() };
        // A question that is given back drops its reply.
        self.questions.push(question(reply)).ok()?;
        Some(answer)
    }
}

impl Desk {
    /// Answers from here on, on the calling shard. `control` is filled by shard 0 once it has the metadata.
    pub fn serve(
        self,
        shard: &Rc<Shard>,
        connections: &Rc<Connections>,
        control: Rc<OnceCell<ControlSources>>,
    ) {
        let (shard, connections) = (shard.clone(), connections.clone());
        spawn(Queue::Control, "admin desk", async move {
            let mut mailbox = self.questions;
            let mut questions = Vec::new();
            while mailbox.drain_into(&mut questions).await > 0 {
                for question in questions.drain(..) {
                    answer(question, &shard, &connections, control.get()).await;
                }
            }
        })
        .detach();
    }
}

async fn answer(
    question: Question,
    shard: &Rc<Shard>,
    connections: &Rc<Connections>,
    control: Option<&ControlSources>,
) {
    match question {
        Question::Ping(reply) => reply.send(()),
        Question::Figures(wanted, reply) => {
            let figures = shard.figures(&wanted).await;
            reply.send(ShardReport { figures, connections: connections.figures() });
        }
        Question::Control { committed_offsets, reply } => {
            let Some(control) = control else { return };
            let commands = control.quorum.command_times().into_iter().map(|times| CommandSums {
                kind: times.kind,
                count: times.run_us.len(),
                queue_us: sum_us(&times.queue_us),
                run_us: sum_us(&times.run_us),
            });
            let report = ControlReport {
                image: control.quorum.image(),
                silence: control.quorum.silence(),
                commands: commands.collect(),
                groups: control.groups.look(|coordinator| coordinator.group_counts()),
                transactions: control.transactions.look(|coordinator| coordinator.figures()),
                committed: if committed_offsets { committed(control).await } else { Vec::new() },
            };
            reply.send(report);
        }
    }
}

fn sum_us(histogram: &hdrhistogram::Histogram<u64>) -> u64 {
    (histogram.mean() * histogram.len() as f64) as u64
}

async fn committed(control: &ControlSources) -> Vec<Committed> {
    let mut all: Vec<Committed> = Vec::new();
    let (mut told, mut count) = (None, 0);
    loop {
        let (part, next) =
            control.groups.look(|coordinator| coordinator.committed(told.as_ref(), OFFSETS_PER_TURN));
        count += part.iter().map(|committed| committed.offsets.len()).sum::<usize>();
        all.extend(part);
        if next.is_none() || count >= OFFSETS_MAX {
            return all;
        }
        told = next;
        yield_if_needed().await;
    }
}

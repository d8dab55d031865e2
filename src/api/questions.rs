//! What coordinators have to ask other brokers, gathered: all that waits for one broker when a connection to it is free
//! goes in one request. A few are under way to each broker, so that what takes long there holds up little else.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;
use std::rc::Rc;

use bytes::Bytes;
use futures::channel::oneshot;

use super::brokers::Brokers;
use crate::base::{BrokerId, PROCESS};
use crate::io::runtime::{Queue, spawn};
use crate::wire::ErrorCode;
use crate::wire::header::CorrelationId;
use crate::wire::read::DecodeError;
use crate::wire::write::EncodeError;

/// Requests of one kind that are under way to one broker.
const REQUESTS_MAX: usize = 4;
/// What one request may weigh together; the first question goes whatever it weighs.
pub(super) const WEIGHT_MAX: usize = 512;
/// Questions that wait for one broker; further ones are refused.
const WAITING_MAX: usize = 16_384;

/// A part of a request that several may share.
pub(super) trait Question: Sized + 'static {
    type Answer: 'static;
    /// By what its part of an answer is found: no two of a request have the same.
    type Key: Eq + Hash;

    fn key(&self) -> Self::Key;

    /// How many partitions it names.
    fn weight(&self) -> usize;

    fn write(questions: &[Self], correlation: CorrelationId) -> Result<Bytes, EncodeError>;

    /// The answers to all of them, in their order.
    fn read(questions: &[Self], answer: &Bytes) -> Result<Vec<Self::Answer>, DecodeError>;

    /// What it comes to when the broker does not answer, which may have done what was asked.
    fn failed(&self, error: ErrorCode) -> Self::Answer;
}

/// The questions of one kind. Lives on shard 0.
pub(super) struct Questions<Q: Question> {
    brokers: Rc<Brokers>,
    lines: RefCell<HashMap<BrokerId, Line<Q>>>,
}

struct Line<Q: Question> {
    waiting: VecDeque<Asked<Q>>,
    under_way: usize,
}

type Asked<Q> = (Q, oneshot::Sender<<Q as Question>::Answer>);

impl<Q: Question> Default for Line<Q> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), under_way: 0 }
    }
}

impl<Q: Question> Questions<Q> {
    pub(super) fn new(brokers: &Rc<Brokers>) -> Rc<Self> {
        Rc::new(Self { brokers: brokers.clone(), lines: RefCell::default() })
    }

    /// Asks `broker`.
    pub(super) async fn ask(self: &Rc<Self>, broker: BrokerId, question: Q) -> Q::Answer {
        let (sender, answer) = oneshot::channel();
        let begins = {
            let mut lines = self.lines.borrow_mut();
            let line = lines.entry(broker).or_default();
            if line.waiting.len() >= WAITING_MAX {
                PROCESS.broker_questions_refused.increment();
                return question.failed(ErrorCode::CoordinatorNotAvailable);
            }
            line.waiting.push_back((question, sender));
            let begins = line.under_way < REQUESTS_MAX;
            line.under_way += usize::from(begins);
            begins
        };
        if begins {
            spawn(Queue::Control, "questions to a broker", self.clone().work(broker)).detach();
        }
        match answer.await {
            Ok(answer) => answer,
            Err(_) => crate::base::fatal("a question to another broker was dropped"),
        }
    }

    /// Sends what waits until nothing does.
    async fn work(self: Rc<Self>, broker: BrokerId) {
        loop {
            let taken = {
                let mut lines = self.lines.borrow_mut();
                let line = lines.entry(broker).or_default();
                let taken = take(&mut line.waiting);
                if taken.is_empty() {
                    line.under_way -= 1;
                    return;
                }
                taken
            };
            let (questions, senders): (Vec<Q>, Vec<_>) = taken.into_iter().unzip();
            let asked = self.brokers.ask(broker, |correlation| Q::write(&questions, correlation)).await;
            let answers = match asked {
                Ok(answer) => Q::read(&questions, &answer).unwrap_or_else(|error| {
                    tracing::warn!(%broker, "its answer does not decode: {error}");
                    questions.iter().map(|question| question.failed(ErrorCode::UnknownServerError)).collect()
                }),
                Err(error) => {
                    tracing::debug!(%broker, "no answer: {error}");
                    questions.iter().map(|question| question.failed(ErrorCode::NetworkException)).collect()
                }
            };
            for (sender, answer) in senders.into_iter().zip(answers) {
                // An error: nobody waits for it any more.
                let _ = sender.send(answer);
            }
        }
    }
}

/// What goes in the next request, from the front. What cannot be told from another one of it stays, in its order.
fn take<Q: Question>(waiting: &mut VecDeque<Asked<Q>>) -> Vec<Asked<Q>> {
    let (mut taken, mut keys, mut put_off) = (Vec::new(), HashSet::new(), VecDeque::new());
    let mut weight = 0;
    while let Some((question, _)) = waiting.front() {
        weight += question.weight();
        if weight > WEIGHT_MAX && !taken.is_empty() {
            break;
        }
        let is_new = keys.insert(question.key());
        let Some(asked) = waiting.pop_front() else { break };
        match is_new {
            true => taken.push(asked),
            false => put_off.push_back(asked),
        }
    }
    while let Some(asked) = put_off.pop_back() {
        waiting.push_front(asked);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Ask {
        key: u8,
        weight: usize,
    }

    impl Question for Ask {
        type Answer = ();
        type Key = u8;

        fn key(&self) -> u8 {
            self.key
        }

        fn weight(&self) -> usize {
            self.weight
        }

        fn write(_: &[Self], _: CorrelationId) -> Result<Bytes, EncodeError> {
            Ok(Bytes::new())
        }

        fn read(_: &[Self], _: &Bytes) -> Result<Vec<()>, DecodeError> {
            Ok(Vec::new())
        }

        fn failed(&self, _: ErrorCode) {}
    }

    #[test]
    fn a_request_takes_what_fits_and_nothing_that_cannot_be_told_apart() {
        let asks = [(1, 1), (2, WEIGHT_MAX - 2), (1, 1), (3, 1), (4, 9 * WEIGHT_MAX), (1, 1)];
        let mut waiting: VecDeque<Asked<Ask>> =
            asks.map(|(key, weight)| (Ask { key, weight }, oneshot::channel().0)).into();
        let mut next = || take(&mut waiting).iter().map(|(ask, _)| ask.key).collect::<Vec<_>>();
        // The second of producer 1 counts, though it is put off.
        assert_eq!(next(), [1, 2]);
        assert_eq!(next(), [1, 3]);
        assert_eq!(next(), [4], "alone, whatever it weighs");
        assert_eq!(next(), [1]);
        assert_eq!(next(), [0; 0]);
    }
}

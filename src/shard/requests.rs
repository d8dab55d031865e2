//! What a shard records of the requests of its connections: how many, how long each phase took, which errors
//! they were answered with. Plain cells, written by the connections' tasks, copied when somebody looks.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::{Counter, Histogram, Recorded};
use crate::wire::ErrorCode;
use crate::wire::api::{APIS, Api};

/// A part of the way of a request (Kafka's `RequestMetrics`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// From the receive that completed its frame to its handler.
    Queue,
    /// In its handler and at the owners of its partitions, but for what is remote.
    Local,
    /// Parked: for data to come, for the disk under `kuring.durability=fsync`, for other members of a group, for
    /// the controller.
    Remote,
    /// What its answer told the client to wait, and for which its connection is muted; only of those that are told to.
    Throttle,
    /// From the answer to the last of its bytes in the kernel's hands.
    Send,
    /// From the receive to the end of the send.
    Total,
}

impl Phase {
    pub const ALL: [Phase; 6] =
        [Phase::Queue, Phase::Local, Phase::Remote, Phase::Throttle, Phase::Send, Phase::Total];

    /// As the label of the metric has it.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Queue => "queue",
            Phase::Local => "local",
            Phase::Remote => "remote",
            Phase::Throttle => "throttle",
            Phase::Send => "send",
            Phase::Total => "total",
        }
    }
}

/// The requests of one shard, by API.
#[derive(Debug)]
pub struct RequestFigures {
    apis: Vec<OnceCell<Box<ApiFigures>>>,
}

#[derive(Default, Debug)]
struct ApiFigures {
    begun: Counter,
    phases: [Histogram; Phase::ALL.len()],
    /// How many errors by code; without NONE.
    errors: RefCell<BTreeMap<i16, u64>>,
}

/// What one shard has recorded of one API.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiRecorded {
    pub api: &'static Api,
    pub begun: u64,
    /// In the order of [`Phase::ALL`].
    pub phases: [Recorded; Phase::ALL.len()],
    pub errors: BTreeMap<i16, u64>,
}

impl RequestFigures {
    pub(super) fn new() -> Self {
        Self { apis: APIS.iter().map(|_| OnceCell::new()).collect() }
    }

    pub fn begun(&self, api: &Api) {
        self.of(api).begun.increment();
    }

    /// The answer is there. About 6 ns.
    pub fn answered(&self, api: &Api, queue: Duration, local: Duration, remote: Duration) {
        let figures = self.of(api);
        figures.phases[Phase::Queue as usize].record(queue);
        figures.phases[Phase::Local as usize].record(local);
        figures.phases[Phase::Remote as usize].record(remote);
    }

    /// The answer tells a throttle time.
    pub fn throttled(&self, api: &Api, throttle: Duration) {
        self.of(api).phases[Phase::Throttle as usize].record(throttle);
    }

    /// The answer has left. About 4 ns.
    pub fn sent(&self, api: &Api, send: Duration, total: Duration) {
        let figures = self.of(api);
        figures.phases[Phase::Send as usize].record(send);
        figures.phases[Phase::Total as usize].record(total);
    }

    /// Counts an error of an answer: once for each partition, topic or resource that has it, as Kafka does.
    pub fn error(&self, api: &Api, code: i16) {
        if code != 0 {
            *self.of(api).errors.borrow_mut().entry(code).or_insert(0) += 1;
        }
    }

    /// [`RequestFigures::error`] for our own answers.
    pub fn error_code(&self, api: &Api, error: Option<ErrorCode>) {
        if let Some(error) = error {
            self.error(api, error.code());
        }
    }

    /// Of the APIs that were asked for.
    pub(super) fn recorded(&self) -> Vec<ApiRecorded> {
        let asked = APIS.iter().zip(&self.apis).filter_map(|(api, figures)| Some((api, figures.get()?)));
        asked
            .map(|(api, figures)| ApiRecorded {
                api,
                begun: figures.begun.get(),
                phases: figures.phases.each_ref().map(Histogram::recorded),
                errors: figures.errors.borrow().clone(),
            })
            .collect()
    }

    fn of(&self, api: &Api) -> &ApiFigures {
        self.apis[api.position()].get_or_init(Box::default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ApiKey;

    #[test]
    fn only_what_was_asked_for_is_told() {
        let figures = RequestFigures::new();
        let fetch = crate::wire::api::find(ApiKey::Fetch as i16).unwrap();
        figures.begun(fetch);
        let ms = Duration::from_millis;
        figures.answered(fetch, ms(1), ms(2), ms(3));
        figures.throttled(fetch, ms(7));
        figures.sent(fetch, ms(4), ms(10));
        figures.error(fetch, 0);
        figures.error(fetch, 3);
        figures.error_code(fetch, Some(ErrorCode::UnknownTopicOrPartition));
        let [recorded] = &figures.recorded()[..] else { panic!("one API") };
        assert_eq!((recorded.api.name, recorded.begun), ("Fetch", 1));
        assert_eq!(recorded.phases.map(|phase| phase.sum_ns / 1_000_000), [1, 2, 3, 7, 4, 10]);
        assert_eq!(recorded.errors, BTreeMap::from([(3, 2)]));
    }
}

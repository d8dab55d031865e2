//! The share coordinator on another broker: what it is asked, and what it answers, in a form of kuring's own: Kafka's
//! answers have no place for all that is kept of a share partition.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes};

use super::brokers::Brokers;
use super::client::partition_image;
use super::internal_topics::SHARE_GROUP_STATE;
use super::questions::{Question, Questions, WEIGHT_MAX};
use crate::base::clock;
use crate::base::{BrokerId, LeaderEpoch, Offset, PartitionIndex};
use crate::coordinator::share_state::{Request, Response, StateWrite};
use crate::peer::{self, PeerKey};
use crate::shard::Shard;
use crate::share::{DeliveryState, Persisted, ShareKey, StateBatch};
use crate::wire::ErrorCode;
use crate::wire::header::CorrelationId;
use crate::wire::read::{DecodeError, Reader};
use crate::wire::write::EncodeError;

/// A coordinator that has moved, or is about to, is looked for so long, at these intervals.
const SEARCH_TIME_MAX: Duration = Duration::from_secs(10);
const SEARCH_PAUSE: Duration = Duration::from_millis(100);

/// Offsets, a state, a count.
const BATCH_BYTES: usize = 8 + 8 + 1 + 2;

pub(super) struct ShareElsewhere {
    shard: Rc<Shard>,
    questions: Rc<Questions<Stating>>,
}

impl ShareElsewhere {
    /// `None` on a node alone.
    pub(super) fn new(shard: &Rc<Shard>) -> Option<Rc<Self>> {
        let brokers = Brokers::new(shard)?;
        Some(Rc::new(Self { shard: shard.clone(), questions: Questions::new(&brokers) }))
    }

    /// Whether this broker does not coordinate what is kept in this partition of `__share_group_state`: another one does,
    /// or nobody at the moment.
    pub(super) fn is_elsewhere(&self, partition: PartitionIndex) -> bool {
        self.leader(partition).is_some_and(|leader| leader != Some(self.shard.settings().broker))
    }

    /// `None` where there is no such partition.
    fn leader(&self, partition: PartitionIndex) -> Option<Option<BrokerId>> {
        let image = self.shard.image();
        Some(partition_image(image.topic(SHARE_GROUP_STATE)?, partition)?.leader)
    }

    /// Asks the coordinator for as long as there is a chance that it answers; `None` when it has come to be this broker.
    pub(super) async fn ask(&self, partition: PartitionIndex, request: &Request) -> Option<Response> {
        let until = clock::monotonic().plus(SEARCH_TIME_MAX);
        while self.is_elsewhere(partition) {
            let question = Stating(request.clone());
            let response = match self.leader(partition).flatten() {
                Some(broker) => self.questions.ask(broker, question).await,
                None => question.failed(ErrorCode::CoordinatorNotAvailable),
            };
            if !may_change(&response) || clock::monotonic() >= until || self.shard.is_stopping() {
                return Some(response);
            }
            self.shard.sleep(SEARCH_PAUSE).await;
        }
        None
    }
}

fn may_change(response: &Response) -> bool {
    let error = match response {
        Response::Read(result) => result.as_ref().err(),
        Response::Changed(result) => result.as_ref().err(),
    };
    use ErrorCode::{CoordinatorLoadInProgress, CoordinatorNotAvailable, NotCoordinator};
    matches!(error, Some(CoordinatorLoadInProgress | CoordinatorNotAvailable | NotCoordinator))
}

struct Stating(Request);

impl Question for Stating {
    type Answer = Response;
    /// One is asked at a time.
    type Key = ();

    fn key(&self) {}

    fn weight(&self) -> usize {
        WEIGHT_MAX
    }

    fn write(questions: &[Self], correlation: CorrelationId) -> Result<Bytes, EncodeError> {
        let [Stating(request)] = questions else {
            crate::base::fatal("share states are asked for one at a time");
        };
        Ok(peer::own_request(PeerKey::ShareState, correlation, &write_request(request)))
    }

    fn read(_: &[Self], answer: &Bytes) -> Result<Vec<Response>, DecodeError> {
        // Behind the correlation.
        Ok(vec![read_response(&answer.slice(answer.len().min(4)..))?])
    }

    fn failed(&self, error: ErrorCode) -> Response {
        let error = match error {
            ErrorCode::NetworkException => ErrorCode::CoordinatorNotAvailable,
            error => error,
        };
        match &self.0 {
            Request::Read { .. } => Response::Read(Err(error)),
            Request::Initialize { .. } | Request::Write(_) | Request::Delete { .. } => {
                Response::Changed(Err(error))
            }
        }
    }
}

fn write_request(request: &Request) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_u8(match request {
        Request::Initialize { .. } => 0,
        Request::Read { .. } => 1,
        Request::Write(_) => 2,
        Request::Delete { .. } => 3,
    });
    let key = request.key();
    out.put_u32(key.group.len() as u32);
    out.put_slice(key.group.as_bytes());
    out.put_slice(key.topic.0.as_bytes());
    out.put_i32(key.partition.0);
    match request {
        Request::Delete { .. } => {}
        Request::Read { leader_epoch, .. } => out.put_i32(leader_epoch.0),
        Request::Initialize { state_epoch, start, .. } => {
            out.put_i32(*state_epoch);
            out.put_i64(start.0);
        }
        Request::Write(write) => {
            out.put_i32(write.state_epoch);
            out.put_i32(write.leader_epoch.0);
            out.put_i64(write.start.0);
            out.put_i32(write.delivery_complete);
            write_batches(&mut out, &write.batches);
        }
    }
    out
}

/// What another broker asks.
pub(super) fn read_request(body: &Bytes) -> Result<Request, DecodeError> {
    let mut reader = Reader::new(body);
    let kind = reader.i8()?;
    let group = reader.bytes(false)?.ok_or(DecodeError::Null)?;
    let group: Arc<str> = std::str::from_utf8(&group).map_err(|_| DecodeError::Utf8)?.into();
    let (topic, partition) = (reader.topic_id()?, PartitionIndex(reader.i32()?));
    let key = ShareKey { group, topic, partition };
    Ok(match kind {
        0 => Request::Initialize { key, state_epoch: reader.i32()?, start: Offset(reader.i64()?) },
        1 => Request::Read { key, leader_epoch: LeaderEpoch(reader.i32()?) },
        2 => Request::Write(Box::new(StateWrite {
            key,
            state_epoch: reader.i32()?,
            leader_epoch: LeaderEpoch(reader.i32()?),
            start: Offset(reader.i64()?),
            delivery_complete: reader.i32()?,
            batches: read_batches(&mut reader)?,
        })),
        3 => Request::Delete { key },
        other => return Err(DecodeError::Message(format!("there is no request {other}"))),
    })
}

/// What it is answered.
pub(super) fn write_response(response: &Response) -> Vec<u8> {
    let mut out = Vec::new();
    let (kind, error) = match response {
        Response::Read(result) => (0, result.as_ref().err()),
        Response::Changed(result) => (1, result.as_ref().err()),
    };
    out.put_u8(kind);
    out.put_i16(error.map_or(0, |error| error.code()));
    if let Response::Read(Ok(kept)) = response {
        out.put_i32(kept.state_epoch);
        out.put_i32(kept.leader_epoch.0);
        out.put_i64(kept.start.0);
        out.put_i32(kept.delivery_complete);
        write_batches(&mut out, &kept.batches);
    }
    out
}

fn read_response(body: &Bytes) -> Result<Response, DecodeError> {
    let mut reader = Reader::new(body);
    let (kind, code) = (reader.i8()?, reader.i16()?);
    let error = match code {
        0 => None,
        code => Some(ErrorCode::try_from_code(code).unwrap_or(ErrorCode::UnknownServerError)),
    };
    match (kind, error) {
        (0, Some(error)) => Ok(Response::Read(Err(error))),
        (0, None) => Ok(Response::Read(Ok(Persisted {
            state_epoch: reader.i32()?,
            leader_epoch: LeaderEpoch(reader.i32()?),
            start: Offset(reader.i64()?),
            delivery_complete: reader.i32()?,
            batches: read_batches(&mut reader)?,
        }))),
        (1, Some(error)) => Ok(Response::Changed(Err(error))),
        (1, None) => Ok(Response::Changed(Ok(()))),
        (other, _) => Err(DecodeError::Message(format!("there is no answer {other}"))),
    }
}

fn write_batches(out: &mut Vec<u8>, batches: &[StateBatch]) {
    out.put_u32(batches.len() as u32);
    for batch in batches {
        out.put_i64(batch.first.0);
        out.put_i64(batch.last.0);
        out.put_i8(batch.state.id());
        out.put_u16(batch.delivery_count);
    }
}

fn read_batches(reader: &mut Reader<'_>) -> Result<Vec<StateBatch>, DecodeError> {
    let count = reader.elements(false, BATCH_BYTES)?;
    let mut batches = Vec::with_capacity(count);
    for _ in 0..count {
        let (first, last) = (Offset(reader.i64()?), Offset(reader.i64()?));
        let id = reader.i8()?;
        let state = DeliveryState::from_id(id);
        let state = state.ok_or_else(|| DecodeError::Message(format!("there is no state {id}")))?;
        batches.push(StateBatch { first, last, state, delivery_count: reader.i16()? as u16 });
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::base::TopicId;

    fn key() -> ShareKey {
        ShareKey {
            group: Arc::from("größe"),
            topic: TopicId(Uuid::from_u128(7)),
            partition: PartitionIndex(3),
        }
    }

    fn batches() -> Vec<StateBatch> {
        [DeliveryState::Available, DeliveryState::Acknowledged, DeliveryState::Archived]
            .into_iter()
            .zip(1..)
            .map(|(state, number)| StateBatch {
                first: Offset(10 * number),
                last: Offset(10 * number + 5),
                state,
                delivery_count: number as u16,
            })
            .collect()
    }

    #[test]
    fn requests_and_answers_come_as_they_went() {
        let write = StateWrite {
            key: key(),
            state_epoch: 4,
            leader_epoch: LeaderEpoch(5),
            start: Offset(10),
            delivery_complete: 6,
            batches: batches(),
        };
        let requests = [
            Request::Initialize { key: key(), state_epoch: 4, start: Offset(-1) },
            Request::Read { key: key(), leader_epoch: LeaderEpoch(5) },
            Request::Write(Box::new(write)),
            Request::Delete { key: key() },
        ];
        for request in requests {
            let body = Bytes::from(write_request(&request));
            assert_eq!(read_request(&body), Ok(request));
            for len in 0..body.len() {
                assert!(read_request(&body.slice(..len)).is_err());
            }
        }
        let kept = Persisted {
            state_epoch: 4,
            leader_epoch: LeaderEpoch(5),
            start: Offset(10),
            delivery_complete: -1,
            batches: batches(),
        };
        let responses = [
            Response::Read(Ok(kept)),
            Response::Read(Err(ErrorCode::UnknownTopicOrPartition)),
            Response::Changed(Ok(())),
            Response::Changed(Err(ErrorCode::FencedStateEpoch)),
        ];
        for response in responses {
            let body = Bytes::from(write_response(&response));
            assert_eq!(read_response(&body), Ok(response));
            for len in 0..body.len() {
                assert!(read_response(&body.slice(..len)).is_err());
            }
        }
    }

    #[test]
    fn a_count_that_the_bytes_do_not_bear_out_is_refused() {
        let write = StateWrite {
            key: key(),
            state_epoch: 4,
            leader_epoch: LeaderEpoch(5),
            start: Offset(10),
            delivery_complete: 6,
            batches: Vec::new(),
        };
        let mut body = write_request(&Request::Write(Box::new(write)));
        let at = body.len() - 4;
        body[at..].copy_from_slice(&i32::MAX.to_be_bytes());
        assert!(read_request(&Bytes::from(body)).is_err());
    }
}

//! BrokerHeartbeat 1 (KIP-631, KIP-858) between a broker and the controller, both ends of it. Pure.
//!
//! As in [`super::broker_registration`], what a frame of `peer` lacks of Kafka's headers is in the bodies here. Offline
//! log directories are told by the replicas in them, with a command of their own.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::{BrokerHeartbeatRequest, BrokerHeartbeatResponse};
use kafka_protocol::protocol::Encodable as _;

use super::cluster_view::broker_id;
use crate::base::{BrokerEpoch, BrokerId};
use crate::metadata::{BrokerState, Heartbeat, Refusal};
use crate::wire::ErrorCode;
use crate::wire::read::{DecodeError, Reader};
use crate::wire::write::EncodeError;

const VERSION: i16 = 1;
/// No client id, no tagged fields.
const REQUEST_HEADER_REST: [u8; 3] = [0xff, 0xff, 0];
/// No tagged fields.
const ANSWER_HEADER_REST: [u8; 1] = [0];

/// What a broker sends.
///
/// # Errors
/// Never: it has only numbers.
pub fn request(beat: &Heartbeat) -> Result<Vec<u8>, EncodeError> {
    let request = BrokerHeartbeatRequest::default()
        .with_broker_id(broker_id(beat.id))
        .with_broker_epoch(beat.epoch.0)
        .with_current_metadata_offset(i64::try_from(beat.metadata_version).unwrap_or(i64::MAX))
        .with_want_fence(beat.wants_fence)
        .with_want_shut_down(beat.wants_shutdown);
    let mut body = BytesMut::from(&REQUEST_HEADER_REST[..]);
    request.encode(&mut body, VERSION).map_err(|error| EncodeError::Message(error.to_string()))?;
    Ok(body.to_vec())
}

/// What the controller reads.
pub fn read_request(body: &Bytes) -> Result<Heartbeat, DecodeError> {
    let mut reader = Reader::new(body);
    reader.nullable_string(false)?;
    reader.skip_tagged_fields(true)?;
    let beat = Heartbeat {
        id: BrokerId(reader.i32()?),
        epoch: BrokerEpoch(reader.i64()?),
        metadata_version: u64::try_from(reader.i64()?).unwrap_or(0),
        wants_fence: reader.bool()?,
        wants_shutdown: reader.bool()?,
    };
    reader.skip_tagged_fields(true)?;
    Ok(beat)
}

/// What the controller answers.
///
/// # Errors
/// Never: it has only numbers.
pub fn answer(result: &Result<BrokerState, Refusal>) -> Result<Vec<u8>, EncodeError> {
    let response = match result {
        Ok(state) => BrokerHeartbeatResponse::default()
            .with_is_caught_up(state.is_caught_up)
            .with_is_fenced(state.is_fenced)
            .with_should_shut_down(state.should_shut_down),
        Err(refusal) => {
            BrokerHeartbeatResponse::default().with_error_code(refusal.code.code()).with_is_fenced(true)
        }
    };
    let mut body = BytesMut::from(&ANSWER_HEADER_REST[..]);
    response.encode(&mut body, VERSION).map_err(|error| EncodeError::Message(error.to_string()))?;
    Ok(body.to_vec())
}

/// What the broker reads.
pub fn read_answer(body: &Bytes) -> Result<Result<BrokerState, ErrorCode>, DecodeError> {
    let mut reader = Reader::new(body);
    reader.skip_tagged_fields(true)?;
    reader.i32()?;
    let code = reader.i16()?;
    let state = BrokerState {
        is_caught_up: reader.bool()?,
        is_fenced: reader.bool()?,
        should_shut_down: reader.bool()?,
    };
    reader.skip_tagged_fields(true)?;
    Ok(match (code, ErrorCode::try_from_code(code)) {
        (0, _) => Ok(state),
        (_, Some(code)) => Err(code),
        (_, None) => Err(ErrorCode::UnknownServerError),
    })
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable as _;

    use super::*;

    const BEAT: Heartbeat = Heartbeat {
        id: BrokerId(3),
        epoch: BrokerEpoch(77),
        metadata_version: 99,
        wants_fence: true,
        wants_shutdown: false,
    };

    #[test]
    fn a_heartbeat_comes_back_as_it_was_and_no_part_of_it_passes() {
        for wants_shutdown in [false, true] {
            let beat = Heartbeat { wants_shutdown, wants_fence: !wants_shutdown, ..BEAT };
            let body = Bytes::from(request(&beat).unwrap());
            assert_eq!(read_request(&body), Ok(beat));
            for end in 0..body.len() {
                assert!(read_request(&body.slice(..end)).is_err(), "{end}");
            }
        }
    }

    #[test]
    fn it_is_kafkas_request() {
        let body = request(&BEAT).unwrap();
        let mut rest = Bytes::from(body).slice(REQUEST_HEADER_REST.len()..);
        let read = BrokerHeartbeatRequest::decode(&mut rest, VERSION).unwrap();
        assert_eq!((read.broker_id.0, read.broker_epoch, read.current_metadata_offset), (3, 77, 99));
        assert!(read.want_fence && !read.want_shut_down && rest.is_empty());
    }

    #[test]
    fn answers_come_back_as_they_were() {
        let read = |result| read_answer(&Bytes::from(answer(&result).unwrap()));
        for bits in 0..8 {
            let state = BrokerState {
                is_caught_up: bits & 1 > 0,
                is_fenced: bits & 2 > 0,
                should_shut_down: bits & 4 > 0,
            };
            assert_eq!(read(Ok(state)), Ok(Ok(state)));
        }
        let refusal = Refusal::new(ErrorCode::StaleBrokerEpoch, "no");
        assert_eq!(read(Err(refusal)), Ok(Err(ErrorCode::StaleBrokerEpoch)));
        assert!(read_answer(&Bytes::from_static(&[0, 0, 0])).is_err());
    }
}

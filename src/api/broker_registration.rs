//! BrokerRegistration 4 (KIP-631, KIP-858) between a broker and the controller, both ends of it. Pure.
//!
//! A frame of `peer` has the key, the version and the correlation of Kafka's headers; the rest of them is in the
//! bodies here.

use bytes::{Bytes, BytesMut};
use kafka_protocol::messages::broker_registration_request::{Feature, Listener};
use kafka_protocol::messages::{BrokerRegistrationRequest, BrokerRegistrationResponse};
use kafka_protocol::protocol::Encodable as _;

use super::cluster_view::{broker_id, text};
use crate::base::{BrokerEpoch, BrokerId};
use crate::metadata::{Endpoint, FeatureRange, Refusal, RegisterBroker};
use crate::wire::ErrorCode;
use crate::wire::read::{DecodeError, Reader};
use crate::wire::write::EncodeError;

const VERSION: i16 = 4;
/// No client id, no tagged fields.
const REQUEST_HEADER_REST: [u8; 3] = [0xff, 0xff, 0];
/// No tagged fields.
const ANSWER_HEADER_REST: [u8; 1] = [0];

/// What a broker sends.
///
/// # Errors
/// When a text is longer than Kafka's strings can be.
pub fn request(registration: &RegisterBroker) -> Result<Vec<u8>, EncodeError> {
    let listeners = registration.endpoints.iter().map(|endpoint| {
        Listener::default()
            .with_name(text(&endpoint.listener))
            .with_host(text(&endpoint.host))
            .with_port(endpoint.port)
            .with_security_protocol(endpoint.security_protocol)
    });
    let features = registration.features.iter().map(|range| {
        Feature::default()
            .with_name(text(&range.name))
            .with_min_supported_version(range.min)
            .with_max_supported_version(range.max)
    });
    let request = BrokerRegistrationRequest::default()
        .with_broker_id(broker_id(registration.id))
        .with_cluster_id(text(&registration.cluster_id))
        .with_incarnation_id(registration.incarnation)
        .with_listeners(listeners.collect())
        .with_features(features.collect())
        .with_rack(registration.rack.as_deref().map(text))
        .with_log_dirs(registration.log_dirs.clone())
        .with_previous_broker_epoch(registration.previous_epoch.map_or(-1, |epoch| epoch.0));
    let mut body = BytesMut::from(&REQUEST_HEADER_REST[..]);
    request.encode(&mut body, VERSION).map_err(|error| EncodeError::Message(error.to_string()))?;
    Ok(body.to_vec())
}

/// What the controller reads: a broker that is fenced until a heartbeat says that it is ready.
pub fn read_request(body: &Bytes) -> Result<RegisterBroker, DecodeError> {
    let mut reader = Reader::new(body);
    reader.nullable_string(false)?;
    reader.skip_tagged_fields(true)?;
    let id = BrokerId(reader.i32()?);
    let cluster_id = reader.string(true)?.to_owned();
    let incarnation = reader.topic_id()?.0;
    let mut endpoints = Vec::new();
    for _ in 0..reader.elements(true, 7)? {
        let listener = reader.string(true)?.to_owned();
        let host = reader.string(true)?.to_owned();
        let (port, security_protocol) = (reader.i16()? as u16, reader.i16()?);
        reader.skip_tagged_fields(true)?;
        endpoints.push(Endpoint { listener, host, port, security_protocol });
    }
    let mut features = Vec::new();
    for _ in 0..reader.elements(true, 6)? {
        let name = reader.string(true)?.to_owned();
        let (min, max) = (reader.i16()?, reader.i16()?);
        reader.skip_tagged_fields(true)?;
        features.push(FeatureRange { name, min, max });
    }
    let rack = reader.nullable_string(true)?.map(str::to_owned);
    reader.bool()?;
    let mut log_dirs = Vec::new();
    for _ in 0..reader.elements(true, 16)? {
        log_dirs.push(reader.topic_id()?.0);
    }
    let previous_epoch = Some(BrokerEpoch(reader.i64()?)).filter(|epoch| epoch.0 >= 0);
    reader.skip_tagged_fields(true)?;
    let fenced = true;
    Ok(RegisterBroker {
        id,
        cluster_id,
        incarnation,
        endpoints,
        rack,
        log_dirs,
        features,
        fenced,
        previous_epoch,
    })
}

/// What the controller answers.
///
/// # Errors
/// Never: it has only numbers.
pub fn answer(result: &Result<BrokerEpoch, Refusal>) -> Result<Vec<u8>, EncodeError> {
    let response = match result {
        Ok(epoch) => BrokerRegistrationResponse::default().with_broker_epoch(epoch.0),
        Err(refusal) => {
            BrokerRegistrationResponse::default().with_error_code(refusal.code.code()).with_broker_epoch(-1)
        }
    };
    let mut body = BytesMut::from(&ANSWER_HEADER_REST[..]);
    response.encode(&mut body, VERSION).map_err(|error| EncodeError::Message(error.to_string()))?;
    Ok(body.to_vec())
}

/// What the broker reads.
pub fn read_answer(body: &Bytes) -> Result<Result<BrokerEpoch, ErrorCode>, DecodeError> {
    let mut reader = Reader::new(body);
    reader.skip_tagged_fields(true)?;
    reader.i32()?;
    let code = reader.i16()?;
    let epoch = BrokerEpoch(reader.i64()?);
    reader.skip_tagged_fields(true)?;
    Ok(match (code, ErrorCode::try_from_code(code)) {
        (0, _) => Ok(epoch),
        (_, Some(code)) => Err(code),
        (_, None) => Err(ErrorCode::UnknownServerError),
    })
}

#[cfg(test)]
mod tests {
    use kafka_protocol::protocol::Decodable as _;
    use uuid::Uuid;

    use super::*;

    fn registration() -> RegisterBroker {
        let endpoint = |listener: &str, port| Endpoint {
            listener: listener.to_owned(),
            host: "host".to_owned(),
            port,
            security_protocol: 0,
        };
        RegisterBroker {
            id: BrokerId(3),
            cluster_id: "cluster".to_owned(),
            incarnation: Uuid::from_u128(5),
            endpoints: vec![endpoint("A", 9092), endpoint("B", 65_535)],
            rack: Some("r".to_owned()),
            log_dirs: vec![Uuid::from_u128(6), Uuid::from_u128(7)],
            features: vec![
                FeatureRange { name: "f".to_owned(), min: 0, max: 2 },
                FeatureRange { name: "g".to_owned(), min: -1, max: i16::MAX },
            ],
            fenced: true,
            previous_epoch: Some(BrokerEpoch(12)),
        }
    }

    #[test]
    fn a_registration_comes_back_as_it_was_and_no_part_of_it_passes() {
        let body = Bytes::from(request(&registration()).unwrap());
        assert_eq!(read_request(&body), Ok(registration()));
        let unclean = RegisterBroker { previous_epoch: None, ..registration() };
        assert_eq!(read_request(&Bytes::from(request(&unclean).unwrap())), Ok(unclean));
        for end in 0..body.len() {
            assert!(read_request(&body.slice(..end)).is_err(), "{end}");
        }
    }

    #[test]
    fn it_is_kafkas_request() {
        let body = request(&registration()).unwrap();
        let mut rest = Bytes::from(body).slice(REQUEST_HEADER_REST.len()..);
        let read = BrokerRegistrationRequest::decode(&mut rest, VERSION).unwrap();
        assert_eq!((read.broker_id.0, read.listeners.len(), read.log_dirs.len()), (3, 2, 2));
        assert!(rest.is_empty());
    }

    #[test]
    fn a_count_beyond_the_bytes_is_refused() {
        let mut body = REQUEST_HEADER_REST.to_vec();
        body.extend_from_slice(&3i32.to_be_bytes());
        // No cluster id, an id of the process, and four billion listeners.
        body.push(1);
        body.extend_from_slice(&[0; 16]);
        body.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(matches!(read_request(&Bytes::from(body)), Err(DecodeError::Count { .. })));
    }

    #[test]
    fn answers_come_back_as_they_were() {
        let read = |result| read_answer(&Bytes::from(answer(&result).unwrap()));
        assert_eq!(read(Ok(BrokerEpoch(77))), Ok(Ok(BrokerEpoch(77))));
        let refusal = Refusal::new(ErrorCode::NotController, "no");
        assert_eq!(read(Err(refusal)), Ok(Err(ErrorCode::NotController)));
        assert!(read_answer(&Bytes::from_static(&[0, 0, 0])).is_err());
    }
}

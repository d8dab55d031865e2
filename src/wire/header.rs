//! The request header: which API in which version, the correlation id that the answer repeats, and the
//! client's id.

use bytes::{BufMut, Bytes, BytesMut};

use super::api::{self, Api, UnsupportedApi};
use super::read::{DecodeError, Reader};
use super::{ApiKey, ErrorCode};

/// Chosen by the client for each request, repeated in the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CorrelationId(pub i32);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    pub api: &'static Api,
    pub version: i16,
    pub correlation_id: CorrelationId,
    /// Opaque bytes: clients send what is not UTF-8. `None` when the client sent null.
    pub client_id: Option<Bytes>,
}

/// A frame whose header has been understood.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Of a served API and version; `body` is what follows the header and shares the frame's memory.
    Known { header: RequestHeader, body: Bytes },
    /// ApiVersions of a version that is not served: answer with [`unsupported_api_versions`] (KIP-511).
    UnknownApiVersions { correlation_id: CorrelationId },
}

/// The connection is to be closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderError {
    #[error(transparent)]
    Unsupported(#[from] UnsupportedApi),
    #[error("request header: {0}")]
    Malformed(#[from] DecodeError),
}

/// Reads the header of one frame (its bytes without the size prefix). The version is checked before
/// anything behind it is read, because an unknown version may have an unknown header
/// (`org.apache.kafka.common.requests.RequestHeader`, `RequestContext`).
pub fn parse(frame: &Bytes) -> Result<Request, HeaderError> {
    let mut reader = Reader::new(frame);
    let key = reader.i16()?;
    let version = reader.i16()?;
    let correlation_id = CorrelationId(reader.i32()?);
    let api = match api::lookup(key, version) {
        Ok(api) => api,
        Err(UnsupportedApi::Version { api, .. }) if api.key == ApiKey::ApiVersions => {
            return Ok(Request::UnknownApiVersions { correlation_id });
        }
        Err(unsupported) => return Err(unsupported.into()),
    };
    // The client id keeps its legacy length in header version 2 also.
    let client_id = reader.string_bytes(false)?;
    reader.skip_tagged_fields(api.request_header_version(version) >= 2)?;
    let header = RequestHeader { api, version, correlation_id, client_id };
    Ok(Request::Known { header, body: reader.rest() })
}

/// The whole frame that answers ApiVersions of an unknown version: body version 0, UNSUPPORTED_VERSION and
/// the range of ApiVersions alone, from which the client chooses again.
pub fn unsupported_api_versions(correlation_id: CorrelationId) -> Bytes {
    let range = api::find(ApiKey::ApiVersions as i16).map_or((0, 0), |api| (api.min, api.max));
    let mut frame = BytesMut::with_capacity(20);
    frame.put_i32(16);
    frame.put_i32(correlation_id.0);
    frame.put_i16(ErrorCode::UnsupportedVersion.code());
    frame.put_i32(1);
    frame.put_i16(ApiKey::ApiVersions as i16);
    frame.put_i16(range.0);
    frame.put_i16(range.1);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::{ApiVersionsResponse, RequestHeader as CrateHeader, ResponseHeader};
    use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};

    use super::*;

    fn encoded(key: i16, version: i16, header_version: i16, body: &[u8]) -> Bytes {
        let mut frame = BytesMut::new();
        CrateHeader::default()
            .with_request_api_key(key)
            .with_request_api_version(version)
            .with_correlation_id(77)
            .with_client_id(Some(StrBytes::from_static_str("me")))
            .with_unknown_tagged_field(9, Bytes::from_static(b"xyz"))
            .encode(&mut frame, header_version)
            .unwrap();
        frame.put_slice(body);
        frame.freeze()
    }

    #[test]
    fn every_served_version_has_its_header_read() {
        for api in api::APIS {
            for version in api.min_served..=api.max {
                let frame = encoded(api.key as i16, version, api.request_header_version(version), b"body");
                let Ok(Request::Known { header, body }) = parse(&frame) else {
                    panic!("{} {version}", api.name);
                };
                assert_eq!(header.api, api);
                assert_eq!(header.version, version);
                assert_eq!(header.correlation_id, CorrelationId(77));
                assert_eq!(header.client_id.as_deref(), Some(&b"me"[..]));
                assert_eq!(&body[..], b"body");
            }
        }
    }

    #[test]
    fn client_id_may_be_null_and_need_not_be_utf8() {
        let null = Bytes::from_static(&[0, 3, 0, 0, 0, 0, 0, 1, 0xff, 0xff]);
        assert!(matches!(parse(&null), Ok(Request::Known { header, .. }) if header.client_id.is_none()));
        let opaque = Bytes::from_static(&[0, 3, 0, 0, 0, 0, 0, 1, 0, 2, 0xc3, 0x28]);
        assert!(
            matches!(parse(&opaque), Ok(Request::Known { header, .. }) if header.client_id.as_deref() == Some(&[0xc3, 0x28]))
        );
    }

    #[test]
    fn api_versions_of_an_unknown_version_is_answered_in_version_zero() {
        // Nothing behind the correlation id is readable, and need not be.
        let frame = Bytes::from_static(&[0, 18, 0, 99, 0, 0, 0, 77]);
        assert_eq!(parse(&frame), Ok(Request::UnknownApiVersions { correlation_id: CorrelationId(77) }));

        let answer = unsupported_api_versions(CorrelationId(77));
        let mut body = answer.slice(4..);
        assert_eq!(answer[..4], (body.len() as i32).to_be_bytes());
        assert_eq!(ResponseHeader::decode(&mut body, 0).unwrap().correlation_id, 77);
        let response = ApiVersionsResponse::decode(&mut body, 0).unwrap();
        assert_eq!(response.error_code, 35);
        assert_eq!(response.api_keys.len(), 1);
        assert_eq!(response.api_keys[0].api_key, 18);
        assert_eq!((response.api_keys[0].min_version, response.api_keys[0].max_version), (0, 4));
        assert!(body.is_empty());
    }

    #[test]
    fn other_unknown_versions_and_keys_are_errors() {
        for frame in [[0, 1, 0, 19, 0, 0, 0, 1], [0, 0, 0, 2, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0, 0, 1]] {
            let frame = Bytes::copy_from_slice(&frame);
            assert!(matches!(parse(&frame), Err(HeaderError::Unsupported(_))));
        }
    }

    #[test]
    fn short_or_lying_headers_are_errors() {
        let whole = encoded(3, 12, 2, b"");
        for len in 0..whole.len() {
            assert!(parse(&whole.slice(..len)).is_err(), "{len}");
        }
        let tags = Bytes::from_static(&[0, 3, 0, 12, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]);
        assert!(matches!(parse(&tags), Err(HeaderError::Malformed(DecodeError::Count { .. }))));
    }
}

//! Splits received bytes into frames: an i32 length, then that many bytes.
//!
//! A pure function over what has arrived. The caller slices whole frames out of its chunk, carries the
//! partial tail to the next chunk and borrows a larger chunk when a frame needs one.

use super::api::{self, Api};

/// Length of the size prefix, bytes.
pub const PREFIX_LEN: usize = 4;

/// The shortest request: key, version and correlation id of the header.
pub const REQUEST_LEN_MIN: usize = 8;

/// What the next bytes of a connection are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameStep {
    /// The buffer begins with a whole frame of `len` bytes behind its prefix:
    /// `buffer[PREFIX_LEN..PREFIX_LEN + len]`.
    Complete { len: usize },
    /// The frame at the start is not whole. Its total length, prefix and all, is `total` bytes; while the
    /// prefix itself is not whole, `total` is [`PREFIX_LEN`].
    NeedMore { total: usize },
    /// The peer does not speak the protocol or wants too much: close the connection.
    Invalid(FrameError),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame length {len} is too short for a request header")]
    TooShort { len: i32 },
    #[error("frame length {len} exceeds the {len_max} bytes of socket.request.max.bytes")]
    TooLong { len: usize, len_max: usize },
    #[error("frame length {len} exceeds the {} bytes that {} ever needs", .api.request_bytes_max(), .api.name)]
    TooLongForApi { len: usize, api: &'static Api },
}

/// Looks at the start of `buffer`. `len_max` is `socket.request.max.bytes`, which bounds what follows the
/// prefix (`org.apache.kafka.common.network.NetworkReceive`).
pub fn next(buffer: &[u8], len_max: usize) -> FrameStep {
    let Some(prefix) = buffer.first_chunk::<PREFIX_LEN>() else {
        return FrameStep::NeedMore { total: PREFIX_LEN };
    };
    let signed_len = i32::from_be_bytes(*prefix);
    let Ok(len) = usize::try_from(signed_len) else {
        return FrameStep::Invalid(FrameError::TooShort { len: signed_len });
    };
    if len < REQUEST_LEN_MIN {
        return FrameStep::Invalid(FrameError::TooShort { len: signed_len });
    }
    if len > len_max {
        return FrameStep::Invalid(FrameError::TooLong { len, len_max });
    }
    // Known long before the rest has come.
    if let Some(key) = buffer[PREFIX_LEN..].first_chunk::<2>()
        && let Some(api) = api::find(i16::from_be_bytes(*key))
        && len > api.request_bytes_max()
    {
        return FrameStep::Invalid(FrameError::TooLongForApi { len, api });
    }
    if buffer.len() - PREFIX_LEN < len {
        return FrameStep::NeedMore { total: PREFIX_LEN + len };
    }
    FrameStep::Complete { len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_frame_is_complete_whatever_follows_it() {
        let buffer = [0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0];
        assert_eq!(next(&buffer, 100), FrameStep::Complete { len: 8 });
        assert_eq!(next(&buffer[..12], 100), FrameStep::Complete { len: 8 });
    }

    #[test]
    fn partial_frame_tells_its_total_length() {
        assert_eq!(next(&[], 100), FrameStep::NeedMore { total: 4 });
        assert_eq!(next(&[0, 0, 0], 100), FrameStep::NeedMore { total: 4 });
        assert_eq!(next(&[0, 0, 0, 50], 100), FrameStep::NeedMore { total: 54 });
        assert_eq!(next(&[0, 0, 0, 8, 1, 2, 3, 4, 5, 6, 7], 100), FrameStep::NeedMore { total: 12 });
    }

    #[test]
    fn a_request_longer_than_its_api_needs_is_refused_as_soon_as_its_key_is_there() {
        let heartbeat = [0, 8, 0, 0, 0, 12];
        assert!(matches!(next(&heartbeat, 100 << 20), FrameStep::Invalid(FrameError::TooLongForApi { .. })));
        assert_eq!(next(&heartbeat[..5], 100 << 20), FrameStep::NeedMore { total: (8 << 16) + 4 });
        let produce = [0, 8, 0, 0, 0, 0];
        assert_eq!(next(&produce, 100 << 20), FrameStep::NeedMore { total: (8 << 16) + 4 });
    }

    #[test]
    fn negative_short_and_long_lengths_are_refused() {
        assert!(matches!(next(&[255; 4], 100), FrameStep::Invalid(FrameError::TooShort { len: -1 })));
        assert!(matches!(next(&[0, 0, 0, 7], 100), FrameStep::Invalid(FrameError::TooShort { len: 7 })));
        assert!(matches!(next(&[0, 0, 0, 101], 100), FrameStep::Invalid(FrameError::TooLong { .. })));
        assert!(matches!(next(&[127, 255, 255, 255], 100), FrameStep::Invalid(FrameError::TooLong { .. })));
        // An HTTP or TLS client: its first bytes are a huge length.
        assert!(matches!(next(b"GET / HTTP/1.1", 104_857_600), FrameStep::Invalid(_)));
    }
}

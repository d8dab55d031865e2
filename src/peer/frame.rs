//! Frames between nodes: Kafka's framing, `length i32 · key i16 · version i16 · correlation i32 · body` and, for
//! answers, `length i32 · correlation i32 · body`. Keys from 19200 on are kuring's own. Where nodes share a secret
//! each frame after the hello ends in its code.

use bytes::Bytes;

use super::PeerError;
use super::secret::{CODE_BYTES, Seal};

/// The longest frame behind its length: an entry of the metadata log has at most 8 MiB.
pub const FRAME_BYTES_MAX: usize = 9 << 20;
/// The longest frame of a peer that has not said who it is.
pub(super) const HELLO_BYTES_MAX: usize = 4 << 10;

/// Kuring's own keys; Kafka's are all below.
pub(super) const OWN_KEYS_FROM: i16 = 19200;

const LENGTH_BYTES: usize = 4;
const REQUEST_HEAD_BYTES: usize = 8;
const ANSWER_HEAD_BYTES: usize = 4;

/// What a peer asks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PeerKey {
    Hello,
    Proof,
    RaftAppend,
    RaftVote,
    RaftPreVote,
    RaftSnapshot,
    RaftTransfer,
    /// Kafka's own request, with its header.
    BrokerRegistration,
    /// The same.
    BrokerHeartbeat,
    /// The same.
    AssignReplicasToDirs,
    /// A command for the controller.
    Command,
    /// What the leader of the metadata log tells of its voters.
    DescribeQuorum,
    /// For the metadata log, from a node that has no vote.
    FetchLog,
    /// A controller asks to be given the log, and says where it is.
    Join,
    /// A voter is to be added or removed.
    ChangeVoters,
    /// A request for the share coordinator, between brokers.
    ShareState,
    /// A follower has something else to ask: its fetch under way is to wait no longer. Has no answer of its own.
    Nudge,
}

impl PeerKey {
    const ALL: [PeerKey; 17] = [
        PeerKey::Hello,
        PeerKey::Proof,
        PeerKey::RaftAppend,
        PeerKey::RaftVote,
        PeerKey::RaftPreVote,
        PeerKey::RaftSnapshot,
        PeerKey::RaftTransfer,
        PeerKey::BrokerRegistration,
        PeerKey::BrokerHeartbeat,
        PeerKey::AssignReplicasToDirs,
        PeerKey::Command,
        PeerKey::DescribeQuorum,
        PeerKey::FetchLog,
        PeerKey::Join,
        PeerKey::ChangeVoters,
        PeerKey::ShareState,
        PeerKey::Nudge,
    ];

    fn number(self) -> i16 {
        match self {
            PeerKey::Hello => 19200,
            PeerKey::Proof => 19201,
            PeerKey::RaftAppend => 19202,
            PeerKey::RaftVote => 19203,
            PeerKey::RaftPreVote => 19204,
            PeerKey::RaftSnapshot => 19205,
            PeerKey::RaftTransfer => 19206,
            PeerKey::BrokerRegistration => 62,
            PeerKey::BrokerHeartbeat => 63,
            PeerKey::AssignReplicasToDirs => 73,
            PeerKey::Command => 19210,
            PeerKey::DescribeQuorum => 19211,
            PeerKey::FetchLog => 19212,
            PeerKey::Join => 19213,
            PeerKey::ChangeVoters => 19214,
            PeerKey::ShareState => 19220,
            PeerKey::Nudge => 19221,
        }
    }

    /// The version that is spoken.
    pub fn version(self) -> i16 {
        match self {
            PeerKey::BrokerRegistration => 4,
            PeerKey::AssignReplicasToDirs => 0,
            _ => 1,
        }
    }

    /// Whether controllers alone ask it of each other.
    pub(super) fn is_rafts(self) -> bool {
        use PeerKey::{RaftAppend, RaftPreVote, RaftSnapshot, RaftTransfer, RaftVote};
        matches!(self, RaftAppend | RaftVote | RaftPreVote | RaftSnapshot | RaftTransfer)
    }

    pub(super) fn of(number: i16) -> Option<PeerKey> {
        Self::ALL.into_iter().find(|key| key.number() == number)
    }
}

/// A request as it came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    pub key: PeerKey,
    pub(super) correlation: i32,
    pub body: Bytes,
}

/// The length of the frame at the front of `filled` without its prefix, as soon as that is there; an error when it
/// cannot be.
pub(super) fn length(filled: &[u8], length_max: usize) -> Result<Option<usize>, PeerError> {
    let Some((prefix, _)) = filled.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    match usize::try_from(i32::from_be_bytes(*prefix)) {
        Ok(length) if (ANSWER_HEAD_BYTES..=length_max).contains(&length) => Ok(Some(length)),
        _ => Err(PeerError::Malformed("a frame of a length that cannot be")),
    }
}

/// The frame of a request with its length before it.
pub(super) fn request(key: PeerKey, correlation: i32, body: &[u8], seal: Option<&mut Seal>) -> Vec<u8> {
    let mut frame = Vec::with_capacity(LENGTH_BYTES + REQUEST_HEAD_BYTES + body.len() + CODE_BYTES);
    frame.extend_from_slice(&[0; LENGTH_BYTES]);
    frame.extend_from_slice(&key.number().to_be_bytes());
    frame.extend_from_slice(&key.version().to_be_bytes());
    frame.extend_from_slice(&correlation.to_be_bytes());
    frame.extend_from_slice(body);
    finish(frame, seal)
}

/// The frame of an answer with its length before it.
pub(super) fn answer(correlation: i32, body: &[u8], seal: Option<&mut Seal>) -> Vec<u8> {
    let mut frame = Vec::with_capacity(LENGTH_BYTES + ANSWER_HEAD_BYTES + body.len() + CODE_BYTES);
    frame.extend_from_slice(&[0; LENGTH_BYTES]);
    frame.extend_from_slice(&correlation.to_be_bytes());
    frame.extend_from_slice(body);
    finish(frame, seal)
}

fn finish(mut frame: Vec<u8>, seal: Option<&mut Seal>) -> Vec<u8> {
    if let Some(seal) = seal {
        let code = seal.code(&frame[LENGTH_BYTES..]);
        frame.extend_from_slice(&code);
    }
    let length = frame.len() - LENGTH_BYTES;
    assert!(length <= FRAME_BYTES_MAX, "a frame of {length} bytes: the callers cut theirs shorter");
    frame[..LENGTH_BYTES].copy_from_slice(&(length as u32).to_be_bytes());
    frame
}

pub(super) fn parse_request(frame: Bytes, seal: Option<&mut Seal>) -> Result<Request, PeerError> {
    let frame = unseal(frame, seal)?;
    let Some((head, _)) = frame.split_first_chunk::<REQUEST_HEAD_BYTES>() else {
        return Err(PeerError::Malformed("a request that is too short"));
    };
    let [k0, k1, v0, v1, c0, c1, c2, c3] = *head;
    let key = PeerKey::of(i16::from_be_bytes([k0, k1])).ok_or(PeerError::Malformed("an unknown request"))?;
    if i16::from_be_bytes([v0, v1]) != key.version() {
        return Err(PeerError::Malformed("a request of an unknown version"));
    }
    let correlation = i32::from_be_bytes([c0, c1, c2, c3]);
    Ok(Request { key, correlation, body: frame.slice(REQUEST_HEAD_BYTES..) })
}

/// The body of the answer to the request of this correlation.
pub(super) fn parse_answer(
    frame: Bytes,
    correlation: i32,
    seal: Option<&mut Seal>,
) -> Result<Bytes, PeerError> {
    let frame = unseal(frame, seal)?;
    let Some((head, _)) = frame.split_first_chunk::<ANSWER_HEAD_BYTES>() else {
        return Err(PeerError::Malformed("an answer that is too short"));
    };
    if i32::from_be_bytes(*head) != correlation {
        return Err(PeerError::Malformed("an answer to another request"));
    }
    Ok(frame.slice(ANSWER_HEAD_BYTES..))
}

fn unseal(mut frame: Bytes, seal: Option<&mut Seal>) -> Result<Bytes, PeerError> {
    let Some(seal) = seal else { return Ok(frame) };
    let Some(length) = frame.len().checked_sub(CODE_BYTES) else {
        return Err(PeerError::Malformed("a frame without its code"));
    };
    let code = frame.split_off(length);
    match seal.is_right(&frame, &code) {
        true => Ok(frame),
        false => Err(PeerError::Malformed("a frame with a wrong code")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Secret;

    fn seal(direction: u8) -> Seal {
        Secret::new(vec![7; 32]).unwrap().seal(b"talk", direction)
    }

    #[test]
    fn frames_come_back_as_they_were() {
        let frame = request(PeerKey::RaftVote, 7, b"body", None);
        assert_eq!(length(&frame, FRAME_BYTES_MAX).unwrap(), Some(frame.len() - 4));
        let parsed = parse_request(Bytes::from(frame).slice(4..), None).unwrap();
        assert_eq!((parsed.key, parsed.correlation, &parsed.body[..]), (PeerKey::RaftVote, 7, &b"body"[..]));
        let frame = Bytes::from(answer(7, b"body", None)).slice(4..);
        assert_eq!(parse_answer(frame.clone(), 7, None).unwrap(), &b"body"[..]);
        assert!(parse_answer(frame, 8, None).is_err(), "the answer to another request");
    }

    #[test]
    fn lengths_are_refused_before_anything_is_taken_for_them() {
        for bad in [0, 3, -1, i32::MAX, FRAME_BYTES_MAX as i32 + 1] {
            assert!(length(&bad.to_be_bytes(), FRAME_BYTES_MAX).is_err(), "{bad}");
        }
        assert_eq!(length(&[0, 0, 1], FRAME_BYTES_MAX).unwrap(), None);
        assert!(length(&5000i32.to_be_bytes(), HELLO_BYTES_MAX).is_err());
        assert_eq!(length(&4096i32.to_be_bytes(), HELLO_BYTES_MAX).unwrap(), Some(4096));
    }

    #[test]
    fn a_changed_a_repeated_and_an_uncoded_frame_are_refused() {
        let (mut sending, mut receiving) = (seal(0), seal(0));
        let frame = Bytes::from(request(PeerKey::RaftAppend, 1, b"entries", Some(&mut sending))).slice(4..);
        for position in 0..frame.len() {
            let mut changed = frame.to_vec();
            changed[position] ^= 1;
            let refused = parse_request(Bytes::from(changed), Some(&mut seal(0)));
            assert!(refused.is_err(), "byte {position}");
        }
        assert!(parse_request(frame.clone(), Some(&mut seal(1))).is_err(), "the other direction's");
        assert!(parse_request(frame.clone(), Some(&mut receiving)).is_ok());
        assert!(parse_request(frame, Some(&mut receiving)).is_err(), "the same once more");
        let bare = Bytes::from(request(PeerKey::RaftAppend, 1, b"", None)).slice(4..);
        assert!(parse_request(bare, Some(&mut receiving)).is_err());
    }

    #[test]
    fn unknown_keys_and_versions_are_refused() {
        let frame = request(PeerKey::RaftVote, 7, b"", None);
        for (position, value) in [(5, 99), (7, 2)] {
            let mut other = frame.clone();
            other[position] = value;
            assert!(parse_request(Bytes::from(other).slice(4..), None).is_err());
        }
        assert!(parse_request(Bytes::from_static(b"1234567"), None).is_err());
    }
}

//! The first words on a connection. Pure.
//!
//! The dialler says who it is, whom it wants and what for; the other end says who it is. Each adds a number that
//! was never used before, so that no talk is like another, and each proves the secret over the whole talk, the
//! dialler last:
//! ```text
//! Hello  identity · wanted node i32 · lane u8 · nonce 32 bytes
//!        → error i16 · message · identity · nonce 32 bytes · proof
//! Proof  proof → error i16 · message
//! ```
//! An identity is `cluster id · node i32 · directory 16 bytes · incarnation 16 bytes`; texts have an i16 length
//! before them. Without a secret a proof has no bytes.

use bytes::Bytes;
use uuid::Uuid;

use super::secret::{PROOF_BYTES, Seal, Secret};
use super::{Identity, Lane, PeerError, Refusal};
use crate::base::BrokerId;
use crate::wire::ErrorCode;
use crate::wire::read::Reader;

const DIALLER: u8 = 0;
const ACCEPTOR: u8 = 1;
const NONCE_BYTES: usize = 32;
const TEXT_BYTES_MAX: usize = 512;

/// The dialler's first words.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Hello {
    pub identity: Identity,
    pub wants: BrokerId,
    pub lane: Lane,
}

/// What both ends have said, of which the proofs and the frames' codes are made.
pub(super) struct Talk(Vec<u8>);

/// The codes of the frames in both directions; none without a secret.
pub(super) struct Seals {
    pub requests: Seal,
    pub answers: Seal,
}

impl Talk {
    fn of(hello: &[u8], answer: &[u8]) -> Self {
        let mut talk = Vec::with_capacity(8 + hello.len() + answer.len());
        talk.extend_from_slice(&(hello.len() as u64).to_be_bytes());
        talk.extend_from_slice(hello);
        talk.extend_from_slice(answer);
        Self(talk)
    }

    /// What the dialler says last.
    pub(super) fn dialler_proof(&self, secret: Option<&Secret>) -> Vec<u8> {
        secret.map(|secret| secret.proof(&self.0, DIALLER).to_vec()).unwrap_or_default()
    }

    /// Whether the dialler has said what it must. Without a secret it says nothing.
    pub(super) fn is_dialler_proof(&self, secret: Option<&Secret>, proof: &[u8]) -> bool {
        match secret {
            Some(secret) => secret.is_proof(&self.0, DIALLER, proof),
            None => proof.is_empty(),
        }
    }

    pub(super) fn seals(&self, secret: Option<&Secret>) -> Option<Seals> {
        secret.map(|secret| Seals {
            requests: secret.seal(&self.0, DIALLER),
            answers: secret.seal(&self.0, ACCEPTOR),
        })
    }
}

impl Hello {
    /// With a fresh number at the end.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        write_identity(&self.identity, &mut out);
        out.extend_from_slice(&self.wants.0.to_be_bytes());
        out.push(self.lane as u8);
        out.extend_from_slice(&nonce());
        out
    }

    pub(super) fn decode(body: &Bytes) -> Result<Self, PeerError> {
        let mut reader = Reader::new(body);
        let mut read = || {
            let identity = read_identity(&mut reader)?;
            let wants = BrokerId(reader.i32()?);
            let lane = reader.i8()?;
            reader.skip(NONCE_BYTES)?;
            Ok((identity, wants, lane))
        };
        let (identity, wants, lane) = read().map_err(malformed)?;
        let lane = usize::try_from(lane).ok().and_then(|lane| Lane::ALL.get(lane).copied());
        match lane {
            Some(lane) if reader.left() == 0 => Ok(Self { identity, wants, lane }),
            _ => Err(PeerError::Malformed("a hello that does not decode")),
        }
    }
}

/// The answer to a hello that is taken, and the talk that the two make.
pub(super) fn accept(hello: &[u8], own: &Identity, secret: Option<&Secret>) -> (Vec<u8>, Talk) {
    let mut out = refusal(None);
    write_identity(own, &mut out);
    out.extend_from_slice(&nonce());
    let talk = Talk::of(hello, &out);
    if let Some(secret) = secret {
        out.extend_from_slice(&secret.proof(&talk.0, ACCEPTOR));
    }
    (out, talk)
}

/// The answer to a hello or a proof: an error and why, or none.
pub(super) fn refusal(refusal: Option<&Refusal>) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    out.extend_from_slice(&refusal.map_or(0, |refusal| refusal.code.code()).to_be_bytes());
    let message = refusal.map_or("", |refusal| refusal.message.as_str());
    write_text(message, &mut out);
    out
}

/// What the dialler makes of the answer to its `hello`: who is there.
pub(super) fn conclude(
    hello: &[u8],
    answer: &Bytes,
    secret: Option<&Secret>,
) -> Result<(Identity, Talk), PeerError> {
    let mut reader = Reader::new(answer);
    read_refusal(&mut reader)?;
    let identity = read_identity(&mut reader).map_err(malformed)?;
    reader.skip(NONCE_BYTES).map_err(malformed)?;
    let said = reader.position();
    let talk = Talk::of(hello, &answer[..said]);
    let proof = &answer[said..];
    let is_right = match secret {
        Some(secret) => proof.len() == PROOF_BYTES && secret.is_proof(&talk.0, ACCEPTOR, proof),
        None => proof.is_empty(),
    };
    if !is_right {
        let text = format!("Node {} does not have the secret that this node has.", identity.node);
        return Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text).into());
    }
    Ok((identity, talk))
}

/// The answer to the dialler's proof.
pub(super) fn conclude_proof(answer: &Bytes) -> Result<(), PeerError> {
    let mut reader = Reader::new(answer);
    read_refusal(&mut reader)?;
    match reader.left() {
        0 => Ok(()),
        _ => Err(PeerError::Malformed("an answer that does not decode")),
    }
}

fn read_refusal(reader: &mut Reader<'_>) -> Result<(), PeerError> {
    let code = reader.i16().map_err(malformed)?;
    let message = reader.string(false).map_err(malformed)?;
    match ErrorCode::try_from_code(code) {
        None if code == 0 => Ok(()),
        None => Err(Refusal::new(ErrorCode::UnknownServerError, message).into()),
        Some(code) => Err(Refusal::new(code, message).into()),
    }
}

/// Never used before: from the system's random source.
fn nonce() -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    nonce[..16].copy_from_slice(Uuid::new_v4().as_bytes());
    nonce[16..].copy_from_slice(Uuid::new_v4().as_bytes());
    nonce
}

fn write_identity(identity: &Identity, out: &mut Vec<u8>) {
    write_text(&identity.cluster_id, out);
    out.extend_from_slice(&identity.node.0.to_be_bytes());
    out.extend_from_slice(identity.directory.as_bytes());
    out.extend_from_slice(identity.incarnation.as_bytes());
}

fn read_identity(reader: &mut Reader<'_>) -> Result<Identity, crate::wire::read::DecodeError> {
    Ok(Identity {
        cluster_id: reader.string(false)?.to_owned(),
        node: BrokerId(reader.i32()?),
        directory: reader.topic_id()?.0,
        incarnation: reader.topic_id()?.0,
    })
}

fn write_text(text: &str, out: &mut Vec<u8>) {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.extend_from_slice(&(end as i16).to_be_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

fn malformed(_: crate::wire::read::DecodeError) -> PeerError {
    PeerError::Malformed("first words that do not decode")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node: i32) -> Identity {
        Identity {
            cluster_id: "cluster".to_owned(),
            node: BrokerId(node),
            directory: Uuid::from_u128(node as u128),
            incarnation: Uuid::new_v4(),
        }
    }

    fn hello() -> Hello {
        Hello { identity: identity(1), wants: BrokerId(2), lane: Lane::Beat }
    }

    #[test]
    fn a_hello_comes_back_as_it_was_and_no_part_of_it_passes() {
        let hello = hello();
        let bytes = Bytes::from(hello.encode());
        assert_eq!(Hello::decode(&bytes).unwrap(), hello);
        for end in 0..bytes.len() {
            assert!(Hello::decode(&bytes.slice(..end)).is_err(), "{end}");
        }
        let longer = [&bytes[..], b"x"].concat();
        assert!(Hello::decode(&Bytes::from(longer)).is_err());
    }

    #[test]
    fn both_ends_make_the_same_of_a_talk() {
        let secret = Secret::new(vec![5; 40]).unwrap();
        for secret in [None, Some(&secret)] {
            let (own, sent) = (identity(2), hello().encode());
            let (answer, talk) = accept(&sent, &own, secret);
            let (other, same) = conclude(&sent, &Bytes::from(answer), secret).unwrap();
            assert_eq!(other, own);
            assert!(talk.is_dialler_proof(secret, &same.dialler_proof(secret)));
            let codes = |talk: &Talk| talk.seals(secret).map(|mut seals| seals.requests.code(b"frame"));
            assert_eq!(codes(&talk), codes(&same));
            assert_eq!(codes(&talk).is_some(), secret.is_some());
        }
    }

    #[test]
    fn proofs_of_another_secret_another_talk_or_none_are_refused() {
        let (secret, other) = (Secret::new(vec![5; 40]).unwrap(), Secret::new(vec![6; 40]).unwrap());
        let (own, sent) = (identity(2), hello().encode());
        let (answer, talk) = accept(&sent, &own, Some(&secret));
        for theirs in [None, Some(&other)] {
            let (answer, _) = accept(&sent, &own, theirs);
            assert!(conclude(&sent, &Bytes::from(answer), Some(&secret)).is_err());
        }
        assert!(conclude(&sent, &Bytes::from(answer.clone()), None).is_err(), "it expects no proof");
        let (_, theirs) = conclude(&sent, &Bytes::from(answer), Some(&secret)).unwrap();
        let proof = theirs.dialler_proof(Some(&secret));
        assert!(!talk.is_dialler_proof(Some(&secret), b""));
        assert!(!talk.is_dialler_proof(None, &proof));
        // The proof of an earlier talk of the same two.
        let (_, later) = accept(&sent, &own, Some(&secret));
        assert!(!later.is_dialler_proof(Some(&secret), &proof));
        // The other end's own proof, sent back to it.
        let reflected = secret.proof(&talk.0, ACCEPTOR);
        assert!(!talk.is_dialler_proof(Some(&secret), &reflected));
    }

    #[test]
    fn a_refusal_says_why() {
        let refused = Refusal::new(ErrorCode::InconsistentClusterId, "Another cluster.");
        let answer = Bytes::from(refusal(Some(&refused)));
        match conclude(b"", &answer, None) {
            Err(PeerError::Refused(found)) => assert_eq!(found, refused),
            _ => panic!("it was refused"),
        }
        assert!(matches!(conclude_proof(&answer), Err(PeerError::Refused(_))));
        assert!(conclude_proof(&Bytes::from(refusal(None))).is_ok());
    }
}

//! The secret that the nodes of a cluster share, and what is made of it: proofs of knowing it and codes of frames,
//! all HMAC-SHA-256.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use sha2::Sha256;

type HmacSha256 = Hmac<Sha256>;

/// A code cut to 128 bits: nobody gets a second guess, the connection is closed after the first.
pub(super) const CODE_BYTES: usize = 16;
pub(super) const PROOF_BYTES: usize = 32;

/// What is said first of all that is made of the secret: another use of it gives other bytes.
const PURPOSE: &[u8] = b"kuring-peer-1";

/// The bytes of `kuring.peers.secret.file`. Shows nothing of itself.
#[derive(Clone)]
pub struct Secret(Arc<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// Why bytes are no secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SecretError {
    #[error("it has {0} bytes; wanted: 32 to 4096, from a random source")]
    Length(usize),
}

impl Secret {
    const BYTES_MIN: usize = 32;
    const BYTES_MAX: usize = 4096;

    /// The contents of the file; a line end behind them does not count.
    pub fn new(mut contents: Vec<u8>) -> Result<Self, SecretError> {
        while contents.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            contents.pop();
        }
        match contents.len() {
            Self::BYTES_MIN..=Self::BYTES_MAX => Ok(Self(Arc::from(contents))),
            length => Err(SecretError::Length(length)),
        }
    }

    /// What only one who knows the secret can say of `talk`; each side says another thing.
    pub(super) fn proof(&self, talk: &[u8], side: u8) -> [u8; PROOF_BYTES] {
        self.mac(&[b"proof", &[side]], talk).finalize().into_bytes().into()
    }

    /// Takes the same time whatever the difference.
    pub(super) fn is_proof(&self, talk: &[u8], side: u8, proof: &[u8]) -> bool {
        self.mac(&[b"proof", &[side]], talk).verify_slice(proof).is_ok()
    }

    /// The codes of the frames of one direction of a connection that began with `talk`.
    pub(super) fn seal(&self, talk: &[u8], direction: u8) -> Seal {
        let key = self.mac(&[b"frames", &[direction]], talk).finalize().into_bytes();
        Seal { key: key.into(), sequence: 0 }
    }

    fn mac(&self, what: &[&[u8]], talk: &[u8]) -> HmacSha256 {
        let mut mac = keyed(&self.0);
        mac.update(PURPOSE);
        what.iter().for_each(|part| mac.update(part));
        mac.update(talk);
        mac
    }
}

/// Codes the frames of one direction in their order.
pub(super) struct Seal {
    key: [u8; 32],
    sequence: u64,
}

impl Seal {
    /// The code of the next frame.
    pub(super) fn code(&mut self, frame: &[u8]) -> [u8; CODE_BYTES] {
        let whole: [u8; 32] = self.next(frame).finalize().into_bytes().into();
        let mut code = [0; CODE_BYTES];
        code.copy_from_slice(&whole[..CODE_BYTES]);
        code
    }

    /// Whether this is the code of the next frame.
    pub(super) fn is_right(&mut self, frame: &[u8], code: &[u8]) -> bool {
        code.len() == CODE_BYTES && self.next(frame).verify_truncated_left(code).is_ok()
    }

    fn next(&mut self, frame: &[u8]) -> HmacSha256 {
        let mut mac = keyed(&self.key);
        mac.update(&self.sequence.to_be_bytes());
        mac.update(frame);
        self.sequence += 1;
        mac
    }
}

fn keyed(key: &[u8]) -> HmacSha256 {
    match HmacSha256::new_from_slice(key) {
        Ok(mac) => mac,
        Err(error) => unreachable!("HMAC takes keys of any length: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_long_and_shows_nothing() {
        assert_eq!(Secret::new(vec![1; 31]).err(), Some(SecretError::Length(31)));
        assert_eq!(Secret::new(b"short\n\n\n".to_vec()).err(), Some(SecretError::Length(5)));
        let secret = Secret::new([&[b'x'; 32][..], b"\r\n"].concat()).unwrap();
        assert_eq!(secret.0.len(), 32);
        assert_eq!(format!("{secret:?}"), "Secret");
    }

    #[test]
    fn a_proof_is_of_one_secret_one_talk_and_one_side() {
        let (secret, other) = (Secret::new(vec![1; 32]).unwrap(), Secret::new(vec![2; 32]).unwrap());
        let proof = secret.proof(b"talk", 0);
        assert!(secret.is_proof(b"talk", 0, &proof));
        assert!(!secret.is_proof(b"talk", 1, &proof));
        assert!(!secret.is_proof(b"tale", 0, &proof));
        assert!(!other.is_proof(b"talk", 0, &proof));
        assert!(!secret.is_proof(b"talk", 0, &proof[..31]));
        assert!(!secret.is_proof(b"talk", 0, b""));
    }
}

//! The first words on a connection that speaks Kafka's protocol otherwise: a broker that dials another one says who
//! it is, as in [`super::hello`], and may then ask what brokers alone may. Pure: bytes in, bytes out.
//!
//! The connection is bound to who was heard, its later frames have no codes: their form is Kafka's, nearly always. Whoever can
//! change bytes on the way between two brokers can change records; that is TLS' to prevent.

use bytes::Bytes;

use super::hello::{self, Hello, Talk};
use super::told::Told;
use super::{Identity, Lane, PeerError, PeerKey, Refusal, Request, Security, frame};
use crate::base::BrokerId;
use crate::wire::ErrorCode;
use crate::wire::header::CorrelationId;

/// What this broker says of itself; one for the process, for all of its shards.
#[derive(Debug)]
pub struct Greetings {
    identity: Identity,
    security: Security,
    /// What the log was told of other brokers.
    told: Told,
}

/// The two ends of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ends {
    /// Both are on this machine.
    pub is_local: bool,
}

/// The dialler's part, between its hello and its proof.
#[derive(Debug)]
pub struct Dialling<'a> {
    greetings: &'a Greetings,
    wants: BrokerId,
    hello: Vec<u8>,
}

/// The other end's part: what it has heard on one connection.
#[derive(Default)]
pub struct Greeter(Heard);

#[derive(Default)]
enum Heard {
    #[default]
    Nothing,
    Hello {
        talk: Talk,
        node: BrokerId,
    },
    Proof(BrokerId),
}

/// What is said to a frame.
pub struct Answer {
    /// The whole frame to be sent.
    pub frame: Vec<u8>,
    /// The connection is to be closed behind it.
    pub refusal: Option<Refusal>,
}

/// What a frame of kuring's own is, without its length; `None` for one of Kafka's, after one comparison, and for what is
/// not spoken between brokers.
pub fn own_key(frame: &[u8]) -> Option<PeerKey> {
    let number = frame.first_chunk().map_or(0, |key| i16::from_be_bytes(*key));
    if number < frame::OWN_KEYS_FROM {
        return None;
    }
    let key = PeerKey::of(number)?;
    matches!(key, PeerKey::Hello | PeerKey::Proof | PeerKey::ShareState | PeerKey::Nudge).then_some(key)
}

/// The whole frame of a request of kuring's own to another broker.
pub fn own_request(key: PeerKey, correlation: CorrelationId, body: &[u8]) -> Bytes {
    frame::request(key, correlation.0, body, None).into()
}

/// The whole frame that answers it.
pub fn own_answer(request: &Request, body: &[u8]) -> Bytes {
    frame::answer(request.correlation, body, None).into()
}

/// Reads a request of kuring's own, a frame without its length.
pub fn read_own(frame: &Bytes) -> Result<Request, PeerError> {
    frame::parse_request(frame.clone(), None)
}

impl Greetings {
    pub fn new(identity: Identity, security: Security) -> Self {
        Self { identity, security, told: Told::default() }
    }

    pub fn told(&self) -> &Told {
        &self.told
    }

    /// Begins to greet the broker `wants`: the first frame to be sent to it.
    ///
    /// # Errors
    /// It may not be spoken with over such a connection.
    pub fn begin(&self, wants: BrokerId, ends: Ends) -> Result<(Dialling<'_>, Vec<u8>), PeerError> {
        self.check_ends(ends)?;
        let hello = Hello { identity: self.identity.clone(), wants, lane: Lane::Fetch }.encode();
        let frame = frame::request(PeerKey::Hello, 1, &hello, None);
        Ok((Dialling { greetings: self, wants, hello }, frame))
    }

    fn check_ends(&self, ends: Ends) -> Result<(), Refusal> {
        match &self.security {
            Security::Loopback if !ends.is_local => Err(Refusal::new(
                ErrorCode::ClusterAuthorizationFailed,
                "A broker on another machine, and there is no secret.",
            )),
            Security::Loopback | Security::Secret(_) | Security::Open => Ok(()),
        }
    }
}

impl Dialling<'_> {
    /// Takes the answer to the hello, without its length: the frame to be sent next.
    pub fn answered(&self, answer: Bytes) -> Result<Vec<u8>, PeerError> {
        let Greetings { identity, security, .. } = self.greetings;
        let answer = frame::parse_answer(answer, 1, None)?;
        let (other, talk) = hello::conclude(&self.hello, &answer, security.secret())?;
        if other.cluster_id != identity.cluster_id || other.node != self.wants {
            let text = format!("Node {} of cluster {} answers.", other.node, other.cluster_id);
            return Err(Refusal::new(ErrorCode::InconsistentClusterId, text).into());
        }
        Ok(frame::request(PeerKey::Proof, 2, &talk.dialler_proof(security.secret()), None))
    }

    /// Takes the answer to that one: both know each other then.
    pub fn concluded(self, answer: Bytes) -> Result<(), PeerError> {
        hello::conclude_proof(&frame::parse_answer(answer, 2, None)?)
    }
}

impl Greeter {
    /// Of a connection whose other end has proved to be `broker` before.
    pub fn of(broker: BrokerId) -> Self {
        Self(Heard::Proof(broker))
    }

    /// The broker that has proved to be at the other end.
    pub fn broker(&self) -> Option<BrokerId> {
        match self.0 {
            Heard::Proof(node) => Some(node),
            Heard::Nothing | Heard::Hello { .. } => None,
        }
    }

    /// Answers a frame of a greeting, which is without its length. `knows` is asked whether a broker of this identity
    /// is registered.
    ///
    /// # Errors
    /// What is no greeting, or comes out of turn; the connection is to be closed.
    pub fn hear(
        &mut self,
        greetings: &Greetings,
        frame: Bytes,
        ends: Ends,
        knows: impl FnOnce(&Identity) -> bool,
    ) -> Result<Answer, PeerError> {
        let request = frame::parse_request(frame, None)?;
        let secret = greetings.security.secret();
        let answer = |body: &[u8]| frame::answer(request.correlation, body, None);
        let refused = |refusal: Refusal| {
            let frame = answer(&hello::refusal(Some(&refusal)));
            Ok(Answer { frame, refusal: Some(refusal) })
        };
        match (std::mem::take(&mut self.0), request.key) {
            (Heard::Nothing, PeerKey::Hello) => {
                let hello = Hello::decode(&request.body)?;
                if let Err(refusal) = greetings.check_ends(ends).and_then(|()| greetings.check(&hello, knows))
                {
                    return refused(refusal);
                }
                let (body, talk) = hello::accept(&request.body, &greetings.identity, secret);
                self.0 = Heard::Hello { talk, node: hello.identity.node };
                Ok(Answer { frame: answer(&body), refusal: None })
            }
            (Heard::Hello { talk, node }, PeerKey::Proof) => {
                if !talk.is_dialler_proof(secret, &request.body) {
                    let text = format!("Broker {node} does not have the secret of this cluster.");
                    return refused(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text));
                }
                self.0 = Heard::Proof(node);
                Ok(Answer { frame: answer(&hello::refusal(None)), refusal: None })
            }
            _ => Err(PeerError::Malformed("a greeting out of turn")),
        }
    }
}

impl Greetings {
    fn check(&self, hello: &Hello, knows: impl FnOnce(&Identity) -> bool) -> Result<(), Refusal> {
        let (own, other) = (&self.identity, &hello.identity);
        if other.cluster_id != own.cluster_id {
            let text = format!("Broker {} is of cluster {}.", other.node, other.cluster_id);
            return Err(Refusal::new(ErrorCode::InconsistentClusterId, text));
        }
        if hello.wants != own.node || other.node == own.node {
            let text = format!("This is broker {}, not {}.", own.node, hello.wants);
            return Err(Refusal::new(ErrorCode::InvalidRequest, text));
        }
        // What was said on the way to a controller must not open another door.
        if hello.lane != Lane::Fetch || !knows(other) {
            let text = format!("Broker {} is not registered as such.", other.node);
            return Err(Refusal::new(ErrorCode::ClusterAuthorizationFailed, text));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::peer::Secret;

    const LOCAL: Ends = Ends { is_local: true };

    fn greetings(node: i32, secret: Option<u8>) -> Greetings {
        let identity = Identity {
            cluster_id: "cluster".to_owned(),
            node: BrokerId(node),
            directory: Uuid::from_u128(node as u128),
            incarnation: Uuid::new_v4(),
        };
        let security = match secret {
            Some(byte) => Security::Secret(Secret::new(vec![byte; 32]).unwrap()),
            None => Security::Loopback,
        };
        Greetings::new(identity, security)
    }

    /// Without its length.
    fn body(frame: &[u8]) -> Bytes {
        Bytes::copy_from_slice(&frame[4..])
    }

    /// Broker 1 dials broker 2; whom that has heard.
    fn greet(one: &Greetings, two: &Greetings, known: bool) -> Result<Option<BrokerId>, PeerError> {
        let mut greeter = Greeter::default();
        let (dialling, hello) = one.begin(BrokerId(2), LOCAL)?;
        assert_eq!(own_key(&body(&hello)), Some(PeerKey::Hello));
        let answer = greeter.hear(two, body(&hello), LOCAL, |_| known)?;
        let proof = dialling.answered(body(&answer.frame))?;
        let answer = greeter.hear(two, body(&proof), LOCAL, |_| known)?;
        dialling.concluded(body(&answer.frame))?;
        Ok(greeter.broker())
    }

    #[test]
    fn a_broker_is_known_by_its_proof() {
        for secret in [None, Some(7)] {
            let heard = greet(&greetings(1, secret), &greetings(2, secret), true).unwrap();
            assert_eq!(heard, Some(BrokerId(1)));
        }
    }

    #[test]
    fn whoever_is_not_what_it_says_is_refused() {
        let refused = |one: &Greetings, two: &Greetings, known| match greet(one, two, known) {
            Err(PeerError::Refused(refusal)) => refusal.code,
            other => panic!("{other:?}"),
        };
        let (one, two) = (greetings(1, Some(7)), greetings(2, Some(7)));
        assert_eq!(refused(&one, &two, false), ErrorCode::ClusterAuthorizationFailed, "not registered");
        let other = greetings(1, Some(8));
        assert_eq!(refused(&other, &two, true), ErrorCode::ClusterAuthorizationFailed, "another secret");
        assert_eq!(refused(&one, &greetings(3, Some(7)), true), ErrorCode::InvalidRequest, "another broker");
        let mut elsewhere = greetings(1, Some(7));
        elsewhere.identity.cluster_id = "elsewhere".to_owned();
        assert_eq!(refused(&elsewhere, &two, true), ErrorCode::InconsistentClusterId);
    }

    #[test]
    fn without_a_secret_both_are_on_one_machine() {
        let (one, two) = (greetings(1, None), greetings(2, None));
        assert!(one.begin(BrokerId(2), Ends { is_local: false }).is_err());
        let (_, hello) = one.begin(BrokerId(2), LOCAL).unwrap();
        let answer = Greeter::default().hear(&two, body(&hello), Ends { is_local: false }, |_| true).unwrap();
        assert_eq!(answer.refusal.unwrap().code, ErrorCode::ClusterAuthorizationFailed);
    }

    #[test]
    fn a_proof_without_a_hello_or_a_hello_for_a_controller_opens_nothing() {
        let (one, two) = (greetings(1, None), greetings(2, None));
        let proof = frame::request(PeerKey::Proof, 2, b"", None);
        assert!(Greeter::default().hear(&two, body(&proof), LOCAL, |_| true).is_err());
        let hello = Hello { identity: one.identity.clone(), wants: BrokerId(2), lane: Lane::Control };
        let hello = frame::request(PeerKey::Hello, 1, &hello.encode(), None);
        let mut greeter = Greeter::default();
        let answer = greeter.hear(&two, body(&hello), LOCAL, |_| true).unwrap();
        assert_eq!(answer.refusal.unwrap().code, ErrorCode::ClusterAuthorizationFailed);
        assert_eq!(greeter.broker(), None);
    }
}

//! How a controller comes to have a log where controllers come and go: it asks whoever leads, and says where it is. Lives on
//! shard 0.
//! ```text
//! Join          node · directory · host · port · seat + 1 or 0
//!               → word · seat + 1 or 0 · error code · words
//! ChangeVoters  add, remove or replace · node · directory · wait ms → error code · words
//! ```

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use openraft::async_runtime::WatchReceiver as _;

use super::leadership::{Leadership, Metrics};
use super::machine::Applied;
use super::types::Seat;
use super::voters::{Join, Reconfigure, VoterChange, VoterKey};
use super::word::{Word, read_address, write_address};
use crate::base::BrokerId;
use crate::io::runtime::{self, Queue};
use crate::metadata::{DecodeError, Reader, Refusal, Writer};
use crate::peer::{Lane, Links, PeerKey};
use crate::wire::ErrorCode;

const ASK_PAUSE: Duration = Duration::from_millis(50);
/// A refusal will not change soon.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);
const JOIN_TIME_MAX: Duration = Duration::from_secs(10);
/// How long a node that joins by itself waits to have all of the log.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);

const ADD: u8 = 0;
const REMOVE: u8 = 1;
const REPLACE: u8 = 2;

/// The answer to a [`Join`].
#[derive(Clone, PartialEq, Debug)]
pub struct Joined {
    pub word: Word,
    pub result: Result<Seat, Refusal>,
}

pub fn join_request(join: &Join) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    write_key(&mut writer, join.key);
    write_address(&mut writer, &join.address);
    write_seat(&mut writer, join.seat);
    body
}

pub fn read_join(body: &[u8]) -> Result<Join, DecodeError> {
    let mut reader = Reader(body);
    let key = read_key(&mut reader)?;
    let address = read_address(&mut reader)?;
    let seat = read_seat(&mut reader)?;
    reader.end()?;
    Ok(Join { key, address, seat })
}

pub fn joined_answer(joined: &Joined) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    joined.word.write(&mut writer);
    write_seat(&mut writer, joined.result.as_ref().ok().copied());
    write_refusal(&mut writer, joined.result.as_ref().err());
    body
}

pub fn read_joined(body: &[u8]) -> Result<Joined, DecodeError> {
    let mut reader = Reader(body);
    let word = Word::read(&mut reader)?;
    let seat = read_seat(&mut reader)?;
    let refusal = read_refusal(&mut reader)?;
    reader.end()?;
    let result = match (seat, refusal) {
        (Some(seat), None) => Ok(seat),
        (None, Some(refusal)) => Err(refusal),
        _ => return Err(DecodeError::Value("answer to a join")),
    };
    Ok(Joined { word, result })
}

/// The body of [`PeerKey::ChangeVoters`].
pub fn change_request(change: VoterChange) -> Vec<u8> {
    let mut body = Vec::new();
    let mut writer = Writer(&mut body);
    let (kind, key, wait) = match change {
        VoterChange::Add(key, wait) => (ADD, key, wait),
        VoterChange::Remove(key) => (REMOVE, key, Duration::ZERO),
        VoterChange::Replace(key) => (REPLACE, key, Duration::ZERO),
    };
    writer.u8(kind);
    write_key(&mut writer, key);
    writer.unsigned(wait.as_millis() as u64);
    body
}

pub fn read_change(body: &[u8]) -> Result<VoterChange, DecodeError> {
    let mut reader = Reader(body);
    let kind = reader.u8()?;
    let key = read_key(&mut reader)?;
    let wait = Duration::from_millis(reader.unsigned()?);
    reader.end()?;
    match kind {
        ADD => Ok(VoterChange::Add(key, wait)),
        REMOVE => Ok(VoterChange::Remove(key)),
        REPLACE => Ok(VoterChange::Replace(key)),
        _ => Err(DecodeError::Value("kind of change")),
    }
}

/// The body of the answer.
pub fn changed_answer(result: &Result<(), Refusal>) -> Vec<u8> {
    let mut body = Vec::new();
    write_refusal(&mut Writer(&mut body), result.as_ref().err());
    body
}

pub fn read_changed(body: &[u8]) -> Result<Result<(), Refusal>, DecodeError> {
    let mut reader = Reader(body);
    let refusal = read_refusal(&mut reader)?;
    reader.end()?;
    Ok(refusal.map_or(Ok(()), Err))
}

fn write_key(writer: &mut Writer<'_>, key: VoterKey) {
    writer.signed(i64::from(key.node.0));
    writer.uuid(&key.directory);
}

fn read_key(reader: &mut Reader<'_>) -> Result<VoterKey, DecodeError> {
    let node = i32::try_from(reader.signed()?).map_err(|_| DecodeError::Value("node id"))?;
    Ok(VoterKey { node: BrokerId(node), directory: reader.uuid()? })
}

fn write_seat(writer: &mut Writer<'_>, seat: Option<Seat>) {
    writer.unsigned(seat.map_or(0, |seat| seat.0.saturating_add(1)));
}

fn read_seat(reader: &mut Reader<'_>) -> Result<Option<Seat>, DecodeError> {
    Ok(reader.unsigned()?.checked_sub(1).map(Seat))
}

fn write_refusal(writer: &mut Writer<'_>, refusal: Option<&Refusal>) {
    writer.signed(refusal.map_or(0, |refusal| i64::from(refusal.code.code())));
    writer.text(refusal.map_or("", |refusal| refusal.message.as_str()));
}

fn read_refusal(reader: &mut Reader<'_>) -> Result<Option<Refusal>, DecodeError> {
    let code = i16::try_from(reader.signed()?).map_err(|_| DecodeError::Value("error code"))?;
    let message = reader.text()?.to_owned();
    Ok(match code {
        0 => None,
        code => Some(Refusal::new(
            ErrorCode::try_from_code(code).unwrap_or(ErrorCode::UnknownServerError),
            message,
        )),
    })
}

/// A controller that looks for whoever leads.
pub struct Seeker {
    pub links: Rc<Links>,
    pub join: Join,
    asked: Option<BrokerId>,
    /// Whoever has not given it a log.
    refuser: Option<BrokerId>,
    turn: usize,
}

impl Seeker {
    pub fn new(links: Rc<Links>, join: Join) -> Self {
        Self { links, join, asked: None, refuser: None, turn: 0 }
    }

    /// Asks until it is given a log. With `joins_by_itself` it has its old self removed, whose disk is gone.
    pub async fn find_seat(&mut self, joins_by_itself: bool) -> Seat {
        let mut said = false;
        loop {
            match self.ask().await {
                Some(Ok(seat)) => return seat,
                Some(Err(refusal)) if refusal.code == ErrorCode::InvalidVoterKey && joins_by_itself => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!("this controller has its old self removed: {refusal}");
                    }
                    if let Some(refuser) = self.refuser.take()
                        && let Err(why) = self.change(refuser, VoterChange::Replace(self.join.key)).await
                    {
                        tracing::debug!("this controller's old self is not removed yet: {why}");
                    }
                    runtime::sleep(ASK_PAUSE).await;
                }
                Some(Err(refusal)) if refusal.code != ErrorCode::NotController => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!("this controller is not given the metadata log yet: {refusal}");
                    }
                    runtime::sleep(REFUSED_PAUSE).await;
                }
                Some(Err(_)) | None => runtime::sleep(ASK_PAUSE).await,
            }
        }
    }

    /// Asks one controller; `None`: it did not answer.
    async fn ask(&mut self) -> Option<Result<Seat, Refusal>> {
        let roster = self.links.roster();
        let own = self.links.identity().node;
        let asked = match self.asked.take() {
            Some(asked) => asked,
            None => {
                let all: Vec<BrokerId> = roster.controllers().into_keys().chain(roster.servers()).collect();
                let all: Vec<BrokerId> = all.into_iter().filter(|node| *node != own).collect();
                self.turn += 1;
                *all.get(self.turn.checked_rem(all.len())?)?
            }
        };
        let link = self.links.link(asked, Lane::Voters);
        let answer = link.call(PeerKey::Join, &join_request(&self.join), JOIN_TIME_MAX).await.ok()?;
        let joined = read_joined(&answer).inspect_err(|error| {
            tracing::warn!(controller = %asked, "the answer to a join does not decode: {error}");
        });
        let Joined { word, result } = joined.ok()?;
        self.refuser = result.is_err().then_some(asked);
        if !word.controllers.is_empty() {
            self.links.roster().learn(word.controllers);
        }
        if result.is_err() {
            self.asked = word.leader.filter(|leader| *leader != asked && *leader != own);
        }
        Some(result)
    }

    /// Says where this controller is, once after the start, and asks anew when nobody leads or the log does not know it
    /// any more. With `joins_by_itself` it asks for a vote, too. One that began with voters that are `fixed` is quiet until
    /// they are not, but when nobody leads: it may have been taken out while it was away.
    pub fn start(
        mut self,
        metrics: Metrics,
        voters: Rc<dyn Reconfigure>,
        fixed: Option<Rc<RefCell<Applied>>>,
        every: Duration,
        joins_by_itself: bool,
    ) {
        runtime::spawn(Queue::Control, "seek the controller", async move {
            let (mut is_told, mut had_leader) = (false, true);
            loop {
                runtime::sleep(every).await;
                if metrics.borrow_watched().running_state.is_err() {
                    return;
                }
                let leadership = Leadership::of(&metrics);
                let (directory, is_voter) = {
                    let metrics = metrics.borrow_watched();
                    let config = &metrics.membership_config;
                    let is_voter = config.voter_ids().any(|seat| seat == metrics.id);
                    (config.get_node(&metrics.id).map(|member| member.directory), is_voter)
                };
                let is_member = directory.is_some();
                let has_leader = leadership.leader.is_some();
                let is_lost = !has_leader && !had_leader;
                had_leader = has_leader;
                if leadership.is_own {
                    voters.forget_silent().await;
                }
                let is_fixed = fixed.as_ref().is_some_and(|it| !it.borrow().state.image().voters_change());
                let asks = match is_fixed {
                    false => !is_told || is_lost || !is_member,
                    // A log that nobody has pinned may be a new one: it has no claim to the seat.
                    true => is_lost && directory == Some(self.join.key.directory),
                };
                if asks {
                    let result = match leadership.is_own {
                        true => Some(voters.join(self.join.clone()).await),
                        false => self.ask().await,
                    };
                    is_told |= matches!(result, Some(Ok(_)));
                } else if joins_by_itself && is_member && !is_voter && !is_fixed {
                    self.ask_for_vote(leadership).await;
                }
            }
        })
        .detach();
    }

    async fn ask_for_vote(&self, leadership: Leadership) {
        let Some(leader) = leadership.leader.filter(|_| !leadership.is_own) else { return };
        match self.change(leader, VoterChange::Add(self.join.key, CATCH_UP_MAX)).await {
            Ok(()) => tracing::info!("this controller votes on the metadata log from now on"),
            Err(why) => tracing::info!("this controller has no vote yet: {why}"),
        }
    }

    /// Why it is not done is for the log.
    async fn change(&self, leader: BrokerId, change: VoterChange) -> Result<(), String> {
        let link = self.links.link(leader, Lane::Voters);
        let answer = link.call(PeerKey::ChangeVoters, &change_request(change), 2 * CATCH_UP_MAX).await;
        let answer = answer.map_err(|error| error.to_string())?;
        let changed =
            read_changed(&answer).map_err(|error| format!("its answer does not decode: {error}"))?;
        changed.map_err(|refusal| refusal.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use uuid::Uuid;

    use super::*;

    const KEY: VoterKey = VoterKey { node: BrokerId(7), directory: Uuid::from_u128(9) };

    fn no_part_passes<T>(body: &[u8], read: impl Fn(&[u8]) -> Result<T, DecodeError>) {
        for end in 0..body.len() {
            assert!(read(&body[..end]).is_err(), "{end}");
        }
        assert!(read(&[body, b"x"].concat()).is_err());
    }

    #[test]
    fn what_is_said_comes_back_as_it_was_and_no_part_of_it_passes() {
        for seat in [None, Some(Seat(0)), Some(Seat(Seat::LATER | 5))] {
            let join = Join { key: KEY, address: ("::1".to_owned(), 9093), seat };
            let body = join_request(&join);
            assert_eq!(read_join(&body), Ok(join));
            no_part_passes(&body, read_join);
        }
        let refusal = Refusal::new(ErrorCode::InvalidVoterKey, "Another directory.");
        for result in [Ok(Seat(0)), Err(refusal.clone())] {
            let controllers = BTreeMap::from([(BrokerId(0), ("one".to_owned(), 9093))]);
            let word = Word { term: 7, leader: Some(BrokerId(0)), controllers };
            let joined = Joined { word, result };
            let body = joined_answer(&joined);
            assert_eq!(read_joined(&body), Ok(joined));
            no_part_passes(&body, read_joined);
        }
        let wait = Duration::from_millis(77);
        for change in [VoterChange::Add(KEY, wait), VoterChange::Remove(KEY), VoterChange::Replace(KEY)] {
            let body = change_request(change);
            assert_eq!(read_change(&body), Ok(change));
            no_part_passes(&body, read_change);
        }
        for result in [Ok(()), Err(refusal)] {
            let body = changed_answer(&result);
            assert_eq!(read_changed(&body), Ok(result));
            no_part_passes(&body, read_changed);
        }
    }
}

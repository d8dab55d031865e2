//! A classic group: its state, its members and the rules that need nothing else.
//!
//! The state is soft: only the [`GroupValue`] records of its generations and what they are replayed into
//! survive a restart (Kafka's `ClassicGroup`).

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use indexmap::{IndexMap, IndexSet};
use kafka_protocol::messages::JoinGroupResponse;
use kafka_protocol::messages::join_group_response::JoinGroupResponseMember;
use kafka_protocol::protocol::StrBytes;

use super::codec::{Malformed, Reader};
use super::interface::ReplyToken;
use super::member::{Member, Protocol};
use super::records::{GroupValue, Record};
use crate::base::clock::Timestamp;
use crate::wire::ErrorCode;

/// The protocol type of consumers; the coordinator reads their subscriptions.
pub(super) const CONSUMER_PROTOCOL_TYPE: &str = "consumer";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// No members; it may still have offsets.
    Empty,
    /// Members are asked to join the next generation.
    PreparingRebalance,
    /// All have joined; the leader's assignment is awaited.
    CompletingRebalance,
    Stable,
    /// Being deleted: waits for its tombstone, nobody can use it.
    Dead,
}

impl State {
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::PreparingRebalance => "PreparingRebalance",
            State::CompletingRebalance => "CompletingRebalance",
            State::Stable => "Stable",
            State::Dead => "Dead",
        }
    }

    fn may_become(self, next: State) -> bool {
        match next {
            State::Empty => self == State::PreparingRebalance,
            State::PreparingRebalance => self.can_rebalance(),
            State::CompletingRebalance => self == State::PreparingRebalance,
            State::Stable => self == State::CompletingRebalance,
            State::Dead => true,
        }
    }

    pub(super) fn can_rebalance(self) -> bool {
        matches!(self, State::Stable | State::CompletingRebalance | State::Empty)
    }
}

/// How far the first join phase of a group may still be put off (`group.initial.rebalance.delay.ms`).
#[derive(Clone, Copy, Debug)]
pub(super) struct InitialDelay {
    pub(super) delay: Duration,
    pub(super) remaining: Duration,
    /// Someone joined since the timer was armed.
    pub(super) member_added: bool,
}

#[derive(Debug)]
pub(super) struct Group {
    pub(super) id: StrBytes,
    state: State,
    previous_state: State,
    /// `None` when an old record did not say.
    pub(super) state_since: Option<Timestamp>,
    pub(super) generation: i32,
    /// `None` for a group that only stores offsets (a simple consumer).
    pub(super) protocol_type: Option<StrBytes>,
    pub(super) protocol: Option<StrBytes>,
    pub(super) leader: Option<StrBytes>,
    /// In the order they joined, which makes the choice of a leader repeatable.
    members: IndexMap<StrBytes, Member>,
    /// Instance id → member id.
    static_members: HashMap<StrBytes, StrBytes>,
    /// Told their id (MEMBER_ID_REQUIRED) and awaited with it.
    pub(super) pending_join: BTreeSet<StrBytes>,
    pub(super) pending_sync: IndexSet<StrBytes>,
    /// How many members wait in JoinGroup.
    awaiting_join: usize,
    /// How many members offer a protocol.
    supporters: HashMap<StrBytes, usize>,
    pub(super) initial_delay: Option<InitialDelay>,
    /// `None` when it cannot be known: not consumers, or a subscription that is not Kafka's.
    subscribed_topics: Option<HashSet<StrBytes>>,
}

impl Group {
    /// A group without members.
    pub(super) fn new(id: StrBytes, now: Timestamp) -> Self {
        Self {
            id,
            state: State::Empty,
            previous_state: State::Dead,
            state_since: Some(now),
            generation: 0,
            protocol_type: None,
            protocol: None,
            leader: None,
            members: IndexMap::new(),
            static_members: HashMap::new(),
            pending_join: BTreeSet::new(),
            pending_sync: IndexSet::new(),
            awaiting_join: 0,
            supporters: HashMap::new(),
            initial_delay: None,
            subscribed_topics: None,
        }
    }

    /// The group as its last record has it.
    pub(super) fn from_record(id: StrBytes, value: GroupValue) -> Self {
        let mut group = Group::new(id, Timestamp::NONE);
        group.state = if value.members.is_empty() { State::Empty } else { State::Stable };
        group.state_since = value.state_since;
        group.generation = value.generation;
        group.protocol_type = Some(value.protocol_type).filter(|kind| !kind.is_empty());
        group.protocol = value.protocol;
        group.leader = value.leader;
        for member in value.members {
            let member = Member::from_record(member, group.protocol.as_ref());
            group.insert(member);
        }
        // A leader that is not among the members could never be asked for an assignment.
        if group.leader.as_ref().is_some_and(|leader| !group.members.contains_key(leader)) {
            group.leader = group.members.keys().next().cloned();
        }
        group.subscribed_topics = group.read_subscriptions();
        group
    }

    /// The group that members of the classic protocol make when those of the new one have left (KIP-848).
    pub(super) fn from_consumer(id: StrBytes, generation: i32, members: Vec<Member>, now: Timestamp) -> Self {
        let mut group = Group::new(id, now);
        group.state = State::Stable;
        group.generation = generation;
        group.protocol_type = Some(StrBytes::from_static_str(CONSUMER_PROTOCOL_TYPE));
        for member in members {
            group.insert(member);
        }
        group.protocol = group.select_protocol();
        group.subscribed_topics = group.read_subscriptions();
        group
    }

    /// The record of the present generation. `assignment` gives what each member is to do.
    pub(super) fn to_record(&self, assignment: impl Fn(&Member) -> Bytes) -> Record {
        let no_protocol = StrBytes::new();
        let protocol = self.protocol.as_ref().unwrap_or(&no_protocol);
        let members = self.members.values().map(|member| member.to_record(protocol, assignment(member)));
        let value = GroupValue {
            protocol_type: self.protocol_type.clone().unwrap_or_default(),
            generation: self.generation,
            protocol: self.protocol.clone(),
            leader: self.leader.clone(),
            state_since: self.state_since,
            members: members.collect(),
        };
        Record::Group { group: self.id.clone(), value: Some(value) }
    }

    pub(super) fn state(&self) -> State {
        self.state
    }

    pub(super) fn previous_state(&self) -> State {
        self.previous_state
    }

    pub(super) fn transition(&mut self, next: State, now: Timestamp) {
        assert!(
            self.state.may_become(next),
            "group {}: {} cannot become {}",
            self.id,
            self.state.name(),
            next.name()
        );
        self.previous_state = self.state;
        self.state = next;
        self.state_since = Some(now);
    }

    /// Dead until its tombstone is written; [`Group::revive`] takes it back.
    pub(super) fn bury(&mut self) {
        self.previous_state = self.state;
        self.state = State::Dead;
    }

    pub(super) fn revive(&mut self) {
        assert_eq!(self.state, State::Dead, "only the dead are revived");
        self.state = self.previous_state;
    }

    pub(super) fn members(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.members.values()
    }

    pub(super) fn member_ids(&self) -> Vec<StrBytes> {
        self.members.keys().cloned().collect()
    }

    pub(super) fn member(&self, id: &StrBytes) -> Option<&Member> {
        self.members.get(id)
    }

    pub(super) fn member_mut(&mut self, id: &StrBytes) -> Option<&mut Member> {
        self.members.get_mut(id)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn is_leader(&self, id: &StrBytes) -> bool {
        self.leader.as_ref() == Some(id)
    }

    pub(super) fn static_member(&self, instance_id: &StrBytes) -> Option<&StrBytes> {
        self.static_members.get(instance_id)
    }

    pub(super) fn awaiting_join(&self) -> usize {
        self.awaiting_join
    }

    pub(super) fn have_all_joined(&self) -> bool {
        self.members.len() == self.awaiting_join && self.pending_join.is_empty()
    }

    pub(super) fn uses_consumer_protocol(&self) -> bool {
        self.protocol_type.as_deref() == Some(CONSUMER_PROTOCOL_TYPE)
    }

    /// The longest time any member asked for to come back in.
    pub(super) fn rebalance_timeout(&self) -> Duration {
        let longest = self.members.values().map(|member| member.rebalance_timeout_ms).max();
        Duration::from_millis(longest.unwrap_or(0).max(0) as u64)
    }

    /// Whether a member that offers these can take part: something must be left that all offer.
    pub(super) fn supports<'a>(
        &self,
        protocol_type: &StrBytes,
        mut names: impl Iterator<Item = &'a StrBytes>,
    ) -> bool {
        if self.state == State::Empty {
            !protocol_type.is_empty() && names.next().is_some()
        } else {
            let offered_by_all = |name| self.supporters.get(name).copied().unwrap_or(0) == self.members.len();
            self.protocol_type.as_ref() == Some(protocol_type) && names.any(offered_by_all)
        }
    }

    /// Adds a member. The first one sets the protocol type and leads.
    pub(super) fn add(&mut self, member: Member, protocol_type: StrBytes) {
        if self.members.is_empty() {
            self.protocol_type = Some(protocol_type);
        }
        self.insert(member);
    }

    fn insert(&mut self, member: Member) {
        assert!(!self.members.contains_key(&member.id), "a member is added once");
        if let Some(instance_id) = &member.instance_id {
            self.static_members.insert(instance_id.clone(), member.id.clone());
        }
        if self.leader.is_none() {
            self.leader = Some(member.id.clone());
        }
        self.awaiting_join += usize::from(member.awaiting_join.is_some());
        self.count_protocols(&member.protocols, 1);
        self.pending_join.remove(&member.id);
        self.members.insert(member.id.clone(), member);
    }

    /// Forgets a member, known or pending. What it waits for must have been answered: the tokens that are
    /// left come back.
    pub(super) fn remove(&mut self, id: &StrBytes) -> Option<Member> {
        let removed = self.members.shift_remove(id);
        if let Some(member) = &removed {
            self.count_protocols(&member.protocols, -1);
            self.awaiting_join -= usize::from(member.awaiting_join.is_some());
            if let Some(instance_id) = &member.instance_id {
                self.static_members.remove(instance_id);
            }
        }
        if self.is_leader(id) {
            self.leader = self.members.keys().next().cloned();
        }
        self.pending_join.remove(id);
        self.pending_sync.shift_remove(id);
        removed
    }

    /// Gives a static member the id of its new incarnation. The new one waits for nothing; what the old
    /// one waited for comes back.
    pub(super) fn rename(&mut self, old: &StrBytes, new: StrBytes) -> [Option<ReplyToken>; 2] {
        let position = self.members.get_index_of(old).expect("only a member is renamed");
        let tokens = [self.take_join(old), self.take_sync(old)];
        let mut member = self.members.shift_remove(old).expect("it was at this position");
        member.id = new.clone();
        // The timer of its session has the old name: whoever renames cancels it.
        member.session.disarm();
        if let Some(instance_id) = &member.instance_id {
            self.static_members.insert(instance_id.clone(), new.clone());
        }
        self.members.shift_insert(position, new.clone(), member);
        if self.is_leader(old) {
            self.leader = Some(new);
        }
        self.pending_sync.shift_remove(old);
        tokens
    }

    /// Takes over what a member sent with its JoinGroup. A token that waited before comes back.
    pub(super) fn update(
        &mut self,
        id: &StrBytes,
        protocols: Vec<Protocol>,
        rebalance_timeout_ms: i32,
        session_timeout_ms: i32,
        token: Option<ReplyToken>,
    ) -> Option<ReplyToken> {
        let member = self.members.get_mut(id).expect("only a member is updated");
        let old_protocols = std::mem::replace(&mut member.protocols, protocols.clone());
        member.rebalance_timeout_ms = rebalance_timeout_ms;
        member.session_timeout_ms = session_timeout_ms;
        let replaced = std::mem::replace(&mut member.awaiting_join, token);
        self.awaiting_join += usize::from(token.is_some());
        self.awaiting_join -= usize::from(replaced.is_some());
        self.count_protocols(&old_protocols, -1);
        self.count_protocols(&protocols, 1);
        replaced
    }

    /// Counts each name once, also when a member offers it twice.
    fn count_protocols(&mut self, protocols: &[Protocol], change: isize) {
        let names: HashSet<&StrBytes> = protocols.iter().map(|protocol| &protocol.name).collect();
        for name in names {
            let count = self.supporters.get(name).copied().unwrap_or(0).strict_add_signed(change);
            match count {
                0 => self.supporters.remove(name),
                _ => self.supporters.insert(name.clone(), count),
            };
        }
    }

    /// Takes the token of a member that waits in JoinGroup.
    pub(super) fn take_join(&mut self, id: &StrBytes) -> Option<ReplyToken> {
        let token = self.members.get_mut(id)?.awaiting_join.take();
        self.awaiting_join -= usize::from(token.is_some());
        token
    }

    /// Takes the token of a member that waits in SyncGroup.
    pub(super) fn take_sync(&mut self, id: &StrBytes) -> Option<ReplyToken> {
        self.members.get_mut(id)?.awaiting_sync.take()
    }

    /// Keeps the leader if it has joined, else takes the first that has. False when none has.
    pub(super) fn elect_joined_leader(&mut self) -> bool {
        let joined = |member: &&Member| member.awaiting_join.is_some();
        let Some(leader) = &self.leader else { return false };
        if self.members.get(leader).as_ref().is_some_and(joined) {
            return true;
        }
        match self.members.values().find(joined) {
            Some(member) => {
                self.leader = Some(member.id.clone());
                true
            }
            None => false,
        }
    }

    /// Begins the next generation: with members it waits for the assignment, without it is empty.
    pub(super) fn next_generation(&mut self, now: Timestamp) {
        // Negative generations mean "none" on the wire.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        let next = if self.members.is_empty() { State::Empty } else { State::CompletingRebalance };
        self.protocol = self.select_protocol();
        self.subscribed_topics = self.read_subscriptions();
        self.transition(next, now);
        self.pending_sync.clear();
    }

    /// Each member votes for the first of its protocols that all offer; the most votes win, and of equals
    /// the one that was voted for first.
    pub(super) fn select_protocol(&self) -> Option<StrBytes> {
        let mut votes: IndexMap<&StrBytes, usize> = IndexMap::new();
        for member in self.members.values() {
            let vote = member
                .protocols
                .iter()
                .find(|protocol| self.supporters.get(&protocol.name) == Some(&self.members.len()));
            if let Some(protocol) = vote {
                *votes.entry(&protocol.name).or_default() += 1;
            }
        }
        let most = votes.values().copied().max()?;
        votes.iter().find(|(_, count)| **count == most).map(|(name, _)| (*name).clone())
    }

    /// Checks a member's identity (Kafka's `validateMember`).
    pub(super) fn check_member(
        &self,
        id: &StrBytes,
        instance_id: Option<&StrBytes>,
    ) -> Result<(), ErrorCode> {
        if let Some(instance_id) = instance_id {
            match self.static_members.get(instance_id) {
                None => return Err(ErrorCode::UnknownMemberId),
                Some(current) if current != id => return Err(ErrorCode::FencedInstanceId),
                Some(_) => {}
            }
        }
        match self.members.contains_key(id) {
            true => Ok(()),
            false => Err(ErrorCode::UnknownMemberId),
        }
    }

    /// The answer to a JoinGroup of the present generation; the leader also learns the members.
    pub(super) fn join_response(&self, id: &StrBytes) -> JoinGroupResponse {
        let members = if self.is_leader(id) { self.members_for_leader() } else { Vec::new() };
        JoinGroupResponse::default()
            .with_generation_id(self.generation)
            .with_protocol_type(self.protocol_type.clone())
            .with_protocol_name(self.protocol.clone())
            .with_leader(self.leader.clone().unwrap_or_default())
            .with_member_id(id.clone())
            .with_members(members)
    }

    fn members_for_leader(&self) -> Vec<JoinGroupResponseMember> {
        let no_protocol = StrBytes::new();
        let protocol = self.protocol.as_ref().unwrap_or(&no_protocol);
        let describe = |member: &Member| {
            JoinGroupResponseMember::default()
                .with_member_id(member.id.clone())
                .with_group_instance_id(member.instance_id.clone())
                .with_metadata(member.metadata(protocol))
        };
        self.members.values().map(describe).collect()
    }

    /// Whether members read `topic`, so that its offsets must stay. Consumers whose subscription is not
    /// known are taken to read everything.
    pub(super) fn is_subscribed(&self, topic: &StrBytes) -> bool {
        match &self.subscribed_topics {
            Some(topics) => topics.contains(topic),
            None => self.uses_consumer_protocol(),
        }
    }

    /// From when an offset's retention counts: `None` means that no offset expires in this state. KIP-211.
    pub(super) fn retention_starts(&self, committed_at: Timestamp) -> Option<Timestamp> {
        match (&self.protocol_type, self.state) {
            (None, _) => Some(committed_at),
            (Some(_), State::Empty) => Some(self.state_since.unwrap_or(committed_at)),
            (Some(_), State::Stable) if self.uses_consumer_protocol() && self.subscribed_topics.is_some() => {
                Some(committed_at)
            }
            _ => None,
        }
    }

    /// Whether offsets may be deleted by request: topic by topic while consumers are active, not at all
    /// while others are.
    pub(super) fn check_offset_delete(&self) -> Result<(), ErrorCode> {
        match self.state {
            State::Dead => Err(ErrorCode::GroupIdNotFound),
            State::Empty => Ok(()),
            _ if self.uses_consumer_protocol() => Ok(()),
            _ => Err(ErrorCode::NonEmptyGroup),
        }
    }

    pub(super) fn check_delete(&self) -> Result<(), ErrorCode> {
        match self.state {
            State::Dead => Err(ErrorCode::GroupIdNotFound),
            State::Empty => Ok(()),
            _ => Err(ErrorCode::NonEmptyGroup),
        }
    }

    /// Whether a commit is from who it says, at the right time.
    pub(super) fn check_commit(
        &self,
        member_id: &StrBytes,
        instance_id: Option<&StrBytes>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        // A consumer that assigns its partitions itself, or an administrator.
        if generation < 0 && self.state == State::Empty {
            return Ok(());
        }
        if generation < 0 && member_id.is_empty() && instance_id.is_none() {
            return Err(ErrorCode::UnknownMemberId);
        }
        self.check_member(member_id, instance_id)?;
        if generation != self.generation {
            return Err(ErrorCode::IllegalGeneration);
        }
        match self.state {
            State::CompletingRebalance => Err(ErrorCode::RebalanceInProgress),
            _ => Ok(()),
        }
    }

    /// [`Group::check_commit`] within a transaction: an old producer names no member, and a rebalance does not
    /// hold it up, because its epoch fences it.
    pub(super) fn check_commit_in_transaction(
        &self,
        member_id: &StrBytes,
        instance_id: Option<&StrBytes>,
        generation: i32,
    ) -> Result<(), ErrorCode> {
        if self.state == State::Dead {
            return Err(ErrorCode::CoordinatorNotAvailable);
        }
        let names_nobody = generation < 0 && member_id.is_empty() && instance_id.is_none();
        if names_nobody || (generation < 0 && self.state == State::Empty) {
            return Ok(());
        }
        self.check_member(member_id, instance_id)?;
        match generation == self.generation {
            true => Ok(()),
            false => Err(ErrorCode::IllegalGeneration),
        }
    }

    /// The topics in the members' subscriptions to the chosen protocol.
    fn read_subscriptions(&self) -> Option<HashSet<StrBytes>> {
        if !self.uses_consumer_protocol() {
            return None;
        }
        let mut topics = HashSet::new();
        if self.members.is_empty() {
            return Some(topics);
        }
        let protocol = self.protocol.as_ref()?;
        for member in self.members.values() {
            if let Err(error) = read_subscription(&member.metadata(protocol), &mut topics) {
                tracing::debug!(group = %self.id, member = %member.id, %error, "not a consumer's subscription");
                return None;
            }
        }
        Some(topics)
    }
}

/// Reads the topics of a `ConsumerProtocolSubscription`; every version begins with them.
fn read_subscription(metadata: &[u8], topics: &mut HashSet<StrBytes>) -> Result<(), Malformed> {
    let mut reader = Reader::new(metadata);
    reader.i16()?;
    for _ in 0..reader.count()? {
        topics.insert(reader.string()?);
    }
    Ok(())
}

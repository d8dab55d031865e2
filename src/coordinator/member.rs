//! One member of a classic group.

use std::time::Duration;

use bytes::Bytes;
use kafka_protocol::messages::describe_groups_response::DescribedGroupMember;
use kafka_protocol::messages::join_group_request::JoinGroupRequestProtocol;
use kafka_protocol::protocol::StrBytes;

use super::interface::ReplyToken;
use super::records::MemberValue;
use super::timers::Session;

/// A way to share the work that a member offers, with what its assignor wants to know of the member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Protocol {
    pub(super) name: StrBytes,
    pub(super) metadata: Bytes,
}

/// A member. What waits on it are its two tokens: at most one request of each kind is parked.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) id: StrBytes,
    /// Set for a static member (KIP-345).
    pub(super) instance_id: Option<StrBytes>,
    pub(super) client_id: StrBytes,
    pub(super) client_host: StrBytes,
    pub(super) rebalance_timeout_ms: i32,
    pub(super) session_timeout_ms: i32,
    /// In the order of the member's preference.
    pub(super) protocols: Vec<Protocol>,
    pub(super) assignment: Bytes,
    /// Changed only by the group, which counts the members that wait.
    pub(super) awaiting_join: Option<ReplyToken>,
    pub(super) awaiting_sync: Option<ReplyToken>,
    /// Joined for the first time and does not know its id yet, so it cannot send heartbeats.
    pub(super) is_new: bool,
    pub(super) session: Session,
}

impl Member {
    /// A member as the log has it: with the one protocol that was chosen.
    pub(super) fn from_record(value: MemberValue, protocol: Option<&StrBytes>) -> Self {
        let protocols = protocol.map(|name| Protocol { name: name.clone(), metadata: value.subscription });
        Self {
            id: value.id,
            instance_id: value.instance_id,
            client_id: value.client_id,
            client_host: value.client_host,
            rebalance_timeout_ms: value.rebalance_timeout_ms,
            session_timeout_ms: value.session_timeout_ms,
            protocols: protocols.into_iter().collect(),
            assignment: value.assignment,
            awaiting_join: None,
            awaiting_sync: None,
            is_new: false,
            session: Session::default(),
        }
    }

    /// A member that nothing is known of but its id, and that waits for nothing.
    pub(super) fn idle(id: StrBytes) -> Self {
        Self {
            id,
            instance_id: None,
            client_id: StrBytes::new(),
            client_host: StrBytes::new(),
            rebalance_timeout_ms: 0,
            session_timeout_ms: 0,
            protocols: Vec::new(),
            assignment: Bytes::new(),
            awaiting_join: None,
            awaiting_sync: None,
            is_new: false,
            session: Session::default(),
        }
    }

    pub(super) fn to_record(&self, protocol: &StrBytes, assignment: Bytes) -> MemberValue {
        MemberValue {
            id: self.id.clone(),
            instance_id: self.instance_id.clone(),
            client_id: self.client_id.clone(),
            client_host: self.client_host.clone(),
            rebalance_timeout_ms: self.rebalance_timeout_ms,
            session_timeout_ms: self.session_timeout_ms,
            subscription: self.metadata(protocol),
            assignment,
        }
    }

    pub(super) fn session_timeout(&self) -> Duration {
        Duration::from_millis(self.session_timeout_ms.max(0) as u64)
    }

    /// What it sent for `protocol`; empty if it does not offer it.
    pub(super) fn metadata(&self, protocol: &StrBytes) -> Bytes {
        let offered = self.protocols.iter().find(|offered| offered.name == *protocol);
        offered.map(|offered| offered.metadata.clone()).unwrap_or_default()
    }

    /// Whether it is alive though its session ran out: a parked request is a sign of life, but a new
    /// member that waits in JoinGroup may be long gone.
    pub(super) fn has_satisfied_heartbeat(&self) -> bool {
        !self.is_new && (self.awaiting_join.is_some() || self.awaiting_sync.is_some())
    }

    pub(super) fn describe(&self, protocol: Option<&StrBytes>) -> DescribedGroupMember {
        DescribedGroupMember::default()
            .with_member_id(self.id.clone())
            .with_group_instance_id(self.instance_id.clone())
            .with_client_id(self.client_id.clone())
            .with_client_host(self.client_host.clone())
            .with_member_metadata(protocol.map(|protocol| self.metadata(protocol)).unwrap_or_default())
            .with_member_assignment(self.assignment.clone())
    }
}

/// The offered protocols, copied: a group must not pin the buffer the request came in.
pub(super) fn copy_protocols(offered: &[JoinGroupRequestProtocol]) -> Vec<Protocol> {
    let copy = |protocol: &JoinGroupRequestProtocol| Protocol {
        name: copy_text(&protocol.name),
        metadata: Bytes::copy_from_slice(&protocol.metadata),
    };
    offered.iter().map(copy).collect()
}

/// The same text in memory of its own.
pub(super) fn copy_text(text: &StrBytes) -> StrBytes {
    StrBytes::from_string(text.to_string())
}

//! The heartbeats of a group member, on a thread and a connection of their own: membership lives as long as
//! the consumer polls, not as long as its sockets are idle.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use kafka_protocol::messages::{HeartbeatRequest, LeaveGroupRequest};
use kafka_protocol::protocol::StrBytes;

use super::ConsumerConfig;
use super::group::leave_request;
use crate::base::clock::{Monotonic, monotonic};
use crate::client::cluster::{Cluster, ClusterConfig};
use crate::client::error::Result;
use crate::client::network::NodeId;
use crate::wire::ErrorCode;

/// What made the membership end or the group divide again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rejoin {
    /// The group is being divided again; the member id still holds.
    Rebalance,
    /// The coordinator does not know the member any more: join as a new one.
    Lost,
}

/// The generation that heartbeats are sent for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Membership {
    pub member: String,
    pub generation: i32,
}

/// Stops its thread when dropped.
pub struct Heartbeats {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    membership: Option<Membership>,
    rejoin: Option<Rejoin>,
    polled_at: Monotonic,
    stop: bool,
}

impl Heartbeats {
    pub fn start(config: &ConsumerConfig, group: &str) -> Result<Self> {
        let state = State { membership: None, rejoin: None, polled_at: monotonic(), stop: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let cluster_config =
            ClusterConfig { call_timeout: config.heartbeat_interval, ..config.cluster.clone() };
        let beater = Beater {
            shared: shared.clone(),
            cluster: Cluster::new(cluster_config)?,
            coordinator: None,
            group: group.to_owned(),
            interval: config.heartbeat_interval,
            poll_interval_max: config.poll_interval_max,
        };
        let thread = std::thread::Builder::new().name("heartbeat".into()).spawn(move || beater.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The consumer is alive. Tells what the heartbeats have learned.
    pub fn polled(&self) -> Option<Rejoin> {
        let mut state = self.shared.lock();
        state.polled_at = monotonic();
        state.rejoin
    }

    /// Beats for this membership from now on, or not at all.
    pub fn set(&self, membership: Option<Membership>) {
        let mut state = self.shared.lock();
        state.membership = membership;
        state.rejoin = None;
        state.polled_at = monotonic();
        self.shared.changed.notify_all();
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Beater {
    shared: Arc<Shared>,
    cluster: Cluster,
    coordinator: Option<NodeId>,
    group: String,
    interval: Duration,
    poll_interval_max: Duration,
}

impl Beater {
    fn run(mut self) {
        let shared = self.shared.clone();
        loop {
            let state = shared.lock();
            let waited = shared.changed.wait_timeout_while(state, self.interval, |state| !state.stop);
            let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.stop {
                return;
            }
            let Some(membership) = state.membership.clone().filter(|_| state.rejoin.is_none()) else {
                continue;
            };
            if monotonic().since(state.polled_at) > self.poll_interval_max {
                state.rejoin = Some(Rejoin::Lost);
                state.membership = None;
                drop(state);
                tracing::warn!(group = self.group, "the consumer polls too seldom and leaves its group");
                self.leave(&membership);
                continue;
            }
            drop(state);
            let learned = self.beat(&membership);
            let mut state = shared.lock();
            // Another generation may have begun meanwhile.
            if state.membership.as_ref() == Some(&membership) {
                state.rejoin = learned;
            }
        }
    }

    fn beat(&mut self, membership: &Membership) -> Option<Rejoin> {
        let group = self.group.clone();
        let member = StrBytes::from_string(membership.member.clone());
        let answer = self.coordinator().and_then(|node| {
            self.cluster.call_node::<HeartbeatRequest>(node, self.interval, |_| {
                HeartbeatRequest::default()
                    .with_group_id(StrBytes::from_string(group).into())
                    .with_generation_id(membership.generation)
                    .with_member_id(member)
            })
        });
        let code = match answer {
            Ok(response) => ErrorCode::try_from_code(response.error_code)?,
            Err(error) => {
                tracing::debug!(%error, "no heartbeat");
                self.coordinator = None;
                return None;
            }
        };
        tracing::debug!(%code, "heartbeat");
        match code {
            ErrorCode::RebalanceInProgress => Some(Rejoin::Rebalance),
            ErrorCode::NotCoordinator | ErrorCode::CoordinatorNotAvailable => {
                self.coordinator = None;
                None
            }
            ErrorCode::CoordinatorLoadInProgress => None,
            _ => Some(Rejoin::Lost),
        }
    }

    fn leave(&mut self, membership: &Membership) {
        let group = self.group.clone();
        let left = self.coordinator().and_then(|node| {
            self.cluster.call_node::<LeaveGroupRequest>(node, self.interval, |version| {
                leave_request(&group, &membership.member, version)
            })
        });
        if let Err(error) = left {
            tracing::debug!(%error, "leaving the group");
        }
    }

    fn coordinator(&mut self) -> Result<NodeId> {
        if self.coordinator.is_none() {
            self.coordinator = Some(self.cluster.coordinator(&self.group)?);
        }
        self.coordinator.ok_or(crate::client::ClientError::Closed)
    }
}

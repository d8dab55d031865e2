//! The mesh between shards: two lanes per shard (requests, replies), each a mailbox with a foreign waker.
//! The pump of [`super::pump`] drains them in batches.
//!
//! No shard ever waits for room in another's lane while it drains its own: a sender first takes one of its
//! [`CREDITS_PER_PEER`] credits for the destination and waits, if it must, in the task of the request that
//! wants to send. A credit comes home with the reply, or with [`ReplyFrame::Parked`] when the owner keeps
//! the request for later (a fetch that waits for data). The reply lane is bounded by the requests in flight.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use slab::Slab;

use super::messages::{Reply, Request};
use crate::base::{Budget, ShardId, fatal};
use crate::io::runtime::{Mailbox, Sender, mailbox};

/// Requests that one shard may have on their way to, or in service at, one other shard.
pub const CREDITS_PER_PEER: usize = 1024;

/// What travels in a request lane.
pub(super) struct RequestFrame {
    pub(super) reply_to: ReplyTo,
    pub(super) request: Request,
}

/// What travels in a reply lane.
pub(super) enum ReplyFrame {
    Answer {
        from: ShardId,
        call: CallId,
        reply: Reply,
        parked: bool,
    },
    /// The request stays with its owner for a while: the credit is free.
    Parked {
        from: ShardId,
    },
}

/// A call of one shard that is not answered yet; the number is free again once it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct CallId(usize);

/// The way back for an answer. Exactly one answer goes to each: whoever drops one without it ends the process, for
/// the asker, and the client behind it, would wait for ever and the credit be lost.
#[derive(Debug)]
#[must_use = "every request is answered"]
pub struct ReplyTo {
    pub(super) shard: ShardId,
    pub(super) call: CallId,
    pub(super) parked: bool,
    answered: bool,
}

/// The process is on its way down: what lies in the lanes then is dropped with them.
static ENDING: AtomicBool = AtomicBool::new(false);

/// From here on a request may be dropped without an answer.
pub(super) fn end_calls() {
    ENDING.store(true, Ordering::Relaxed);
}

impl Drop for ReplyTo {
    fn drop(&mut self) {
        // A panic ends the process by itself, and says more.
        if !self.answered && !ENDING.load(Ordering::Relaxed) && !std::thread::panicking() {
            fatal(format_args!("a request of shard {} was dropped without an answer", self.shard));
        }
    }
}

/// The ends of one shard's lanes, made before the shards start and moved to theirs.
pub struct Lanes {
    pub(super) me: ShardId,
    pub(super) requests: Mailbox<RequestFrame>,
    pub(super) replies: Mailbox<ReplyFrame>,
    peers: Vec<PeerLanes>,
}

#[derive(Clone)]
struct PeerLanes {
    requests: Sender<RequestFrame>,
    replies: Sender<ReplyFrame>,
}

/// Makes the lanes of `shards` shards.
pub fn lanes(shards: u16) -> Vec<Lanes> {
    let (peers, ends): (Vec<_>, Vec<_>) = (0..shards)
        .map(|_| {
            let (requests, request_end) = mailbox();
            let (replies, reply_end) = mailbox();
            (PeerLanes { requests, replies }, (request_end, reply_end))
        })
        .unzip();
    ends.into_iter()
        .enumerate()
        .map(|(me, (requests, replies))| Lanes {
            me: ShardId(me as u16),
            requests,
            replies,
            peers: peers.clone(),
        })
        .collect()
}

/// One shard's sending side.
pub(super) struct Mesh {
    me: ShardId,
    peers: Vec<Peer>,
    calls: Rc<RefCell<Slab<CallState>>>,
}

struct Peer {
    lanes: PeerLanes,
    /// In use: the requests on their way or in service.
    credits: Budget,
}

enum CallState {
    Waiting(Option<Waker>),
    Answered(Reply),
    /// Nobody waits any more; the answer is dropped when it comes.
    Abandoned,
}

impl Mesh {
    /// Splits the lanes into the sending side and the two receiving ends.
    pub(super) fn new(lanes: Lanes) -> (Self, Mailbox<RequestFrame>, Mailbox<ReplyFrame>) {
        let peers = lanes
            .peers
            .into_iter()
            .map(|lanes| Peer { lanes, credits: Budget::new(CREDITS_PER_PEER) })
            .collect();
        let mesh = Self { me: lanes.me, peers, calls: Rc::default() };
        (mesh, lanes.requests, lanes.replies)
    }

    pub(super) fn shards(&self) -> u16 {
        self.peers.len() as u16
    }

    /// Of the peer with the fewest: how many more requests it may be sent now. Calls that wait for an answer, own
    /// ones included.
    pub(super) fn load(&self) -> (usize, usize) {
        let others = self.peers.iter().enumerate().filter(|(index, _)| *index != self.me.index());
        let credits = others
            .map(|(_, peer)| CREDITS_PER_PEER.saturating_sub(peer.credits.in_use()))
            .min()
            .unwrap_or(CREDITS_PER_PEER);
        (credits, self.calls.borrow().len())
    }

    /// A place for one answer, and the future that waits for it.
    pub(super) fn open_call(&self) -> (ReplyTo, PendingReply) {
        let call = CallId(self.calls.borrow_mut().insert(CallState::Waiting(None)));
        let reply_to = ReplyTo { shard: self.me, call, parked: false, answered: false };
        (reply_to, PendingReply { call, calls: self.calls.clone(), done: false })
    }

    /// Whether a call is not answered yet.
    pub(super) fn awaits(&self, call: CallId) -> bool {
        matches!(self.calls.borrow().get(call.0), Some(CallState::Waiting(_) | CallState::Abandoned))
    }

    /// Waits for a credit for `to`, in the order of asking.
    pub(super) async fn credit(&self, to: ShardId) {
        self.peers[to.index()].credits.take(1).await;
    }

    /// Times a task had to wait for a credit.
    pub(super) fn credit_waits(&self) -> u64 {
        self.peers.iter().map(|peer| peer.credits.waits()).sum()
    }

    /// Puts a request into the lane of `to`; its credit must be held.
    pub(super) fn push_request(&self, to: ShardId, reply_to: ReplyTo, request: Request) {
        if self.peers[to.index()].lanes.requests.push(RequestFrame { reply_to, request }).is_err() {
            // Only while the process ends: the answer would not come, and nobody is left to miss it.
            tracing::debug!(shard = %to, "a request to a shard that has stopped");
        }
    }

    /// Sends an answer home.
    pub(super) fn push_reply(&self, mut to: ReplyTo, reply: Reply) {
        to.answered = true;
        if to.shard == self.me {
            self.complete(to.call, reply);
            return;
        }
        let frame = ReplyFrame::Answer { from: self.me, call: to.call, reply, parked: to.parked };
        if self.peers[to.shard.index()].lanes.replies.push(frame).is_err() {
            tracing::debug!(shard = %to.shard, "an answer to a shard that has stopped");
        }
    }

    /// Frees the asker's credit while this shard keeps its request.
    pub(super) fn park(&self, reply_to: &mut ReplyTo) {
        if reply_to.shard != self.me && !reply_to.parked {
            reply_to.parked = true;
            let _ =
                self.peers[reply_to.shard.index()].lanes.replies.push(ReplyFrame::Parked { from: self.me });
        }
    }

    /// Handles one frame of the reply lane.
    pub(super) fn accept_reply(&self, frame: ReplyFrame) {
        match frame {
            ReplyFrame::Parked { from } => self.return_credit(from),
            ReplyFrame::Answer { from, call, reply, parked } => {
                if !parked {
                    self.return_credit(from);
                }
                self.complete(call, reply);
            }
        }
    }

    fn return_credit(&self, from: ShardId) {
        self.peers[from.index()].credits.give_back(1);
    }

    fn complete(&self, call: CallId, reply: Reply) {
        let mut calls = self.calls.borrow_mut();
        match calls.get_mut(call.0) {
            Some(CallState::Abandoned) => {
                calls.remove(call.0);
            }
            Some(state @ CallState::Waiting(_)) => {
                if let CallState::Waiting(Some(waker)) = std::mem::replace(state, CallState::Answered(reply))
                {
                    waker.wake();
                }
            }
            Some(CallState::Answered(_)) | None => fatal("a call between shards was answered twice"),
        }
    }
}

/// Waits for the answer of one call. Dropping it gives the answer up; the request itself goes on.
pub struct PendingReply {
    call: CallId,
    calls: Rc<RefCell<Slab<CallState>>>,
    done: bool,
}

/// Names a call that waits, for [`super::Shard::hurry`].
#[derive(Clone, Copy, Debug)]
pub struct CallHandle(pub(super) CallId);

impl PendingReply {
    pub fn handle(&self) -> CallHandle {
        CallHandle(self.call)
    }
}

impl Future for PendingReply {
    type Output = Reply;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Reply> {
        let reply = {
            let mut calls = self.calls.borrow_mut();
            match calls.get_mut(self.call.0) {
                Some(CallState::Waiting(waker)) => {
                    *waker = Some(context.waker().clone());
                    return Poll::Pending;
                }
                Some(CallState::Answered(_)) => match calls.remove(self.call.0) {
                    CallState::Answered(reply) => reply,
                    _ => fatal("the state of a call changed while it was read"),
                },
                Some(CallState::Abandoned) | None => fatal("a finished call was polled again"),
            }
        };
        self.done = true;
        Poll::Ready(reply)
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut calls = self.calls.borrow_mut();
        match calls.get_mut(self.call.0) {
            Some(state @ CallState::Waiting(_)) => *state = CallState::Abandoned,
            _ => {
                calls.try_remove(self.call.0);
            }
        }
    }
}

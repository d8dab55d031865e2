//! A connection that had better live on another shard: who is asked, and how it goes over.

use std::os::fd::OwnedFd;

use super::Connection;
use crate::api::{Destination, MoveQuestion, ShardWork};
use crate::base::{ShardId, clock};
use crate::io::runtime::{self, Queue, spawn};
use crate::net::accept::{Accepted, Moved};
use crate::shard::messages::{Reply, Request};

impl Connection {
    /// Goes over to the shard that its pass says, as `fd`, with nothing received, in service or unsent.
    pub(super) fn hand_over(self, fd: OwnedFd) {
        let (peer, listener) = (self.client.peer, self.client.listener.clone());
        let moves = self.client.leaning.borrow().moves() + 1;
        self.shard.counters.connections_moved.increment();
        tracing::debug!(%peer, from = self.shard.id().index(), to = self.pass.shard(), "connection moves");
        let (standing, beats, broker) = (self.buffer.standing(), self.beats.run(), self.client.broker());
        let Self { connections, pass, registered, reader, writer, .. } = self;
        // Off this shard's list before it is on the other's; nobody here closes it any more.
        drop((registered, reader, writer));
        let moved = Some(Moved { moves, standing, beats, broker });
        connections.hand_over(Accepted { fd, peer, listener, pass, moved, held: None });
    }

    /// Once in a while: whether the connection had better live on another shard, which then is asked.
    pub(super) fn look_where_it_leans(&mut self) {
        let asks = self.beats.take_question().filter(|_| self.shard.config().connection_moves);
        let may_move = self.client.leaning.borrow().may_move();
        if let Some(cost_percent) = asks.filter(|_| may_move && self.shard.id() != ShardId::CONTROL) {
            return self.ask_to_move(MoveQuestion { to: Destination::Owner(ShardId::CONTROL), cost_percent });
        }
        let mut leaning = self.client.leaning.borrow_mut();
        if !leaning.is_due() {
            return;
        }
        let work = ShardWork {
            busy: runtime::work().busy,
            bytes_in: self.shard.counters.bytes_in.get(),
            at: clock::monotonic(),
        };
        let question = leaning.question(work).filter(|_| self.shard.config().connection_moves);
        let Some(question) = question else { return };
        if question.to != Destination::Elsewhere || self.shard.lets_go() {
            self.ask_to_move(question);
        }
    }

    fn ask_to_move(&self, MoveQuestion { to, cost_percent }: MoveQuestion) {
        let client = self.client.clone();
        spawn(Queue::Serve, "question for a move", async move {
            let taker = match to {
                Destination::Owner(owner) => Some(owner),
                Destination::Elsewhere => client.shard.least_busy().await,
            };
            let Some(taker) = taker else { return };
            let reply = client.shard.ask(taker, Request::TakeOver(cost_percent)).await;
            if let Reply::TakeOver(true) = reply {
                client.leaning.borrow_mut().granted(taker);
                if to == Destination::Elsewhere {
                    client.shard.has_let_go();
                }
            }
        })
        .detach();
    }

    /// Whether the connection can go over to `shard` now, and as what. Nothing of it may be in service.
    pub(super) fn leave_for(&mut self, shard: ShardId) -> Option<OwnedFd> {
        let here = self.pass.shard();
        let is_closed = self.registered.entry.closed.get().is_some();
        if !is_closed && !self.connections.is_draining() && self.pass.move_to(shard.index()) {
            match self.reader.hand_over() {
                Ok(fd) => return Some(fd),
                Err(error) => {
                    tracing::debug!(peer = %self.client.peer, "no descriptor to move a connection: {error}");
                    self.pass.move_to(here);
                }
            }
        }
        self.client.leaning.borrow_mut().refused();
        None
    }
}

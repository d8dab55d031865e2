//! The message pump: one task per lane drains it in batches and never awaits a send.

use std::rc::Rc;

use super::Shard;
use super::mesh::{ReplyFrame, RequestFrame};
use crate::io::runtime::{Mailbox, Queue, spawn, yield_if_needed, yield_now};

pub(super) fn start(
    shard: &Rc<Shard>,
    mut requests: Mailbox<RequestFrame>,
    mut replies: Mailbox<ReplyFrame>,
) {
    let owner = shard.clone();
    spawn(Queue::Serve, "request pump", async move {
        let mut batch = Vec::new();
        while requests.drain_into(&mut batch).await > 0 {
            for RequestFrame { reply_to, request } in batch.drain(..) {
                owner.handle(reply_to, request);
            }
            owner.end_turn();
            yield_if_needed().await;
        }
    })
    .detach();
    let asker = shard.clone();
    spawn(Queue::Serve, "reply pump", async move {
        let mut batch = Vec::new();
        while replies.drain_into(&mut batch).await > 0 {
            for frame in batch.drain(..) {
                asker.mesh.accept_reply(frame);
            }
            yield_if_needed().await;
        }
    })
    .detach();
    // Appends that did not fit into their turn go on here, after the others had theirs.
    let owner = shard.clone();
    spawn(Queue::Serve, "long appends", async move {
        loop {
            owner.continue_turns.notified().await;
            yield_now().await;
            owner.end_turn();
        }
    })
    .detach();
}

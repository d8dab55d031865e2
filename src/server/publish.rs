//! Every new image of the cluster on its way to all shards, one at a time and in order.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use futures::lock::Mutex;

use crate::api::{configs, group_driver, share_driver, txn_driver};
use crate::metadata::Image;
use crate::net::Gate;
use crate::shard::Shard;
use crate::shard::messages::Request;

/// Lives on shard 0. A command's answer waits for [`Publisher::publish`], so that its client finds on every
/// shard what it was told.
pub(super) struct Publisher {
    shard: Rc<Shard>,
    gate: Gate,
    groups: Rc<group_driver::Driver>,
    transactions: Rc<txn_driver::Driver>,
    shares: Rc<share_driver::Driver>,
    turn: Mutex<()>,
    published: Cell<u64>,
}

impl Publisher {
    pub(super) fn new(
        shard: Rc<Shard>,
        gate: Gate,
        groups: Rc<group_driver::Driver>,
        transactions: Rc<txn_driver::Driver>,
        shares: Rc<share_driver::Driver>,
    ) -> Rc<Self> {
        let (turn, published) = (Mutex::new(()), Cell::new(0));
        Rc::new(Self { shard, gate, groups, transactions, shares, turn, published })
    }

    /// Publishes `image` unless it, or a newer one, has been; returns when every shard has applied it.
    pub(super) async fn publish(&self, image: Arc<Image>) {
        let _turn = self.turn.lock().await;
        if image.version() <= self.published.get() {
            return;
        }
        self.gate.set_limits(configs::levels(&image, self.shard.config()).connection_limits());
        self.groups.expect(&image);
        self.transactions.expect(&image);
        self.shares.expect(&image);
        self.shard.ask_all(|| Request::Publish(image.clone())).await;
        self.groups.image_changed(&image);
        self.transactions.image_changed();
        self.shares.image_changed(&image);
        self.published.set(image.version());
    }
}

//! Every new image of the cluster on its way to all shards, in order. None waits for the one before: who leads is so at
//! once, whatever logs the disk is still opening or deleting.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use futures::lock::Mutex;
use tokio::sync::watch;

use crate::api::{configs, group_driver, share_driver, txn_driver};
use crate::io::runtime::{Queue, spawn};
use crate::metadata::Image;
use crate::net::Gate;
use crate::shard::Shard;
use crate::shard::messages::Request;

/// Images that wait for a disk at the same time; a later one is sent when there are fewer.
const IN_FLIGHT_MAX: usize = 16;

/// Lives on shard 0. A command's answer waits for [`Publisher::publish`], so that its client finds on every
/// shard what it was told.
pub(super) struct Publisher {
    shard: Rc<Shard>,
    gate: Gate,
    groups: Rc<group_driver::Driver>,
    transactions: Rc<txn_driver::Driver>,
    shares: Rc<share_driver::Driver>,
    /// The version of the image that was sent last; whoever sends holds it.
    sent: Mutex<u64>,
    in_flight: RefCell<InFlight>,
    published: watch::Sender<u64>,
}

/// Images that were sent, and that some shard has not answered yet, or an earlier one.
#[derive(Default)]
struct InFlight(BTreeMap<u64, (Arc<Image>, bool)>);

impl InFlight {
    fn begin(&mut self, image: Arc<Image>) {
        self.0.insert(image.version(), (image, false));
    }

    /// All shards have applied that version. The newest image of which that is true, of it and of all before it; `None`
    /// when an earlier one still holds it back.
    fn end(&mut self, version: u64) -> Option<Arc<Image>> {
        if let Some((_, is_done)) = self.0.get_mut(&version) {
            *is_done = true;
        }
        let mut newest = None;
        while let Some(first) = self.0.first_entry().filter(|first| first.get().1) {
            newest = Some(first.remove().0);
        }
        newest
    }
}

impl Publisher {
    pub(super) fn new(
        shard: Rc<Shard>,
        gate: Gate,
        groups: Rc<group_driver::Driver>,
        transactions: Rc<txn_driver::Driver>,
        shares: Rc<share_driver::Driver>,
    ) -> Rc<Self> {
        let (sent, in_flight) = (Mutex::new(0), RefCell::default());
        let published = watch::Sender::new(0);
        Rc::new(Self { shard, gate, groups, transactions, shares, sent, in_flight, published })
    }

    /// The version of the image that every shard has applied, with all that were before it.
    pub(super) fn published(&self) -> u64 {
        *self.published.borrow()
    }

    /// Publishes `image` unless it, or a newer one, has been; returns when every shard has applied it.
    pub(super) async fn publish(self: &Rc<Self>, image: Arc<Image>) {
        let version = image.version();
        self.send(image).await;
        let mut published = self.published.subscribe();
        // An error: the publisher is gone, and with it this.
        let _ = published.wait_for(|published| *published >= version).await;
    }

    /// Sends `image` to every shard unless it, or a newer one, has been; they lead by it from then on.
    pub(super) async fn send(self: &Rc<Self>, image: Arc<Image>) {
        let version = image.version();
        let mut sent = self.sent.lock().await;
        if version <= *sent {
            return;
        }
        while self.in_flight.borrow().0.len() >= IN_FLIGHT_MAX {
            let _ = self.published.subscribe().changed().await;
        }
        *sent = version;
        self.gate.set_limits(configs::levels(&image, self.shard.config()).connection_limits());
        self.gate.set_quotas(image.client_quotas(), &self.shard.settings().quotas);
        self.groups.expect(&image);
        self.transactions.expect(&image);
        self.shares.expect(&image);
        self.in_flight.borrow_mut().begin(image.clone());
        let pending = self.shard.send_all(|| Request::Publish(image.clone())).await;
        let publisher = self.clone();
        spawn(Queue::Control, "published", async move {
            for reply in pending {
                reply.await;
            }
            publisher.applied(version);
        })
        .detach();
    }

    fn applied(&self, version: u64) {
        let newest = self.in_flight.borrow_mut().end(version);
        if let Some(newest) = newest {
            self.groups.image_changed(&newest);
            self.transactions.image_changed(&newest);
            self.shares.image_changed(&newest);
            self.published.send_replace(newest.version());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::{Record, State};

    fn images() -> Vec<Arc<Image>> {
        let mut state = State::default();
        let image = |version: u64| {
            let record = Record::Feature { name: "f".to_owned(), level: version as i16 };
            state.apply(version, &[record]).unwrap();
            Arc::new(state.image().clone())
        };
        (1..=3).map(image).collect()
    }

    #[test]
    fn an_image_counts_when_all_before_it_are_applied_too() {
        let mut in_flight = InFlight::default();
        images().into_iter().for_each(|image| in_flight.begin(image));
        let mut end = |version| in_flight.end(version).map(|image| image.version());
        assert_eq!(end(2), None, "the first one's deletions are slow");
        assert_eq!(end(1), Some(2), "both, as the newer one");
        assert_eq!(end(3), Some(3));
        assert_eq!(end(3), None);
    }
}

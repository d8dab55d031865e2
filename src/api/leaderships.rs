//! Which partitions of its topic a coordinator of shard 0 has, and how those that have come to it are read. One
//! [`Leaderships`] for each coordinator; the files are read on the file threads.
//!
//! A partition that is led under another epoch than before is read anew, though this node led it in both images: between
//! them others may have led it and written to it.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::coordinator_appends::Appending;
use super::coordinator_log::{LoadError, read_log};
use crate::base::clock;
use crate::base::{BrokerId, LeaderEpoch, PartitionIndex, TopicId};
use crate::io::runtime::{Queue, spawn};
use crate::metadata::TopicImage;
use crate::shard::PartitionKey;
use crate::wire::ErrorCode;
use crate::wire::record::BatchView;

/// Partitions that one coordinator reads at the same time.
const LOADERS_MAX: usize = 16;
/// Pauses between attempts to read a partition: the first, doubled each time, the longest.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// The pause while the partition's owner does not know of the leadership yet, or has lost it and this is about to be
/// heard; for so long nothing is said of it.
const LEADERSHIP_POLL: Duration = Duration::from_millis(10);
const LEADERSHIP_TIME_MAX: Duration = Duration::from_secs(5);
/// How long requests wait for a partition before they are told COORDINATOR_LOAD_IN_PROGRESS. It takes milliseconds when
/// the log is short, and a client that is told so waits for seconds.
const PATIENCE: Duration = Duration::from_millis(500);
/// Requests that wait for one partition to be loaded; further ones are told to ask again.
const WAITING_MAX: usize = 4096;

/// A coordinator whose partitions are read here.
pub(super) trait Loading: Appending {
    /// What it has read it tells others at once, so that it must be there whoever leads next.
    const AWAITS_COMMIT: bool;
    /// A request that waits for its partition.
    type Waiting;

    fn leaderships(&self) -> &Leaderships<Self::Waiting>;

    /// The topic has so many partitions. None of it is led when this is called.
    fn set_partition_count(&self, count: i32);

    /// The partition is this node's from now on, with nothing known of it. Called again before another attempt.
    fn begin(self: &Rc<Self>, load: Load);

    /// Takes over what a batch of the partition says.
    fn replay(self: &Rc<Self>, partition: PartitionIndex, batch: &BatchView<'_>) -> Result<(), LoadError>;

    /// All of the partition is read.
    fn loaded(self: &Rc<Self>, load: Load);

    /// The partition is not this node's any more.
    fn end(self: &Rc<Self>, partition: PartitionIndex);

    /// Serves what has waited.
    fn serve(self: &Rc<Self>, waiting: Self::Waiting);
}

/// One leadership of a partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Load {
    pub(super) key: PartitionKey,
    pub(super) epoch: LeaderEpoch,
}

/// What a coordinator leads, and what of it is still to be read.
pub(super) struct Leaderships<W> {
    /// The topic whose partitions are led.
    topic: Cell<Option<TopicId>>,
    led: RefCell<HashMap<PartitionIndex, Load>>,
    /// Requests for partitions whose reading has just begun.
    waiting: RefCell<HashMap<PartitionIndex, Vec<W>>>,
    /// To be read once all shards know of it.
    coming: RefCell<Vec<Load>>,
    queue: RefCell<VecDeque<Load>>,
    loaders: Cell<usize>,
    has_stopped: Cell<bool>,
}

/// What another image of the topic means.
#[derive(PartialEq, Eq, Debug)]
struct Changes {
    ends: Vec<PartitionIndex>,
    /// Of a topic that was not there before.
    partition_count: Option<i32>,
    begins: Vec<Load>,
}

impl<W> Leaderships<W> {
    pub(super) fn new() -> Self {
        Self {
            topic: Cell::new(None),
            led: RefCell::default(),
            waiting: RefCell::default(),
            coming: RefCell::default(),
            queue: RefCell::default(),
            loaders: Cell::new(0),
            has_stopped: Cell::new(false),
        }
    }

    pub(super) fn topic(&self) -> Option<TopicId> {
        self.topic.get()
    }

    /// In which epoch a partition is led.
    pub(super) fn epoch(&self, partition: PartitionIndex) -> Option<LeaderEpoch> {
        self.led.borrow().get(&partition).map(|load| load.epoch)
    }

    /// Whether a request for the partition may wait until it is read.
    pub(super) fn may_wait(&self, partition: PartitionIndex) -> bool {
        self.waiting.borrow().get(&partition).is_some_and(|waiting| waiting.len() < WAITING_MAX)
    }

    /// Has a request wait that may.
    pub(super) fn wait(&self, partition: PartitionIndex, waiting: W) {
        self.waiting.borrow_mut().entry(partition).or_default().push(waiting);
    }

    fn follow(&self, topic: Option<&TopicImage>, me: BrokerId) -> Changes {
        let topic = topic.filter(|_| !self.has_stopped.get());
        let id = topic.map(|topic| topic.id);
        let is_other = self.topic.replace(id) != id;
        let mut led = HashMap::new();
        if let Some(topic) = topic {
            for (partition, image) in topic.numbered().filter(|(_, image)| image.leader == Some(me)) {
                let key = PartitionKey { topic: topic.id, partition };
                led.insert(partition, Load { key, epoch: image.leader_epoch });
            }
        }
        let before = self.led.replace(led.clone());
        let differs =
            |from: &HashMap<PartitionIndex, Load>, load: &Load| from.get(&load.key.partition) != Some(load);
        let mut ends: Vec<PartitionIndex> =
            before.values().filter(|load| differs(&led, load)).map(|load| load.key.partition).collect();
        ends.sort_unstable();
        let mut begins: Vec<Load> = led.values().filter(|load| differs(&before, load)).copied().collect();
        begins.sort_unstable_by_key(|load| load.key.partition);
        let partition_count = topic.filter(|_| is_other).map(|topic| topic.partitions.len() as i32);
        Changes { ends, partition_count, begins }
    }

    /// Whether this leadership still stands.
    fn is_current(&self, load: Load) -> bool {
        self.led.borrow().get(&load.key.partition) == Some(&load)
    }
}

/// The cluster is about to change: leaderships of the coordinator's topic come and go. To be called before the shards
/// know it, so that a client which hears of it first finds its request waited for.
pub(super) fn expect<C: Loading>(coordinator: &Rc<C>, topic: Option<&TopicImage>) {
    let leaderships = coordinator.leaderships();
    let changes = leaderships.follow(topic, coordinator.shard().settings().broker);
    for partition in changes.ends {
        coordinator.end(partition);
        // Written under the next leadership it might not be in what is read for that.
        let unsent = coordinator.appends().take_of(partition);
        coordinator.appended(&unsent, Err(ErrorCode::NotLeaderOrFollower));
        release(coordinator, partition);
    }
    if let Some(count) = changes.partition_count {
        coordinator.set_partition_count(count);
    }
    for load in changes.begins {
        leaderships.waiting.borrow_mut().entry(load.key.partition).or_default();
        coordinator.begin(load);
        leaderships.coming.borrow_mut().push(load);
    }
}

/// All shards know of the last [`expect`]ed change: what came with it is read.
pub(super) fn read<C: Loading>(coordinator: &Rc<C>) {
    let leaderships = coordinator.leaderships();
    let coming = std::mem::take(&mut *leaderships.coming.borrow_mut());
    for load in coming {
        leaderships.queue.borrow_mut().push_back(load);
        if leaderships.loaders.get() < LOADERS_MAX {
            leaderships.loaders.set(leaderships.loaders.get() + 1);
            spawn(Queue::Control, "coordinator load", read_queued(coordinator.clone())).detach();
        }
    }
}

/// Sends everybody who waits to look for another coordinator: the broker goes down.
pub(super) fn stop<C: Loading>(coordinator: &Rc<C>) {
    coordinator.leaderships().has_stopped.set(true);
    coordinator.leaderships().queue.borrow_mut().clear();
    expect(coordinator, None);
}

async fn read_queued<C: Loading>(coordinator: Rc<C>) {
    let leaderships = coordinator.leaderships();
    loop {
        let next = leaderships.queue.borrow_mut().pop_front();
        let Some(load) = next else { break };
        read_partition(&coordinator, load).await;
    }
    leaderships.loaders.set(leaderships.loaders.get() - 1);
}

/// Reads one partition until its end; tries again as long as the leadership stands.
async fn read_partition<C: Loading>(coordinator: &Rc<C>, load: Load) {
    let (shard, partition) = (coordinator.shard(), load.key.partition);
    let is_current = || coordinator.leaderships().is_current(load);
    let begun = clock::monotonic();
    let waited = || clock::monotonic().since(begun);
    let mut pause = RETRY_AFTER;
    let topic = C::TOPIC;
    loop {
        let goes_on = || {
            let is_current = is_current();
            if is_current && waited() > PATIENCE {
                release(coordinator, partition);
            }
            is_current
        };
        let each = |batch: &BatchView<'_>| match is_current() {
            true => coordinator.replay(partition, batch),
            // It came while the leadership went: the next reads it for itself.
            false => Ok(()),
        };
        let read = read_log(shard, (load.key, load.epoch), C::AWAITS_COMMIT, goes_on, each);
        let Err(error) = read.await else { break };
        if !is_current() {
            return;
        }
        if error.is_of_leadership() && waited() < LEADERSHIP_TIME_MAX {
            shard.sleep(LEADERSHIP_POLL).await;
        } else {
            tracing::warn!(topic, %partition, %error, "a coordinator's partition cannot be loaded yet");
            release(coordinator, partition);
            shard.sleep(pause).await;
            pause = RETRY_AFTER_MAX.min(pause * 2);
        }
        if shard.is_stopping() || !is_current() {
            return;
        }
        coordinator.begin(load);
    }
    if is_current() {
        coordinator.loaded(load);
        release(coordinator, partition);
        let took = waited();
        tracing::debug!(topic, %partition, epoch = %load.epoch, ?took, "a coordinator's partition is loaded");
    }
}

/// Serves what has waited for a partition: it is loaded, or that takes longer.
fn release<C: Loading>(coordinator: &Rc<C>, partition: PartitionIndex) {
    let waiting = coordinator.leaderships().waiting.borrow_mut().remove(&partition);
    waiting.into_iter().flatten().for_each(|waiting| coordinator.serve(waiting));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::base::TopicName;
    use crate::metadata::PartitionImage;

    const ME: BrokerId = BrokerId(1);
    const OTHER: BrokerId = BrokerId(2);

    fn topic(id: u128, leaders: &[(BrokerId, i32)]) -> TopicImage {
        let partitions = leaders.iter().map(|&(leader, epoch)| {
            Arc::new(PartitionImage {
                replicas: Box::new([ME, OTHER]),
                isr: Box::new([ME, OTHER]),
                leader: Some(leader),
                leader_epoch: LeaderEpoch(epoch),
                partition_epoch: epoch,
                directories: Box::new([]),
                transit: None,
            })
        });
        let id = TopicId(Uuid::from_u128(id));
        TopicImage { name: TopicName::new("__consumer_offsets"), id, partitions: partitions.collect() }
    }

    fn load(topic: u128, partition: i32, epoch: i32) -> Load {
        let key =
            PartitionKey { topic: TopicId(Uuid::from_u128(topic)), partition: PartitionIndex(partition) };
        Load { key, epoch: LeaderEpoch(epoch) }
    }

    fn follow(
        leaderships: &Leaderships<()>,
        topic: Option<TopicImage>,
    ) -> (Vec<i32>, Option<i32>, Vec<Load>) {
        let changes = leaderships.follow(topic.as_ref(), ME);
        let ends = changes.ends.into_iter().map(|partition| partition.0).collect();
        (ends, changes.partition_count, changes.begins)
    }

    #[test]
    fn partitions_come_and_go_with_their_leader() {
        let leaderships = Leaderships::new();
        assert_eq!(follow(&leaderships, None), (vec![], None, vec![]));
        let first = topic(7, &[(ME, 0), (OTHER, 0), (ME, 0)]);
        assert_eq!(
            follow(&leaderships, Some(first.clone())),
            (vec![], Some(3), vec![load(7, 0, 0), load(7, 2, 0)])
        );
        assert_eq!(follow(&leaderships, Some(first)), (vec![], None, vec![]));
        let second = topic(7, &[(ME, 0), (ME, 1), (OTHER, 1)]);
        assert_eq!(follow(&leaderships, Some(second)), (vec![2], None, vec![load(7, 1, 1)]));
    }

    #[test]
    fn a_partition_that_went_and_came_back_between_two_images_is_read_anew() {
        let leaderships = Leaderships::new();
        follow(&leaderships, Some(topic(7, &[(ME, 3), (ME, 0)])));
        let was = load(7, 0, 3);
        assert!(leaderships.is_current(was));
        let back = topic(7, &[(ME, 5), (ME, 0)]);
        assert_eq!(follow(&leaderships, Some(back)), (vec![0], None, vec![load(7, 0, 5)]));
        assert!(!leaderships.is_current(was), "whoever reads it for that leadership stops");
    }

    #[test]
    fn another_topic_of_the_same_name_is_another_one() {
        let leaderships = Leaderships::new();
        follow(&leaderships, Some(topic(7, &[(ME, 0), (OTHER, 0)])));
        let other = topic(8, &[(ME, 0)]);
        assert_eq!(follow(&leaderships, Some(other)), (vec![0], Some(1), vec![load(8, 0, 0)]));
        assert_eq!(follow(&leaderships, None), (vec![0], None, vec![]));
        assert_eq!(leaderships.topic(), None);
    }
}

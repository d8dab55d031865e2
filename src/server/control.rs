//! Shard 0's services behind one door: the controller, producer ids.

use std::rc::Rc;

use super::publish::Publisher;
use super::road::Road;
use crate::api::{group_driver, share_driver, txn_driver};
use crate::io::runtime::{Queue, spawn};
use crate::metadata::{self, Command, Refusal};
use crate::raft::{Quorum, QuorumDescription};
use crate::shard::messages::{ControlReply, ControlRequest, Reply};
use crate::shard::{Answer, Control, Shard};
use crate::wire::ErrorCode;
use crate::wire::beat::Beat;

pub(super) struct Services {
    pub(super) shard: Rc<Shard>,
    pub(super) quorum: Rc<Quorum>,
    /// In a cluster: the controller may be another node.
    pub(super) road: Option<Rc<Road>>,
    pub(super) publisher: Rc<Publisher>,
    pub(super) groups: Rc<group_driver::Driver>,
    pub(super) transactions: Rc<txn_driver::Driver>,
    pub(super) shares: Rc<share_driver::Driver>,
}

impl Services {
    /// Asks whoever leads the metadata log; `None` when nobody does for long.
    async fn describe_quorum(&self) -> Option<QuorumDescription> {
        match &self.road {
            Some(road) => road.describe_quorum().await,
            None => self.quorum.describe().map(|description| self.with_own_directory(description)),
        }
    }

    /// A node alone has not written into its log where that is.
    fn with_own_directory(&self, mut description: QuorumDescription) -> QuorumDescription {
        let directories = &self.shard.settings().directories;
        let own = directories.metadata().and_then(|index| directories.list.get(index));
        for voter in description.voters.iter_mut().filter(|voter| voter.directory.is_nil()) {
            voter.directory = own.map_or(voter.directory, |own| own.log_dir.id().0);
        }
        description
    }

    async fn submit(&self, command: Command) -> Result<metadata::Response, Refusal> {
        match &self.road {
            Some(road) => road.submit(command).await,
            None => submit_here(&self.shard, &self.quorum, command).await,
        }
    }
}

/// Runs a command at this node's controller; one that finds the disk full gets the reserve and a second attempt.
pub(super) async fn submit_here(
    shard: &Rc<Shard>,
    quorum: &Quorum,
    command: Command,
) -> Result<metadata::Response, Refusal> {
    let result = quorum.submit(command.clone()).await;
    let is_full = matches!(&result, Err(refusal) if refusal.code == ErrorCode::KafkaStorageError);
    match shard.settings().directories.metadata() {
        Some(directory) if is_full && shard.give_up_reserve(directory).await => quorum.submit(command).await,
        _ => result,
    }
}

impl Control for Services {
    fn classic_beat(&self, beat: &Beat) -> bool {
        self.groups.classic_beat(beat)
    }

    fn consumer_beat(&self, beat: &Beat, client_id: &[u8], client_host: &str) -> Option<i32> {
        self.groups.consumer_beat(beat, client_id, client_host)
    }

    fn handle(self: Rc<Self>, request: ControlRequest, mut answer: Answer) {
        match request {
            ControlRequest::Command(command) => {
                spawn(Queue::Control, "command", async move {
                    let result = self.submit(command).await;
                    self.publisher.publish(self.quorum.image()).await;
                    answer.send(Reply::Control(ControlReply::Command(result)));
                })
                .detach();
            }
            ControlRequest::Group(request, client) => self.groups.handle(*request, client, answer),
            ControlRequest::Transaction(request) => self.transactions.handle(*request, answer),
            ControlRequest::TransactionAnywhere(request) => {
                self.transactions.handle_anywhere(*request, answer);
            }
            ControlRequest::ShareState(request) => self.shares.handle_anywhere(*request, answer),
            ControlRequest::ShareStateHere(request) => self.shares.handle(*request, answer),
            ControlRequest::DescribeQuorum => {
                // It may look for a controller for seconds.
                answer.park();
                spawn(Queue::Control, "describe quorum", async move {
                    let description = self.describe_quorum().await;
                    answer.send(Reply::Control(ControlReply::Quorum(description)));
                })
                .detach();
            }
            ControlRequest::ChangeVoters(change) => {
                // A voter may be waited for until it has all of the log.
                answer.park();
                spawn(Queue::Control, "change voters", async move {
                    let result = match &self.road {
                        Some(road) => road.change_voters(change).await,
                        None => self.quorum.change_voters(change).await,
                    };
                    answer.send(Reply::Control(ControlReply::VotersChanged(result)));
                })
                .detach();
            }
            ControlRequest::ProducerId => {
                // A block of ids may take long: the others of its shard are not to wait for the credit it came with.
                answer.park();
                spawn(Queue::Control, "producer id", async move {
                    let submit = async |command| self.submit(command).await;
                    let result = self.quorum.allocate_producer_id(submit).await;
                    answer.send(Reply::Control(ControlReply::ProducerId(result)));
                })
                .detach();
            }
        }
    }
}

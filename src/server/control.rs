//! Shard 0's services behind one door: the controller, producer ids.

use std::rc::Rc;

use super::publish::Publisher;
use crate::api::group_driver;
use crate::io::runtime::{Queue, spawn};
use crate::raft::Quorum;
use crate::shard::messages::{ControlReply, ControlRequest, Reply};
use crate::shard::{Answer, Control};

pub(super) struct Services {
    pub(super) quorum: Rc<Quorum>,
    pub(super) publisher: Rc<Publisher>,
    pub(super) groups: Rc<group_driver::Driver>,
}

impl Control for Services {
    fn handle(self: Rc<Self>, request: ControlRequest, answer: Answer) {
        match request {
            ControlRequest::Command(command) => {
                spawn(Queue::Control, "command", async move {
                    let result = self.quorum.submit(command).await;
                    self.publisher.publish(self.quorum.image()).await;
                    answer.send(Reply::Control(ControlReply::Command(result)));
                })
                .detach();
            }
            ControlRequest::Group(request, client) => self.groups.handle(*request, client, answer),
            ControlRequest::ProducerId => {
                spawn(Queue::Control, "producer id", async move {
                    let result = self.quorum.allocate_producer_id().await;
                    answer.send(Reply::Control(ControlReply::ProducerId(result)));
                })
                .detach();
            }
        }
    }
}

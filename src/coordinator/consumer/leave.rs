//! Members go: they say so, their time is over, or they did not give back what they should.

use kafka_protocol::messages::{ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse};
use kafka_protocol::protocol::StrBytes;

use super::draft::Draft;
use super::heartbeat::{check_instance, unknown_instance};
use super::member::{Epoch, Member};
use super::records::{ConsumerRecord, TargetEpoch};
use super::requests::{Applied, Refusal};
use crate::base::clock::Timestamp;
use crate::coordinator::turn::Turn;

impl Draft<'_> {
    /// A heartbeat with a leaving epoch.
    pub(super) fn leave(
        &mut self,
        request: &ConsumerGroupHeartbeatRequest,
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<ConsumerGroupHeartbeatResponse, Refusal> {
        let id = &request.member_id;
        let member = match &request.instance_id {
            None => self.member(id).ok_or_else(|| self.no_member(id))?.clone(),
            Some(instance_id) => {
                let member = self.static_member(instance_id).ok_or_else(|| unknown_instance(instance_id))?;
                check_instance(member, id, instance_id)?;
                member.clone()
            }
        };
        let comes_back =
            request.instance_id.is_some() && Epoch(request.member_epoch) == Epoch::STATIC_LEAVING;
        if comes_back {
            self.leave_for_now(member);
            applied.moved = Some(id.clone());
        } else {
            self.fence(std::slice::from_ref(id), turn, applied)?;
        }
        Ok(ConsumerGroupHeartbeatResponse::default()
            .with_member_id(Some(id.clone()))
            .with_member_epoch(request.member_epoch))
    }

    /// The static member keeps its place until its session is over.
    fn leave_for_now(&mut self, member: Member) {
        let mut position = member.position;
        position.epoch = Epoch::STATIC_LEAVING;
        position.revoking.clear();
        // Nobody may commit for it meanwhile, so no epoch is too old.
        for epoch in position.assigned.values_mut().flat_map(|partitions| partitions.values_mut()) {
            *epoch = Epoch::ZERO;
        }
        let group = self.id.clone();
        self.put(ConsumerRecord::Position { group, member: member.id, value: Some(Box::new(position)) });
    }

    /// Takes members out of the group. If only members of the classic protocol are left, it becomes one of theirs
    /// again.
    pub(super) fn fence(
        &mut self,
        ids: &[StrBytes],
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        if self.can_become_classic(ids, turn) {
            return self.become_classic(ids, None, true, turn, applied);
        }
        for id in ids {
            self.remove(id, applied);
        }
        self.drop_unread_regexes();
        self.refresh(true, turn, applied);
        if self.is_empty() {
            // There is nothing to assign, and who comes next need not wait for the interval to be over.
            let (group, epoch) = (self.id.clone(), self.epoch);
            let value = Some(TargetEpoch { epoch, at: Timestamp(0) });
            self.put(ConsumerRecord::TargetEpoch { group, value });
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &StrBytes, applied: &mut Applied) {
        let group = || self.id.clone();
        let records = [
            ConsumerRecord::Position { group: group(), member: id.clone(), value: None },
            ConsumerRecord::Target { group: group(), member: id.clone(), value: None },
            ConsumerRecord::Member { group: group(), member: id.clone(), value: None },
        ];
        for record in records {
            self.put(record);
        }
        applied.removed.push(id.clone());
    }
}

//! From the classic protocol to the new one and back, with the members that there are (KIP-848's migration).

use kafka_protocol::protocol::StrBytes;

use super::draft::Draft;
use super::member::{
    ClassicMetadata, Epoch, Member, MemberMetadata, MemberState, Owned, Position, sorted_names,
};
use super::protocol::{identified, read_assignment, read_subscription, write_assignment};
use super::records::{ConsumerRecord, GroupEpoch, TargetEpoch};
use super::requests::{Applied, ClassicGroup, Refusal};
use crate::base::clock::Timestamp;
use crate::coordinator::group::Group;
use crate::coordinator::member::Member as ClassicMember;
use crate::coordinator::turn::Turn;
use crate::wire::ErrorCode;

impl Draft<'_> {
    /// Fills the draft of a new group with the members of a classic one. All are where the last generation put
    /// them.
    pub(super) fn take_over(&mut self, classic: &Group, turn: &mut Turn<'_>) -> Result<(), Refusal> {
        let refuse = |reason: &str| {
            Refusal::new(
                ErrorCode::GroupIdNotFound,
                format!("Cannot upgrade classic group {} to consumer group because {reason}", classic.id),
            )
        };
        let policy = turn.settings.consumer.migration_policy;
        if !policy.allows_upgrade() {
            return Err(refuse("online upgrade is disabled."));
        }
        if !classic.uses_consumer_protocol() {
            return Err(refuse("the group does not use the consumer embedded protocol."));
        }
        if classic.len() > usize::try_from(turn.settings.consumer.members_max).unwrap_or(0) {
            return Err(refuse("the group size exceeds the consumer group maximum size."));
        }
        let group = self.id.clone();
        let epoch = Epoch(classic.generation);
        let protocol = classic.protocol.clone().unwrap_or_default();
        let mut members = Vec::with_capacity(classic.len());
        for member in classic.members() {
            let malformed = |_| refuse("the embedded consumer protocol is malformed.");
            let assignment = read_assignment(&member.assignment).map_err(malformed)?;
            if assignment.has_user_data {
                return Err(refuse(
                    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a \
                     default assignor before re-attempting the upgrade.",
                ));
            }
            // Before the first generation no protocol was chosen; all say the same of the topics.
            let metadata = match member.metadata(&protocol) {
                metadata if !metadata.is_empty() => metadata,
                _ => member.protocols.first().map(|first| first.metadata.clone()).unwrap_or_default(),
            };
            let subscription = read_subscription(&metadata).map_err(malformed)?;
            let target = identified(&assignment.partitions, turn.topics);
            let assigned: Owned = target
                .iter()
                .map(|(topic, partitions)| (*topic, partitions.iter().map(|index| (*index, epoch)).collect()))
                .collect();
            members.push((
                member.id.clone(),
                MemberMetadata {
                    instance_id: member.instance_id.clone(),
                    rack_id: subscription.rack_id,
                    client_id: member.client_id.clone(),
                    client_host: member.client_host.clone(),
                    topic_names: sorted_names(subscription.topics),
                    topic_regex: StrBytes::new(),
                    rebalance_timeout_ms: member.rebalance_timeout_ms,
                    assignor: None,
                    classic: Some(ClassicMetadata {
                        session_timeout_ms: member.session_timeout_ms,
                        protocols: member.protocols.clone(),
                    }),
                },
                target,
                assigned,
            ));
        }
        for (member, metadata, ..) in &members {
            let value = Some(Box::new(metadata.clone()));
            self.put(ConsumerRecord::Member { group: group.clone(), member: member.clone(), value });
        }
        let names = self.subscribed_topics();
        let metadata_hash = turn.topics.hash(&names);
        self.put(ConsumerRecord::Group {
            group: group.clone(),
            value: Some(GroupEpoch { epoch, metadata_hash }),
        });
        for (member, _, target, _) in &members {
            let value = Some(target.clone());
            self.put(ConsumerRecord::Target { group: group.clone(), member: member.clone(), value });
        }
        self.put(ConsumerRecord::TargetEpoch {
            group: group.clone(),
            value: Some(TargetEpoch { epoch, at: Timestamp(0) }),
        });
        for (member, _, _, assigned) in members {
            let position = Position {
                epoch,
                previous_epoch: epoch,
                state: MemberState::Stable,
                assigned,
                revoking: Owned::new(),
            };
            let value = Some(Box::new(position));
            self.put(ConsumerRecord::Position { group: group.clone(), member, value });
        }
        Ok(())
    }

    /// Whether without `leaving` the group is one of members of the classic protocol alone.
    pub(super) fn can_become_classic(&self, leaving: &[StrBytes], turn: &Turn<'_>) -> bool {
        let left = self.len().saturating_sub(leaving.len());
        left > 0 && self.can_become_classic_with(leaving, left, turn)
    }

    /// The same with `left` members in the end.
    pub(super) fn can_become_classic_with(&self, leaving: &[StrBytes], left: usize, turn: &Turn<'_>) -> bool {
        let of_new_protocol = self.len() - self.classic_members();
        let all_new_leave = of_new_protocol > 0
            && leaving
                .iter()
                .filter_map(|id| self.member(id))
                .filter(|member| !member.uses_classic_protocol())
                .count()
                == of_new_protocol;
        all_new_leave
            && turn.settings.consumer.migration_policy.allows_downgrade()
            && left <= usize::try_from(turn.settings.members_max).unwrap_or(0)
    }

    /// Ends the consumer group and makes a classic one of its members but `leaving`; `joining` was put into the
    /// draft already and has its place.
    pub(super) fn become_classic(
        &mut self,
        leaving: &[StrBytes],
        joining: Option<&StrBytes>,
        rebalances: bool,
        turn: &mut Turn<'_>,
        applied: &mut Applied,
    ) -> Result<(), Refusal> {
        let stay = self.members().filter(|member| !leaving.contains(&member.id));
        let members: Vec<ClassicMember> = stay.filter_map(|member| self.classic_form(member, turn)).collect();
        assert!(
            joining.is_none_or(|joining| members.iter().any(|member| member.id == *joining)),
            "who joins is one of the members"
        );
        let group = Group::from_consumer(self.id.clone(), self.epoch.0, members, turn.now.wall);
        tracing::debug!(group = %self.id, members = group.len(), "a consumer group becomes a classic one");
        for record in self.tombstones() {
            self.put(record);
        }
        applied.removed.extend(leaving.iter().cloned());
        applied.becomes = Some(Box::new(ClassicGroup { group, rebalances }));
        Ok(())
    }

    /// Who does not use the classic protocol has no such form.
    fn classic_form(&self, member: &Member, turn: &Turn<'_>) -> Option<ClassicMember> {
        let classic = member.metadata.classic.as_ref()?;
        let subscription = classic.protocols.first().map(|protocol| protocol.metadata.clone());
        let subscription = subscription.unwrap_or_default();
        let mut form = ClassicMember::idle(member.id.clone());
        form.instance_id = member.metadata.instance_id.clone();
        form.client_id = member.metadata.client_id.clone();
        form.client_host = member.metadata.client_host.clone();
        form.rebalance_timeout_ms = member.metadata.rebalance_timeout_ms;
        form.session_timeout_ms = classic.session_timeout_ms;
        form.protocols = classic.protocols.clone();
        form.assignment = write_assignment(self.target(&member.id), &subscription, turn.topics);
        Some(form)
    }
}

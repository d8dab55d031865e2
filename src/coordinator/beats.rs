//! Heartbeats of live members to which nothing is new: nearly all. They are answered at once and in place, with no
//! request, answer or way back made of them. The rules are those of all heartbeats ([`super::membership`],
//! [`super::consumer`]); what these do not answer goes there.

use super::machine::Coordinator;
use crate::base::clock::Now;
use crate::wire::beat::Beat;

impl Coordinator {
    /// Serves a Heartbeat that is answered without an error. If not, nothing has changed but that the member was heard of.
    pub fn classic_beat(&mut self, beat: &Beat, now: Now) -> bool {
        let index = self.partition_of(&beat.group);
        let Some((partition, mut turn)) = self.parts(index, now) else { return false };
        !partition.is_loading
            && partition.gates.is_open(&beat.group)
            && partition.groups.get_mut(&beat.group).is_some_and(|group| {
                group.heartbeat(&beat.member, beat.instance.as_ref(), beat.epoch, &mut turn).is_ok()
            })
    }

    /// Serves a ConsumerGroupHeartbeat of the client with this id and address: the interval that it is answered, unless
    /// there is something to tell or to write.
    pub fn consumer_beat(
        &mut self,
        beat: &Beat,
        client_id: &[u8],
        client_host: &str,
        now: Now,
    ) -> Option<i32> {
        let index = self.partition_of(&beat.group);
        let (partition, mut turn) = self.parts(index, now)?;
        if partition.is_loading || !partition.gates.is_open(&beat.group) {
            return None;
        }
        let group = partition.consumers.get_mut(&beat.group)?;
        if !group.is_quiet(beat, client_id, client_host) || group.has_regexes_due(&beat.member, &turn) {
            return None;
        }
        group.heard_of(&beat.member, &mut turn);
        Some(turn.consumer_times(&group.id).heartbeat_interval_ms)
    }
}

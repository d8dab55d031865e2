//! What goes wrong in a run, and what operators do meanwhile: all by chance.

use kuring::base::{BrokerId, Offset, PartitionIndex};
use kuring::config::Durability;
use kuring::io::mem::Crash;
use kuring::metadata::{
    AlterConfigs, AlterReassignments, Command, ConfigChange, ConfigEdit, ConfigOp, ConfigResource,
    ElectLeaders, ElectionKind, Reassignment,
};

use super::planted::Planted;
use super::world::{MS, Plan, SECOND, STATE_TOPIC, TOPIC, World};

/// The plan that a seed makes.
pub fn plan(seed: u64, planted: Option<Planted>) -> Plan {
    let mut random = kuring::base::random::Random::seeded(seed ^ 0x5eed);
    Plan {
        seed,
        nodes: 3 + random.below(3) as usize,
        durability: if random.below(3) == 0 { Durability::Fsync } else { Durability::PageCache },
        is_unclean: random.below(5) == 0,
        partitions: 1 + random.below(2) as i32,
        replicas: 3,
        isr_min: 2,
        producers: 1 + random.below(2) as usize,
        transactional_ids: 1 + random.below(2) as usize,
        reads_followers: random.below(4) > 0,
        deletes: random.below(2) == 0 || planted.is_some_and(Planted::is_of_deletions),
        planted,
    }
}

/// A whole run: faults for some seconds, then order.
pub fn simulate(plan: Plan) -> Result<World, String> {
    let mut world = World::new(plan)?;
    let end = world.time + 2 * SECOND + world.random.below(8 * SECOND);
    while world.time < end {
        let pause = 30 * MS + world.random.below(400 * MS);
        world.run_for(pause)?;
        world.fault();
    }
    world.converge()?;
    Ok(world)
}

impl World {
    fn any_node(&mut self) -> usize {
        self.random.below(self.nodes.len() as u64) as usize
    }

    fn fault(&mut self) {
        let node = self.any_node();
        match self.random.below(100) {
            0..16 => self.crash_some(node),
            16..22 => {
                self.stop(node);
            }
            22..34 => self.cut_some(node),
            34..54 => self.network.heal(),
            54..62 => {
                self.network.loss_percent = self.random.below(12);
                self.network.delay_max_us = MS + self.random.below(150 * MS);
            }
            62..67 => self.nodes[node].paused_until = self.time + self.random.below(2 * SECOND),
            67..70 => self.nodes[node].wall_offset_ms = self.random.below(7_200_000) as i64 - 3_600_000,
            70..74 => self.nodes[node].is_slow = !self.nodes[node].is_slow,
            74..77 => self.quorum.depose(),
            77..85 => self.elect(),
            85..92 => self.reassign(),
            92..95 => self.configure(),
            _ if self.plan.deletes => self.delete(),
            _ => self.configure(),
        }
    }

    /// Whether a crash of the node takes no more than may be lost at once.
    fn may_crash(&mut self, node: usize, crash: Crash) -> bool {
        self.find_recovered();
        let mut others = self.lost.iter().filter(|(other, _)| **other != node);
        match crash {
            _ if self.plan.durability == Durability::Fsync => true,
            Crash::Machine => others.next().is_none(),
            Crash::Process => !others.any(|(_, crash)| *crash == Crash::Machine),
        }
    }

    fn crash_some(&mut self, node: usize) {
        let crash = [Crash::Process, Crash::Machine][self.random.below(2) as usize];
        if !self.may_crash(node, crash) {
            return;
        }
        self.crash(node, crash);
        let after = 20 * MS + self.random.below(2 * SECOND);
        self.start_after(node, after);
        if self.random.below(4) == 0 {
            // Another one falls with it.
            let other = self.any_node();
            if other != node && self.may_crash(other, Crash::Process) {
                self.crash(other, Crash::Process);
                self.start_after(other, after / 2);
            }
        }
    }

    fn cut_some(&mut self, node: usize) {
        let (nodes, other) = (self.nodes.len(), self.any_node());
        match self.random.below(6) {
            0 | 1 => self.isolate(node),
            2 => (0..nodes).for_each(|other| self.network.cut(node, other)),
            3 => (0..nodes).for_each(|other| self.network.cut(other, node)),
            4 => self.network.cut_both(node, other),
            _ => self.network.cut(node, other),
        }
    }

    fn any_partition(&mut self) -> (String, PartitionIndex) {
        let state = self.quorum.image().topic(STATE_TOPIC).map_or(0, |topic| topic.partitions.len());
        let any = self.random.below(self.plan.partitions as u64 + state as u64) as i32;
        match any - self.plan.partitions {
            ..0 => (TOPIC.to_owned(), PartitionIndex(any)),
            any => (STATE_TOPIC.to_owned(), PartitionIndex(any)),
        }
    }

    fn elect(&mut self) {
        let (topic, index) = self.any_partition();
        // What coordinators wrote is never given up.
        let kind = match self.plan.is_unclean && topic == TOPIC && self.random.below(2) == 0 {
            true => ElectionKind::Unclean,
            false => ElectionKind::Preferred,
        };
        let topics = vec![(topic, vec![index])];
        // It may find nobody to ask, or be refused.
        let _ = self.admin(Command::ElectLeaders(ElectLeaders { kind, topics }));
    }

    fn reassign(&mut self) {
        let (topic, index) = self.any_partition();
        let mut nodes: Vec<i32> = (0..self.nodes.len() as i32).collect();
        let count = 2 + self.random.below(2) as usize;
        let mut replicas = Vec::new();
        while replicas.len() < count {
            let place = self.random.below(nodes.len() as u64) as usize;
            replicas.push(BrokerId(nodes.swap_remove(place)));
        }
        let replicas = (self.random.below(4) > 0).then_some(replicas);
        let wanted = Reassignment { index, replicas };
        let topics = vec![(topic, vec![wanted])];
        let _ =
            self.admin(Command::AlterReassignments(AlterReassignments { may_change_factor: true, topics }));
    }

    fn configure(&mut self) {
        if self.plan.deletes && self.random.below(4) == 0 {
            for (key, _) in self.partitions() {
                self.checker.history(key).is_bounded = true;
            }
            let value = ["-1", "3000", "12000"][self.random.below(3) as usize];
            return self.set_config("retention.bytes", value);
        }
        let value = ["1500", "4000", "20000"][self.random.below(3) as usize];
        self.set_config("segment.bytes", value);
    }

    /// Records go up to somewhere, mostly below what is committed.
    fn delete(&mut self) {
        let found = self.partitions().into_iter().filter(|(key, _)| self.is_data(*key));
        let found: Vec<_> = found.collect();
        let (key, partition) = &found[self.random.below(found.len() as u64) as usize];
        let Some(leader) = partition.leader else { return };
        let committed = self.checker.history(*key).committed_end();
        let offset = match self.random.below(4) {
            0 => -1,
            1 => committed + self.random.below(10) as i64,
            _ => self.random.below(committed as u64 + 1) as i64,
        };
        self.delete_records(*key, leader.0 as usize, Offset(offset));
    }

    pub fn set_config(&mut self, name: &str, value: &str) {
        let edit = ConfigEdit::Incremental(vec![(name.to_owned(), ConfigOp::Set(value.to_owned()))]);
        let change = ConfigChange { resource: ConfigResource::Topic(TOPIC.into()), edit };
        let _ =
            self.admin(Command::AlterConfigs(AlterConfigs { changes: vec![change], validate_only: false }));
    }
}

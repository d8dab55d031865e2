//! Least-cost flow with bounds on every arc, from a flow that may break them: each step takes one unit from where there is
//! too much to where there is too little, on the cheapest way. What was within its bounds is touched only when that is
//! cheaper. No IO.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::RangeInclusive;

/// A node of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Node(u32);

/// Names an arc of the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArcId(u32);

/// The bounds cannot be kept.
#[derive(Debug, PartialEq, Eq)]
pub struct NoFlow;

/// One direction of an arc; the other is its neighbour in the list, at `index ^ 1`.
#[derive(Debug)]
struct Half {
    to: u32,
    /// How much more may go this way.
    left: i32,
    cost: i32,
}

/// The network and the flow in it.
#[derive(Debug, Default)]
pub struct Flow {
    halves: Vec<Half>,
    /// The least of each arc.
    lower: Vec<i32>,
    /// The halves that leave each node.
    leaving: Vec<Vec<u32>>,
    /// What comes to each node and does not go on; below zero it is wanted.
    excess: Vec<i32>,
}

/// What a search found out; kept between searches for its memory.
struct Search {
    distance: Vec<i32>,
    /// The half that led to each node.
    way: Vec<u32>,
    touched: Vec<u32>,
    /// Those whose distance is final.
    done: Vec<u32>,
    heap: BinaryHeap<Reverse<(i32, u32)>>,
}

const FAR: i32 = i32::MAX;
const NO_WAY: u32 = u32::MAX;

impl Flow {
    pub fn node(&mut self) -> Node {
        self.leaving.push(Vec::new());
        self.excess.push(0);
        Node((self.leaving.len() - 1) as u32)
    }

    /// So much begins at the node; below zero, ends there.
    pub fn supply(&mut self, node: Node, amount: i32) {
        self.excess[node.0 as usize] += amount;
    }

    /// An arc and what flows there at first, which is brought within the bounds. Costs are for each unit, not below zero;
    /// an arc that costs something starts at its lower bound.
    pub fn arc(
        &mut self,
        from: Node,
        to: Node,
        bounds: RangeInclusive<i32>,
        cost: i32,
        present: i32,
    ) -> ArcId {
        let (lower, upper) = bounds.into_inner();
        let present = present.clamp(lower, upper);
        debug_assert!(cost >= 0 && (cost == 0 || present == lower), "the search needs that");
        let index = self.halves.len() as u32;
        self.halves.push(Half { to: to.0, left: upper - present, cost });
        self.halves.push(Half { to: from.0, left: present - lower, cost: -cost });
        self.leaving[from.0 as usize].push(index);
        self.leaving[to.0 as usize].push(index + 1);
        self.lower.push(lower);
        self.excess[from.0 as usize] -= present;
        self.excess[to.0 as usize] += present;
        ArcId(index / 2)
    }

    pub fn amount(&self, arc: ArcId) -> i32 {
        self.lower[arc.0 as usize] + self.halves[arc.0 as usize * 2 + 1].left
    }

    /// Brings the flow within all bounds at the least cost. The potentials keep the cost of every half that is open, seen
    /// from the nodes' ends, at zero or above (the successive shortest paths of Ford and Fulkerson, after Johnson).
    pub fn solve(&mut self) -> Result<(), NoFlow> {
        let nodes = self.leaving.len();
        let mut potential = vec![0; nodes];
        let mut search = Search {
            distance: vec![FAR; nodes],
            way: vec![NO_WAY; nodes],
            touched: Vec::new(),
            done: Vec::new(),
            heap: BinaryHeap::new(),
        };
        for source in 0..nodes as u32 {
            while self.excess[source as usize] > 0 {
                let wanting = self.nearest_wanting(source, &potential, &mut search).ok_or(NoFlow)?;
                let distance = search.distance[wanting as usize];
                for &node in &search.done {
                    potential[node as usize] += search.distance[node as usize] - distance;
                }
                self.send(source, wanting, &search.way);
                search.forget();
            }
        }
        if self.excess.iter().all(|excess| *excess == 0) { Ok(()) } else { Err(NoFlow) }
    }

    /// Dijkstra's search, which ends at the first node that wants something.
    fn nearest_wanting(&self, source: u32, potential: &[i32], search: &mut Search) -> Option<u32> {
        search.reach(source, 0, NO_WAY);
        while let Some(Reverse((distance, node))) = search.heap.pop() {
            if distance > search.distance[node as usize] {
                continue;
            }
            search.done.push(node);
            if self.excess[node as usize] < 0 {
                return Some(node);
            }
            for &index in &self.leaving[node as usize] {
                let half = &self.halves[index as usize];
                if half.left > 0 {
                    let cost = half.cost + potential[node as usize] - potential[half.to as usize];
                    search.reach(half.to, distance + cost, index);
                }
            }
        }
        None
    }

    /// As much as fits along the way that was found.
    fn send(&mut self, source: u32, wanting: u32, way: &[u32]) {
        let back = |halves: &[Half], node: u32| {
            let index = way[node as usize];
            (index, halves[index as usize ^ 1].to)
        };
        let mut amount = self.excess[source as usize].min(-self.excess[wanting as usize]);
        let mut node = wanting;
        while node != source {
            let (index, before) = back(&self.halves, node);
            amount = amount.min(self.halves[index as usize].left);
            node = before;
        }
        node = wanting;
        while node != source {
            let (index, before) = back(&self.halves, node);
            self.halves[index as usize].left -= amount;
            self.halves[index as usize ^ 1].left += amount;
            node = before;
        }
        self.excess[source as usize] -= amount;
        self.excess[wanting as usize] += amount;
    }
}

impl Search {
    fn reach(&mut self, node: u32, distance: i32, way: u32) {
        let known = &mut self.distance[node as usize];
        if distance >= *known {
            return;
        }
        if *known == FAR {
            self.touched.push(node);
        }
        *known = distance;
        self.way[node as usize] = way;
        self.heap.push(Reverse((distance, node)));
    }

    fn forget(&mut self) {
        for node in self.touched.drain(..) {
            self.distance[node as usize] = FAR;
        }
        self.done.clear();
        self.heap.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_within_its_bounds_stays() {
        let mut flow = Flow::default();
        let (source, middle, sink) = (flow.node(), flow.node(), flow.node());
        flow.supply(source, 3);
        flow.supply(sink, -3);
        let first = flow.arc(source, middle, 0..=3, 0, 3);
        let last = flow.arc(middle, sink, 2..=4, 0, 3);
        assert_eq!(flow.solve(), Ok(()));
        assert_eq!((flow.amount(first), flow.amount(last)), (3, 3));
    }

    #[test]
    fn the_cheapest_way_is_taken_and_undone_when_another_needs_it_more() {
        let mut flow = Flow::default();
        let [a, b, x, y, sink] = [(); 5].map(|()| flow.node());
        flow.supply(a, 1);
        flow.supply(b, 1);
        flow.supply(sink, -2);
        let ways = [
            flow.arc(a, x, 0..=1, 1, 0),
            flow.arc(a, y, 0..=1, 2, 0),
            // The other has no choice.
            flow.arc(b, x, 0..=1, 9, 0),
        ];
        flow.arc(x, sink, 0..=1, 0, 0);
        flow.arc(y, sink, 0..=1, 0, 0);
        assert_eq!(flow.solve(), Ok(()));
        assert_eq!(ways.map(|way| flow.amount(way)), [0, 1, 1]);
    }

    #[test]
    fn bounds_that_cannot_be_kept_are_told() {
        let mut flow = Flow::default();
        let (source, sink) = (flow.node(), flow.node());
        flow.supply(source, 2);
        flow.supply(sink, -2);
        flow.arc(source, sink, 0..=1, 0, 0);
        assert_eq!(flow.solve(), Err(NoFlow));
    }

    #[test]
    fn a_lower_bound_draws_what_flows_elsewhere() {
        let mut flow = Flow::default();
        let [source, x, y, sink] = [(); 4].map(|()| flow.node());
        flow.supply(source, 4);
        flow.supply(sink, -4);
        let left = flow.arc(source, x, 0..=4, 0, 4);
        let right = flow.arc(source, y, 0..=4, 1, 0);
        flow.arc(x, sink, 0..=4, 0, 4);
        flow.arc(y, sink, 2..=2, 0, 0);
        assert_eq!(flow.solve(), Ok(()));
        assert_eq!((flow.amount(left), flow.amount(right)), (2, 2));
    }
}

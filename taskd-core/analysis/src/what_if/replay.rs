//! Replay of a dependency graph: the time of each step from the length of each operation.
//!
//! An operation starts when all of its predecessors have ended. An operation of a group, such as one member's part of a
//! collective, starts its transfer when all members have started. A replay reads each operation and each dependency
//! once.

/// No group.
const NONE: u32 = u32::MAX;

/// Lists of numbers in one allocation.
#[derive(Clone, Debug, Default)]
struct Lists {
    ends: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    /// Sorts `(list, item)` pairs into `count` lists; items keep their order.
    fn from_pairs(count: usize, pairs: impl Iterator<Item = (u32, u32)> + Clone) -> Lists {
        let mut ends = vec![0_u32; count + 1];
        for (list, _) in pairs.clone() {
            ends[list as usize + 1] += 1;
        }
        for index in 1..ends.len() {
            ends[index] += ends[index - 1];
        }
        let mut next = ends.clone();
        let mut items = vec![0; pairs.clone().count()];
        for (list, item) in pairs {
            items[next[list as usize] as usize] = item;
            next[list as usize] += 1;
        }
        Lists { ends, items }
    }

    fn get(&self, list: u32) -> &[u32] {
        let list = list as usize;
        &self.items[self.ends[list] as usize..self.ends[list + 1] as usize]
    }
}

/// Dependencies between operations that are numbered from 0.
#[derive(Clone, Debug, Default)]
pub(super) struct GraphBuilder {
    /// Pairs of an operation and the operation that waits for its end.
    pub(super) edges: Vec<(u32, u32)>,
    /// Operations that transfer together.
    pub(super) groups: Vec<Vec<u32>>,
}

impl GraphBuilder {
    /// Makes each operation of the list wait for the one before it.
    pub(super) fn chain(&mut self, operations: &[u32]) {
        self.edges.extend(operations.windows(2).map(|pair| (pair[0], pair[1])));
    }

    /// Returns the graph of as many operations as `step_of` has: the step of each operation.
    ///
    /// # Errors
    /// Returns the number of an operation that waits for itself over others.
    pub(super) fn build(self, step_of: &[u32]) -> Result<Graph, u32> {
        let count = step_of.len();
        let mut group_of = vec![NONE; count];
        for (number, members) in (0_u32..).zip(&self.groups) {
            for member in members {
                group_of[*member as usize] = number;
            }
        }
        let members = Lists::from_pairs(
            self.groups.len(),
            (0_u32..).zip(&self.groups).flat_map(|(group, members)| members.iter().map(move |member| (group, *member))),
        );
        let predecessors = Lists::from_pairs(count, self.edges.iter().map(|(from, to)| (*to, *from)));
        let successors = Lists::from_pairs(count, self.edges.iter().copied());
        let (order, finishes) = sort(&predecessors, &successors, &group_of, &members)?;
        let steps = step_of.iter().max().map_or(0, |last| *last as usize + 1);
        Ok(Graph { predecessors, group_of, members, order, finishes, step_of: step_of.to_vec(), steps })
    }
}

/// Sorts the operations so that each comes after all that it waits for, by Kahn's algorithm. The second list is true
/// where an operation is the last of its group.
fn sort(
    predecessors: &Lists,
    successors: &Lists,
    group_of: &[u32],
    members: &Lists,
) -> Result<(Vec<u32>, Vec<bool>), u32> {
    let count = group_of.len();
    let numbers = || 0..u32::try_from(count).unwrap_or(u32::MAX);
    let mut waits: Vec<u32> = numbers().map(|op| u32::try_from(predecessors.get(op).len()).unwrap_or(NONE)).collect();
    let groups = u32::try_from(members.ends.len().saturating_sub(1)).unwrap_or(u32::MAX);
    let mut missing: Vec<usize> = (0..groups).map(|group| members.get(group).len()).collect();
    // The last operation without a predecessor is taken first, so that one step is done before the next begins and its
    // figures remain in the cache.
    let mut ready: Vec<u32> = numbers().rev().filter(|op| waits[*op as usize] == 0).collect();
    let (mut order, mut finishes) = (Vec::with_capacity(count), Vec::with_capacity(count));
    while let Some(op) = ready.pop() {
        order.push(op);
        let alone = [op];
        let group = group_of[op as usize];
        let ended: &[u32] = if group == NONE {
            &alone
        } else {
            missing[group as usize] -= 1;
            if missing[group as usize] == 0 { members.get(group) } else { &[] }
        };
        finishes.push(!ended.is_empty());
        for next in ended.iter().flat_map(|op| successors.get(*op)) {
            waits[*next as usize] -= 1;
            if waits[*next as usize] == 0 {
                ready.push(*next);
            }
        }
    }
    if order.len() == count {
        return Ok((order, finishes));
    }
    let mut done = vec![false; count];
    order.iter().for_each(|op| done[*op as usize] = true);
    Err(numbers().find(|op| !done[*op as usize]).unwrap_or(0))
}

/// A graph that can be replayed.
#[derive(Clone, Debug)]
pub(super) struct Graph {
    predecessors: Lists,
    group_of: Vec<u32>,
    members: Lists,
    order: Vec<u32>,
    finishes: Vec<bool>,
    step_of: Vec<u32>,
    steps: usize,
}

impl Graph {
    /// Returns the members of each group.
    pub(super) fn groups(&self) -> impl Iterator<Item = &[u32]> {
        (0..u32::try_from(self.members.ends.len().saturating_sub(1)).unwrap_or(0)).map(|group| self.members.get(group))
    }

    /// Returns the time of each step in seconds, if each operation takes the time of `work`. Every step starts at 0.
    pub(super) fn replay(&self, work: &[f64]) -> Vec<f64> {
        let mut ends = vec![0.0_f64; work.len()];
        let mut begun = vec![0.0_f64; self.members.ends.len().saturating_sub(1)];
        let mut times = vec![0.0_f64; self.steps];
        for (op, finishes) in self.order.iter().zip(&self.finishes) {
            let number = *op as usize;
            let start = self.predecessors.get(*op).iter().fold(0.0, |latest: f64, op| latest.max(ends[*op as usize]));
            let group = self.group_of[number];
            let step = &mut times[self.step_of[number] as usize];
            if group == NONE {
                ends[number] = start + work[number];
                *step = step.max(ends[number]);
                continue;
            }
            let begun = &mut begun[group as usize];
            *begun = begun.max(start);
            if *finishes {
                for member in self.members.get(group) {
                    ends[*member as usize] = *begun + work[*member as usize];
                    *step = step.max(ends[*member as usize]);
                }
            }
        }
        times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(edges: &[(u32, u32)], groups: &[&[u32]], count: usize) -> Result<Graph, u32> {
        let groups = groups.iter().map(|members| members.to_vec()).collect();
        GraphBuilder { edges: edges.to_vec(), groups }.build(&vec![0; count])
    }

    #[test]
    fn replay_of_a_chain_adds_the_times() {
        let graph = graph(&[(0, 1), (1, 2)], &[], 3).unwrap();
        assert_eq!(graph.replay(&[1.0, 2.0, 4.0]), [7.0]);
    }

    #[test]
    fn transfer_of_a_group_waits_for_its_last_member() {
        // Two ranks compute for 1 s and 5 s, then transfer for 2 s together; the first rank computes 1 s more.
        let graph = graph(&[(0, 1), (2, 3), (1, 4)], &[&[1, 3]], 5).unwrap();
        assert_eq!(graph.replay(&[1.0, 2.0, 5.0, 2.0, 1.0]), [8.0]);
    }

    #[test]
    fn operations_in_a_circle_are_refused() {
        assert_eq!(graph(&[(0, 1), (1, 2), (2, 1)], &[], 3).unwrap_err(), 1);
    }

    #[test]
    fn groups_that_wait_for_each_other_are_refused() {
        // Rank 0 begins group {0, 2} before {1, 3}, rank 1 in the other order: a deadlock.
        assert!(graph(&[(0, 1), (3, 2)], &[&[0, 2], &[1, 3]], 4).is_err());
    }
}

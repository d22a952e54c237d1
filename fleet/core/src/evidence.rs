//! What crashes, returns and silence of a rollout's agents say: the blocks that the gate judges by.
//!
//! ```text
//!   a zone:   ▪▪▪▪▪▪▪▪ reached      ┐ a block is one zone for [`BLOCK`] seconds: how many were whole at
//!             ▫▫▫▫▫▫▫▫▫▫▫▫ waiting  ┘ its beginning, and how many of them failed in it
//! ```
//!
//! Everything follows from when each agent was given the new target, when it failed, and when it was lost
//! from sight, so a controller that takes over comes to the same evidence. Only blocks with a failure
//! are made: others say nothing.
//!
//! Agents that are lost from sight are counted alike in both groups. An order without an answer would be
//! counted among the reached alone, and an outage of a zone would look like a fault of the release.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::gate::{BeforeAfter, Block, Faults};
use crate::time::Seconds;

/// Length of a block, in seconds. Short, because an agent that was given the new target within a block
/// is first counted in the next one, and what it did until then is counted there as well.
pub const BLOCK: u64 = 10;

/// Longest time before its order that an agent is compared with, in seconds.
pub const BEFORE: u64 = 3600;

/// Failures of one zone within so many seconds have one cause, where agents are compared with their own
/// time before.
pub const TOGETHER: u64 = 300;

/// An agent of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its zone.
    pub zone: String,
    /// When it was given the new target; `None` where it was not.
    pub given: Option<Seconds>,
    /// When it failed, in any order.
    pub failed: Vec<Seconds>,
    /// Since when it counts as out of reach; `None` where it can be reached.
    pub lost: Option<Seconds>,
}

/// What all agents of a rollout say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Against agents that wait.
    pub faults: Faults,
    /// Against the time before, of agents in zones where nobody waits any more.
    pub own: BeforeAfter,
}

/// Agents of a rollout, counted by zone.
#[derive(Clone, Debug)]
pub struct Gathering {
    began: Seconds,
    /// Failures before this are not counted again.
    resumed: Seconds,
    zones: BTreeMap<String, Zone>,
}

/// One zone: how many agents have the same times.
#[derive(Clone, Debug, Default)]
struct Zone {
    agents: u64,
    /// By the first block with the new target.
    given: BTreeMap<u64, u64>,
    failed: BTreeMap<Failed, u64>,
    /// Agents that were given the new target and failed at any time: when they were given it, and when
    /// they failed.
    own: BTreeMap<(Seconds, Vec<Seconds>), u64>,
}

/// The first failure of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Failed {
    /// The block in which it is counted.
    block: u64,
    /// Whether the agent had been given the new target by then.
    is_given: bool,
    /// The first block of the agent with the new target, also where it was given that later.
    first: Option<u64>,
}

/// How many there are up to each block.
struct UpTo(Vec<(u64, i64)>);

// === impl Gathering ===

impl Gathering {
    /// No agent of a rollout that began and was resumed then.
    #[must_use]
    pub fn new(began: Seconds, resumed: Seconds) -> Self {
        Self { began, resumed, zones: BTreeMap::new() }
    }

    /// Counts an agent.
    pub fn add(&mut self, seen: &Seen) {
        self.count(seen, |count| *count += 1);
    }

    /// Undoes [`Gathering::add`].
    pub fn remove(&mut self, seen: &Seen) {
        self.count(seen, |count| *count = count.saturating_sub(1));
    }

    fn count(&mut self, seen: &Seen, change: fn(&mut u64)) {
        let counted_from = self.began.max(self.resumed);
        // Nothing more is seen of it, whichever group it is in.
        if seen.lost.is_some_and(|lost| lost < counted_from) {
            return;
        }
        let block = |at: Seconds| at.since(self.began) / BLOCK;
        let zone = self.zones.entry(seen.zone.clone()).or_default();
        change(&mut zone.agents);
        // It is whole from the beginning of the block after its order.
        let first = seen.given.map(|at| block(at) + 1);
        if let Some(first) = first {
            change_in(&mut zone.given, first, change);
        }
        let failures = seen.failed.iter().copied().filter(|at| *at >= counted_from);
        if let Some(at) = failures.chain(seen.lost).min() {
            let is_given = seen.given.is_some_and(|given| given <= at);
            let earliest = first.filter(|_| is_given).unwrap_or(0);
            let failed = Failed { block: block(at).max(earliest), is_given, first };
            change_in(&mut zone.failed, failed, change);
        }
        if let Some(given) = seen.given.filter(|_| !seen.failed.is_empty()) {
            change_in(&mut zone.own, (given, seen.failed.clone()), change);
        }
    }

    /// What they say now.
    #[must_use]
    pub fn evidence(&self, now: Seconds) -> Evidence {
        let ended = now.since(self.began) / BLOCK;
        let mut evidence = Evidence::default();
        for zone in self.zones.values() {
            for block in zone.blocks(ended) {
                evidence.faults.observe(&block);
            }
            if zone.given.values().sum::<u64>() == zone.agents {
                zone.compare(&mut evidence.own, self.resumed, now);
            }
        }
        evidence
    }
}

fn change_in<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K, change: fn(&mut u64)) {
    let mut count = match counts.entry(key) {
        Entry::Occupied(count) => count,
        Entry::Vacant(place) => place.insert_entry(0),
    };
    change(count.get_mut());
    if *count.get() == 0 {
        count.remove();
    }
}

// === impl Zone ===

impl Zone {
    /// The blocks with a failure that ended before this one began.
    fn blocks(&self, ended: u64) -> Vec<Block> {
        if self.failed.is_empty() {
            return Vec::new();
        }
        let counted = |count: &u64| i64::try_from(*count).unwrap_or(i64::MAX);
        let given = UpTo::new(self.given.iter().map(|(at, count)| (*at, counted(count))).collect());
        // Who failed is in no later block, and leaves its group of the waiting for that of the reached.
        let (mut reached_gone, mut waiting_gone) = (Vec::new(), Vec::new());
        for (failed, count) in &self.failed {
            let (after, count) = (failed.block + 1, counted(count));
            match failed.first {
                None => waiting_gone.push((after, count)),
                Some(first) => {
                    reached_gone.push((after.max(first), count));
                    if first > after + 1 {
                        waiting_gone.extend([(after, count), (first - 1, -count)]);
                    }
                }
            }
        }
        let (reached_gone, waiting_gone) = (UpTo::new(reached_gone), UpTo::new(waiting_gone));
        let number = |of: i64| u32::try_from(of.max(0)).unwrap_or(u32::MAX);
        let mut blocks: Vec<Block> = Vec::new();
        let mut last = None;
        for (failed, count) in self.failed.range(..Failed::at(ended)) {
            let at = failed.block;
            if last != Some(at) {
                last = Some(at);
                // Who is given the new target within the block is in neither group.
                blocks.push(Block {
                    reached: number(given.at(at) - reached_gone.at(at)),
                    waiting: number(counted(&self.agents) - given.at(at + 1) - waiting_gone.at(at)),
                    ..Block::default()
                });
            }
            let Some(block) = blocks.last_mut() else { continue };
            let count = number(counted(count));
            if failed.is_given {
                block.reached_failed = block.reached_failed.saturating_add(count);
            } else if failed.first.is_none_or(|first| first > at + 1) {
                block.waiting_failed = block.waiting_failed.saturating_add(count);
            }
        }
        blocks
    }

    /// Counts when agents failed that failed only after their order, and only before it, in stretches
    /// of equal length. Those of one time count once: an outage is not as many causes as it has agents.
    fn compare(&self, own: &mut BeforeAfter, resumed: Seconds, now: Seconds) {
        let (mut after, mut before) = (BTreeSet::new(), BTreeSet::new());
        for (given, failed) in self.own.keys() {
            let length = now.since(*given).min(BEFORE);
            let is_after =
                |at: &&Seconds| **at >= (*given).max(resumed) && at.since(*given) < length;
            let is_before = |at: &&Seconds| *at < given && given.since(**at) <= length;
            let first_after = failed.iter().filter(is_after).min();
            let last_before = failed.iter().filter(is_before).max();
            match (last_before, first_after) {
                (None, Some(at)) => after.insert(at.0 / TOGETHER),
                (Some(at), None) => before.insert(at.0 / TOGETHER),
                (Some(_), Some(_)) | (None, None) => continue,
            };
        }
        own.after += after.len() as u64;
        own.before += before.len() as u64;
    }
}

// === impl Failed ===

impl Failed {
    /// Before all failures of a block.
    fn at(block: u64) -> Self {
        Self { block, is_given: false, first: None }
    }
}

// === impl UpTo ===

impl UpTo {
    fn new(mut counts: Vec<(u64, i64)>) -> Self {
        counts.sort_unstable();
        let mut sum = 0;
        for (_, count) in &mut counts {
            sum += *count;
            *count = sum;
        }
        Self(counts)
    }

    fn at(&self, block: u64) -> i64 {
        let after = self.0.partition_point(|(at, _)| *at <= block);
        after.checked_sub(1).map_or(0, |last| self.0[last].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGAN: Seconds = Seconds(1000);

    fn seen(given: Option<u64>, failed: &[u64]) -> Seen {
        Seen {
            zone: "a".to_owned(),
            given: given.map(|after| BEGAN.plus(after)),
            failed: failed.iter().map(|after| BEGAN.plus(*after)).collect(),
            lost: None,
        }
    }

    fn gather(agents: &[Seen], resumed: Seconds, now: Seconds) -> Evidence {
        let mut gathering = Gathering::new(BEGAN, resumed);
        agents.iter().for_each(|agent| gathering.add(agent));
        gathering.evidence(now)
    }

    fn gathered(agents: &[Seen], after: u64) -> Evidence {
        gather(agents, Seconds(0), BEGAN.plus(after))
    }

    fn faults(blocks: &[Block]) -> Faults {
        let mut faults = Faults::default();
        blocks.iter().for_each(|block| faults.observe(block));
        faults
    }

    #[test]
    fn reached_agents_are_counted_against_those_of_their_zone_that_wait() {
        let mut agents = vec![seen(Some(5), &[35]), seen(Some(5), &[]), seen(None, &[38])];
        agents.extend([seen(None, &[]), seen(None, &[]), seen(Some(33), &[])]);
        agents.push(Seen { zone: "b".to_owned(), ..seen(None, &[]) });
        let expected = Block { reached: 2, reached_failed: 1, waiting: 3, waiting_failed: 1 };
        assert_eq!(gathered(&agents, 60).faults, faults(&[expected]));
        // A block that has not ended says nothing yet.
        assert_eq!(gathered(&agents, 39).faults, Faults::default());
    }

    #[test]
    fn a_crash_right_after_the_order_is_counted_in_the_agents_first_block() {
        let agents = [seen(Some(5), &[6]), seen(None, &[]), seen(None, &[])];
        let expected = Block { reached: 1, reached_failed: 1, waiting: 2, waiting_failed: 0 };
        assert_eq!(gathered(&agents, 60).faults, faults(&[expected]));
    }

    #[test]
    fn an_agent_that_failed_is_in_no_later_block() {
        let agents =
            [seen(Some(5), &[25, 45]), seen(Some(5), &[65]), seen(None, &[]), seen(None, &[])];
        let block = |reached| Block { reached, reached_failed: 1, waiting: 2, waiting_failed: 0 };
        assert_eq!(gathered(&agents, 100).faults, faults(&[block(2), block(1)]));
    }

    #[test]
    fn what_failed_before_the_rollout_or_before_it_was_resumed_is_no_fault_of_it() {
        let agents = [seen(Some(5), &[15]), seen(None, &[])];
        let early = Seen { failed: vec![Seconds(1)], ..seen(Some(5), &[]) };
        assert_eq!(gathered(&[early, seen(None, &[])], 100).faults, Faults::default());
        let resumed = gather(&agents, BEGAN.plus(20), BEGAN.plus(100));
        assert_eq!(resumed, Evidence::default());
    }

    #[test]
    fn where_nobody_waits_agents_are_compared_with_their_own_time_before() {
        let before = Seen { failed: vec![Seconds(950)], ..seen(Some(0), &[]) };
        let both = Seen { failed: vec![Seconds(950), Seconds(1050)], ..seen(Some(0), &[]) };
        let long_ago = Seen { failed: vec![Seconds(100)], ..seen(Some(0), &[]) };
        let agents = [seen(Some(0), &[50]), seen(Some(0), &[360]), before, both, long_ago];
        let own = gathered(&agents, 400).own;
        assert_eq!(own, BeforeAfter { after: 2, before: 1 });
        let mut waiting = agents.to_vec();
        waiting.push(seen(None, &[]));
        assert_eq!(gathered(&waiting, 100).own, BeforeAfter::default());
    }

    /// Counting each block by looking at every agent.
    fn naive(agents: &[Seen], after: u64) -> Faults {
        let mut faults = Faults::default();
        for block in 0..after / BLOCK {
            let mut counted = Block::default();
            for agent in agents {
                let first = agent.given.map(|at| at.since(BEGAN) / BLOCK + 1);
                let failed = agent.failed.iter().min().copied();
                let is_given = failed.is_some_and(|at| agent.given.is_some_and(|it| it <= at));
                let earliest = first.filter(|_| is_given).unwrap_or(0);
                let failed = failed.map(|at| (at.since(BEGAN) / BLOCK).max(earliest));
                if failed.is_some_and(|at| at < block) {
                    continue;
                }
                let fails = u32::from(failed == Some(block));
                match first {
                    Some(first) if first <= block => {
                        counted.reached += 1;
                        counted.reached_failed += fails;
                    }
                    Some(first) if first == block + 1 => {}
                    Some(_) | None => {
                        counted.waiting += 1;
                        counted.waiting_failed += fails;
                    }
                }
            }
            faults.observe(&counted);
        }
        faults
    }

    #[test]
    fn law_blocks_are_those_that_looking_at_every_agent_gives() {
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..500 {
            let agents: Vec<Seen> = (0..30)
                .map(|_| {
                    let given = (below(2) == 0).then(|| below(100));
                    let failed: Vec<u64> = (0..below(3)).map(|_| below(200)).collect();
                    seen(given, &failed)
                })
                .collect();
            assert_eq!(gathered(&agents, 300).faults, naive(&agents, 300));
        }
    }
}

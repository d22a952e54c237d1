//! What crashes, returns and silence of a rollout's agents say: the blocks that the gate judges by.
//!
//! ```text
//!   a zone:   ▪▪▪▪▪▪▪▪ reached      ┐ a block is one zone for [`BLOCK`] seconds: how many were whole at
//!             ▫▫▫▫▫▫▫▫▫▫▫▫ waiting  ┘ its beginning, and how many of them failed in it
//! ```
//!
//! Everything follows from when each agent was given the new target and when it failed, so a controller
//! that takes over comes to the same evidence. Only blocks with a failure are made: others say
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::gate::{BeforeAfter, Block, Faults};
use crate::time::Seconds;

/// Length of a block, in seconds. Short, because an agent that was given the new target within a block
/// is first counted in the next one, and what it did until then is counted there as well.
pub const BLOCK: u64 = 10;

/// Longest time before its order that an agent is compared with, in seconds.
pub const BEFORE: u64 = 3600;

/// An agent of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Its zone.
    pub zone: String,
    /// When it was given the new target; `None` where it was not.
    pub given: Option<Seconds>,
    /// When it failed, in any order.
    pub failed: Vec<Seconds>,
}

/// What all agents of a rollout say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Against agents that wait.
    pub faults: Faults,
    /// Against the time before, of agents in zones where nobody waits any more.
    pub own: BeforeAfter,
}

/// One zone: sorted times, so that each block is counted by looking them up.
#[derive(Default)]
struct Zone {
    agents: usize,
    /// The first block of each agent that was given the new target.
    given: Vec<u64>,
    /// Agents that failed.
    failed: Vec<Failed>,
}

/// The first failure of an agent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Failed {
    /// The block in which it is counted.
    block: u64,
    /// Whether the agent had been given the new target by then.
    is_given: bool,
    /// The first block of the agent with the new target, also where it was given that later.
    first: Option<u64>,
}

/// Gathers what agents say, from the beginning of a rollout to now. Failures before `resumed` are not
/// counted again.
#[must_use]
pub fn gather(agents: &[Seen], began: Seconds, resumed: Seconds, now: Seconds) -> Evidence {
    let block = |at: Seconds| at.since(began) / BLOCK;
    let mut zones: BTreeMap<&str, Zone> = BTreeMap::new();
    for agent in agents {
        let zone = zones.entry(&agent.zone).or_default();
        zone.agents += 1;
        // It is whole from the beginning of the block after its order.
        let given = agent.given.map(|at| block(at) + 1);
        zone.given.extend(given);
        let counted = agent.failed.iter().filter(|at| **at >= began.max(resumed));
        if let Some(first) = counted.min() {
            let is_given = agent.given.is_some_and(|at| at <= *first);
            let earliest = given.filter(|_| is_given).unwrap_or(0);
            let block = block(*first).max(earliest);
            zone.failed.push(Failed { block, is_given, first: given });
        }
    }
    let ended = block(now);
    let mut evidence = Evidence::default();
    for zone in zones.values_mut() {
        zone.given.sort_unstable();
        zone.failed.sort_unstable();
        let blocks: BTreeSet<u64> = zone.failed.iter().map(|failed| failed.block).collect();
        for block in blocks.into_iter().filter(|block| *block < ended) {
            evidence.faults.observe(&zone.block(block));
        }
    }
    let nobody_waits =
        |zone: &str| zones.get(zone).is_some_and(|zone| zone.given.len() == zone.agents);
    for agent in agents.iter().filter(|agent| nobody_waits(&agent.zone)) {
        agent.compare(&mut evidence.own, resumed, now);
    }
    evidence
}

// === impl Zone ===

impl Zone {
    fn block(&self, block: u64) -> Block {
        let before = self.failed.partition_point(|failed| failed.block < block);
        let until = self.failed.partition_point(|failed| failed.block <= block);
        let (gone, now) = (&self.failed[..before], &self.failed[before..until]);
        // Who is given the new target within the block is in neither group.
        let is_reached = |first: Option<u64>| first.is_some_and(|first| first <= block);
        let waits = |first: Option<u64>| first.is_none_or(|first| first > block + 1);
        let reached = self.given.partition_point(|first| *first <= block);
        let waiting = self.agents - self.given.partition_point(|first| *first <= block + 1);
        let gone_of = |is_in: &dyn Fn(Option<u64>) -> bool| {
            gone.iter().filter(|failed| is_in(failed.first)).count()
        };
        let number = |of: usize| u32::try_from(of).unwrap_or(u32::MAX);
        let failed =
            |is: &dyn Fn(&Failed) -> bool| number(now.iter().filter(|one| is(one)).count());
        Block {
            reached: number(reached - gone_of(&is_reached)),
            reached_failed: failed(&|one| one.is_given),
            waiting: number(waiting - gone_of(&waits)),
            waiting_failed: failed(&|one| !one.is_given && waits(one.first)),
        }
    }
}

// === impl Seen ===

impl Seen {
    /// Whether it failed after its order and not before, or the other way round, in stretches of equal
    /// length.
    fn compare(&self, own: &mut BeforeAfter, resumed: Seconds, now: Seconds) {
        let Some(given) = self.given else { return };
        let length = now.since(given).min(BEFORE);
        let after =
            self.failed.iter().any(|at| *at >= given.max(resumed) && at.since(given) < length);
        let before = self.failed.iter().any(|at| *at < given && given.since(*at) <= length);
        own.after += u64::from(after && !before);
        own.before += u64::from(before && !after);
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
        }
    }

    fn gathered(agents: &[Seen], after: u64) -> Evidence {
        gather(agents, BEGAN, Seconds(0), BEGAN.plus(after))
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
        let resumed = gather(&agents, BEGAN, BEGAN.plus(20), BEGAN.plus(100));
        assert_eq!(resumed, Evidence::default());
    }

    #[test]
    fn where_nobody_waits_agents_are_compared_with_their_own_time_before() {
        let before = Seen { failed: vec![Seconds(950)], ..seen(Some(0), &[]) };
        let both = Seen { failed: vec![Seconds(950), Seconds(1050)], ..seen(Some(0), &[]) };
        let long_ago = Seen { failed: vec![Seconds(100)], ..seen(Some(0), &[]) };
        let agents = [seen(Some(0), &[50]), seen(Some(0), &[60]), before, both, long_ago];
        let own = gathered(&agents, 100).own;
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

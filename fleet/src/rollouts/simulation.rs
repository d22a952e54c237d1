//! Rollouts with everything that moves them, on a ledger that fails, on paused time, from a seed.
//!
//! ```text
//!   operator ─► ledger (stale, ambiguous, late, away) ◄─ processes: controller, gateway, fold
//!                                                           ▲ frames, lost or late
//!                                                           ▼
//!                                                         agents
//! ```
//!
//! Processes are killed, stand still and go on with what they knew, and are cut off. Agents are models
//! that speak the wire as it is; in some seeds one is made of the real actors. The laws are held
//! against each batch of the ledger in the moment in which it happens:
//!
//! * no more orders of a rollout wait for their outcome than its budget allows;
//! * no more agents are given the new release than the waves that have begun allow;
//! * each record of the rollout follows from the one before by one arrow of `core::rollout`, by a
//!   person or by the process that has the lease, with one audit entry that says what it was decided
//!   on;
//! * nothing is recorded, queued or handed over that no view of the last five seconds wanted: so no
//!   order for the new release leaves later than that after a halt;
//! * a good release is not halted by the gate;
//! * the rollout ends, every agent has what it should, one that was never reached was never touched;
//! * the last record of how far the rollout was is a recount;
//! * where machines lose everything after that, they are ordered it again, with leave alone.
//!
//! `ROLLOUT_SEEDS=5000` runs more seeds, `ROLLOUT_SEED=n` runs one and shows its trace.

mod case;
mod guards;
mod model;
mod moves;
mod operator;
mod run;
mod truth;

use std::time::Duration;

use guest_fleet_ledger::Faults;
use tokio::task::LocalSet;

use crate::orders::simulation::seeds::{Seeds, hold, repeat};
use crate::simulated::chance;

/// Seeds that every change runs; `tests/run soak simulations` and `just rollouts-nightly` run more.
const SEEDS: u64 = 100;

const NASTY: Faults =
    Faults { stale: 0.1, ambiguous: 0.05, unavailable: 0.05, latency: Duration::from_millis(200) };

fn run_seed(seed: u64) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    chance::seeded::set(Some(seed));
    let ended = LocalSet::new().block_on(&runtime, run::live(seed, NASTY));
    chance::seeded::set(None);
    ended
}

#[test]
fn a_rollout_does_what_it_should_through_all_faults() {
    let seeds = Seeds {
        one: "ROLLOUT_SEED",
        many: "ROLLOUT_SEEDS",
        usual: SEEDS,
        test: "rollouts::simulation::a_rollout",
    };
    hold(&seeds, run_seed);
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    repeat(0..8, 100, run_seed);
}

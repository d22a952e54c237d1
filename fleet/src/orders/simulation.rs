//! Gateways, agents and an operator on a ledger that fails, on paused time, from a seed.
//!
//! ```text
//!   operator ─► ledger (stale, ambiguous, late, away) ◄─ gateways ◄─ frames, lost or late ─► agents
//!                                                     ◄─ folds of the index
//! ```
//!
//! The production code is what decides, records and guards, and what the agents are made of: their
//! inbox, outbox, generations and reports, on fakes for files and processes. One agent is a model of
//! a public one. After a time of faults all is calm, and the laws are checked:
//!
//! * every agent has what the configuration wants;
//! * no agent that keeps generations took an older order after a newer one, nor started what its
//!   owner had stopped;
//! * a session that was replaced gives no new order, and no session one that it has superseded;
//! * no order was recorded, queued or handed over that no configuration of the last five seconds
//!   wanted, and none was handed over that is not in the journal;
//! * nothing was removed that was never ordered;
//! * nothing was ordered again that the agent has, and what a machine lost was ordered again, with leave alone;
//! * where the journals were lost, nothing was ordered to an agent that told of an order which they do not
//!   know, until a person accepted that;
//! * every event is in the log, once, in order;
//! * where the processes fold the index, its rows and counts are those of a recount.
//!
//! `FLEET_SEEDS=20000` runs more seeds, `FLEET_SEED=n` runs one and shows its trace.

pub(crate) mod cut;
pub(crate) mod google;
mod guards;
mod interleavings;
pub(crate) mod laws;
pub(crate) mod line;
mod link;
mod operator;
pub(crate) mod ours;
mod run;
pub(crate) mod seeds;
pub(crate) mod trace;
pub(crate) mod trouble;
pub(crate) mod world;

use std::time::Duration;

use guest_fleet_ledger::Faults;
use tokio::task::LocalSet;

use run::{Broken, live};
use seeds::{Seeds, hold, repeat};

/// Seeds that every change runs; `tests/run soak simulations` runs thousands.
const SEEDS: u64 = 300;

const NASTY: Faults =
    Faults { stale: 0.1, ambiguous: 0.05, unavailable: 0.05, latency: Duration::from_millis(400) };

/// Carries a future out on paused time, on a local set of its own.
fn on_paused_time<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    LocalSet::new().block_on(&runtime, future)
}

fn run(seed: u64) -> Result<(), Broken> {
    on_paused_time(live(seed, NASTY))
}

#[test]
fn what_is_wanted_comes_about_through_all_faults() {
    let seeds = Seeds {
        one: "FLEET_SEED",
        many: "FLEET_SEEDS",
        usual: SEEDS,
        test: "orders::simulation::what",
    };
    hold(&seeds, run);
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    repeat(0..6, 30, run);
}

//! Gateways, agents and an operator on a ledger that fails, on paused time, from a seed.
//!
//! ```text
//!   operator ─► ledger (stale, ambiguous, late, away) ◄─ gateways ◄─ frames, lost or late ─► agents
//! ```
//!
//! The production code is what decides, records and guards; agents are models that keep generations
//! or, like public ones, do not. After a time of faults all is calm, and the laws are checked:
//!
//! * every agent has what the configuration wants;
//! * no agent that keeps generations did an older order after a newer one;
//! * a session that was replaced gives no new order;
//! * no order was handed over that no configuration of the last five seconds wanted;
//! * every event is in the log, once, in order.

mod agent;
mod cut;
mod operator;
mod run;
mod world;

use std::time::Duration;

use super::removed::{self, Guard};
use crate::ledger::Faults;
use run::{Broken, live};

/// Seeds of a run of the suite; `FLEET_SEEDS` runs more.
const SEEDS: u64 = 500;

const NASTY: Faults =
    Faults { stale: 0.1, ambiguous: 0.05, unavailable: 0.05, latency: Duration::from_millis(400) };

fn run(seed: u64, faults: Faults) -> Result<(), Broken> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(live(seed, faults))
}

fn seeds() -> u64 {
    std::env::var("FLEET_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

#[test]
fn what_is_wanted_comes_about_through_all_faults() {
    for seed in 0..seeds() {
        let mut outcome = Ok(());
        let trace = world::traced(|| outcome = run(seed, NASTY));
        if let Err(broken) = outcome {
            panic!("seed {seed}: {broken}\n{}", trace.join("\n"));
        }
    }
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    for seed in 0..3 {
        let outcome = |_| world::traced(|| run(seed, NASTY));
        let [first, second] = [0, 1].map(outcome);
        assert!(first.len() > 30, "{}", first.len());
        assert_eq!(first, second, "seed {seed}");
    }
}

#[track_caller]
fn notices(guard: Guard) {
    removed::remove(Some(guard));
    let broken = (0..1000).find_map(|seed| run(seed, NASTY).err());
    removed::remove(None);
    assert!(broken.is_some(), "nothing happens without {guard:?}");
}

#[test]
fn the_simulation_notices_when_orders_leave_on_an_old_view() {
    notices(Guard::ViewAge);
}

#[test]
fn the_simulation_notices_when_a_replaced_session_goes_on() {
    notices(Guard::Fence);
}

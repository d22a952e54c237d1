//! A whole fleet: real gateways, hundreds of agents, some of them with real plugins.
//!
//! `run`: everything goes wrong at once, at random, while people change their minds. Then it is calm, and every agent
//! has to have what is wished for it, through orders that came in order, with every event told exactly once.
//!
//! `rollouts`: releases go out wave by wave, one of them crashes on some machines, and gateways, the controller and the
//! ledger's servers die meanwhile. The bad one has to halt by itself and go back, the good one to finish.
//!
//! ```text
//!   operator ─ guest-fleet apply ─► ledger ◄─ guest-fleet serve (kill -9, SIGSTOP)
//!                                                   ▲
//!                                                 proxy (cut, stalled, slow: by group and gateway)
//!                                                   ▲
//!                 processes with many played agents, real agents (kill -9, SIGSTOP)
//! ```
//!
//! What is done when is drawn from a seed that is printed; how it falls between what the others do is up to
//! the machine. By hand:
//!
//! ```text
//! FLEET_SEED=7 FLEET_SECONDS=600 tests/run soak fleets
//! ```
//!
//! `fleet` makes it, `chaos` does the damage, `wishes` is the model of what has to come of what is declared, `checker` looks
//! at what did.

#![expect(clippy::unwrap_used, reason = "a test that unwraps a failure has failed")]

mod agents;
mod chaos;
mod checker;
mod control;
mod crowd;
mod fleet;
mod process;
mod proxy;
mod rollouts;
mod run;
mod wishes;

#[path = "../support/fleet_program.rs"]
mod fleet_program;
#[path = "../../fleet/program/tests/support/nats_cluster.rs"]
mod nats_cluster;

/// What the end-to-end tests build their worlds with.
#[path = "../agent"]
mod end_to_end {
    #[expect(dead_code, reason = "a fleet needs a part of it")]
    pub(crate) mod harness;
}

use std::fmt::Display;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub(crate) use end_to_end::harness;

/// Longer than anything takes; only a failing test waits for all of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Tells what happens, with the time.
fn say(what: impl Display) {
    static BEGAN: OnceLock<Instant> = OnceLock::new();
    let elapsed = BEGAN.get_or_init(Instant::now).elapsed();
    eprintln!("{:7.2} {what}", elapsed.as_secs_f64());
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

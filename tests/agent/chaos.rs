//! Thirty plugins, and everything goes wrong at once, at random: `kill -9` of the agent, of plugins
//! and of their helpers, a link that breaks, loses acknowledgements and goes away, and orders of
//! every kind meanwhile. Then it is calm, and everything has to be as it was ordered last, told
//! exactly once and in order, with nothing left over.
//!
//! A seed decides which damage comes when; the machine decides what the agent is doing at that moment.
//! `tests/run soak chaos` takes another seed each time and damages for a minute. Both can be set:
//!
//! ```text
//! CHAOS_SEED=7 CHAOS_SECONDS=600 tests/run soak chaos
//! ```
//!
//! `world` does the damage and gives the orders, `subjects` is the model of what has to come of
//! them, `calm` looks at what did.

mod calm;
mod subjects;
mod world;

use std::time::Duration;

use world::World;

/// The seed and the length of the damage in every change.
const SEED: u64 = 1;
const SECONDS: u64 = 10;

#[tokio::test]
async fn whatever_dies_and_whenever_all_is_as_ordered_once_it_is_calm() {
    let seed = from_environment("CHAOS_SEED").unwrap_or(SEED);
    let seconds = from_environment("CHAOS_SECONDS").unwrap_or(SECONDS);
    eprintln!("CHAOS_SEED={seed} CHAOS_SECONDS={seconds}");
    let mut world = World::new(seed).await;
    world.rage(Duration::from_secs(seconds)).await;
    eprintln!("{:?}", world.tally);
    world.calm_down().await;
    world.bed.finish().await;
}

fn from_environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

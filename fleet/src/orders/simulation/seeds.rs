//! What tests do with seeds: run many on all processors, run one twice, run without a guard.

use std::fmt::{Debug, Display};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use guest_agent_serve_kit::lock::lock;

use super::trace;
use crate::simulated::removed::{self, Guard};

/// After so many seeds that failed, the others are not tried.
const FAILED_MAX: usize = 5;

/// A number from the environment.
fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Runs seeds on all processors; those that failed, lowest first.
fn failed<E: Send>(seeds: Range<u64>, run: impl Fn(u64) -> Result<(), E> + Sync) -> Vec<(u64, E)> {
    let (next, failed) = (AtomicU64::new(seeds.start), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || lock(&failed).len() >= FAILED_MAX {
                        return;
                    }
                    if let Err(broken) = run(seed) {
                        lock(&failed).push((seed, broken));
                    }
                }
            });
        }
    });
    let mut failed = failed.into_inner().expect("nobody panicked");
    failed.sort_by_key(|(seed, _)| *seed);
    failed
}

/// Seeds of a test, and how a person runs others.
pub(crate) struct Seeds {
    /// The variable that names the one to run.
    pub(crate) one: &'static str,
    /// The variable that says how many to run.
    pub(crate) many: &'static str,
    /// How many are run without either.
    pub(crate) usual: u64,
    /// The name of the test, for the command line of cargo.
    pub(crate) test: &'static str,
}

/// The variable that says where the seeds begin; every change begins at 0.
const BASE: &str = "SOAK_BASE";

/// Runs the seeds of a test. Where some fail it shows the trace of the first one.
#[track_caller]
pub(crate) fn hold<E: Display + Send>(seeds: &Seeds, run: impl Fn(u64) -> Result<(), E> + Sync) {
    let Seeds { one, many, usual, test } = seeds;
    let range = match number(one) {
        Some(seed) => seed..seed + 1,
        None => {
            let base = number(BASE).unwrap_or(0);
            base..base + number(many).unwrap_or(*usual)
        }
    };
    let failed = failed(range, &run);
    let Some((seed, _)) = failed.first() else { return };
    let trace = trace::traced(|| run(*seed));
    println!("the trace of seed {seed}:\n{}", trace.join("\n"));
    for (seed, broken) in &failed {
        println!("seed {seed}: {broken}");
    }
    panic!("run one with {one}={seed} cargo test -p guest-fleet-server --lib {test}");
}

/// Each seed gives the same run twice, and its trace has more than so many lines.
#[track_caller]
pub(crate) fn repeat<E: Debug>(
    seeds: Range<u64>,
    lines: usize,
    run: impl Fn(u64) -> Result<(), E>,
) {
    for seed in seeds {
        let [first, second] = [(), ()].map(|()| trace::traced(|| run(seed)));
        assert!(first.len() > lines, "{}", first.len());
        assert_eq!(first, second, "seed {seed}");
    }
}

/// Without a guard, a run of one of these seeds breaks the law that says this.
#[track_caller]
pub(crate) fn notice<E: Display>(
    guard: Guard,
    law: &str,
    mut seeds: impl Iterator<Item = u64>,
    run: impl Fn(u64) -> Result<(), E>,
) {
    removed::remove(Some(guard));
    let broken = seeds.find_map(|seed| {
        let broken = run(seed).err()?.to_string();
        println!("without {guard:?}, seed {seed}: {broken}");
        broken.contains(law).then_some(())
    });
    removed::remove(None);
    assert!(broken.is_some(), "no law says `{law}` without {guard:?}");
}

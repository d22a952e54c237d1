//! Seeds: which are run, on all processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::lock;

/// After so many seeds that failed, the others are not tried.
const FAILED_MAX: usize = 5;

/// A number from the environment.
pub(crate) fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")))
}

/// Runs seeds on all processors; those that failed, lowest first.
pub(crate) fn failed<E: Send>(
    seeds: std::ops::Range<u64>,
    run: impl Fn(u64) -> Result<(), E> + Sync,
) -> Vec<(u64, E)> {
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

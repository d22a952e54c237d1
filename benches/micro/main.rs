//! What small things cost: the machine, the plan, what is decoded and encoded, unpacking, hashing, a change of a fleet.
//!
//! ```text
//! just bench-micro                                     all of them, about two minutes
//! cargo bench --bench micro -- wire                    those with "wire" in their names
//! UPDATE_REFERENCE=1 cargo bench --bench micro         renews the stored ratios of this processor, on purpose
//! ```
//!
//! Times differ between machines and hours, so none is judged. Each cost is measured beside that of
//! a *reference* which does a comparable thing with the same bytes and without this project's code,
//! and only their ratio is compared with the one that `reference.toml` has for the same kind of
//! processor. If it is far above, the run fails.
//!
//! `core`, `wire`, `archives` and `fleet` have the workloads, `verdict` compares.

mod archives;
mod core;
mod fleet;
mod verdict;
mod wire;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion};
use verdict::{Judgement, Stored};

/// A cost that must not creep, and what it is compared with.
struct Pair {
    name: &'static str,
    own: Work,
    reference: Work,
}

/// Does something so many times; says how long that took.
type Work = Box<dyn FnMut(u64) -> Duration>;

/// How often something is measured again that looks too expensive, for a neighbour may have had the
/// processor. The least ratio counts: a cost that crept in is there every time.
const AGAIN: usize = 3;

/// How often everything is measured for ratios that are stored. Their medians are.
const RUNS: usize = 7;

fn main() -> ExitCode {
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let is_update = std::env::var_os("UPDATE_REFERENCE").is_some_and(|value| !value.is_empty());
    let dir = tempfile::tempdir().expect("a folder for what is measured");
    let mut pairs: Vec<Pair> = [core::pairs(), wire::pairs(), archives::pairs(), fleet::pairs()]
        .into_iter()
        .flatten()
        .collect();
    let bench = |pair: &mut Pair| measure(dir.path(), pair);

    if !is_measured {
        // `cargo test --benches`: each runs once.
        for pair in &mut pairs {
            bench(pair);
        }
        return ExitCode::SUCCESS;
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/micro/reference.toml");
    if is_update {
        return update(&file, &mut pairs, bench);
    }
    let stored = match Stored::read(&file) {
        Ok(stored) => stored,
        Err(reason) => return refused(&file, &reason),
    };
    let processor = processor();
    let mut judged = Vec::new();
    for pair in &mut pairs {
        let Some(first) = bench(pair) else { continue };
        let mut judgement = stored.judge(&processor, pair.name, first);
        for _ in 0..AGAIN {
            if judgement.is_good() {
                break;
            }
            let Some(ratio) = bench(pair) else { break };
            judgement = judgement.or(stored.judge(&processor, pair.name, ratio));
        }
        judged.push(judgement);
    }
    println!("\n{}", verdict::table(&judged, stored.limit()));
    if !stored.knows(&processor) {
        println!(
            "Nothing is stored of {processor:?}, so the most of other processors is allowed; \
             `just bench-micro-renew` stores it."
        );
    }
    for name in
        stored.names().into_iter().filter(|name| pairs.iter().all(|pair| pair.name != *name))
    {
        println!("{name} is stored and is not measured any more: renew the file");
    }
    if judged.iter().all(Judgement::is_good) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Many short samples: medians need numbers more than length.
fn criterion(dir: &Path) -> Criterion {
    Criterion::default()
        .output_directory(dir)
        .without_plots()
        .sample_size(50)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(1500))
}

/// Measures a pair; gives their ratio, unless a filter on the command line leaves it out.
fn measure(dir: &Path, pair: &mut Pair) -> Option<f64> {
    // One that has measured the same before would put what it finds now somewhere else.
    let mut criterion = criterion(dir).configure_from_args();
    let results = ["own", "reference"].map(|which| median_file(dir, pair.name, which));
    // What an earlier run left is not a result of this one.
    results.iter().for_each(|path| drop(std::fs::remove_file(path)));
    let mut group = criterion.benchmark_group(pair.name);
    for (which, work) in [("own", &mut pair.own), ("reference", &mut pair.reference)] {
        group.bench_function(BenchmarkId::from_parameter(which), |bencher| {
            bencher.iter_custom(&mut **work);
        });
    }
    group.finish();
    let [own, reference] = results.map(|path| median(&path));
    Some(own? / reference?)
}

fn median_file(dir: &Path, name: &str, which: &str) -> PathBuf {
    dir.join(name).join(which).join("new/estimates.json")
}

/// The median that criterion found, in nanoseconds.
fn median(estimates: &Path) -> Option<f64> {
    let text = std::fs::read(estimates).ok()?;
    let estimates: serde_json::Value = serde_json::from_slice(&text).ok()?;
    estimates["median"]["point_estimate"].as_f64()
}

fn update(file: &Path, pairs: &mut [Pair], bench: impl Fn(&mut Pair) -> Option<f64>) -> ExitCode {
    // What is stored of other processors stays.
    let stored = if file.exists() { Stored::read(file) } else { Ok(Stored::default()) };
    let mut stored = match stored {
        Ok(stored) => stored,
        Err(reason) => return refused(file, &reason),
    };
    let mut seen: Vec<Vec<f64>> = vec![Vec::new(); pairs.len()];
    for run in 1..=RUNS {
        println!("run {run} of {RUNS}");
        for (pair, ratios) in pairs.iter_mut().zip(&mut seen) {
            ratios.extend(bench(pair));
        }
    }
    if seen.iter().any(Vec::is_empty) {
        eprintln!("error: a filter leaves ratios out, and all of them are stored together");
        return ExitCode::FAILURE;
    }
    stored.renew(&processor(), pairs.iter().map(|pair| pair.name).zip(seen).collect());
    match std::fs::write(file, stored.render()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refused(file, &error.to_string()),
    }
}

/// The kind of this machine's processor.
fn processor() -> String {
    let known = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = known.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.map(|rest| rest.trim_start_matches(['\t', ' ', ':']).to_owned());
    model.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

fn refused(file: &Path, reason: &str) -> ExitCode {
    eprintln!("error: {}: {reason}", file.display());
    ExitCode::FAILURE
}

/// Work that is nothing but a call.
fn calls<T>(mut call: impl FnMut() -> T + 'static) -> Work {
    Box::new(move |times| {
        let began = Instant::now();
        for _ in 0..times {
            black_box(call());
        }
        began.elapsed()
    })
}

//! The whole agent against what it cannot be faster than: the program that ships, real plugins,
//! real sockets, and beside every figure a baseline from the same machine in the same run.
//!
//! ```text
//! cargo bench -p guest-agent --bench whole                     all of it, and writes docs/performance.md
//! cargo bench -p guest-agent --bench whole -- --short          fewer rounds, writes nothing
//! cargo bench -p guest-agent --bench whole -- install fleet    these groups only, writes nothing
//! ```
//!
//! ```text
//!   groups (install, deltas, latency, idle, fleet, control) ─► Bed of the end-to-end tests ─► agent, plugins
//!          └─► Row { figure, baseline, target } ─► report ─► terminal, docs/performance.md
//! ```
//!
//! Rounds of a figure and of its baseline take turns, so that both have the same machine. The
//! program is the one that is packaged (`tests/package/build-program`), unless
//! `GUEST_AGENT_TEST_PROGRAM` names another.

#![expect(clippy::unwrap_used, reason = "a benchmark that cannot measure has failed")]

mod asker;
mod control;
mod deltas;
mod fleet;
mod idle;
mod install;
mod latency;
mod machine;
mod report;
mod samples;
mod told;
mod world;

/// What the end-to-end tests build their worlds with.
#[path = "../../tests/agent"]
mod tests {
    #[expect(dead_code, reason = "benchmarks use a part of it")]
    pub(crate) mod harness;
}

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use report::Row;
pub(crate) use tests::harness;

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Rounds of each figure.
    pub(crate) rounds: usize,
    /// Plugins of a fleet.
    pub(crate) fleet: usize,
    /// Installations ordered by one message.
    pub(crate) burst: usize,
    /// Points of metrics that are kept of each plugin where that matters.
    pub(crate) window: u64,
    /// Agents that a control plane has.
    pub(crate) agents: usize,
    /// Events that are sent at once.
    pub(crate) events: usize,
    /// How long a fleet is left alone first.
    pub(crate) rest: Duration,
    /// How long an idle agent is measured.
    pub(crate) look: Duration,
    /// How many agents with a fleet are looked at for what each plugin costs of their memory. Each
    /// takes minutes.
    pub(crate) memories: usize,
    /// How many agents are looked at for what a burst leaves in their memory.
    pub(crate) left: usize,
}

const WHOLE: Extent = Extent {
    rounds: 9,
    fleet: 200,
    burst: 1_000,
    window: 20,
    agents: 5_000,
    events: 10_000,
    // What follows installations is done: probation, giving back what only they needed.
    rest: Duration::from_secs(35),
    // Each plugin is checked and measured once.
    look: Duration::from_secs(10),
    memories: 9,
    left: 3,
};
const SHORT: Extent = Extent {
    rounds: 3,
    fleet: 50,
    burst: 100,
    window: 3,
    agents: 500,
    events: 2_000,
    rest: Duration::from_secs(5),
    look: Duration::from_secs(2),
    memories: 0,
    left: 1,
};

/// The groups, in the order in which they are measured.
const GROUPS: [&str; 6] = ["install", "deltas", "latency", "idle", "fleet", "control"];

fn main() -> ExitCode {
    // Cargo adds a flag of its own.
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let (flags, wanted): (Vec<_>, Vec<_>) =
        words.iter().map(String::as_str).partition(|word| word.starts_with("--"));
    let unknown = flags.iter().filter(|flag| **flag != "--short");
    let unknown: Vec<_> =
        unknown.copied().chain(wanted.iter().copied().filter(|it| !GROUPS.contains(it))).collect();
    if !unknown.is_empty() {
        eprintln!(
            "error: {} is neither --short nor one of {}",
            unknown.join(", "),
            GROUPS.join(", ")
        );
        return ExitCode::FAILURE;
    }
    let is_whole = flags.is_empty() && wanted.is_empty();
    let extent = if flags.is_empty() { WHOLE } else { SHORT };
    world::take_descriptors();
    let program = world::program();
    println!("program: {}", program.display());
    world::build_plugins();

    // Nothing is deleted while something is measured: what groups leave is here until all are over.
    let aside = tempfile::tempdir().unwrap();
    let aside = aside.path();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rows: Vec<Row> = Vec::new();
    let began = Instant::now();
    for group in GROUPS.into_iter().filter(|it| wanted.is_empty() || wanted.contains(it)) {
        println!("\n== {group}, after {:.0} s", began.elapsed().as_secs_f64());
        let measured = runtime.block_on(async {
            match group {
                "install" => install::measure(&program, extent, aside).await,
                "deltas" => deltas::measure(&program, extent, aside).await,
                "latency" => latency::measure(&program, extent).await,
                "idle" => idle::measure(&program, extent).await,
                "fleet" => fleet::measure(&program, extent, aside).await,
                _ => control::measure(&program, extent).await,
            }
        });
        measured.iter().flat_map(Row::lines).for_each(|line| println!("{line}"));
        rows.extend(measured);
    }
    println!("\nmeasured in {:.0} s", began.elapsed().as_secs_f64());
    if is_whole {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/performance.md");
        std::fs::write(&page, report::page(&rows, &machine::Machine::look(&program))).unwrap();
        println!("written: {}", page.display());
    }
    ExitCode::SUCCESS
}

//! What one sweep over all plugins costs, by each way to measure them:
//!
//! ```text
//! cargo bench --bench sweep
//! ```
//!
//! Makes `TREES` (200) process trees of three processes each, every tree in a control group of its
//! own where this machine has such, and prints how long a sweep takes: from the files of the
//! groups, from `/proc`, and through the sysinfo crate.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use guest_agent::process::cgroup::{Cgroups, Total};
use guest_agent::process::meter::SystemMeter;
use guest_agent_actors::model::id::{BootId, PluginName, Process};
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::ports::Meter;
use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

/// Sweeps that are timed, after a few that are not.
const SWEEPS: usize = 40;
const WARM_UP: usize = 5;

/// A tree that ends with the benchmark.
struct Tree {
    name: PluginName,
    process: Process,
    child: Child,
}

fn main() {
    let trees = std::env::var("TREES").ok().and_then(|n| n.parse().ok()).unwrap_or(200);
    let place = format!("/bench/{}", std::process::id());
    let cgroups = Cgroups::detect(Path::new(&place), None, None, Total::default());
    let trees: Vec<Tree> = (0..trees).map(|number| grow(number, &cgroups)).collect();
    let plugins: Vec<_> =
        trees.iter().map(|tree| (tree.name.clone(), tree.process.clone())).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");

    println!("{} trees of three processes", trees.len());
    for (way, meter) in [
        ("files of control groups", SystemMeter::new(cgroups.clone())),
        ("/proc", SystemMeter::new(Cgroups::none())),
    ] {
        let mut measured = 0;
        let took = median(|| measured = runtime.block_on(meter.sample(plugins.clone())).len());
        println!("{way:<24} {took:>10.2?}  ({measured} measured)");
    }
    let mut system = System::new().expect("processes can be seen");
    let mut measured = 0;
    let took = median(|| measured = by_sysinfo(&mut system, &plugins));
    println!("{:<24} {took:>10.2?}  ({measured} measured)", "sysinfo");

    for mut tree in trees {
        let group = cgroups.group(&tree.name);
        if cgroups.are_there() {
            group.kill().expect("its processes end");
        }
        // The shell gives up its children when there are no groups; they end by themselves.
        drop(tree.child.kill());
        drop(tree.child.wait());
        group.remove().expect("an empty group");
    }
    cgroups.leave();
}

fn grow(number: usize, cgroups: &Cgroups) -> Tree {
    let name: PluginName = format!("bench-{number}").parse().expect("a name");
    let child = Command::new("/bin/sh")
        .args(["-c", "read go; sleep 300 & sleep 300 & wait"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    let group = cgroups.group(&name);
    group.prepare(&Limits::default()).expect("a group");
    group.take_in(child.id()).expect("it goes inside");
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it lives");
    let (_, fields) = stat.rsplit_once(')').expect("a stat");
    let start_ticks = fields.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok());
    let start_ticks = start_ticks.expect("a time");
    let process = Process { pid: child.id(), start_ticks, boot: BootId("this".into()) };
    let mut tree = Tree { name, process, child };
    // Inside, it may fork.
    drop(tree.child.stdin.take());
    tree
}

fn by_sysinfo(system: &mut System, plugins: &[(PluginName, Process)]) -> usize {
    let what = ProcessRefreshKind::nothing().with_cpu().with_memory().without_tasks();
    system.refresh_processes_specifics(ProcessesToUpdate::All, true, what);
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, process) in system.processes() {
        if let Some(parent) = process.parent() {
            children.entry(parent.as_u32()).or_default().push(pid.as_u32());
        }
    }
    let mut used = Vec::new();
    for (_, process) in plugins {
        let mut open = vec![process.pid];
        let (mut cpu, mut memory) = (0, 0);
        while let Some(pid) = open.pop() {
            open.extend(children.get(&pid).into_iter().flatten());
            if let Some(member) = system.process(sysinfo::Pid::from_u32(pid)) {
                cpu += member.accumulated_cpu_time();
                memory += member.memory();
            }
        }
        used.push((cpu, memory));
    }
    std::hint::black_box(&used).len()
}

fn median(mut sweep: impl FnMut()) -> Duration {
    (0..WARM_UP).for_each(|_| sweep());
    let mut took: Vec<Duration> = (0..SWEEPS)
        .map(|_| {
            let began = Instant::now();
            sweep();
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    took[SWEEPS / 2]
}

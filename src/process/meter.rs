//! The CPU time and memory of plugins: the `Meter` port. It reads their control groups; for plugins
//! without one, it adds up process trees from `/proc`.
//!
//! The metrics actor calls it once per sweep for all plugins, so that one look at the process table
//! serves them all. It runs on a blocking thread. Nothing here keeps samples or computes
//! percentages.
//!
//! A plugin's tree is its process, the descendants of that, and every process in its session. CPU
//! time is what the living members used and what they took over from children they waited for. A
//! member that dies unwaited for takes its share along; then the sum stays where it was until the
//! others have caught up, so that it never falls.
//!
//! The memory of a group is its working set: what the kernel charges it for without file cache that
//! no process used lately. The memory of a tree is what is resident; of what its members share, each
//! counts its part. The meter says which of the two a figure is.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use guest_agent_actors::model::id::{PluginName, Process};
use guest_agent_actors::ports::{MemoryUse, Meter, Usage};
use tokio::sync::Mutex;

use crate::os::procfs::{self, Stat};
use crate::process::cgroup::{Cgroups, Charge, Group};

/// Measures through control groups and `/proc`.
#[derive(Debug)]
pub struct SystemMeter {
    state: Arc<Mutex<Sweeper>>,
    cgroups: Cgroups,
}

/// For how many samples the meter assumes that a process it saw in the group is still there, and
/// that the group's memory has the same parts while the total is the same. Only a superuser could
/// move a process, and version 1 of the kernel's interface makes and sorts a list of the group for
/// every reader.
const BELIEVED: u8 = 10;

/// From this many processes on, the meter looks for those that have ended.
const MANY: usize = 64;

/// The data kept between samples. Each sample covers a part of all plugins.
#[derive(Debug, Default)]
struct Sweeper {
    known: HashMap<Process, Known>,
    /// How many processes the meter knew after it last forgot those that had ended.
    kept: usize,
}

/// The data about a process.
#[derive(Debug, Default)]
struct Known {
    /// The highest CPU time that was ever reported of its tree.
    reported: Duration,
    /// For how many more samples the meter assumes that it is in its group.
    believed: u8,
    /// The last measured charge of its group.
    charge: Option<Charge>,
}

impl SystemMeter {
    /// Before the first sweep.
    #[must_use]
    pub fn new(cgroups: Cgroups) -> Self {
        Self { state: Arc::default(), cgroups }
    }
}

#[async_trait]
impl Meter for SystemMeter {
    async fn sample(&self, plugins: Vec<(PluginName, Process)>) -> BTreeMap<PluginName, Usage> {
        // The caller waits here and not on the blocking thread: behind a sweep that hangs, every
        // sample that its caller gave up would otherwise occupy one more of the threads that all
        // others need.
        let mut sweeper = Arc::clone(&self.state).lock_owned().await;
        let cgroups = self.cgroups.clone();
        let sweep = move || {
            let (mut usages, others) = sweeper.ask_groups(&cgroups, plugins);
            if !others.is_empty() {
                usages.extend(sweeper.sweep(others));
            }
            sweeper.forget_the_gone();
            usages
        };
        // A sweep that panicked has measured nothing.
        tokio::task::spawn_blocking(sweep).await.unwrap_or_default()
    }
}

// === impl Sweeper ===

impl Sweeper {
    /// What the groups report, and which plugins are in no group: those that an agent without
    /// groups started.
    fn ask_groups(
        &mut self,
        cgroups: &Cgroups,
        plugins: Vec<(PluginName, Process)>,
    ) -> (BTreeMap<PluginName, Usage>, Vec<(PluginName, Process)>) {
        let mut usages = BTreeMap::new();
        let mut others = Vec::new();
        for (name, process) in plugins {
            let group = cgroups.group(&name);
            match self.usage_of(&group, &process) {
                Some(usage) => drop(usages.insert(name, usage)),
                None => others.push((name, process)),
            }
        }
        (usages, others)
    }

    fn usage_of(&mut self, group: &Group, process: &Process) -> Option<Usage> {
        group.usage(&mut self.inside(group, process)?.charge)
    }

    /// What the meter knows of a process, if the process is in its group.
    fn inside(&mut self, group: &Group, process: &Process) -> Option<&mut Known> {
        let believed = self.known.get(process).and_then(|known| known.believed.checked_sub(1));
        if believed.is_none() && !group.measures(process.pid) {
            return None;
        }
        let known = self.known.entry(process.clone()).or_default();
        match believed {
            Some(left) => known.believed = left,
            None => {
                known.believed = BELIEVED;
                known.charge = None;
            }
        }
        Some(known)
    }

    fn sweep(&mut self, plugins: Vec<(PluginName, Process)>) -> BTreeMap<PluginName, Usage> {
        let Some(all) = procfs::all() else {
            tracing::warn!("processes cannot be seen, so their use is not measured");
            return BTreeMap::new();
        };
        let table = ProcessTable::of(all);
        let measure = |(name, process): (PluginName, Process)| {
            let before = self.known.get(&process).map(|known| known.reported).unwrap_or_default();
            let usage = table.measure(&process, before)?;
            self.known.entry(process).or_default().reported = usage.cpu_time;
            Some((name, usage))
        };
        plugins.into_iter().filter_map(measure).collect()
    }

    /// Keeps no more than twice as many as there are.
    fn forget_the_gone(&mut self) {
        if self.known.len() < MANY.max(2 * self.kept) {
            return;
        }
        self.known.retain(|process, _| {
            procfs::stat(process.pid).is_some_and(|it| it.start_ticks == process.start_ticks)
        });
        self.kept = self.known.len();
    }
}

/// All processes, with their parents and sessions.
struct ProcessTable {
    stats: HashMap<u32, Stat>,
    children: HashMap<u32, Vec<u32>>,
    sessions: HashMap<u32, Vec<u32>>,
}

impl ProcessTable {
    fn of(all: Vec<Stat>) -> Self {
        let mut table =
            Self { stats: HashMap::new(), children: HashMap::new(), sessions: HashMap::new() };
        for stat in all {
            table.children.entry(stat.parent).or_default().push(stat.pid);
            table.sessions.entry(stat.session).or_default().push(stat.pid);
            table.stats.insert(stat.pid, stat);
        }
        table
    }

    /// Adds up a tree; never less than `before`. `None` when its process has ended.
    fn measure(&self, process: &Process, before: Duration) -> Option<Usage> {
        // The same process, and it is no zombie.
        self.stats
            .get(&process.pid)
            .filter(|leader| leader.start_ticks == process.start_ticks && !leader.dead)?;
        let tree = self.tree(process.pid);
        let members = || tree.iter().filter_map(|pid| self.stats.get(pid));
        let cpu_ticks = members()
            .map(|member| member.own_ticks.saturating_add(member.waited_ticks))
            .fold(0, u64::saturating_add);
        let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
        let memory = |member: &Stat| {
            let resident = member.resident_pages.saturating_mul(page);
            // A process that is alone shares nothing within its tree.
            let shared =
                if tree.len() > 1 { procfs::proportional_memory(member.pid) } else { None };
            shared.unwrap_or(resident)
        };
        let resident = members().map(memory).fold(0, u64::saturating_add);
        let cpu_time = ticks(cpu_ticks).max(before);
        Some(Usage { cpu_time, memory: MemoryUse::of_tree(resident) })
    }

    fn tree(&self, root: u32) -> HashSet<u32> {
        let mut found = HashSet::new();
        let mut open = vec![root];
        while let Some(pid) = open.pop() {
            if found.insert(pid) {
                open.extend(self.children.get(&pid).into_iter().flatten());
                // All processes of a session that a member made are members; that member most often
                // is the root.
                open.extend(self.sessions.get(&pid).into_iter().flatten());
            }
        }
        found
    }
}

/// Clock ticks of `/proc` as time.
fn ticks(ticks: u64) -> Duration {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis(ticks.saturating_mul(1000) / per_second)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use guest_agent_actors::model::id::BootId;
    use guest_agent_actors::ports::MemoryBasis;

    use super::*;

    /// A shell that ends with the test.
    struct Shell(Child);

    impl Shell {
        fn new(script: &str) -> Self {
            Self(Command::new("/bin/sh").args(["-c", script]).spawn().expect("a shell"))
        }

        fn process(&self) -> Process {
            let pid = self.0.id();
            let start_ticks = procfs::stat(pid).expect("the shell").start_ticks;
            Process { pid, start_ticks, boot: BootId("this".into()) }
        }
    }

    impl Drop for Shell {
        fn drop(&mut self) {
            let all = procfs::all().unwrap_or_default();
            let children: Vec<u32> =
                all.iter().filter(|s| s.parent == self.0.id()).map(|s| s.pid).collect();
            self.0.kill().expect("a signal to our child");
            self.0.wait().expect("our child");
            for pid in children {
                // The child of a shell that was just killed; it may also have ended.
                if let Ok(pidfd) = crate::os::pidfd::Pidfd::open(pid) {
                    pidfd.signal(rustix::process::Signal::KILL).unwrap_or_default();
                }
            }
        }
    }

    fn name() -> PluginName {
        "p".parse().expect("a name")
    }

    async fn until(
        meter: &SystemMeter,
        process: &Process,
        enough: impl Fn(&Usage) -> bool,
    ) -> Usage {
        let sampled = async {
            loop {
                let usage = meter.sample(vec![(name(), process.clone())]).await[&name()];
                if enough(&usage) {
                    return usage;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), sampled).await.expect("enough in time")
    }

    #[tokio::test]
    async fn the_work_of_children_counts() {
        let shell = Shell::new("(while :; do :; done) & wait");
        let meter = SystemMeter::new(Cgroups::none());
        let enough = |usage: &Usage| usage.cpu_time >= Duration::from_millis(100);
        let usage = until(&meter, &shell.process(), enough).await;
        assert_eq!(usage.memory.basis, MemoryBasis::Resident);
        assert!(usage.memory.bytes > 0 && usage.memory.resident == usage.memory.bytes);
    }

    #[tokio::test]
    async fn the_work_of_children_that_are_gone_still_counts() {
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let shell = Shell::new(&format!("({busy}); while :; do sleep 1; done"));
        let meter = SystemMeter::new(Cgroups::none());
        let enough = |usage: &Usage| usage.cpu_time >= Duration::from_millis(50);
        let first = until(&meter, &shell.process(), enough).await;
        let second = until(&meter, &shell.process(), |_| true).await;
        assert!(second.cpu_time >= first.cpu_time);
    }

    #[tokio::test]
    async fn a_process_that_is_gone_or_another_is_missing() {
        let meter = SystemMeter::new(Cgroups::none());
        let process = {
            let shell = Shell::new("sleep 100");
            let other = Process { start_ticks: 1, ..shell.process() };
            assert!(meter.sample(vec![(name(), other)]).await.is_empty());
            shell.process()
        };
        assert!(meter.sample(vec![(name(), process)]).await.is_empty());
    }

    #[test]
    fn a_sample_behind_a_sweep_that_hangs_takes_no_thread() {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().max_blocking_threads(1).build().expect("a runtime");
        runtime.block_on(async {
            let meter = SystemMeter::new(Cgroups::none());
            let hanging = Arc::clone(&meter.state).lock_owned().await;
            let mut sample = meter.sample(Vec::new());
            let once = std::future::poll_fn(|cx| std::task::Poll::Ready(sample.as_mut().poll(cx)));
            assert!(once.await.is_pending());
            let other = tokio::task::spawn_blocking(|| ());
            let done = tokio::time::timeout(Duration::from_secs(30), other).await;
            done.expect("the only thread is free").expect("no panic");
            drop(hanging);
            assert!(sample.await.is_empty());
        });
    }

    #[test]
    fn reported_time_never_falls() {
        let (shell, other) = (Shell::new("sleep 100"), Shell::new("sleep 100"));
        let mut sweeper = Sweeper::default();
        let high = Duration::from_secs(3600);
        sweeper.known.entry(shell.process()).or_default().reported = high;
        // A caller does not measure all plugins each time.
        assert!(sweeper.sweep(vec![(name(), other.process())])[&name()].cpu_time < high);
        let usages = sweeper.sweep(vec![(name(), shell.process())]);
        assert_eq!(usages[&name()].cpu_time, high);
    }

    #[test]
    fn processes_that_are_gone_are_forgotten() {
        let shell = Shell::new("sleep 100");
        let living = shell.process();
        let mut sweeper = Sweeper::default();
        for start_ticks in 0..1_000 {
            let known = sweeper.known.entry(Process { start_ticks, ..living.clone() });
            known.or_default();
            sweeper.known.entry(living.clone()).or_default();
            sweeper.forget_the_gone();
            assert!(sweeper.known.len() < MANY);
            assert!(sweeper.known.contains_key(&living));
        }
    }

    #[test]
    fn a_process_is_looked_for_in_its_group_again_after_a_while() {
        let shell = Shell::new("sleep 100");
        let process = shell.process();
        let (mut sweeper, nowhere) = (Sweeper::default(), Group::default());
        assert!(sweeper.inside(&nowhere, &process).is_none());
        sweeper.known.entry(process.clone()).or_default().believed = BELIEVED;
        for _ in 0..BELIEVED {
            assert!(sweeper.inside(&nowhere, &process).is_some());
        }
        assert!(sweeper.inside(&nowhere, &process).is_none());
    }

    #[test]
    fn memory_that_stays_as_much_is_looked_at_closely_after_a_while() {
        let (shell, dir) = (Shell::new("sleep 100"), tempfile::tempdir().expect("a folder"));
        let says = |file: &str, text: String| {
            std::fs::write(dir.path().join(file), text).expect("writable");
        };
        let memory = |charged: u32, idle: u32| {
            says("memory.current", format!("{charged}\n"));
            says("memory.stat", format!("anon 1\nfile_mapped 2\ninactive_file {idle}\n"));
        };
        let process = shell.process();
        says("cgroup.procs", format!("{}\n", process.pid));
        says("cpu.stat", "usage_usec 1\n".to_owned());
        let (mut sweeper, group) = (Sweeper::default(), Group::at(dir.path()));
        let mut sample = || sweeper.usage_of(&group, &process).expect("a sample").memory.bytes;
        memory(1000, 400);
        assert_eq!(sample(), 600);
        memory(1000, 100);
        for _ in 0..BELIEVED {
            assert_eq!(sample(), 600);
        }
        assert_eq!(sample(), 900);
        memory(1000, 400);
        assert_eq!(sample(), 900);
        // Another charge consists of something else.
        memory(1001, 400);
        assert_eq!(sample(), 601);
        let memory = sweeper.usage_of(&group, &process).expect("a sample").memory;
        assert_eq!((memory.basis, memory.resident), (MemoryBasis::WorkingSet, 3));
    }
}

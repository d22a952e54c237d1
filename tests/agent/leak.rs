//! Plugins are installed, crash, come back and are removed, again and again: the agent keeps
//! nothing of them. Each has a name that was never heard before, so whatever is kept by name is
//! found.
//!
//! `tests/run soak leak` goes through some dozens of such cycles, enough for what is left behind by
//! each of them: a descriptor, a thread, a process, a group, a file, 100 KiB. `just leak` goes
//! through ten thousand, where 300 bytes are enough:
//!
//! ```text
//! LEAK_CYCLES=10000 tests/run soak leak
//! ```
//!
//! Beside those that live there are plugins that cannot: one whose program is not in its archive,
//! one that exits before its start. `gauges` is what is measured whenever no plugin is there,
//! `verdict` what is taken for growth.

mod gauges;
mod verdict;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use guest_agent_actors::control_plane::remembered;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local::{PluginStatus, SweepRequest};
use nix::sys::signal::Signal;

use crate::harness::{Archive, Bed, orders, signal};
use gauges::Gauges;
use verdict::Series;

/// Cycles after the warm-up, without a wish from the environment.
const CYCLES: usize = 60;

/// Cycles before the first look, unless there are to be few at all. Then what the agent keeps on
/// purpose, such as the last 1,000 events at seven of them for each cycle, is all there.
const WARM_UP: usize = 160;

/// From so many cycles on, the first look waits until the messages that the agent remembers, for a
/// while and no more than so many, are no longer becoming more.
const LONG: usize = 1_000;

/// What memory and the store may grow by beside, in KiB, where the warm-up is cut short: the
/// store's log grows by 30 KiB with each cycle until its segments are used again, and its pages are
/// in memory too.
const SETTLING: u64 = 2048;

/// Looks after the first, unless there are fewer rounds.
const LOOKS: usize = 20;

/// Groups of plugins that are at different places of the cycle at the same time.
const LANES: usize = 2;

/// Plugins of a group.
const PLUGINS: usize = 5;

/// Messages with which a group is ordered and removed.
const MESSAGES_PER_CYCLE: usize = 2;

/// Longest that a group may take for one step. The machine may be busy.
const STEP: Duration = Duration::from_secs(120);

struct World {
    bed: Bed,
    trouble: Archive,
}

#[tokio::test]
#[ignore = "takes minutes: `tests/run soak leak`"]
async fn plugins_that_come_and_go_leave_nothing() {
    let cycles = from_environment("LEAK_CYCLES").unwrap_or(CYCLES);
    let world = World::new().await;
    let began = Instant::now();
    let mut done = 0;
    let warm_up = WARM_UP.min(cycles / 3);
    let remembers_more = |done: usize| {
        began.elapsed() < remembered::WINDOW
            && done / PLUGINS * MESSAGES_PER_CYCLE < remembered::MAX
    };
    while done < warm_up || (cycles >= LONG && remembers_more(done)) {
        done += world.cycles(done).await;
    }
    let mut gauges = Gauges::new(&world.bed);
    world.learn_groups(&mut gauges).await;
    let mut series = Series::default();
    series.push(done, world.look(&gauges).await);
    let warm = done;
    for look in 1..=LOOKS {
        let until = warm + cycles * look / LOOKS;
        if done < until {
            while done < until {
                done += world.cycles(done).await;
            }
            series.push(done, world.look(&gauges).await);
        }
    }
    eprintln!("{done} cycles in {:?}\n{series}", began.elapsed());
    let grown = series.grown(if warm_up < WARM_UP { SETTLING } else { 0 });
    assert!(grown.is_empty(), "the agent keeps something of plugins that are gone: {grown:#?}");

    let World { mut bed, .. } = world;
    assert!(bed.stop_agent().await.success());
    let kept = bed.kept().await;
    assert_eq!(kept, crate::harness::inspect::Kept::default());
    bed.finish().await;
}

// === impl World ===

impl World {
    async fn new() -> Self {
        // Its archive is downloaded once. A sweep is asked for at each look, because logs of
        // removed plugins stay until then.
        let bed = Bed::builder()
            .set("install.cache_max_bytes=16777216")
            .set("plugins.restart_initial_backoff=1ms")
            // On a busy machine no plugin counts as hung.
            .set("plugins.health_timeout=30s")
            .set("plugins.health_interval=5s")
            // glibc keeps some small pieces that were freed for each thread apart, and there are
            // many threads for blocking work; that fills up slowly and is no leak.
            .variable("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")
            .start()
            .await;
        let trouble = bed.trouble().await;
        Self { bed, trouble }
    }

    /// Brings all lanes through a cycle; returns how many cycles that were.
    async fn cycles(&self, done: usize) -> usize {
        let lanes = (0..LANES).map(|lane| self.cycle(done + lane * PLUGINS));
        futures_util::future::join_all(lanes).await;
        LANES * PLUGINS
    }

    /// A group of plugins, from their orders to their removal.
    async fn cycle(&self, first: usize) {
        let prefix = format!("p{first:05}-");
        let names: Vec<_> = (0..PLUGINS).map(|number| format!("{prefix}{number}")).collect();
        let (absent, falls) = (format!("{prefix}absent"), format!("{prefix}falls"));
        let order = |name: &str| orders::install(name, "1", &self.trouble);
        let mut installs: Vec<ConfigurePlugin> = names.iter().map(|it| order(it).into()).collect();
        let no_program = order(&absent).plugin(|it| it.entry_point = "no/such/program".to_owned());
        let ends_early = order(&falls).arg("--exit-before-start=3");
        let ends_early = ends_early.manifest(|it| it.start_attempt_count = 1);
        installs.extend([no_program.into(), ends_early.into()]);
        self.bed.configure(installs).await;

        let all = PLUGINS + 2;
        let before = self
            .until(&prefix, "they run, or cannot", |plugins| {
                plugins.len() == all
                    && names.iter().all(|name| is_running(&plugins[name]))
                    && [&absent, &falls].iter().all(|name| has_failed(&plugins[*name]))
            })
            .await;
        for name in &names {
            signal(before[name].pid.unwrap(), Signal::SIGKILL);
        }
        self.until(&prefix, "they run again", |plugins| {
            let is_back = |name: &String| {
                let plugin = &plugins[name];
                is_running(plugin) && plugin.pid != before[name].pid
            };
            names.iter().all(is_back)
        })
        .await;
        let everyone = names.iter().chain([&absent, &falls]);
        self.bed.configure(everyone.map(|name| orders::remove(name)).collect()).await;
        self.until(&prefix, "they are gone", BTreeMap::is_empty).await;
    }

    /// Waits until the plugins whose names begin like this are as wanted.
    async fn until(
        &self,
        prefix: &str,
        what: &str,
        wanted: impl Fn(&BTreeMap<String, PluginStatus>) -> bool,
    ) -> BTreeMap<String, PluginStatus> {
        self.bed
            .within(STEP, &format!("{prefix}: {what}"), async || {
                let all = self.bed.try_status().await.ok()?.plugins;
                let ours = all.into_iter().filter(|plugin| plugin.name.starts_with(prefix));
                let ours: BTreeMap<_, _> = ours.map(|it| (it.name.clone(), it)).collect();
                wanted(&ours).then_some(ours)
            })
            .await
    }

    /// Where the control groups of plugins are made.
    async fn learn_groups(&self, gauges: &mut Gauges) {
        self.bed.configure(vec![orders::install("teller", "1", &self.trouble).order()]).await;
        let teller = self.bed.running("teller", "1").await;
        gauges.learn_groups(teller.pid.unwrap(), "teller");
        self.bed.configure(vec![orders::remove("teller")]).await;
        self.bed.gone("teller").await;
    }

    /// What there is of the agent when it has nothing to do.
    async fn look(&self, gauges: &Gauges) -> gauges::Readings {
        self.bed
            .within(STEP, "every event is sent and no plugin is left", async || {
                let status = self.bed.try_status().await.ok()?;
                (status.plugins.is_empty() && status.agent?.outbox_depth == 0).then_some(())
            })
            .await;
        let mut client = self.bed.client().await.unwrap();
        let swept = client.sweep(SweepRequest { delete: true }).await.unwrap().into_inner();
        assert!(!swept.unfinished, "a sweep did not get through");
        let odd = swept.items.iter().find(|item| item.fate != "deleted");
        assert!(odd.is_none(), "not swept: {odd:?}");
        drop(client);
        gauges.read()
    }
}

fn is_running(plugin: &PluginStatus) -> bool {
    plugin.state == "RUNNING" && !plugin.busy
}

fn has_failed(plugin: &PluginStatus) -> bool {
    !plugin.busy && (plugin.state == "CRASHED" || plugin.state.ends_with("FAILED"))
}

fn from_environment(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
}

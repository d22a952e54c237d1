//! Many plugins: what each costs, what a restart of the agent takes, and how fast a thousand are
//! there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;

use crate::Extent;
use crate::asker;
use crate::harness::{Archive, ArchiveSpec, Bed, PATIENCE, RESOURCE, orders};
use crate::report::{Row, Target};
use crate::samples::Samples;
use crate::told::{STARTED, Told};
use crate::world::{self, Counted, MUCH_PATIENCE, PROPORTIONAL, bare, between, per_second};

/// How many agents with a fleet there are at a time.
const AT_ONCE: usize = 3;

/// The plugins of a burst whose memory is looked at, and how long after it.
const SMALL_BURST: usize = 50;
const SETTLED: Duration = Duration::from_secs(15);

/// The time between two points of metrics where many are wanted soon.
const INTERVAL: Duration = Duration::from_secs(1);

/// Memory that the installation of one plugin touches, its process and the pages of its files
/// included.
const MEMORY_OF_EACH: usize = 6 << 20;

/// No more than this is made sure of.
const MEMORY_MAX: usize = 2 << 30;

pub(crate) async fn measure(program: &Path, extent: Extent, aside: &Path) -> Vec<Row> {
    let bursts = bursts(program, extent, aside).await;
    let mut rows: Vec<_> = memory(program, extent).await.into_iter().collect();
    rows.push(left_of_burst(program, extent).await);
    rows.extend(standing(program, extent).await);
    rows.push(listed(program, extent).await);
    rows.extend(bursts);
    rows
}

/// Many installations at once: where nothing was deleted lately, and where as much just was.
async fn bursts(program: &Path, extent: Extent, aside: &Path) -> Vec<Row> {
    let aside = Ground::Untouched { aside };
    let (small, rounds) = ("a small cached plugin", extent.rounds);
    let row = burst(program, extent.burst, rounds, world::small_plugin, small, aside).await;
    let first = row.target(Target::AtLeast(100.0)).note(
        "a script that becomes a program which is there already; from the message until the control plane knows that all are \
         RUNNING; each is unpacked, synced, started and has answered",
    );
    let large = "a cached plugin of 4 MB";
    let row = burst(program, extent.fleet, rounds, world::plugin, large, aside).await;
    let large = row.note("each has a program of its own, so that the disk writes all of them");
    let small = "a small cached plugin, where as many were just removed,";
    let cleared = Ground::Cleared;
    let row = burst(program, extent.burst, rounds, world::small_plugin, small, cleared).await;
    let again = row.note(
        "a file system that looks for free inodes passes over those that it let go lately (ext4 does for minutes)",
    );
    vec![first, again, large]
}

/// What each plugin costs of an agent's memory. Agents are looked at a few at a time, because most
/// of it is to wait until they are at rest.
async fn memory(program: &Path, extent: Extent) -> Option<Row> {
    let mut left = extent.memories;
    let more = f64::from(u32::try_from(extent.fleet - 1).unwrap());
    let [mut each, mut proportional, mut with_all] = [(); 3].map(|()| Samples::default());
    while left > 0 {
        let mut beds = Vec::new();
        for _ in 0..left.min(AT_ONCE) {
            let bed = world::bed(program, &[]).await;
            let archive = bed.archive("plugin.tar.zst", world::plugin()).await;
            install(&bed, (0..1).map(|number| order(number, &archive))).await;
            beds.push((bed, archive));
        }
        left -= beds.len();
        tokio::time::sleep(extent.rest).await;
        let of_one: Vec<_> = beds.iter().map(|(bed, _)| Counted::of(bed.agent_pid())).collect();
        for (bed, archive) in &beds {
            install(bed, (1..extent.fleet).map(|number| order(number, archive))).await;
        }
        tokio::time::sleep(extent.rest).await;
        for ((bed, _), one) in beds.into_iter().zip(of_one) {
            let all = Counted::of(bed.agent_pid());
            each.add((all.anonymous_kib - one.anonymous_kib) / more);
            proportional.add((all.proportional_kib - one.proportional_kib) / more);
            with_all.add(all.anonymous_kib / 1024.0);
            disband(bed, extent.fleet).await;
        }
    }
    let row = Row::new("each further running plugin: anonymous memory of the agent", each, "KiB");
    (extent.memories > 0).then(|| {
        let row = row.target(Target::AtMost(64.0)).beside(PROPORTIONAL, proportional);
        row.note(format!(
            "{} plugins against one; the agent has {:.1} MiB with all of them",
            extent.fleet,
            with_all.median()
        ))
    })
}

/// What a burst of installations leaves in an agent's memory.
async fn left_of_burst(program: &Path, extent: Extent) -> Row {
    let mut beds = Vec::new();
    for _ in 0..extent.left {
        let bed = world::bed(program, &[]).await;
        let archive = bed.archive("plugin.tar.zst", world::small_plugin()).await;
        beds.push((bed, archive));
    }
    let [mut left, mut proportional, mut restarted] = [(); 3].map(|()| Samples::default());
    let mut agents = Vec::new();
    for (bed, archive) in beds {
        install(&bed, (0..SMALL_BURST).map(|number| order(number, &archive))).await;
        agents.push((bed, Instant::now() + SETTLED));
    }
    for (bed, settled) in &agents {
        tokio::time::sleep_until((*settled).into()).await;
        let counted = Counted::of(bed.agent_pid());
        left.add(counted.anonymous_kib / 1024.0);
        proportional.add(counted.proportional_kib / 1024.0);
    }
    for (bed, _) in &mut agents {
        bed.kill_agent().await;
        bed.start_agent().await;
    }
    tokio::time::sleep(SETTLED).await;
    for (bed, _) in agents {
        restarted.add(Counted::of(bed.agent_pid()).anonymous_kib / 1024.0);
        disband(bed, SMALL_BURST).await;
    }
    let what = format!("{SMALL_BURST} plugins after a burst: anonymous memory of the agent");
    Row::new(what, left, "MiB")
        .target(Target::AtMost(8.0))
        .beside("the next agent under the same plugins, which installed none", restarted)
        .beside(PROPORTIONAL, proportional)
        .note(format!(
            "small plugins, ordered by one message; {SETTLED:?} after the control plane knows that all are RUNNING"
        ))
}

/// CPU time for a fleet that just runs, and restarts of the agent under it.
async fn standing(program: &Path, extent: Extent) -> Vec<Row> {
    let mut bed = world::bed(program, &[]).await;
    let archive = bed.archive("plugin.tar.zst", world::plugin()).await;
    install(&bed, (0..extent.fleet).map(|number| order(number, &archive))).await;
    tokio::time::sleep(extent.rest).await;
    let rows = vec![at_rest(&bed, extent).await, restarted(&mut bed, extent).await];
    disband(bed, extent.fleet).await;
    rows
}

/// The cost of an idle fleet.
async fn at_rest(bed: &Bed, extent: Extent) -> Row {
    let [mut ours, mut asking] = [(); 2].map(|()| Samples::default());
    let sockets = sockets(bed).await;
    for _ in 0..extent.rounds {
        ours.add(world::cpu_share(bed.agent_pid(), extent.look).await);
        asking.add(asker::cpu_share(sockets.clone(), extent.look).await);
    }
    Row::new(format!("agent with {} plugins: CPU time, of one core", extent.fleet), ours, "%")
        .target(Target::AtMost(0.5))
        .beside("a thread that only asks each for its health, as often", asking)
        .note(format!(
            "default intervals: a health check of each and a point of its metrics every {:?}; looks of {:?}",
            asker::INTERVAL, extent.look
        ))
}

/// How long a fleet is without an agent that knows it.
async fn restarted(bed: &mut Bed, extent: Extent) -> Row {
    let plugins = extent.fleet;
    let before = pids(bed).await;
    let mut restarts = Samples::default();
    for round in 0..=extent.rounds {
        bed.kill_agent().await;
        let began = Instant::now();
        bed.spawn_agent();
        loop {
            let states = bed.control_plane.list_plugin_states(RESOURCE, PATIENCE).await;
            let running = states.is_ok_and(|states| {
                let statuses =
                    states.daemon_plugin_states.iter().map(|it| &it.current_plugin_status);
                let running = statuses.flatten().filter(|it| it.status() == StatusValue::Running);
                running.count() == plugins
            });
            if running {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "the fleet is not reported");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if round > 0 {
            restarts.add_time(began.elapsed());
        }
    }
    assert_eq!(pids(bed).await, before, "a plugin was restarted");
    let memory = Counted::of(bed.agent_pid()).anonymous_kib / 1024.0;
    Row::new(format!("agent killed under {plugins} plugins → all adopted and reported"), restarts, "ms")
        .target(Target::AtMost(500.0))
        .note(format!(
            "from the execution of the next agent until the control plane has asked for states and all are RUNNING; none was \
             restarted; the agent has {memory:.1} MiB of anonymous memory afterwards"
        ))
}

/// A report on all plugins, as long as it gets.
async fn listed(program: &Path, extent: Extent) -> Row {
    let plugins = extent.fleet;
    let bed = world::bed(program, &[]).await;
    let archive = bed.archive("plugin.tar.zst", world::plugin()).await;
    let orders = (0..plugins).map(|number| {
        let mut order = order(number, &archive);
        let manifest = order.manifest.get_or_insert_default();
        manifest.metrics_interval = orders::seconds(INTERVAL.as_secs_f64());
        manifest.max_metric_datapoints = extent.window;
        order
    });
    install(&bed, orders).await;
    let full = usize::try_from(extent.window).unwrap();
    let [mut took, mut own] = [(); 2].map(|()| Samples::default());
    for _ in 0..extent.rounds {
        // What was reported is not reported again.
        tokio::time::sleep(INTERVAL * u32::try_from(full + 2).unwrap()).await;
        let before = world::cpu_time(bed.agent_pid());
        let began = Instant::now();
        let states = bed.control_plane.list_plugin_states(RESOURCE, PATIENCE).await.unwrap();
        took.add_time(began.elapsed());
        own.add_time(world::cpu_time(bed.agent_pid()) - before);
        let points = states.daemon_plugin_states.iter().map(|it| it.current_plugin_metrics.len());
        assert!(points.clone().all(|points| points >= full), "{:?}", points.min());
    }
    disband(bed, plugins).await;
    Row::new(format!("ListPluginStates with {plugins} plugins and full windows of metrics, in the agent"), own, "ms")
        .target(Target::AtMost(5.0))
        .beside("from the question to the answer, decoded, where the control plane is", took)
        .note(format!(
            "{} points each; CPU time of all threads of the agent from the question to the answer, checks of plugins that fell into it \
             included",
            extent.window
        ))
}

/// What the file system went through before a round.
#[derive(Clone, Copy)]
enum Ground<'a> {
    /// Nothing was deleted: what rounds made is kept here until all are over.
    Untouched { aside: &'a Path },
    /// The plugins of the round before were removed.
    Cleared,
}

/// How many of very many plugins run per second.
async fn burst(
    program: &Path,
    plugins: usize,
    rounds: usize,
    spec: fn() -> ArchiveSpec,
    what: &str,
    ground: Ground<'_>,
) -> Row {
    let [mut ours, mut bare] = [(); 2].map(|()| Samples::default());
    let rate = |took| per_second(plugins, took);
    // What is cleared has to have been made.
    let first = match ground {
        Ground::Untouched { .. } => 1,
        Ground::Cleared => 0,
    };
    let memory = MEMORY_MAX.min(plugins * MEMORY_OF_EACH);
    for round in first..=rounds {
        let bed = world::bed(program, &[]).await;
        let archive = bed.archive("plugin.tar.zst", spec()).await;
        install(&bed, (plugins..=plugins).map(|number| order(number, &archive))).await;
        world::warm(memory);
        let reached = rate(install(&bed, (0..plugins).map(|number| order(number, &archive))).await);
        println!("round {round} of {rounds}: {plugins} installs of {what} {reached:.0}/s");
        let reached_bare = match ground {
            Ground::Untouched { aside } => {
                let dir = tempfile::tempdir_in(aside).unwrap().keep();
                world::put_aside(bed, &dir).await;
                world::warm(memory);
                rate(bare_burst(plugins, &dir).await)
            }
            Ground::Cleared => {
                disband(bed, plugins + 1).await;
                let dir = tempfile::tempdir().unwrap();
                world::warm(memory);
                rate(bare_burst(plugins, dir.path()).await)
            }
        };
        if round > 0 {
            ours.add(reached);
            bare.add(reached_bare);
        }
    }
    Row::new(format!("{plugins} installs of {what} in one message"), ours, "/s")
        .beside("the same processes started in a loop (posix_spawn) until all listen", bare)
}

/// Starts processes as fast as one can and waits until each listens, in this folder.
async fn bare_burst(plugins: usize, dir: &Path) -> Duration {
    let socket = |number| dir.join(format!("{number}.sock"));
    let began = Instant::now();
    let mut children: Vec<_> = (0..plugins).map(|number| bare(&socket(number))).collect();
    for number in 0..plugins {
        while !socket(number).exists() {
            assert!(began.elapsed() < MUCH_PATIENCE, "a plugin does not listen");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let took = began.elapsed();
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    took
}

fn order(number: usize, archive: &Archive) -> ConfigurePlugin {
    let order = orders::install(&format!("p{number:04}"), "1", archive);
    order.manifest(|manifest| manifest.start_timeout = orders::seconds(60.0)).order()
}

/// Orders installations in one message and waits until all plugins run; how long that took.
async fn install(bed: &Bed, orders: impl Iterator<Item = ConfigurePlugin>) -> Duration {
    let orders: Vec<_> = orders.collect();
    let wanted = orders.len();
    let mut told = Told::from_now(&bed.control_plane, STARTED).await;
    let began = SystemTime::now();
    bed.configure(orders).await;
    between(began, told.times(wanted, MUCH_PATIENCE).await)
}

/// The processes of all plugins.
async fn pids(bed: &Bed) -> BTreeMap<String, Option<u32>> {
    let status = bed.try_status().await.unwrap();
    status.plugins.into_iter().map(|plugin| (plugin.name, plugin.pid)).collect()
}

/// Where plugins listen.
async fn sockets(bed: &Bed) -> Vec<PathBuf> {
    let plugins = bed.try_status().await.unwrap().plugins;
    let socket = |address: &str| address.strip_prefix("unix:").unwrap().into();
    plugins.iter().map(|plugin| socket(&plugin.address)).collect()
}

/// Removes all at once; [`Bed::finish`] alone has less patience.
async fn disband(bed: Bed, plugins: usize) {
    let names = pids(&bed).await;
    assert_eq!(names.len(), plugins);
    bed.configure(names.keys().map(|name| orders::remove(name)).collect()).await;
    bed.within(MUCH_PATIENCE, "all plugins are gone", async || {
        tokio::time::sleep(Duration::from_millis(200)).await;
        bed.try_status().await.ok()?.plugins.is_empty().then_some(())
    })
    .await;
    bed.finish().await;
}

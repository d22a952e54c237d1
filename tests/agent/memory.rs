//! What the agent keeps of a burst of installations: the memory of what runs, and not the memory
//! that installing took.
//!
//! ```text
//! GUEST_AGENT_TEST_PROGRAM=target/release/guest-agent \
//!     cargo test --workspace --test agent memory:: -- --nocapture
//! ```
//!
//! shows the figures of any program by mapping; `benches/whole` holds the one that ships to its
//! targets.

use std::time::{Duration, Instant};

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::harness::archive::Compression;
use crate::harness::processes::{self, ByMapping};
use crate::harness::{ArchiveSpec, BEAT, Bed, PATIENCE, orders};

/// How many plugins are installed by one message.
const PLUGINS: usize = 50;

/// What the archive of each has to be expanded beside its program, in bytes: as much as a small
/// program of its own.
const PADDING: usize = 1 << 20;

/// Longest that all of them may take. The machine may be busy.
const MUCH_PATIENCE: Duration = Duration::from_secs(120);

/// How long after a burst the agent may have more memory than it needs, on a machine that is busy
/// with other things; `benches/whole` measures how long it is on one that is not.
const SETTLED: Duration = Duration::from_secs(60);

/// How much more anonymous memory than an idle agent it may have then. A program that is not
/// optimised needs two thirds of this for so many plugins.
const MORE_KIB: u32 = 8 * 1024;

#[tokio::test]
async fn the_memory_of_a_burst_is_given_back() {
    let bed = Bed::builder().set("plugins.health_interval=10s").start().await;
    let idle = processes::memory(bed.agent_pid()).anonymous_kib;
    eprintln!("idle: {}", ByMapping::of(bed.agent_pid()));
    let spec = ArchiveSpec::echo().padded(PADDING).compressed(Compression::Zstd);
    let archive = bed.archive("plugin.tar.zst", spec).await;
    let names: Vec<String> = (0..PLUGINS).map(|number| format!("p{number:02}")).collect();
    let order = |name: &String| -> ConfigurePlugin {
        let order = orders::install(name, "1", &archive);
        order.manifest(|manifest| manifest.start_timeout = orders::seconds(60.0)).order()
    };
    bed.configure(names.iter().map(order).collect()).await;
    bed.within(MUCH_PATIENCE, "all plugins run", async || {
        let plugins = bed.try_status().await.ok()?.plugins;
        let running = plugins.iter().filter(|it| it.state == "RUNNING" && !it.busy);
        (running.count() == PLUGINS).then_some(())
    })
    .await;
    settles(&bed, "after the burst", idle + MORE_KIB).await;

    bed.configure(names.iter().map(|name| orders::remove(name)).collect()).await;
    bed.within(MUCH_PATIENCE, "all plugins are gone", async || {
        bed.try_status().await.ok()?.plugins.is_empty().then_some(())
    })
    .await;
    settles(&bed, "after the removals", idle + MORE_KIB).await;
    bed.finish().await;
}

/// How much more address space than it has the agent may get, in bytes, while it gets an order: from
/// nothing at all to what an installation nearly needs.
const MARGINS: [u64; 6] = [0, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20];

/// How long the agent is without memory, unless it ends or carries its order out before.
const WITHOUT: Duration = Duration::from_secs(2);

#[tokio::test]
async fn an_agent_without_memory_loses_no_order_and_no_process() {
    let mut bed = Bed::new().await;
    let echo = bed.archive("plugin.tar.zst", ArchiveSpec::echo().compressed(Compression::Zstd));
    let echo = echo.await;
    bed.configure(vec![orders::install("calm", "1", &echo).order()]).await;
    let calm = bed.running("calm", "1").await;
    for (number, margin) in MARGINS.into_iter().enumerate() {
        let name = format!("p{number}");
        let most = address_space(bed.agent_pid()) + margin;
        limit_address_space(bed.agent_pid(), Some(most));
        let delivery = bed.send_by_hand(vec![orders::install(&name, "1", &echo).order()]).await;
        let began = Instant::now();
        let mut ended = None;
        while ended.is_none() && began.elapsed() < WITHOUT && !is_done(&bed, &name).await {
            tokio::time::sleep(BEAT).await;
            ended = bed.agent_ended();
        }
        eprintln!("{margin} bytes more: ended as {ended:?} after {:?}", began.elapsed());
        if ended.is_none() {
            limit_address_space(bed.agent_pid(), None);
        }
        // Whatever ends an agent, the service manager starts the next one.
        let began = Instant::now();
        loop {
            if ended.take().is_some() || bed.agent_ended().is_some() {
                bed.spawn_agent();
            }
            if is_done(&bed, &name).await {
                break;
            }
            if began.elapsed() > PATIENCE {
                bed.fail(format_args!("the order for {name} has no end, {margin} bytes more"));
            }
            tokio::time::sleep(BEAT).await;
        }
        bed.check("the agent acknowledges the orders", delivery.wait(PATIENCE).await);
        let now = bed.running("calm", "1").await;
        assert_eq!((now.pid, now.restarts), (calm.pid, 0), "{margin} bytes more");
    }
    // The standard library panics, and aborts, where a thread gets no memory for its stack: no
    // panic is expected from here on.
    std::fs::write(bed.dir().join("agent.log"), "").unwrap();
    bed.finish().await;
}

/// Whether the order for a plugin was carried out, or ended for want of memory, by an agent that
/// answers. A plugin inherits the limit of the agent, so the want may be its own.
async fn is_done(bed: &Bed, name: &str) -> bool {
    let asked = tokio::time::timeout(Duration::from_millis(500), bed.try_status()).await;
    let Ok(Ok(status)) = asked else { return false };
    let Some(plugin) = status.plugins.iter().find(|plugin| plugin.name == name) else {
        return false;
    };
    match plugin.state.as_str() {
        "INSTALL_FAILED" | "CRASHED" if !plugin.busy => {
            let why = plugin.reason.as_str();
            let names_memory = why.contains("memory") && !why.contains("damaged");
            assert!(names_memory, "the reason does not name memory: {why}");
            true
        }
        state => state == "RUNNING",
    }
}

/// The address space of a process, in bytes.
fn address_space(pid: u32) -> u64 {
    let pages = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: u64 = pages.split_whitespace().next().unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

fn limit_address_space(pid: u32, most: Option<u64>) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    prlimit(pid, Resource::As, Rlimit { current: most, maximum: None }).unwrap();
}

/// Waits until the agent has no more anonymous memory than this.
async fn settles(bed: &Bed, what: &str, most_kib: u32) {
    let agent = bed.agent_pid();
    let began = Instant::now();
    eprintln!("{what}, at once: {}", ByMapping::of(agent));
    while processes::memory(agent).anonymous_kib > most_kib {
        if began.elapsed() > SETTLED {
            bed.fail(format_args!(
                "{what}: {SETTLED:?} later the agent has more than {most_kib} KiB of anonymous memory: {}",
                ByMapping::of(agent)
            ));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eprintln!("{what}, {:?} later: {}", began.elapsed(), ByMapping::of(agent));
}

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

use crate::harness::archive::Compression;
use crate::harness::processes::{self, ByMapping};
use crate::harness::{ArchiveSpec, Bed, orders};

/// How many plugins are installed by one message.
const PLUGINS: usize = 50;

/// What the archive of each has to be expanded beside its program, in bytes: as much as a small
/// program of its own.
const PADDING: usize = 1 << 20;

/// Longest that all of them may take. The machine may be busy.
const MUCH_PATIENCE: Duration = Duration::from_secs(120);

/// How long after a burst the agent may have more memory than it needs.
const SETTLED: Duration = Duration::from_secs(15);

/// How much more anonymous memory than an idle agent it may have then. A program that is not
/// optimised needs two thirds of this for so many plugins.
const MORE_KIB: u32 = 8 * 1024;

#[tokio::test]
async fn the_memory_of_a_burst_is_given_back_within_fifteen_seconds() {
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

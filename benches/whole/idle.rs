//! What an agent costs that has nothing to do.

use std::path::Path;
use std::time::Duration;

use crate::Extent;
use crate::report::{Row, Target};
use crate::samples::Samples;
use crate::world::{self, Counted, Syncs};

/// After this, what a start does is done.
const SETTLED: Duration = Duration::from_secs(3);

pub(crate) async fn measure(program: &Path, extent: Extent) -> Vec<Row> {
    let size = std::fs::metadata(program).unwrap().len();
    let [mut anonymous, mut proportional, mut share] = [(); 3].map(|()| Samples::default());
    for _ in 0..extent.rounds {
        world::forget(program);
        let bed = world::bed(program, &[]).await;
        tokio::time::sleep(SETTLED).await;
        let counted = Counted::of(bed.agent_pid());
        anonymous.add(counted.anonymous_kib / 1024.0);
        proportional.add(counted.proportional_kib / 1024.0);
        share.add(world::cpu_share(bed.agent_pid(), extent.look).await);
        bed.finish().await;
    }
    let bed = world::bed(program, &[]).await;
    tokio::time::sleep(SETTLED).await;
    let syncs = Syncs::count(&bed).await;
    tokio::time::sleep(extent.look * 3).await;
    let syncs = syncs.map(|syncs| syncs.end(None));
    bed.finish().await;
    let mut rows = vec![
        // Pages of the program's file are the kernel's to keep or to drop (decision 32).
        Row::new("idle agent: anonymous memory", anonymous, "MiB")
            .target(Target::AtMost(3.0))
            .beside(world::PROPORTIONAL, proportional)
            .note("no plugins, connected to its control plane; the program is read from the disk, as after a boot"),
        Row::new("idle agent: CPU time, of one core", share, "%"),
        #[expect(clippy::cast_precision_loss, reason = "a file of a few MiB")]
        Row::new("the program", Samples::once(size as f64 / f64::from(1 << 20)), "MiB")
            .target(Target::AtMost(12.0)),
    ];
    rows.extend(syncs.map(|syncs| {
        Row::new("idle agent: calls that sync", Samples::once(syncs), "calls")
            .target(Target::AtMost(0.0))
    }));
    rows
}

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
    let [mut resident, mut anonymous] = [(); 2].map(|()| Samples::default());
    for _ in 1..extent.rounds {
        world::forget(program);
        let bed = world::bed(program, &[]).await;
        tokio::time::sleep(SETTLED).await;
        let counted = Counted::of(bed.agent_pid());
        resident.add(counted.resident_kib / 1024.0);
        anonymous.add(counted.anonymous_kib / 1024.0);
        bed.finish().await;
    }
    world::forget(program);
    let bed = world::bed(program, &[]).await;
    tokio::time::sleep(SETTLED).await;
    let pid = bed.agent_pid();
    let before = Counted::of(pid);
    tokio::time::sleep(extent.rest).await;
    let after = Counted::of(pid);
    resident.add(after.resident_kib / 1024.0);
    anonymous.add(after.anonymous_kib / 1024.0);
    let share = (after.cpu - before.cpu).as_secs_f64() / extent.rest.as_secs_f64() * 100.0;
    let syncs = Syncs::count(&bed).await;
    tokio::time::sleep(extent.rest / 2).await;
    let syncs = syncs.map(|syncs| syncs.end(None));
    bed.finish().await;
    let mut rows = vec![
        Row::new("idle agent: resident memory", resident, "MiB")
            .target(Target::AtMost(10.0))
            .beside("what of it no file backs", anonymous)
            .note("no plugins, connected to its control plane; the program is read from the disk, as after a boot"),
        Row::new("idle agent: CPU time, of one core", Samples::once(share), "%"),
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

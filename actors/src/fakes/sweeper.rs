//! A sweeper that deletes nothing and remembers the reference set it got.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use crate::fakes::Shared;
use crate::ports::{ReferenceSet, References, SweepManner, SweepReport, Sweeper};

/// A sweeper without a disk.
pub struct FakeSweeper(SweeperHandle);

/// Reads the calls that a [`FakeSweeper`] received, and sets what it finds.
#[derive(Clone)]
pub struct SweeperHandle(Shared<Swept>);

#[derive(Default)]
struct Swept {
    runs: Vec<(Instant, SweepManner, Option<References>)>,
    finds: SweepReport,
    takes: Duration,
    freed: Arc<tokio::sync::Notify>,
}

/// A sweeper that finds nothing.
#[must_use]
pub fn sweeper() -> (FakeSweeper, SweeperHandle) {
    let handle = SweeperHandle(Shared::new(Swept::default()));
    (FakeSweeper(handle.clone()), handle)
}

// === impl SweeperHandle ===

impl SweeperHandle {
    /// What every run finds from now on.
    pub fn set_finds(&self, report: SweepReport) {
        self.0.with(|swept| swept.finds = report);
    }

    /// How long every run takes from now on.
    pub fn set_takes(&self, time: Duration) {
        self.0.with(|swept| swept.takes = time);
    }

    /// The processes end because of which the last run left something.
    pub fn free(&self) {
        self.0.with(|swept| swept.freed.notify_one());
    }

    /// When each run began, whether it was to delete, and what had to stay.
    #[must_use]
    pub fn runs(&self) -> Vec<(Instant, SweepManner, Option<References>)> {
        self.0.with(|swept| swept.runs.clone())
    }
}

#[async_trait]
impl Sweeper for FakeSweeper {
    async fn sweep(&self, manner: SweepManner, references: Arc<dyn ReferenceSet>) -> SweepReport {
        let needed = references.now().await;
        let (report, takes) = self.0.0.with(|swept| {
            swept.runs.push((Instant::now(), manner, needed));
            (swept.finds.clone(), swept.takes)
        });
        if !takes.is_zero() {
            tokio::time::sleep(takes).await;
        }
        report
    }

    async fn freed(&self) {
        let freed = self.0.0.with(|swept| swept.freed.clone());
        freed.notified().await;
    }
}

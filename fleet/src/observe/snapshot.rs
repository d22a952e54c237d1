//! All that the metrics are made of, at one moment.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::fleet::{FleetCounts, FleetReader};
use super::health::{Check, Health};
use super::process::Process;
use crate::enroll::ends::{Ends, Renewal};
use crate::telemetry::figures::{Counted, Figures};
use crate::telemetry::traces::OrderSpans;

/// Where the values come from. Cheap to clone.
#[derive(Clone)]
pub struct Sources {
    /// The counts of this process.
    pub figures: Arc<Figures>,
    /// Reads the counts of the whole fleet.
    pub fleet: FleetReader,
    /// Answers for the health of the process.
    pub health: Health,
    /// Name of the ledger's engine.
    pub engine: &'static str,
    /// The certificates of this process.
    pub ends: Ends,
    /// Makes the spans of orders.
    pub spans: OrderSpans,
    /// When this process was started.
    pub started_at: SystemTime,
}

/// The values at one moment.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) now: SystemTime,
    pub(super) started_at: SystemTime,
    pub(super) engine: &'static str,
    pub(super) counted: Counted,
    /// `None` where the ledger does not answer.
    pub(super) fleet: Option<Arc<FleetCounts>>,
    pub(super) checks: Vec<Check>,
    pub(super) spans_dropped: u64,
    pub(super) view_age: Option<Duration>,
    pub(super) certificates: Vec<Certificate>,
    pub(super) process: Process,
}

/// A certificate that people replace.
#[derive(Debug)]
pub(super) struct Certificate {
    /// Its purpose.
    pub(super) of: &'static str,
    pub(super) ends: SystemTime,
    /// Whether what shall replace it cannot be used.
    pub(super) is_stuck: bool,
}

// === impl Snapshot ===

impl Snapshot {
    pub(super) async fn take(sources: &Sources) -> Self {
        let now = SystemTime::now();
        // Both wait for the ledger, and a page has a deadline.
        let fleet = sources.fleet.look(&*sources.health.ledger, now);
        let (checks, fleet) = tokio::join!(sources.health.ready(), fleet);
        let process = tokio::task::spawn_blocking(Process::measure).await.unwrap_or_default();
        let ends = sources.ends.all().into_iter();
        // What this process renews by itself is nothing to act on.
        let theirs = ends.filter(|end| end.renewal == Renewal::Theirs);
        let certificates = theirs.map(|end| Certificate {
            of: end.of,
            ends: end.ends,
            is_stuck: end.trouble.is_some(),
        });
        Self {
            now: SystemTime::now(),
            started_at: sources.started_at,
            engine: sources.engine,
            counted: sources.figures.now(),
            fleet,
            checks,
            spans_dropped: sources.spans.dropped().map_or(0, |dropped| dropped.in_all()),
            view_age: sources.health.view_age(),
            certificates: certificates.collect(),
            process,
        }
    }
}

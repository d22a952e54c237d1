//! All that the metrics are made of, at one moment.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::figures::{Counted, Figures};
use super::health::{Check, Health};
use super::process::Process;
use crate::enroll::Authorities;
use crate::enroll::certificate::Facts;
use crate::tls;

/// Largest file of certificates that is read.
const FILE_BYTES: u64 = 1 << 20;

/// Where the values come from. Cheap to clone.
#[derive(Clone)]
pub struct Sources {
    /// What was counted.
    pub figures: Arc<Figures>,
    /// What is asked for health.
    pub health: Health,
    /// Name of the ledger's engine.
    pub engine: &'static str,
    /// The fleet's authority, where this process has it.
    pub authorities: Option<Authorities>,
    /// Files of certificates that listeners show, by what they are for.
    pub certificates: Vec<(&'static str, PathBuf)>,
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
    pub(super) checks: Vec<Check>,
    pub(super) view_age: Option<Duration>,
    pub(super) certificates: Vec<(&'static str, SystemTime)>,
    pub(super) process: Process,
}

// === impl Snapshot ===

impl Snapshot {
    pub(super) async fn take(sources: &Sources) -> Self {
        let (checks, files) = (sources.health.ready().await, sources.certificates.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let ends = files.into_iter().filter_map(|(what, path)| Some((what, end_of(&path)?)));
            (ends.collect::<Vec<_>>(), Process::measure())
        });
        let (mut certificates, process) = reading.await.unwrap_or_default();
        let authority = sources.authorities.as_ref().map(|it| ("authority", it.current().ends()));
        certificates.extend(authority);
        Self {
            now: SystemTime::now(),
            started_at: sources.started_at,
            engine: sources.engine,
            counted: sources.figures.now(),
            checks,
            view_age: sources.health.view_age(),
            certificates,
            process,
        }
    }
}

/// When the first certificate of a file ends; `None` where that cannot be read.
fn end_of(path: &std::path::Path) -> Option<SystemTime> {
    use std::io::Read;

    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES).read_to_string(&mut text).ok()?;
    let chain = tls::certificates(&text)?;
    Some(Facts::read(chain.first()?).ok()?.ends)
}

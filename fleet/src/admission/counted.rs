//! Refusals are counted, and some of them named in the log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use guest_fleet_sessions::admission::{Admission, Admitted, Peer};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::enroll::certificate::AgentCertificate;
use crate::telemetry::figures::Figures;

/// Shortest time between two lines of the log about refusals with one status.
const PAUSE: Duration = Duration::from_secs(10);

/// Most bytes of a name or a reason in the log.
const TEXT: usize = 200;

/// Asks another admission, counts whom it does not let in, or lets in no longer, and names one of them in the
/// log now and then.
pub struct Counted {
    inner: Arc<dyn Admission>,
    figures: Arc<Figures>,
    lines: Mutex<Lines>,
}

/// By status: when the log named a refused agent last, and how many were refused since.
#[derive(Default)]
struct Lines(HashMap<Code, (Instant, u64)>);

// === impl Counted ===

impl Counted {
    /// With these counts.
    #[must_use]
    pub fn new(inner: Arc<dyn Admission>, figures: Arc<Figures>) -> Self {
        Self { inner, figures, lines: Mutex::default() }
    }

    /// Counts a refusal, of an agent by this name.
    fn count<T>(
        &self,
        asked: Result<T, Status>,
        agent: impl FnOnce() -> String,
    ) -> Result<T, Status> {
        let Err(status) = &asked else { return asked };
        self.figures.refused(status.code());
        let lines = self.lines.lock();
        let others =
            lines.unwrap_or_else(PoisonError::into_inner).refused(status.code(), Instant::now());
        if let Some(others) = others {
            let (agent, reason) = (agent(), status.message());
            tracing::warn!(
                agent = cut(&agent),
                status = ?status.code(),
                reason = cut(reason),
                others,
                "an agent is refused"
            );
        }
        asked
    }
}

/// The name of an agent by its certificate; the one that it claims where it shows none.
fn name(peer: &Peer<'_>, claimed: &str) -> String {
    let shown = peer.info.certificate.as_ref();
    let shown = shown.and_then(|shown| AgentCertificate::read(shown).ok());
    shown.map_or_else(|| claimed.to_owned(), |shown| shown.agent.to_string())
}

/// The beginning of a text that others wrote. The log escapes it.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT)]
}

#[async_trait]
impl Admission for Counted {
    async fn admit(&self, peer: &Peer<'_>, resource: &str) -> Result<Admitted, Status> {
        self.count(self.inner.admit(peer, resource).await, || name(peer, resource))
    }

    fn still(&self, admitted: &Admitted) -> Result<(), Status> {
        self.count(self.inner.still(admitted), || admitted.agent.clone())
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        self.inner.changes()
    }
}

// === impl Lines ===

impl Lines {
    /// Whether the log names a refused agent: then, how many others were refused with this status since it named one.
    fn refused(&mut self, code: Code, now: Instant) -> Option<u64> {
        let line = self.0.get_mut(&code);
        if let Some((_, others)) = line.filter(|(last, _)| now.duration_since(*last) < PAUSE) {
            *others = others.saturating_add(1);
            return None;
        }
        Some(self.0.insert(code, (now, 0)).map_or(0, |(_, others)| others))
    }
}

//! Forwards the lines of plugins' logs to the journal and to a collector, where that is configured.
//!
//! ```text
//! <name>.log ─► source (one per plugin) ─ a turn each ─► lane (one per destination) ─► journald | otlp
//!                  ▲                                       │ taken
//!                  └──── <name>.log.forwarded ◄────────────┘
//! ```
//!
//! The file remains the log: plugins write into it whether or not an agent runs, and nothing is kept
//! here but the lines of one message. A destination that is away costs only that its position in
//! the files falls behind. When the oldest lines are cut before it took them, it gets a record of how
//! many bytes that were. Positions are recorded when the destination has taken a message, so a line comes
//! at least once, and after the death of an agent at most one message comes again
//! (`docs/decisions/0063-plugin-logs-elsewhere.md`).
//!
//! Each destination has a task of its own, reads on threads that may block, and takes from each
//! plugin a bounded part before it goes on to the next one.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::model::id::BootId;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, LogDestination};
use crate::observe::forwarding::Forwarding;
use crate::observe::otlp::logs::LogExporter;
use crate::process::logs::PluginLogs;

mod destination;
mod journald;
mod lane;
mod otlp;
mod record;
mod source;
#[cfg(test)]
mod tests;

use destination::{Destination, Nowhere};
use journald::Journald;
use lane::Lane;
use otlp::Otlp;

/// How long the last lines may take when the agent stops.
const LAST_WAIT: Duration = Duration::from_millis(500);

/// How long after a failure of its own a lane begins again.
const FAILED_WAIT: Duration = Duration::from_secs(30);

/// Forwards the logs of plugins as the configuration says.
#[derive(Debug)]
pub struct Forwarder {
    /// The logs.
    pub logs: PluginLogs,
    /// The configuration in effect.
    pub config: watch::Receiver<Arc<Config>>,
    /// Gets how it fares.
    pub figures: Forwarding,
    /// The id of this machine.
    pub instance_id: String,
    /// The boot of this machine.
    pub boot: BootId,
    /// Cancelled when the agent has stopped everything else: what is left is sent, for a moment.
    pub ending: CancellationToken,
}

// === impl Forwarder ===

impl Forwarder {
    /// Forwards until the agent ends.
    pub async fn run(self) {
        let socket = |config: &Config| {
            let plugins = &config.plugins;
            let is_wanted = plugins.log_to.contains(&LogDestination::Journald);
            is_wanted.then(|| plugins.log_journal_socket.clone())
        };
        let collector =
            |config: &Config| config.plugins.log_to.contains(&LogDestination::Otlp).then_some(());
        let journald = self.keep(LogDestination::Journald, socket, |path: PathBuf, _| {
            Made::Usable(Journald::new(path, self.instance_id.clone()))
        });
        let otlp = self.keep(LogDestination::Otlp, collector, |(), config| {
            match LogExporter::new(config, &self.instance_id, &self.boot) {
                Some(exporter) => Made::Usable(Otlp::new(exporter)),
                // The address of the collector is taken up at a start only.
                None => Made::Missing(Nowhere),
            }
        });
        tokio::join!(journald, otlp);
    }

    /// Keeps a lane running while it is configured, and begins a new one when its settings change.
    async fn keep<K, D>(
        &self,
        to: LogDestination,
        wanted: impl Fn(&Config) -> Option<K>,
        make: impl Fn(K, &Config) -> Made<D>,
    ) where
        K: Clone + PartialEq,
        D: Destination,
    {
        let mut config = self.config.clone();
        loop {
            let now = config.borrow_and_update().clone();
            let key = wanted(&now);
            let changed = async {
                // The configuration of an agent that ends does not change any more.
                if config.wait_for(|config| wanted(config) != key).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let Some(settings) = key.clone() else {
                self.figures.is_off(to);
                tokio::select! {
                    () = changed => continue,
                    () = self.ending.cancelled() => return,
                }
            };
            let lane = Lane::new(self.logs.clone(), to, self.figures.clone());
            let work = async {
                // A lane ends by itself only when the agent ends, or when a part of it failed.
                match make(settings, &now) {
                    Made::Usable(destination) => lane.run(destination, self.ending.clone()).await,
                    Made::Missing(nowhere) => lane.run(nowhere, self.ending.clone()).await,
                }
                if !self.ending.is_cancelled() {
                    tokio::time::sleep(FAILED_WAIT).await;
                }
            };
            let too_late = async {
                self.ending.cancelled().await;
                tokio::time::sleep(LAST_WAIT).await;
            };
            tokio::select! {
                biased;
                () = work => {}
                () = changed => {}
                () = too_late => return,
            }
            if self.ending.is_cancelled() {
                return;
            }
        }
    }
}

/// A destination, or what stands in for it.
enum Made<D> {
    Usable(D),
    Missing(Nowhere),
}

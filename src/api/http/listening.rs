//! A listener that follows the configuration: it is opened where that says, tried again where that
//! fails, and closed and opened elsewhere when that changes.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::config::Config;

/// The waits before a listener is tried again.
const WAITS: Schedule =
    Schedule::doubling(Duration::from_millis(500), Duration::from_secs(60), Jitter::UpperHalf);

/// A kind of listener.
pub(super) trait Listening {
    /// What the configuration says of it.
    type Wanted: PartialEq;
    /// The opened listener.
    type Opened;

    /// What the configuration wants; `None` for no such listener.
    fn wanted(&self, config: &Config) -> Option<Self::Wanted>;

    /// Opens it, or says in a sentence why that failed and what helps.
    async fn open(&self, wanted: &Self::Wanted, config: &Config) -> Result<Self::Opened, String>;

    /// Serves until `ending` is cancelled. Reports that it listens.
    async fn serve(
        &self,
        opened: Self::Opened,
        config: watch::Receiver<Arc<Config>>,
        ending: CancellationToken,
    );

    /// It does not listen, for this reason if it is to.
    fn closed(&self, trouble: Option<String>);
}

/// Keeps a listener open until `ending` is cancelled.
pub(super) async fn keep(
    kind: &impl Listening,
    mut config: watch::Receiver<Arc<Config>>,
    ending: CancellationToken,
) {
    let mut backoff = Backoff::new(WAITS);
    while !ending.is_cancelled() {
        let now = config.borrow_and_update().clone();
        let wait = match kind.wanted(&now) {
            None => {
                kind.closed(None);
                backoff.reset();
                None
            }
            Some(wanted) => match kind.open(&wanted, &now).await {
                Ok(opened) => {
                    backoff.reset();
                    let moving = ending.child_token();
                    let serving = kind.serve(opened, config.clone(), moving.clone());
                    let moved = async {
                        while config.changed().await.is_ok() {
                            let now = config.borrow_and_update().clone();
                            if kind.wanted(&now).as_ref() != Some(&wanted) {
                                return;
                            }
                        }
                        std::future::pending().await
                    };
                    tokio::pin!(serving);
                    tokio::select! {
                        () = &mut serving => {}
                        () = moved => {
                            // The next one may have the same address.
                            moving.cancel();
                            serving.await;
                        }
                    }
                    continue;
                }
                Err(trouble) => {
                    let wait = backoff.next(rand::random());
                    warn!(next_try_in = ?wait, "{trouble}");
                    kind.closed(Some(trouble));
                    Some(wait)
                }
            },
        };
        let pause = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            changed = config.changed() => if changed.is_err() { return },
            () = ending.cancelled() => {}
        }
    }
}

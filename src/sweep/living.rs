//! The processes because of which a sweep left something, until they have ended.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::os::pidfd::Pidfd;

/// Most processes that are held. The next run holds those that are left.
const HELD_MAX: usize = 16;

/// What the last run met.
#[derive(Debug, Default)]
pub(super) struct Living(Mutex<Option<Vec<Arc<Pidfd>>>>);

// === impl Living ===

impl Living {
    /// Takes hold of processes. One that has ended by now counts as met. One that cannot be held is
    /// left to the next run.
    pub(super) fn hold(&self, pids: BTreeSet<u32>) {
        let mut met = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for pid in pids {
            match Pidfd::open(pid) {
                Ok(held) => {
                    let all = met.get_or_insert_default();
                    if all.len() < HELD_MAX {
                        all.push(Arc::new(held));
                    }
                }
                Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {
                    met.get_or_insert_default();
                }
                Err(_) => {}
            }
        }
    }

    /// Resolves when all that were met have ended. Never, when there were none.
    pub(super) async fn ended(&self) {
        let met = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(met) = met else { return std::future::pending().await };
        for process in met {
            process.died().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn all_that_were_met_are_waited_for() {
        let living = Living::default();
        assert!(living.ended().now_or_never().is_none(), "there were none");
        let sleeper = || Command::new("sleep").arg("1000").spawn().expect("it can be run");
        let (mut one, mut other) = (sleeper(), sleeper());
        living.hold([one.id(), other.id()].into());
        one.kill().expect("it is ours");
        one.wait().expect("it is ours");
        let early = tokio::time::timeout(Duration::from_millis(20), living.ended());
        assert!(early.await.is_err(), "one of them lives");
        other.kill().expect("it is ours");
        let ended = tokio::time::timeout(Duration::from_secs(20), living.ended());
        ended.await.expect("both have ended");
        other.wait().expect("it is ours");
        // What ended before it could be held was met as well.
        let late = Living::default();
        late.hold([other.id()].into());
        assert!(late.ended().now_or_never().is_some());
    }
}

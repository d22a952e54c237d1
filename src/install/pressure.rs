//! Holds installations back while memory is short, because unpacking fills the page cache and so
//! takes memory from running processes.
//!
//! The kernel reports the share of time in which some process waited for memory (pressure stall
//! information). An installation waits while that share is above the configured limit, and its
//! progress says so. After the longest allowed wait it begins in any case, so that an order on a
//! machine that is always short of memory does not wait for ever.

use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::ports::{Progress, ProgressSender};
use tokio::time::Instant;

use crate::config::InstallConfig;

/// The kernel's files with the memory pressure of this machine.
const MACHINE_PRESSURE: &str = "/proc/pressure/memory";

/// Pause between two looks. The kernel's own average is over ten seconds.
const BEAT: Duration = Duration::from_secs(2);

/// The progress text of an installation that waits.
const HELD_UP: &str = "the machine is short of memory";

/// When installations wait for memory.
#[derive(Clone, Debug)]
pub struct PressurePolicy {
    /// The pressure files of the kernel; missing files are ignored.
    pub files: Vec<PathBuf>,
    /// Percent of the last ten seconds in which a process waited for memory; 0 turns the check off.
    pub most: u32,
    /// Longest time for which an installation waits.
    pub patience: Duration,
}

impl Default for PressurePolicy {
    fn default() -> Self {
        Self { files: Vec::new(), most: 0, patience: Duration::ZERO }
    }
}

impl PressurePolicy {
    /// The limits of the configuration.
    pub(super) fn configured(install: &InstallConfig) -> Self {
        let file = match install.pressure_file.as_str() {
            "" => MACHINE_PRESSURE,
            file => file,
        };
        Self {
            files: vec![file.into()],
            most: install.max_memory_pressure,
            patience: install.pressure_patience,
        }
    }

    /// Returns when an installation may begin.
    pub(super) async fn let_begin(&self, what: &str, progress: &ProgressSender) {
        if !self.is_high() {
            return;
        }
        tracing::info!(what, "held up: {HELD_UP}");
        progress.send_replace(Progress { held_up: Some(HELD_UP), ..Progress::default() });
        let until = Instant::now() + self.patience;
        while self.is_high() {
            if Instant::now() >= until {
                tracing::warn!(what, "begins although memory is short: the longest wait is over");
                break;
            }
            tokio::time::sleep(BEAT).await;
        }
        progress.send_replace(Progress::default());
    }

    /// Whether the value of any file is above the limit. Reading these kernel files does not block.
    fn is_high(&self) -> bool {
        self.most > 0
            && self
                .files
                .iter()
                .filter_map(|file| stalled(&std::fs::read_to_string(file).ok()?))
                .any(|percent| percent > f64::from(self.most))
    }
}

/// Percent of the last ten seconds in which a process waited, from the text of a pressure file.
fn stalled(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let average = some.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    average.parse().ok().filter(|percent: &f64| percent.is_finite())
}

#[cfg(test)]
mod tests {
    use tokio::sync::watch;

    use super::*;

    const CALM: &str =
        "some avg10=3.10 avg60=50.00 avg300=0.00 total=7\nfull avg10=99.00 total=0\n";
    const SHORT: &str =
        "some avg10=40.01 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00 total=0\n";

    fn policy(dir: &tempfile::TempDir) -> PressurePolicy {
        let files = ["not there", "memory"].map(|file| dir.path().join(file)).into();
        PressurePolicy { files, most: 40, patience: Duration::from_secs(60) }
    }

    #[tokio::test(start_paused = true)]
    async fn an_installation_waits_until_memory_is_not_short_any_more_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let policy = policy(&dir);
        std::fs::write(&policy.files[1], SHORT).unwrap();
        let (progress, shown) = watch::channel(Progress::default());
        let began = Instant::now();
        let wait = policy.let_begin("a", &progress);
        let end = async {
            tokio::time::sleep(Duration::from_secs(11)).await;
            assert_eq!(shown.borrow().held_up, Some(HELD_UP));
            std::fs::write(&policy.files[1], CALM).unwrap();
        };
        tokio::join!(wait, end);
        assert_eq!(began.elapsed(), Duration::from_secs(12));
        assert_eq!(*shown.borrow(), Progress::default());
        policy.let_begin("a", &progress).await;
        assert_eq!(began.elapsed(), Duration::from_secs(12), "nobody is held up");
    }

    #[tokio::test(start_paused = true)]
    async fn on_a_machine_that_is_always_short_it_begins_in_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let policy = policy(&dir);
        std::fs::write(&policy.files[1], SHORT).unwrap();
        let (progress, _) = watch::channel(Progress::default());
        let began = Instant::now();
        policy.let_begin("a", &progress).await;
        assert_eq!(began.elapsed(), policy.patience);
        let never = PressurePolicy { most: 0, ..policy };
        never.let_begin("a", &progress).await;
        assert_eq!(began.elapsed(), Duration::from_secs(60), "it is switched off");
    }

    #[test]
    fn what_is_no_pressure_says_nothing() {
        assert_eq!(stalled(SHORT), Some(40.01));
        for text in ["", "full avg10=9.0", "some avg10=", "some avg10=NaN", "some avg60=1.0"] {
            assert_eq!(stalled(text), None, "{text:?}");
        }
    }
}

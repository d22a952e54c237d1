//! A manifest of a local plugin that is refused, and the judgement that follows from it. Pure.
//!
//! Where no plugin of that name is on the roster, people see a plugin that could not be installed;
//! beside a plugin that runs on with what it had, its verdict says that the manifest has no effect.

use std::time::SystemTime;

use crate::model::verdict::{Cause, Level, Verdict};

/// Names the file and the way to mend it, whatever the folder is called.
const HELP: &str = "guest-agent doctor";

/// Why a manifest has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedManifest {
    /// The revision that the manifest names; empty where it could not be read as far as that.
    pub revision: String,
    /// Why it is refused, as one sentence without a full stop.
    pub reason: String,
    /// Since when this agent process refuses it for this reason.
    pub since: SystemTime,
}

// === impl RefusedManifest ===

impl RefusedManifest {
    /// The verdict about a folder whose plugin is not there because of this.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let why = format!("its manifest is refused, so it is not installed: {}", self.reason);
        self.judged(Level::Failing, why)
    }

    /// The verdict about a plugin that is there, which needs more attention than this where its own
    /// says so.
    #[must_use]
    pub fn beside(&self, own: Verdict) -> Verdict {
        if own.needs_attention() {
            return own;
        }
        let why = format!("its manifest is refused and changes nothing: {}", self.reason);
        self.judged(Level::Degraded, why)
    }

    fn judged(&self, level: Level, reason: String) -> Verdict {
        Verdict {
            level,
            cause: Cause::ManifestRefused,
            reason,
            since: Some(self.since),
            until: None,
            help: HELP.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal() -> RefusedManifest {
        let reason = "it is not UTF-8".to_owned();
        RefusedManifest { revision: String::new(), reason, since: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn a_folder_without_a_plugin_fails_and_says_why() {
        let verdict = refusal().verdict();
        assert_eq!((verdict.level, verdict.cause), (Level::Failing, Cause::ManifestRefused));
        assert!(verdict.reason.ends_with(": it is not UTF-8"), "{verdict:?}");
        assert_eq!((verdict.since, verdict.help.as_str()), (Some(SystemTime::UNIX_EPOCH), HELP));
    }

    #[test]
    fn a_plugin_that_runs_on_is_degraded_unless_it_has_worse_trouble() {
        for level in Level::ALL {
            let own = Verdict { level, cause: Cause::Fine, ..refusal().verdict() };
            let verdict = refusal().beside(own.clone());
            if level <= Level::Degraded {
                assert_eq!(verdict, own);
            } else {
                assert_eq!(
                    (verdict.level, verdict.cause),
                    (Level::Degraded, Cause::ManifestRefused)
                );
            }
        }
    }
}

//! The record of a check: which archive was checked, by which agent, and whether it passed.
//!
//! `check` writes it beside the archive, and `plan --require-check` reads it. It belongs to an archive by the
//! digest, so it can be copied with it, and says nothing about an archive that was packed again.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::report::Report;
use super::trial::Trial;

/// What the name of a record has behind that of its archive.
pub const SUFFIX: &str = ".check.json";

/// The form of the document.
const VERSION: u32 = 1;

/// Most names in an error.
const NAMES_MAX: usize = 30;

/// A check of one archive, as it is kept; field names never change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The form of this document: 1.
    pub schema_version: u32,
    /// The plugin.
    pub plugin: String,
    /// The revision.
    pub revision: String,
    /// The SHA-256 of the archive, in hexadecimal digits.
    pub sha256: String,
    /// The version of the agent that checked it.
    pub agent_version: String,
    /// When it was checked. RFC 3339.
    pub checked_at: String,
    /// Whether every required check passed or was skipped.
    pub passed: bool,
    /// The checks, in the order in which they were run.
    pub checks: Vec<Outcome>,
}

/// How one check ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// The check.
    pub check: String,
    /// How it ended.
    #[schemars(extend("enum" = ["passed", "failed", "warned", "skipped"]))]
    pub result: String,
    /// Whether a plugin has to pass it.
    pub required: bool,
}

/// Why a record does not prove that an archive passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// A later version wrote it.
    #[error("it has the form {0}, and this version reads the form {VERSION} alone")]
    Version(u32),
    /// It is of another plugin.
    #[error("it is the record of the plugin {0:?}")]
    OtherPlugin(String),
    /// It is of another archive.
    #[error("it is the record of an archive with the checksum {checked}, and {ordered} is ordered")]
    OtherArchive {
        /// The digest of the archive that was checked.
        checked: String,
        /// The digest of the order.
        ordered: String,
    },
    /// The plugin does not pass.
    #[error("the plugin did not pass: {}", .0.join(", "))]
    Failed(Vec<String>),
    /// Only some of the checks were run, or the agent that ran them had fewer.
    #[error("these checks were not run: {}", .0.join(", "))]
    Incomplete(Vec<&'static str>),
}

// === impl Record ===

impl Record {
    /// The record of a report about an archive.
    #[must_use]
    pub fn of(report: &Report, sha256: &str, checked_at: Timestamp) -> Self {
        let outcome = |finding: &super::report::Finding| Outcome {
            check: finding.check.to_owned(),
            result: finding.result.to_owned(),
            required: finding.required,
        };
        Self {
            schema_version: VERSION,
            plugin: report.plugin.clone(),
            revision: report.revision.clone(),
            sha256: sha256.to_owned(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            checked_at: checked_at.to_string(),
            passed: report.passed,
            checks: report.checks.iter().map(outcome).collect(),
        }
    }

    /// Whether it proves that this archive of this plugin passed every required check.
    ///
    /// # Errors
    /// It does not, and why.
    pub fn proves(&self, plugin: &str, sha256: &str) -> Result<(), Unproven> {
        if self.schema_version != VERSION {
            return Err(Unproven::Version(self.schema_version));
        }
        if self.plugin != plugin {
            return Err(Unproven::OtherPlugin(self.plugin.clone()));
        }
        if !self.sha256.eq_ignore_ascii_case(sha256) {
            let (checked, ordered) = (self.sha256.clone(), sha256.to_owned());
            return Err(Unproven::OtherArchive { checked, ordered });
        }
        // Which checks are required is this version's to say: a record may be of an earlier one.
        let required = || Trial::ALL.into_iter().filter(|trial| trial.is_required());
        let of = |trial: Trial| self.checks.iter().find(|it| it.check == trial.name());
        let is_failed = |trial: &Trial| {
            of(*trial).is_some_and(|it| !["passed", "skipped"].contains(&it.result.as_str()))
        };
        let mut failed: Vec<String> =
            required().filter(is_failed).map(|trial| trial.name().to_owned()).collect();
        // Of a check that this version does not have.
        let others = self.checks.iter().filter(|it| it.result == "failed").map(|it| &it.check);
        failed.extend(others.filter(|it| !failed.contains(it)).cloned().collect::<Vec<_>>());
        failed.truncate(NAMES_MAX);
        if !failed.is_empty() || !self.passed {
            return Err(Unproven::Failed(failed));
        }
        let missing: Vec<_> =
            required().filter(|trial| of(*trial).is_none()).map(Trial::name).collect();
        if missing.is_empty() { Ok(()) } else { Err(Unproven::Incomplete(missing)) }
    }

    /// The required checks that the machine could not run.
    #[must_use]
    pub fn skipped(&self) -> Vec<String> {
        let skipped = self.checks.iter().filter(|it| it.required && it.result == "skipped");
        skipped.map(|it| it.check.clone()).take(NAMES_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::report::{Finding, Verdict};
    use super::*;

    const SHA256: &str = "ab12";

    fn record(verdict: impl Fn(Trial) -> Option<Verdict>) -> Record {
        let findings = Trial::ALL.into_iter().filter_map(|trial| {
            verdict(trial).map(|verdict| Finding::new(trial, verdict, Duration::ZERO))
        });
        let report = Report::new("web".to_owned(), "1".to_owned(), findings.collect());
        Record::of(&report, SHA256, Timestamp::UNIX_EPOCH)
    }

    fn passed(_: Trial) -> Option<Verdict> {
        Some(Verdict::passed("well"))
    }

    #[test]
    fn a_record_proves_one_archive_of_one_plugin() {
        let record = record(passed);
        assert_eq!(record.proves("web", SHA256), Ok(()));
        assert_eq!(record.proves("web", "AB12"), Ok(()));
        let other = Unproven::OtherArchive { checked: SHA256.to_owned(), ordered: "0".to_owned() };
        assert_eq!(record.proves("web", "0"), Err(other));
        let other = Unproven::OtherPlugin("web".to_owned());
        assert_eq!(record.proves("db", SHA256), Err(other));
        let later = Record { schema_version: 2, ..record };
        assert_eq!(later.proves("web", SHA256), Err(Unproven::Version(2)));
    }

    #[test]
    fn every_required_check_has_to_be_in_it() {
        let record_without = |left_out: Trial| record(|it| passed(it).filter(|_| it != left_out));
        let missing = record_without(Trial::Stop).proves("web", SHA256);
        assert_eq!(missing, Err(Unproven::Incomplete(vec!["stop"])));
        assert_eq!(record_without(Trial::Policy).proves("web", SHA256), Ok(()));
    }

    #[test]
    fn what_failed_is_named_and_what_was_skipped_is_known() {
        let bad = |bad: Trial| {
            record(move |it| match it == bad {
                true => Some(Verdict::failed("ill", "mend it")),
                false => passed(it),
            })
        };
        let failed = bad(Trial::Stop).proves("web", SHA256);
        assert_eq!(failed, Err(Unproven::Failed(vec!["stop".to_owned()])));
        assert_eq!(bad(Trial::Memory).proves("web", SHA256), Ok(()));
        // Somebody changed the verdict and not the checks, or the checks and not the verdict.
        let changed = Record { passed: true, ..bad(Trial::Stop) };
        assert!(changed.proves("web", SHA256).is_err());
        let changed = Record { passed: false, ..record(passed) };
        assert!(changed.proves("web", SHA256).is_err());
        let mut strange = record(passed);
        strange.checks[3].result = "fine".to_owned();
        assert!(strange.proves("web", SHA256).is_err());
        let skipped = record(|_| Some(Verdict::skipped("not here")));
        assert_eq!(skipped.proves("web", SHA256), Ok(()));
        assert!(skipped.skipped().contains(&"full-disk".to_owned()));
        assert!(!skipped.skipped().contains(&"policy".to_owned()));
    }
}

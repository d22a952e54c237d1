//! What was found: for people, as JSON, and as JUnit XML for build servers.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;

use super::trial::Trial;

/// The form of the document.
const VERSION: u32 = 1;

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should.
    Passed(String),
    /// Not as it should.
    Failed {
        /// What happened.
        what: String,
        /// What mends it.
        fix: String,
    },
    /// It was not run, and why.
    Skipped(String),
}

/// What one trial found, as scripts see it; field names never change.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Finding {
    /// The trial.
    pub check: &'static str,
    /// How it ended. `warned` stands for the failure of a trial that is not required.
    #[schemars(extend("enum" = ["passed", "failed", "warned", "skipped"]))]
    pub result: &'static str,
    /// Whether a plugin has to pass it.
    pub required: bool,
    /// What happened, or why it was skipped.
    pub what: String,
    /// Why it matters.
    pub why: &'static str,
    /// What mends it; null where nothing has to be mended.
    pub fix: Option<String>,
    /// How long it took, in seconds.
    pub seconds: f64,
}

/// All findings, as scripts see them; field names never change.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Report {
    /// The form of this document: 1.
    pub schema_version: u32,
    /// The plugin.
    pub plugin: String,
    /// The revision.
    pub revision: String,
    /// Whether every required check passed or was skipped.
    pub passed: bool,
    /// The findings, in the order in which they were made.
    pub checks: Vec<Finding>,
}

// === impl Verdict ===

impl Verdict {
    pub(super) fn passed(what: impl Into<String>) -> Self {
        Self::Passed(what.into())
    }

    pub(super) fn failed(what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::Failed { what: what.into(), fix: fix.into() }
    }

    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self::Skipped(why.into())
    }
}

// === impl Finding ===

impl Finding {
    pub(super) fn new(trial: Trial, verdict: Verdict, took: Duration) -> Self {
        let (result, what, fix) = match verdict {
            Verdict::Passed(what) => ("passed", what, None),
            Verdict::Failed { what, fix } if trial.is_required() => ("failed", what, Some(fix)),
            Verdict::Failed { what, fix } => ("warned", what, Some(fix)),
            Verdict::Skipped(why) => ("skipped", why, None),
        };
        let millis = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
        Self {
            check: trial.name(),
            result,
            required: trial.is_required(),
            what,
            why: trial.why(),
            fix,
            seconds: f64::from(millis) / 1000.0,
        }
    }
}

// === impl Report ===

impl Report {
    pub(super) fn new(plugin: String, revision: String, checks: Vec<Finding>) -> Self {
        let passed = checks.iter().all(|finding| finding.result != "failed");
        Self { schema_version: VERSION, plugin, revision, passed, checks }
    }

    /// The report as JUnit XML, which build servers show.
    #[must_use]
    pub fn junit(&self) -> String {
        let count = |result: &str| self.checks.iter().filter(|it| it.result == result).count();
        let seconds: f64 = self.checks.iter().map(|finding| finding.seconds).sum();
        let suite = escaped(&format!("{} {}", self.plugin, self.revision));
        let head = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"{suite}\" tests=\"{}\" failures=\"{}\" \
             skipped=\"{}\" time=\"{seconds:.3}\">",
            self.checks.len(),
            count("failed"),
            count("skipped"),
        );
        let mut lines = vec![head];
        for finding in &self.checks {
            let inner = match finding.result {
                "failed" => format!(
                    "<failure message=\"{}\">{}</failure>",
                    escaped(&finding.what),
                    escaped(&format!(
                        "{}; {}",
                        finding.why,
                        finding.fix.as_deref().unwrap_or_default()
                    )),
                ),
                "skipped" => format!("<skipped message=\"{}\"/>", escaped(&finding.what)),
                _ => format!("<system-out>{}</system-out>", escaped(&finding.what)),
            };
            lines.push(format!(
                "  <testcase classname=\"guest-agent.check\" name=\"{}\" time=\"{:.3}\">{inner}</testcase>",
                finding.check, finding.seconds
            ));
        }
        lines.push("</testsuite>\n".to_owned());
        lines.join("\n")
    }
}

/// A text as XML may hold it: what a plugin printed may have any characters in it.
fn escaped(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => all.push_str("&amp;"),
            '<' => all.push_str("&lt;"),
            '>' => all.push_str("&gt;"),
            '"' => all.push_str("&quot;"),
            '\n' => all.push_str("&#10;"),
            '\u{fffe}' | '\u{ffff}' => all.push('?'),
            letter if letter.is_control() => all.push('?'),
            letter => all.push(letter),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let second = Duration::from_millis(1500);
        let failed = || Verdict::failed("it said \"<no>\"\n\u{1}", "mend it & try again");
        Report::new(
            "a".to_owned(),
            "1".to_owned(),
            vec![
                Finding::new(Trial::Start, Verdict::passed("in 3 ms"), second),
                Finding::new(Trial::Stop, failed(), second),
                Finding::new(Trial::Memory, failed(), second),
                Finding::new(Trial::Cpu, Verdict::skipped("no control groups"), second),
            ],
        )
    }

    #[test]
    fn only_a_required_check_fails_a_plugin() {
        let mut report = report();
        assert!(!report.passed);
        assert_eq!(report.checks[2].result, "warned");
        report.checks.remove(1);
        assert!(Report::new(String::new(), String::new(), report.checks).passed);
    }

    #[test]
    fn build_servers_get_well_formed_xml() {
        let xml = report().junit();
        assert!(xml.contains("tests=\"4\" failures=\"1\" skipped=\"1\" time=\"6.000\""), "{xml}");
        assert!(xml.contains("message=\"it said &quot;&lt;no&gt;&quot;&#10;?\""), "{xml}");
        assert!(xml.contains("mend it &amp; try again"), "{xml}");
        assert!(xml.contains("<skipped message=\"no control groups\"/>"), "{xml}");
        assert_eq!(xml.matches("<testcase ").count(), xml.matches("</testcase>").count());
    }

    #[test]
    fn every_trial_has_a_name_of_its_own_and_is_run_once() {
        let mut names: Vec<_> = Trial::ALL.iter().map(|trial| trial.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Trial::ALL.len());
        assert_eq!(<Trial as clap::ValueEnum>::value_variants(), Trial::ALL);
        assert_eq!(Trial::ALL.last(), Some(&Trial::Removal), "nothing can be tried after it");
    }
}

//! Findings as text, and the end of the command that found them.

use super::super::console::{Console, Tone};
use super::super::failure::Failure;
use super::super::format::one_line;
use crate::doctor::{Finding, Severity};

/// The end of the command: it failed where there is a problem, or where not everything was looked at, for
/// which `hint` has the reason or the fix.
pub(super) fn verdict(findings: &[Finding], is_partial: bool, hint: &str) -> Result<(), Failure> {
    let problems = match findings.iter().filter(|finding| finding.is_problem()).count() {
        0 => None,
        1 => Some("1 problem was found".to_owned()),
        count => Some(format!("{count} problems were found")),
    };
    match (problems, is_partial) {
        (None, false) => Ok(()),
        (Some(problems), false) => Err(Failure::failed(problems)),
        (None, true) => Err(Failure::failed("not everything was looked at").hint(hint)),
        (Some(problems), true) => {
            let what = format_args!("{problems}, and not everything was looked at").to_string();
            Err(Failure::failed(what).hint(hint))
        }
    }
}

/// Findings, after the subjects that were not looked at.
pub(super) fn as_lines(findings: &[Finding], unseen: &[&str], console: &Console<'_>) -> String {
    let mut text = String::new();
    if !unseen.is_empty() {
        let line = format!("not looked at, for lack of permission: {}", unseen.join(", "));
        text.push_str(&[&console.paint(Tone::Busy, &one_line(&line)), "\n"].concat());
    }
    match (findings.iter().any(Finding::is_problem), unseen.is_empty()) {
        (true, _) => {}
        (false, true) => text.push_str("nothing is wrong\n"),
        (false, false) => text.push_str("nothing is wrong with the rest\n"),
    }
    for finding in findings {
        let (word, tone) = match finding.severity {
            Severity::Error => ("error", Tone::Bad),
            Severity::Warning => ("warning", Tone::Busy),
            Severity::Note => ("note", Tone::Quiet),
        };
        let [what, why, fix] = [&finding.what, &finding.why, &finding.fix].map(|t| one_line(t));
        let word = console.paint(tone, word);
        text.push_str(&[&word, ": ", &what, "\n  why: ", &why, "\n  fix: ", &fix, "\n"].concat());
    }
    text
}

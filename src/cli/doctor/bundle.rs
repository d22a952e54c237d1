//! `doctor --bundle`: the findings of the machine that a support bundle is of.
//!
//! A bundle comes from somebody else. So its size in memory is bounded, whatever it says of itself, and
//! every text of it is shown on one line.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use async_compression::tokio::bufread::GzipDecoder;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, BufReader};
use tokio_stream::StreamExt;
use tokio_tar::Archive;

use super::super::console::Console;
use super::super::context::Context;
use super::super::failure::Failure;
use super::super::format::one_line;
use super::text::{as_lines, verdict};
use crate::doctor::{Finding, Severity};

/// The folder in a bundle.
const FOLDER: &str = "guest-agent-support";

/// Most bytes that are unpacked; a bundle has 48 MiB at most.
const UNPACKED_MAX: u64 = 64 << 20;

/// Most files that are looked at.
const FILES_MAX: usize = 5000;

/// Most bytes that are read of one file, as much as a bundle has of it.
const FILE_MAX: u64 = 4 << 20;

/// The files that are read.
const MANIFEST: &str = "manifest.json";
const DOCTOR: &str = "doctor.json";
const OUT_OF_MEMORY: &str = "machine/out-of-memory";

/// A judgement of a bundle. Field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Judged {
    /// When the bundle was made.
    created_at: String,
    /// The findings, the worst first.
    findings: Vec<Finding>,
    /// The files that the bundle lacks.
    missing: Vec<Missing>,
    /// The subjects that its maker could not look at.
    not_looked_at: Vec<String>,
    /// Whether names were replaced.
    redacted: bool,
    /// The version of the command that made it.
    version: String,
}

/// A file that a bundle does not have.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
struct Missing {
    /// Its path.
    path: String,
    /// Why.
    why: String,
}

/// `manifest.json`, as far as it is of use here.
#[derive(Debug, Deserialize)]
struct Manifest {
    version: String,
    created_at: String,
    redacted: bool,
    #[serde(default)]
    missing: Vec<Missing>,
}

/// `doctor.json`, as far as it is of use here. Earlier versions have no list of what was not looked at.
#[derive(Debug, Deserialize)]
struct Examination {
    findings: Vec<Found>,
    #[serde(default)]
    not_looked_at: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Found {
    severity: Severity,
    what: String,
    why: String,
    fix: String,
}

/// Why a file is no bundle.
#[derive(Debug, thiserror::Error)]
enum BundleError {
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    #[error("it has no {0}, so it is no bundle of `guest-agent support-bundle`")]
    Absent(&'static str),
    #[error("its {0} is not what `guest-agent support-bundle` writes")]
    Damaged(&'static str, #[source] serde_json::Error),
}

pub(super) async fn run(file: &Path, context: Context<'_, '_>) -> Result<(), Failure> {
    let judged = read(file).await.and_then(|files| Judged::of(&files));
    let judged = judged.map_err(|error| {
        Failure::failed(format_args!("failed to judge {}", file.display())).because(&error)
    })?;
    if context.global.json() {
        context.console.document(&judged)?;
    } else {
        let text = judged.text(context.console);
        context.console.text(&text)?;
    }
    verdict(&judged.findings, !judged.not_looked_at.is_empty(), "it was made by an ordinary user")
}

/// The files that are of use, by their paths in the bundle.
async fn read(file: &Path) -> Result<BTreeMap<String, Vec<u8>>, BundleError> {
    let packed = BufReader::new(File::open(file).await.map_err(BundleError::Read)?);
    let mut archive = Archive::new(GzipDecoder::new(packed).take(UNPACKED_MAX));
    let mut entries = archive.entries().map_err(BundleError::Read)?;
    let mut files = BTreeMap::new();
    let mut looked_at = 0;
    while let Some(entry) = entries.next().await {
        let mut entry = entry.map_err(BundleError::Read)?;
        looked_at += 1;
        if looked_at > FILES_MAX {
            break;
        }
        let path = entry.path().map_err(BundleError::Read)?.into_owned();
        let name = path.strip_prefix(FOLDER).ok().and_then(Path::to_str).map(str::to_owned);
        let wanted = name.filter(|name| [MANIFEST, DOCTOR, OUT_OF_MEMORY].contains(&name.as_str()));
        if let Some(name) = wanted {
            let mut bytes = Vec::new();
            let part = (&mut entry).take(FILE_MAX).read_to_end(&mut bytes).await;
            part.map_err(BundleError::Read)?;
            files.insert(name, bytes);
        }
    }
    Ok(files)
}

// === impl Judged ===

impl Judged {
    fn of(files: &BTreeMap<String, Vec<u8>>) -> Result<Self, BundleError> {
        let manifest = files.get(MANIFEST).ok_or(BundleError::Absent(MANIFEST))?;
        let manifest: Manifest = serde_json::from_slice(manifest)
            .map_err(|error| BundleError::Damaged(MANIFEST, error))?;
        let mut findings = Vec::new();
        let mut not_looked_at = Vec::new();
        if let Some(examined) = files.get(DOCTOR) {
            let examined: Examination = serde_json::from_slice(examined)
                .map_err(|error| BundleError::Damaged(DOCTOR, error))?;
            let found = examined.findings.into_iter();
            findings.extend(found.map(|it| Finding::new(it.severity, it.what, it.why, it.fix)));
            not_looked_at = examined.not_looked_at;
        } else {
            let why = manifest.missing.iter().find(|missing| missing.path == DOCTOR);
            let why = why.map_or_else(|| "the bundle does not say".to_owned(), |it| it.why.clone());
            let what = "the machine was not examined";
            let fix = "have it examined there: sudo guest-agent doctor";
            findings.push(Finding::new(Severity::Error, what, why, fix));
        }
        findings.extend(files.get(OUT_OF_MEMORY).and_then(|lines| out_of_memory(lines)));
        findings.sort_by_key(|finding| finding.severity);
        let Manifest { version, created_at, redacted, missing } = manifest;
        Ok(Self { created_at, findings, missing, not_looked_at, redacted, version })
    }

    fn text(&self, console: &Console<'_>) -> String {
        let redacted = if self.redacted { ", names replaced" } else { "" };
        let (version, at) = (one_line(&self.version), one_line(&self.created_at));
        let mut text = format!("bundle of {at}, by guest-agent {version}{redacted}\n");
        let unseen: Vec<&str> = self.not_looked_at.iter().map(String::as_str).collect();
        text.push_str(&as_lines(&self.findings, &unseen, console));
        for Missing { path, why } in &self.missing {
            text.push_str(&["missing: ", &one_line(path), ": ", &one_line(why), "\n"].concat());
        }
        text
    }
}

/// The note about processes that the kernel ended for want of memory.
fn out_of_memory(lines: &[u8]) -> Option<Finding> {
    let text = String::from_utf8_lossy(lines);
    let lines: Vec<&str> = text.lines().filter(|line| *line != "none").collect();
    let last = lines.last()?;
    Some(Finding::new(
        Severity::Note,
        format!(
            "the kernel wrote {} lines about processes that it ended for want of memory",
            lines.len()
        ),
        format!("the last is: {last}"),
        format!("read {OUT_OF_MEMORY} in the bundle; the agent's own limits are in status.json"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<String, Vec<u8>> {
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect()
    }

    const WHOLE: &str = r#"{"schema_version":1,"version":"0.2.0","created_at":"2030-01-01T00:00:00Z",
        "redacted":false,"files":[],"missing":[{"path":"doctor.json","why":"no time"}]}"#;

    #[test]
    fn findings_of_a_bundle_are_those_of_its_maker_and_those_of_the_kernel() {
        let doctor = r#"{"findings":[
            {"severity":"warning","what":"a","why":"b","fix":"c"}],"not_looked_at":["x"],"agent":null}"#;
        let memory = "oom-kill: one\nOut of memory: two\n";
        let judged =
            Judged::of(&files(&[(MANIFEST, WHOLE), (DOCTOR, doctor), (OUT_OF_MEMORY, memory)]));
        let judged = judged.expect("a bundle");
        let found: Vec<_> = judged.findings.iter().map(|it| (it.severity, &*it.why)).collect();
        let kernel = "the last is: Out of memory: two";
        assert_eq!(found, [(Severity::Warning, "b"), (Severity::Note, kernel)]);
        assert_eq!((judged.not_looked_at.len(), &*judged.version), (1, "0.2.0"));
        assert_eq!(out_of_memory(b"none\n"), None);
    }

    #[test]
    fn a_machine_that_was_not_examined_is_an_error_and_what_is_no_bundle_has_a_reason() {
        let judged = Judged::of(&files(&[(MANIFEST, WHOLE)])).expect("a bundle");
        assert_eq!(
            (judged.findings[0].severity, &*judged.findings[0].why),
            (Severity::Error, "no time")
        );
        for (given, why) in [
            (files(&[]), "it has no manifest.json"),
            (files(&[(MANIFEST, "{}")]), "its manifest.json is not what"),
            (files(&[(MANIFEST, WHOLE), (DOCTOR, "[")]), "its doctor.json is not what"),
        ] {
            let error = Judged::of(&given).expect_err(why).to_string();
            assert!(error.starts_with(why), "{error}");
        }
    }
}

//! Whether a record proves that `check` passed an archive.
//!
//! ```text
//! order ─► where the record is ─► read ─► signature, where [trust] names keys ─► digest, checks ─► Proof
//! ```

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::spec::{Artifact, PluginSpec, Source};
use schemars::JsonSchema;
use serde::Serialize;

use crate::check::record::{Record, SUFFIX};
use crate::hostinfo::preflight::finding::{Finding, Severity};
use crate::install::file_of;
use crate::install::trust::{self, Trust};

/// Most bytes of a record, and of its signature.
const BYTES_MAX: u64 = 1 << 20;

/// What was handed to `plan`, and whom this machine trusts.
pub(super) struct Given<'a> {
    pub(super) file: &'a Path,
    pub(super) is_bundle: bool,
    pub(super) trust: &'a Trust,
}

/// The record that an archive passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Proof {
    /// The file with the record.
    pub(crate) record: PathBuf,
    /// The version of the agent that checked it.
    pub(crate) agent_version: String,
    /// When it was checked. RFC 3339.
    pub(crate) checked_at: String,
    /// Required checks that the machine could not run.
    pub(crate) skipped: Vec<String>,
}

/// What is wrong with a record, and what to do.
struct Unusable {
    why: String,
    fix: String,
}

// === impl Given ===

impl Given<'_> {
    /// The proof that the archive of an order passed; `None` where the order has no archive.
    pub(super) fn prove(&self, spec: &PluginSpec) -> Result<Option<Proof>, Finding> {
        let Source::Archive(artifact) = &spec.source else { return Ok(None) };
        let place = self.place(artifact);
        self.read(&place, spec, artifact).map(Some).map_err(|Unusable { why, fix }| {
            let what = "no record proves that the archive passed `check`";
            Finding::new(Severity::Error, what, why, fix)
        })
    }

    /// Where the record is: beside the archive, else beside what was handed over.
    fn place(&self, artifact: &Artifact) -> PathBuf {
        if self.is_bundle {
            return with_suffix(self.file, SUFFIX);
        }
        if let Some(archive) = file_of(&artifact.url) {
            return with_suffix(&archive, SUFFIX);
        }
        let url = artifact.url.to_string();
        let name = url.rsplit('/').next().unwrap_or_default();
        let folder = self.file.parent().unwrap_or(Path::new(""));
        folder.join(format!("{name}{SUFFIX}"))
    }

    fn read(
        &self,
        place: &Path,
        spec: &PluginSpec,
        artifact: &Artifact,
    ) -> Result<Proof, Unusable> {
        let shown = place.display();
        let archive = place.to_string_lossy();
        let archive = archive.strip_suffix(SUFFIX).unwrap_or_default();
        let again = || format!("run `guest-agent check {archive}`, all of it");
        let bytes = match bytes_of(place) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let fix = format!("{}, or copy the record there", again());
                return Err(Unusable { why: format!("{shown} is not there"), fix });
            }
            Err(error) => {
                let fix = match error.kind() {
                    ErrorKind::FileTooLarge => again(),
                    _ => format!("make it readable, or {}", again()),
                };
                return Err(Unusable { why: format!("{shown} cannot be read: {error}"), fix });
            }
        };
        self.signed(&bytes, place, spec)?;
        let record: Record = serde_json::from_slice(&bytes).map_err(|error| Unusable {
            why: format!("{shown} is not the record of a check: {error}"),
            fix: again(),
        })?;
        record
            .proves(spec.name.as_str(), &artifact.sha256.to_string())
            .map_err(|error| Unusable { why: format!("{shown}: {error}"), fix: again() })?;
        Ok(Proof {
            record: place.to_owned(),
            skipped: record.skipped(),
            agent_version: record.agent_version,
            checked_at: record.checked_at,
        })
    }

    /// Checks the signature where archives need one, too: a person who cannot forge an archive must not be able to
    /// forge its record.
    fn signed(&self, bytes: &[u8], place: &Path, spec: &PluginSpec) -> Result<(), Unusable> {
        if !self.trust.demands_signatures() {
            return Ok(());
        }
        let file = with_suffix(place, trust::SUFFIX);
        let shown = file.display().to_string();
        let fix =
            || "sign it with `guest-agent check --sign-key KEY`, with a key of [trust]".to_owned();
        let signature = bytes_of(&file).map_err(|error| Unusable {
            why: format!("its signature {shown}, which [trust] demands, cannot be read: {error}"),
            fix: fix(),
        })?;
        let verified = self.trust.verify(bytes, &signature, &shown, &spec.name, &spec.revision);
        verified.map_err(|error| Unusable {
            why: format!("{}: {}", place.display(), Chain(&error)),
            fix: fix(),
        })
    }
}

// === impl Proof ===

impl Proof {
    pub(super) fn in_words(&self) -> String {
        let skipped = match self.skipped.as_slice() {
            [] => String::new(),
            some => format!("; skipped on that machine: {}", some.join(", ")),
        };
        format!("passed at {} with version {}{skipped}", self.checked_at, self.agent_version)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A file, up to a bound.
fn bytes_of(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > BYTES_MAX {
        let problem = format!("it is larger than {BYTES_MAX} bytes");
        return Err(std::io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

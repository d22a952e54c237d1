//! The index of a release: its archives by architecture, as `guest-fleet artifact push --index` reads it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::{PluginName, RevisionId};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::files::absolute;
use crate::cli::failure::Failure;
use crate::manifest::package::{Package, Wanted};

/// The form of the document.
const VERSION: u32 = 1;

/// A release, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Index {
    /// The form of this document: 1.
    schema_version: u32,
    /// The plugin.
    plugin: String,
    /// The revision.
    revision: String,
    /// The program in each of the archives.
    entry_point: String,
    /// Its arguments.
    arguments: Vec<String>,
    /// The manifest of the order, in the JSON mapping of protobuf.
    manifest: Map<String, Value>,
    /// The archives, by architecture in the spelling of Go, or `any`.
    archives: BTreeMap<String, Archive>,
}

/// An archive of a release.
#[derive(Debug, Serialize, JsonSchema)]
struct Archive {
    /// The file, relative to the index where it is in the same folder or below, else absolute.
    file: PathBuf,
    /// The SHA-256 of the archive, in hexadecimal digits.
    sha256: String,
    /// The size of the archive.
    bytes: u64,
    /// Where agents find it; null where the artifact server of a fleet keeps it.
    url: Option<String>,
    /// The file with its signature, named as the archive is; null where it is not signed.
    signature: Option<PathBuf>,
}

// === impl Index ===

impl Index {
    pub(super) fn of(
        file: &Path,
        (wanted, name, revision): (&Wanted, &PluginName, &RevisionId),
        packages: &[Package],
        signatures: &[Option<PathBuf>],
    ) -> Result<Self, Failure> {
        let folder = absolute(file)?.parent().unwrap_or(Path::new("/")).to_owned();
        let near = |path: &Path| -> Result<PathBuf, Failure> {
            let whole = absolute(path)?;
            Ok(whole.strip_prefix(&folder).map(Path::to_owned).unwrap_or(whole))
        };
        let mut archives = BTreeMap::new();
        for (package, signature) in packages.iter().zip(signatures) {
            let archive = Archive {
                file: near(&package.archive)?,
                sha256: package.packed.sha256.to_string(),
                bytes: package.packed.bytes,
                url: wanted.url(&package.archive),
                signature: signature.as_deref().map(near).transpose()?,
            };
            archives.insert(package.architecture.clone(), archive);
        }
        let mut entry_points = packages.iter().map(|package| package.entry_point.as_str());
        let entry_point = entry_points.next().unwrap_or_default().to_owned();
        if let Some(other) = entry_points.find(|other| *other != entry_point) {
            return Err(Failure::failed(format_args!(
                "the archives of a release start the same program, and these start {entry_point} and {other}"
            ))
            .hint("name it as entry_point in plugin.toml"));
        }
        Ok(Self {
            schema_version: VERSION,
            plugin: name.to_string(),
            revision: revision.to_string(),
            entry_point,
            arguments: wanted.arguments().to_vec(),
            manifest: wanted.manifest_json()?,
            archives,
        })
    }
}

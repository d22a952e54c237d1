//! The index of a release, as `guest-agent pack --index` writes it: which archives there are, and what their
//! order says.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::error::ArtifactError;
use super::toml::inline;

/// The form of the document that is read.
const VERSION: u32 = 1;

/// Most bytes of an index: the configuration in it may have one MiB.
const BYTES_MAX: u64 = 4 << 20;

/// A release. Properties of later versions are passed over.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    schema_version: u32,
    pub(super) plugin: String,
    pub(super) revision: String,
    pub(super) entry_point: String,
    #[serde(default)]
    arguments: Vec<String>,
    /// In the JSON mapping of protobuf.
    #[serde(default)]
    manifest: Map<String, Value>,
    archives: BTreeMap<String, Archive>,
}

#[derive(Debug, Deserialize)]
struct Archive {
    /// Relative to the index, or absolute.
    file: PathBuf,
    sha256: String,
}

// === impl Index ===

impl Index {
    /// Reads an index. Its archives are named from where it is.
    pub(super) fn read(path: &Path) -> Result<Self, ArtifactError> {
        let failed = |source| ArtifactError::File { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(failed)?;
        file.take(BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        let wrong = |reason: String| {
            ArtifactError::Usage(format!("`{}` is no index of a release: {reason}", path.display()))
        };
        if bytes.len() as u64 > BYTES_MAX {
            return Err(wrong(format!("it has more than {BYTES_MAX} bytes")));
        }
        let mut index: Self =
            serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
        if index.schema_version != VERSION {
            let found = index.schema_version;
            return Err(wrong(format!(
                "its schema_version is {found}, and this program reads {VERSION}"
            )));
        }
        if index.archives.is_empty() {
            return Err(wrong("it names no archive".to_owned()));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        for archive in index.archives.values_mut() {
            archive.file = folder.join(&archive.file);
        }
        Ok(index)
    }

    /// The archives by their architectures.
    pub(super) fn files(&self) -> BTreeMap<String, PathBuf> {
        self.archives.iter().map(|(name, archive)| (name.clone(), archive.file.clone())).collect()
    }

    /// Whether an archive is the one that was packed.
    pub(super) fn check(&self, architecture: &str, sha256: &str) -> Result<(), ArtifactError> {
        match self.archives.get(architecture) {
            Some(archive) if !archive.sha256.eq_ignore_ascii_case(sha256) => {
                Err(ArtifactError::Usage(format!(
                    "`{}` is another archive than the index says: its SHA-256 is {sha256}, not {}; pack the \
                     release again",
                    archive.file.display(),
                    archive.sha256.escape_debug()
                )))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The lines of a declared release that say what the order says. A configuration stands beside the
    /// manifest there.
    pub(super) fn keys(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if !self.arguments.is_empty() {
            lines.push(format!("arguments = {}", inline(&self.arguments.clone().into())));
        }
        let mut manifest = self.manifest.clone();
        for name in ["stringConfig", "structConfig"] {
            if let Some(config) = manifest.remove(name) {
                lines.push(format!("config = {}", inline(&config)));
            }
        }
        if !manifest.is_empty() {
            lines.push(format!("manifest = {}", inline(&manifest.into())));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(text: &str) -> Result<Index, ArtifactError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("release.json");
        std::fs::write(&path, text).expect("a file");
        Index::read(&path)
    }

    const WHOLE: &str = r#"{"schema_version":1,"plugin":"echo","revision":"1","entry_point":"bin/echo",
        "arguments":["-v"],"manifest":{"startTimeout":"5s","stringConfig":"x"},"later":true,
        "archives":{"amd64":{"file":"echo.tar.gz","sha256":"AB","bytes":7,"url":null}}}"#;

    #[test]
    fn an_index_says_what_a_release_declares() {
        let index = index(WHOLE).expect("an index");
        assert!(index.files()["amd64"].ends_with("echo.tar.gz"));
        assert_eq!(
            index.keys(),
            ["arguments = [\"-v\"]", "config = \"x\"", "manifest = { startTimeout = \"5s\" }"]
        );
        index.check("amd64", "ab").expect("the same digest");
        let other = index.check("amd64", "cd").expect_err("another digest").to_string();
        assert!(other.contains("another archive than the index says"), "{other}");
    }

    #[test]
    fn what_is_no_index_is_refused() {
        for (text, words) in [
            ("{", "no index"),
            (&*WHOLE.replace("\"schema_version\":1", "\"schema_version\":2"), "reads 1"),
            (
                r#"{"schema_version":1,"plugin":"a","revision":"1","entry_point":"x","archives":{}}"#,
                "no archive",
            ),
        ] {
            let error = index(text).expect_err(text).to_string();
            assert!(error.contains(words), "{error}");
        }
    }
}

//! `plugin.toml`: what the author of a plugin says about it, in the folder of its sources.
//!
//! ```text
//! plugin.toml ─► keys (which are not known, with the nearest) ─► document (types) ─► order ─► ConfigurePlugin
//!                                                                    └─► build (its command), choice of files
//! ```
//!
//! `pack`, `check` and `dev --plugin` read it. Bounds are those of `wire` in the core: an order is made of
//! the manifest and decoded as an agent would, so a manifest that can be read is one that agents take.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::install::pack::Choice;

pub mod build;
mod compression;
mod document;
mod keys;
mod order;
pub mod package;
mod problem;

pub use compression::Chosen;
pub use document::{ANY_ARCHITECTURE, Document, schema};
pub use problem::Problem;

/// The name of the file.
pub const FILE: &str = "plugin.toml";

/// Most bytes of a manifest: a configuration may have one MiB, and TOML may escape it.
const BYTES_MAX: u64 = 4 << 20;

/// A manifest, and where it is.
#[derive(Clone, Debug)]
pub struct PluginManifest {
    /// The folder that it is in.
    pub folder: PathBuf,
    /// What it says.
    pub says: Document,
}

/// Why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It, or a file that it names, cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// It is larger than any manifest has to be.
    #[error("{} is larger than {BYTES_MAX} bytes", .0.display())]
    TooLarge(PathBuf),
    /// It has mistakes; never empty.
    #[error("{} has {}", path.display(), Listed(problems))]
    Problems {
        /// The manifest.
        path: PathBuf,
        /// The mistakes, in the order of the file.
        problems: Vec<Problem>,
    },
}

struct Listed<'a>(&'a [Problem]);

// === impl PluginManifest ===

impl PluginManifest {
    /// Reads the manifest of a folder; `None` where the folder has none.
    ///
    /// # Errors
    /// It cannot be read, or has mistakes.
    pub fn find(folder: &Path) -> Result<Option<Self>, ManifestError> {
        let path = folder.join(FILE);
        let Some(text) = text_of(&path)? else { return Ok(None) };
        let wrong = |problems| ManifestError::Problems { path: path.clone(), problems };
        let mut says = parse(&text).map_err(wrong)?;
        if let Some(file) = says.config_file.take() {
            let file = folder.join(file);
            let missing = || ManifestError::Read {
                path: file.clone(),
                source: std::io::ErrorKind::NotFound.into(),
            };
            says.config = Some(document::Config::Text(text_of(&file)?.ok_or_else(missing)?));
            // A text that is too long is known now.
            order::check(&says, &keys::Places::of(&text))
                .map_err(|problem| wrong(vec![problem]))?;
        }
        Ok(Some(Self { folder: folder.to_owned(), says }))
    }

    /// The folder to pack, for an architecture.
    #[must_use]
    pub fn packed_folder(&self, architecture: &str) -> PathBuf {
        let folder = self.says.pack.folder.replace("{architecture}", architecture);
        if folder == "." { self.folder.clone() } else { self.folder.join(folder) }
    }

    /// Which of the files are packed. The manifest is not one of them: the order has what it says.
    #[must_use]
    pub fn choice(&self) -> Choice {
        let own = [FILE, ".git"].map(str::to_owned);
        let exclude = self.says.pack.exclude.iter().cloned().chain(own).collect();
        Choice::new(self.says.pack.include.clone(), exclude)
    }

    /// The architectures that it is packed for; [`ANY_ARCHITECTURE`] alone where it says nothing.
    #[must_use]
    pub fn architectures(&self) -> Vec<String> {
        match self.says.architectures.as_slice() {
            [] => vec![ANY_ARCHITECTURE.to_owned()],
            some => some.to_vec(),
        }
    }

    /// The one of its architectures that this machine runs.
    #[must_use]
    pub fn architecture_here(&self) -> Option<String> {
        let here = architecture();
        self.architectures().into_iter().find(|one| one == ANY_ARCHITECTURE || one == here)
    }
}

/// The architecture of this machine, in the spelling of Go.
#[must_use]
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        "loongarch64" => "loong64",
        other => other,
    }
}

/// Reads a manifest, without the files that it names.
///
/// # Errors
/// Every mistake that was found.
pub fn parse(text: &str) -> Result<Document, Vec<Problem>> {
    let places = keys::Places::of(text);
    let parsed = toml_edit::ImDocument::parse(text).map_err(|error| {
        let line = error.span().map_or(1, |span| places.line(span.start));
        let reason = format!("it is not TOML: {}", error.message().replace('\n', ", "));
        vec![Problem { line, reason }]
    })?;
    let unknown = keys::unknown(parsed.as_table(), &schema(), &places);
    if !unknown.is_empty() {
        return Err(unknown);
    }
    let document: Document = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| places.line(span.start));
        vec![Problem { line, reason: error.message().replace('\n', ", ") }]
    })?;
    order::check(&document, &places).map_err(|problem| vec![problem])?;
    Ok(document)
}

/// The text of a file; `None` where there is no such file.
fn text_of(path: &Path) -> Result<Option<String>, ManifestError> {
    use std::io::Read as _;

    let failed = |source| ManifestError::Read { path: path.to_owned(), source };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > BYTES_MAX {
        return Err(ManifestError::TooLarge(path.to_owned()));
    }
    Ok(Some(text))
}

// === impl Listed ===

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [one] => write!(f, "a mistake: {one}"),
            many => {
                write!(f, "{} mistakes: ", many.len())?;
                many.iter().enumerate().try_for_each(|(index, problem)| {
                    write!(f, "{}{problem}", if index == 0 { "" } else { "; " })
                })
            }
        }
    }
}

#[cfg(test)]
mod tests;

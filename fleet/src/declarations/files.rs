//! Finds and reads the files of declarations, within bounds.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use thiserror::Error;

use super::config::CONFIG_BYTES;

/// Most files of one reading.
pub const FILES: usize = 1000;
/// Longest file, in bytes.
pub const FILE_BYTES: u64 = 4 << 20;
/// How deep directories may be nested.
const DIRECTORIES_DEEP: usize = 16;
/// Most entries of directories that are looked at, files that are passed over included.
const ENTRIES: usize = 100_000;

/// How a file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// TOML.
    Toml,
    /// YAML.
    Yaml,
}

/// A file with declarations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path below the directory, which names it in problems.
    pub name: String,
    /// Its content.
    pub text: Vec<u8>,
    /// How it is written.
    pub format: Format,
}

/// Files with declarations, and what was passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The files, by name.
    pub files: Vec<Source>,
    /// What was passed over, and why: a sentence each.
    pub notes: Vec<String>,
    /// Where files named by `config_file` are looked up; `None` where there is no such place.
    pub root: Option<PathBuf>,
}

/// Why the files cannot be read.
#[derive(Debug, Error)]
pub enum SourcesError {
    /// A file or a directory cannot be read.
    #[error("failed to read `{}`", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
    /// There are too many files.
    #[error("`{}` has more than {FILES} files with declarations; apply a part of them at a time", .0.display())]
    TooMany(PathBuf),
    /// There are too many entries in its directories.
    #[error("`{}` has more than {ENTRIES} files of all kinds; give the declarations a directory of their own", .0.display())]
    TooMuch(PathBuf),
    /// A file is too long.
    #[error("`{}` is longer than {FILE_BYTES} bytes; split it", .0.display())]
    TooLong(PathBuf),
    /// A directory is too deep.
    #[error("`{}` is nested deeper than {DIRECTORIES_DEEP} directories; move its files up", .0.display())]
    TooDeep(PathBuf),
    /// A file that was named has an ending that stands for no format.
    #[error("`{}` ends with neither .toml nor .yaml; rename it", .0.display())]
    Format(PathBuf),
}

/// The files that `config_file` names.
#[derive(Debug, Default)]
pub(crate) struct ConfigFiles {
    root: Option<PathBuf>,
    /// Each is read once.
    known: BTreeMap<PathBuf, String>,
}

fn unread(path: &Path) -> impl FnOnce(io::Error) -> SourcesError + '_ {
    |cause| SourcesError::Read { path: path.to_owned(), cause }
}

fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "toml" => Some(Format::Toml),
        "yaml" | "yml" => Some(Format::Yaml),
        _ => None,
    }
}

/// At most so many bytes of a file; `None` where it has more.
fn read_at_most(path: &Path, bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut content = Vec::new();
    file.take(bytes + 1).read_to_end(&mut content)?;
    let length = u64::try_from(content.len()).unwrap_or(u64::MAX);
    Ok((length <= bytes).then_some(content))
}

// === impl Sources ===

impl Sources {
    /// Reads a file, or all files of a directory and those below it.
    ///
    /// # Errors
    /// When one of them cannot be read, or a bound is exceeded.
    pub fn read(path: &Path) -> Result<Self, SourcesError> {
        let metadata = fs::metadata(path).map_err(unread(path))?;
        let mut sources = Self::default();
        if metadata.is_dir() {
            sources.root = Some(path.to_owned());
            let mut room = ENTRIES;
            sources.directory(path, path, DIRECTORIES_DEEP, &mut room)?;
            return Ok(sources);
        }
        sources.root = path.parent().map(|parent| match parent.as_os_str().is_empty() {
            true => PathBuf::from("."),
            false => parent.to_owned(),
        });
        let format = format_of(path).ok_or_else(|| SourcesError::Format(path.to_owned()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sources.file(path, name, format)?;
        Ok(sources)
    }

    /// Files that somebody else read, by their names.
    ///
    /// # Errors
    /// There are too many, one is too long, or its name ends with neither `.toml` nor `.yaml`.
    pub fn of_texts(
        files: impl IntoIterator<Item = (String, Vec<u8>)>,
    ) -> Result<Self, SourcesError> {
        let mut sources = Self::default();
        for (name, text) in files {
            let path = Path::new(&name);
            let format = format_of(path).ok_or_else(|| SourcesError::Format(path.to_owned()))?;
            if u64::try_from(text.len()).is_ok_and(|length| length > FILE_BYTES) {
                return Err(SourcesError::TooLong(path.to_owned()));
            }
            if sources.files.len() >= FILES {
                return Err(SourcesError::TooMany(PathBuf::from("the request")));
            }
            sources.files.push(Source { name, text, format });
        }
        Ok(sources)
    }

    /// What was read from elsewhere, such as standard input: YAML when its first line that says
    /// something cannot be TOML.
    #[must_use]
    pub fn text(name: &str, text: Vec<u8>) -> Self {
        let format = guess(&String::from_utf8_lossy(&text));
        Self { files: vec![Source { name: name.to_owned(), text, format }], ..Self::default() }
    }

    fn directory(
        &mut self,
        root: &Path,
        path: &Path,
        depth: usize,
        room: &mut usize,
    ) -> Result<(), SourcesError> {
        let depth = depth.checked_sub(1).ok_or_else(|| SourcesError::TooDeep(path.to_owned()))?;
        let mut entries = Vec::new();
        for entry in fs::read_dir(path).map_err(unread(path))? {
            *room = room.checked_sub(1).ok_or_else(|| SourcesError::TooMuch(root.to_owned()))?;
            entries.push(entry.map_err(unread(path))?.path());
        }
        entries.sort();
        for entry in entries {
            let below = entry.strip_prefix(root).unwrap_or(&entry);
            let name = below.to_string_lossy().into_owned();
            let is_hidden = entry
                .file_name()
                .is_some_and(|name| name.as_encoded_bytes().first() == Some(&b'.'));
            if is_hidden {
                self.note(&name, "is hidden");
                continue;
            }
            let kind = fs::symlink_metadata(&entry).map_err(unread(&entry))?;
            if kind.is_dir() {
                self.directory(root, &entry, depth, room)?;
                continue;
            }
            let Some(format) = format_of(&entry) else {
                self.note(&name, "ends with neither .toml nor .yaml");
                continue;
            };
            if kind.is_symlink() && fs::metadata(&entry).map_err(unread(&entry))?.is_dir() {
                self.note(&name, "is a link to a directory");
                continue;
            }
            if self.files.len() >= FILES {
                return Err(SourcesError::TooMany(root.to_owned()));
            }
            self.file(&entry, name, format)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, name: String, format: Format) -> Result<(), SourcesError> {
        let text = read_at_most(path, FILE_BYTES)
            .map_err(unread(path))?
            .ok_or_else(|| SourcesError::TooLong(path.to_owned()))?;
        self.files.push(Source { name, text, format });
        Ok(())
    }

    fn note(&mut self, name: &str, why: &str) {
        const NOTES: usize = 100;
        if self.notes.len() < NOTES {
            self.notes.push(format!("{name:?} is passed over: it {why}"));
        }
    }
}

/// TOML begins with a table or `key = value`, YAML with `key:`, a hyphen or a brace.
fn guess(text: &str) -> Format {
    let lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let first =
        lines.skip_while(|line| line.is_empty() || line.starts_with('#')).map(str::to_owned).next();
    let is_toml = first.is_none_or(|line| {
        line.starts_with('[')
            || line.find('=').is_some_and(|sign| line.find(':').is_none_or(|colon| sign < colon))
    });
    if is_toml { Format::Toml } else { Format::Yaml }
}

// === impl ConfigFiles ===

impl ConfigFiles {
    /// The files below a directory.
    pub(crate) fn new(root: Option<PathBuf>) -> Self {
        Self { root, known: BTreeMap::new() }
    }

    /// The text of a file that is named beside a declaration in `file`; else the reason and the fix.
    pub(crate) fn read(&mut self, file: &str, path: &str) -> Result<String, (String, String)> {
        let fail = |reason: String, fix: &str| Err((reason, fix.to_owned()));
        let Some(root) = &self.root else {
            let fix = "write the configuration into `config`, or apply a directory";
            return fail("there is no directory in which the file could be".to_owned(), fix);
        };
        let inside =
            "name a file below the directory of the declarations, by its path from this file";
        let relative = Path::new(path);
        let is_plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if path.is_empty() || !is_plain {
            return fail("the path leads elsewhere".to_owned(), inside);
        }
        let beside = Path::new(file).parent().unwrap_or(Path::new(""));
        let whole = root.join(beside).join(relative);
        if let Some(text) = self.known.get(&whole) {
            return Ok(text.clone());
        }
        // A link must not bring another file of the machine into the ledger.
        let real = match (whole.canonicalize(), root.canonicalize()) {
            (Ok(real), Ok(root)) if real.starts_with(&root) => real,
            (Ok(_), Ok(_)) => return fail("a link leads out of the directory".to_owned(), inside),
            (Err(error), _) | (_, Err(error)) => {
                return fail(format!("the file cannot be read: {error}"), inside);
            }
        };
        let bytes = match read_at_most(&real, u64::try_from(CONFIG_BYTES).unwrap_or(u64::MAX)) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                let reason = format!("the file is longer than {CONFIG_BYTES} bytes");
                return fail(reason, "put what is so large into the archive");
            }
            Err(error) => return fail(format!("the file cannot be read: {error}"), inside),
        };
        let Ok(text) = String::from_utf8(bytes) else {
            return fail("the file is not UTF-8".to_owned(), "save it as UTF-8");
        };
        self.known.insert(whole, text.clone());
        Ok(text)
    }
}

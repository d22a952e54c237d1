//! Changes of the file of tokens, each at once or not at all: another process reads the former lines
//! or the new ones.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use guest_agent_actors::error::Chain;
use guest_agent_serve_kit::replace::{Access, replace_file};

use super::{BYTES_MAX, HttpToken, HttpTokens, TOKENS_MAX, Unusable};

/// Why a file was not changed.
#[derive(Debug, thiserror::Error)]
pub enum NotEdited {
    /// What is there cannot be trusted.
    #[error(transparent)]
    Unusable(#[from] Unusable),
    /// The change makes no sense for what is there.
    #[error("{0}")]
    Refused(String),
    /// It cannot be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Appends a token. A file that does not exist is made, for its owner alone.
///
/// # Errors
/// There is such a token, the file is full, or it cannot be read or written.
pub fn append(path: &Path, token: &HttpToken) -> Result<(), NotEdited> {
    change(path, |bytes| {
        let found = HttpTokens::parse(bytes);
        let name = &token.name;
        if lines_of(bytes, name).next().is_some() {
            return Err(format!(
                "there is a token with the name {name}; choose another name, or revoke that one first"
            ));
        }
        let room = BYTES_MAX.saturating_sub(bytes.len() as u64);
        let line = format!("{token}\n");
        if found.tokens.len() >= TOKENS_MAX || line.len() as u64 >= room {
            return Err(format!(
                "there is no room: a file has at most {TOKENS_MAX} tokens and {BYTES_MAX} bytes"
            ));
        }
        let mut changed = bytes.to_vec();
        if changed.last().is_some_and(|last| *last != b'\n') {
            changed.push(b'\n');
        }
        changed.extend_from_slice(line.as_bytes());
        Ok(changed)
    })
}

/// Deletes the lines of a token; returns whether requests without a token may look from then on, which
/// they could not before.
///
/// # Errors
/// There is no such token, or the file cannot be read or written.
pub fn delete(path: &Path, name: &str) -> Result<Opened, NotEdited> {
    let mut opened = Opened::No;
    change(path, |bytes| {
        let gone: Vec<usize> = lines_of(bytes, name).collect();
        if gone.is_empty() {
            return Err(format!("there is no token with the name {name}"));
        }
        let lines = bytes.split_inclusive(|byte| *byte == b'\n').enumerate();
        let kept = lines.filter(|(at, _)| !gone.contains(at)).flat_map(|(_, line)| line);
        let changed: Vec<u8> = kept.copied().collect();
        let [before, after] =
            [bytes, &changed].map(|bytes| HttpTokens::parse(bytes).keep_strangers_out());
        if before && !after {
            opened = Opened::Yes;
        }
        Ok(changed)
    })?;
    Ok(opened)
}

/// Whether a change lets requests without a token look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It does.
    Yes,
    /// It does not.
    No,
}

/// The lines, from 0 on, that begin with this name, whatever else is in them.
fn lines_of<'a>(bytes: &'a [u8], name: &'a str) -> impl Iterator<Item = usize> + 'a {
    let lines = bytes.split(|byte| *byte == b'\n').enumerate();
    lines
        .filter(move |(_, line)| {
            let text = String::from_utf8_lossy(line);
            text.split_whitespace().next() == Some(name)
        })
        .map(|(at, _)| at)
}

/// Replaces the file by what `edit` makes of it, or leaves it as it is.
fn change(
    path: &Path,
    edit: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<(), NotEdited> {
    // A link stays one.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let failed = |source| NotEdited::Write { path: path.clone(), source };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        Some(_) | None => Path::new("."),
    };
    // Two changes at once would lose one of them.
    let lock = File::open(folder).map_err(failed)?;
    lock.try_lock().map_err(|error| {
        NotEdited::Refused(format!(
            "{} is being changed by another process ({}); try again",
            path.display(),
            Chain(&error)
        ))
    })?;
    // Whose file it is is for the agent to judge, which may have a user of its own.
    let (bytes, stat) = match super::read(&path, |_| true) {
        Ok(bytes) => (bytes, Some(fs::metadata(&path).map_err(failed)?)),
        Err(Unusable::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            (Vec::new(), None)
        }
        Err(error) => return Err(error.into()),
    };
    let changed = edit(&bytes).map_err(NotEdited::Refused)?;
    // The agent may run as a user who could not read a file of root.
    let access = stat.map_or(Access::PRIVATE, |stat| Access {
        mode: stat.mode() & 0o755,
        owner: Some((stat.uid(), stat.gid())),
    });
    replace_file(&path, &changed, access).map_err(failed)
}

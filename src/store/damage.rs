//! Names, counts and clears away what was damaged: whole stores beside the one in use.
//!
//! A damaged store keeps its files under a name with a number, so that a person can examine them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// The beginning of the reason for quarantine, for a record whose bytes are not those that were
/// written.
pub(crate) const DAMAGED: &str = "damaged on disk: ";

/// The file of the database.
pub(super) const DATABASE: &str = "db";

/// The file in the folder that stands for a store that did not exist.
const LOST: &str = "LOST";

/// More bytes than its text has.
const LOST_BYTES_MAX: u64 = 8192;

/// How many damaged stores are kept.
const DAMAGED_KEPT: usize = 3;

/// Renames the store and deletes the oldest damaged ones beyond the number that is kept.
pub(super) fn move_away(dir: &Path) -> std::io::Result<PathBuf> {
    let mut damaged = damaged_stores(dir)?;
    damaged.sort_unstable_by_key(|(number, _)| *number);
    let number = damaged.last().map_or(1, |(number, _)| number.saturating_add(1));
    let moved_to = with_number(dir, number);
    fs::rename(dir, &moved_to)?;
    sync_parent(dir)?;
    let excess = (damaged.len() + 1).saturating_sub(DAMAGED_KEPT);
    for (_, path) in damaged.into_iter().take(excess) {
        if let Err(error) = fs::remove_dir_all(&path) {
            tracing::warn!(
                path = %path.display(), %error, "an old damaged store could not be deleted"
            );
        }
    }
    Ok(moved_to)
}

/// Makes a folder that stands for a store that did not exist, beside those of damaged ones, and
/// writes into it what traces the machine has. A folder that was made for the same loss is used
/// again.
pub(super) fn note_lost(dir: &Path, traces: &str) -> std::io::Result<PathBuf> {
    let mut damaged = damaged_stores(dir)?;
    damaged.sort_unstable_by_key(|(number, _)| *number);
    let newest = damaged.last();
    let unfinished =
        newest.filter(|(_, path)| path.join(LOST).exists() && !dir.join(DATABASE).exists());
    if let Some((_, path)) = unfinished {
        return Ok(path.clone());
    }
    let path = with_number(dir, newest.map_or(1, |(number, _)| number.saturating_add(1)));
    fs::DirBuilder::new().mode(0o700).create(&path)?;
    fs::write(path.join(LOST), format!("{traces}\n"))?;
    File::open(path.join(LOST))?.sync_all()?;
    File::open(&path)?.sync_all()?;
    sync_parent(dir)?;
    Ok(path)
}

/// Why a store that did not exist counts as lost; `None` for a store that existed and is damaged.
pub(super) fn lost_because(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path.join(LOST)).ok()?;
    file.take(LOST_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text.trim().to_owned())
}

fn damaged_stores(dir: &Path) -> std::io::Result<Vec<(u64, PathBuf)>> {
    let Some(parent) = dir.parent() else { return Ok(Vec::new()) };
    let prefix = format!("{}.damaged-", file_name(dir));
    let mut stores = Vec::new();
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix(&prefix)?.parse().ok());
        stores.extend(number.map(|number| (number, entry.path())));
    }
    Ok(stores)
}

/// The damaged stores that are kept, the oldest first.
pub(super) fn damaged_paths(dir: &Path) -> std::io::Result<Vec<String>> {
    let mut damaged = damaged_stores(dir)?;
    damaged.sort_unstable_by_key(|(number, _)| *number);
    Ok(damaged.into_iter().map(|(_, path)| path.to_string_lossy().into_owned()).collect())
}

/// The number of a damaged store.
pub(super) fn numbered(path: &Path) -> Option<u64> {
    path.to_str()?.rsplit_once('-')?.1.parse().ok()
}

fn with_number(dir: &Path, number: u64) -> PathBuf {
    dir.with_file_name(format!("{}.damaged-{number}", file_name(dir)))
}

fn file_name(dir: &Path) -> String {
    dir.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(super) fn sync_parent(dir: &Path) -> std::io::Result<()> {
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => Ok(()),
    }
}

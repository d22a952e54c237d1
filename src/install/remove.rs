//! Deletes everything that belongs to one plugin. The pipeline calls it on a blocking thread.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use guest_agent_actors::crash_point;
use guest_agent_actors::model::id::PluginName;

use super::folder::PluginFolder;
use crate::os::remove::{DeleteError, remove_below};

/// Deletes a plugin's revisions and its `current` link, its state, and its logs. If one of them
/// cannot be deleted, deletes the others all the same and returns the first error.
pub(super) fn everything(
    folder: &PluginFolder,
    name: &PluginName,
    state_root: &Path,
    log_dir: &Path,
) -> Result<(), DeleteError> {
    let files = folder.remove();
    crash_point::reach("after", "files removal", name.as_str());
    let state = remove_below(state_root, name.as_str());
    crash_point::reach("after", "state removal", name.as_str());
    let results = [files, state, delete_logs(name, log_dir)];
    results.into_iter().collect()
}

fn delete_logs(name: &PluginName, log_dir: &Path) -> Result<(), DeleteError> {
    let failed = |action, path: &Path, source| {
        Err(DeleteError::Io { action, path: path.to_owned(), source })
    };
    let entries = match std::fs::read_dir(log_dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return failed("list", log_dir, error),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => return failed("list", log_dir, error),
        };
        if !is_log_of(name, &entry.file_name()) {
            continue;
        }
        // This deletes a link and not what it points to.
        match std::fs::remove_file(entry.path()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return failed("delete", &entry.path(), error),
        }
    }
    Ok(())
}

/// `<name>.log` and older parts like `<name>.log.1`, but not the log of a plugin that is called
/// `<name>.log.1`.
fn is_log_of(name: &PluginName, file: &OsStr) -> bool {
    file.to_str()
        .and_then(|file| file.strip_prefix(name.as_str()))
        .and_then(|rest| rest.strip_prefix(".log"))
        .is_some_and(|rest| !rest.contains(".log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_logs_of_the_very_plugin_are_matched() {
        let name = "a".parse().expect("a name");
        for own in ["a.log", "a.log.1", "a.log.2.gz", "a.log.old"] {
            assert!(is_log_of(&name, OsStr::new(own)), "{own}");
        }
        for foreign in
            ["ab.log", "a.b.log", "a.log.log", "a.log.1.log", "a.log2.log.1", "a", "b.log"]
        {
            assert!(!is_log_of(&name, OsStr::new(foreign)), "{foreign}");
        }
    }
}

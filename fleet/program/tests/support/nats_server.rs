//! The program `nats-server`, which `tests/fleet/get-nats-server` gets.

use std::path::PathBuf;

/// The program, in the target folder or on the path. Where it is missing, a line on stderr says so.
#[must_use]
pub(crate) fn program() -> Option<PathBuf> {
    // The tests' own program is in `TARGET/debug/deps`.
    let own = std::env::current_exe().expect("the test has a program");
    let in_target = own.ancestors().map(|folder| folder.join("nats/nats-server"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("nats-server"));
    let found = in_target.chain(on_path).find(|file| file.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: nats-server is not here: run tests/fleet/get-nats-server");
    }
    found
}

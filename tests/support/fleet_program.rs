//! The program `guest-fleet`. It belongs to another package than these tests, so that cargo does not name it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// What it is made of, from the root of the repository.
const SOURCES: [&str; 12] = [
    "Cargo.lock",
    "fleet/Cargo.toml",
    "fleet/core/src",
    "fleet/ledger/src",
    "fleet/program/Cargo.toml",
    "fleet/program/src",
    "fleet/sessions/src",
    "fleet/src",
    "kits/cli/src",
    "kits/observe/src",
    "kits/serve/src",
    "proto/src",
];

/// Where it is. `cargo test --workspace` has built it; other commands may not, or may have left an old one.
pub(crate) fn path() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(found_or_built).clone()
}

fn found_or_built() -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_guest-agent")).parent().expect("a folder");
    let program = folder.join("guest-fleet");
    if !is_current(&program) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "guest-fleet", "--bin", "guest-fleet"]);
        let profile = folder.file_name().expect("the folder of a profile");
        // The one profile whose folder has another name.
        cargo.arg("--profile").arg(if profile == "debug" { "dev".as_ref() } else { profile });
        cargo.arg("--target-dir").arg(folder.parent().expect("the target folder"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().is_ok_and(|status| status.success()), "guest-fleet is not built");
    }
    program
}

/// Whether it is newer than all that it is made of. Cargo lists that in a file beside the program only
/// for `cargo build`.
fn is_current(program: &Path) -> bool {
    let Some(built) = changed(program) else { return false };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    SOURCES.iter().all(|source| newest(&root.join(source)).is_some_and(|at| at <= built))
}

/// When a file changed, or the newest one below a folder.
fn newest(path: &Path) -> Option<SystemTime> {
    let own = changed(path)?;
    let Ok(entries) = std::fs::read_dir(path) else { return Some(own) };
    let below = entries.filter_map(|entry| newest(&entry.ok()?.path()));
    Some(below.fold(own, SystemTime::max))
}

fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().ok()?.modified().ok()
}

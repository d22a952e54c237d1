//! The program `guest-fleet`. It belongs to another package than these tests, so that cargo does not name it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

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

/// Whether it is newer than all sources that cargo lists beside it.
fn is_current(program: &Path) -> bool {
    let changed = |path: &Path| -> Option<SystemTime> { path.metadata().ok()?.modified().ok() };
    let Some(built) = changed(program) else { return false };
    let list = std::fs::read_to_string(program.with_extension("d")).unwrap_or_default();
    let Some((_, sources)) = list.split_once(": ") else { return false };
    sources.split_whitespace().all(|path| changed(Path::new(path)).is_some_and(|at| at <= built))
}

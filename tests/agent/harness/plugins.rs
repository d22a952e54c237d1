//! The example plugins of the SDK, as programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// All of them.
pub(crate) const PROGRAMS: [&str; 8] = [
    "admission_policy",
    "admission_trouble",
    "echo_plugin",
    "new_project",
    "one_shot",
    "registry_consumer",
    "registry_provider",
    "trouble_plugin",
];

/// The path of an example's program. The examples are built first when they are missing or older
/// than their sources, because testing this package alone does not build them.
pub(crate) fn program(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let folder = BUILT.get_or_init(|| {
        let agent = Path::new(env!("CARGO_BIN_EXE_guest-agent"));
        let profile = agent.parent().expect("a program is in a folder");
        let examples = profile.join("examples");
        if !is_fresh(&examples) {
            build(profile);
        }
        examples
    });
    folder.join(name)
}

fn is_fresh(examples: &Path) -> bool {
    let sdk = Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk/rust");
    let sources = ["src", "examples", "../../src/scaffold/templates/rust"];
    let newest_source = sources.iter().filter_map(|it| newest(&sdk.join(it))).max();
    let oldest_program = PROGRAMS.map(|name| modified(&examples.join(name))).into_iter();
    match oldest_program.min().flatten() {
        Some(built) => newest_source.is_none_or(|changed| changed <= built),
        None => false,
    }
}

fn newest(folder: &Path) -> Option<SystemTime> {
    let times = super::listing(folder);
    times.iter().filter_map(|path| if path.is_dir() { newest(path) } else { modified(path) }).max()
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|metadata| metadata.modified()).ok()
}

fn build(profile: &Path) {
    let name = profile.file_name().and_then(|name| name.to_str()).expect("a profile's folder");
    let target = profile.parent().expect("a profile's folder is in the target directory");
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "guest-agent-plugin", "--examples", "--profile"])
        // The one profile whose folder has another name.
        .arg(if name == "debug" { "dev" } else { name })
        .arg("--target-dir")
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo can be run");
    assert!(status.success(), "the example plugins cannot be built");
}

//! The smallest recipe of `CONTRIBUTING.md`, a check of `doctor`, is applied as it is printed
//! there, and builds.

use std::path::Path;
use std::process::Command;

use crate::pages;

/// What a build of the agent takes from the repository.
const SOURCES: [&str; 15] = [
    ".cargo",
    "Cargo.lock",
    "Cargo.toml",
    "actors",
    "benches",
    "clippy.toml",
    "config",
    "kits",
    "lab",
    "docs",
    "fleet",
    "packaging",
    "plugin-sdk",
    "proto",
    "src",
];

/// The block of a page that holds a patch.
fn patch(page: &str) -> String {
    let (_, from) = page.split_once("```diff\n").expect("a block with a patch");
    let (patch, _) = from.split_once("```\n").expect("the end of the block");
    patch.to_owned()
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        std::fs::create_dir_all(to).expect("a folder can be made");
        for entry in std::fs::read_dir(from).expect("a folder") {
            let entry = entry.expect("an entry");
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        std::fs::copy(from, to).expect("a file can be copied");
    }
}

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} ended with {}:\n{said}", output.status);
}

#[test]
#[ignore = "takes minutes: `tests/run soak pages`"]
fn the_recipe_for_a_check_of_doctor_applies_and_builds() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in SOURCES {
        copy(&pages::root().join(name), &folder.path().join(name));
    }
    // The targets of tests and benchmarks are named in the manifest, so cargo wants their folder.
    copy(&pages::root().join("tests"), &folder.path().join("tests"));
    let file = folder.path().join("recipe.patch");
    std::fs::write(&file, patch(&pages::text("CONTRIBUTING.md"))).expect("a file can be written");
    run(Command::new("git").args(["apply", "recipe.patch"]).current_dir(folder.path()));
    let added = std::fs::read_to_string(folder.path().join("src/doctor.rs")).expect("the list");
    assert!(added.contains("name::check"), "the patch did not reach the list of checks");
    let mut check = Command::new(env!("CARGO"));
    check
        .args(["check", "--offline", "--locked", "--package", "guest-agent", "--lib"])
        .env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("recipe"))
        .env("RUSTFLAGS", "-D warnings")
        .current_dir(folder.path());
    run(&mut check);
}

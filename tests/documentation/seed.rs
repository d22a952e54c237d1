//! `.ci/seed`: what it keeps of a build is whole and not ours, however many runs keep and take at once.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::pages;

/// Crates of a build; the second is ours.
const CRATES: [&str; 3] = ["itoa", "guest-agent", "serde_json"];

/// So many builds end at once.
const RUNS: usize = 4;

/// A build folder as cargo lays it out; every file says whose it is.
fn build(target: &Path, whose: usize) {
    let debug = target.join("debug");
    for (number, name) in CRATES.iter().enumerate() {
        let unit = format!("{name}-{number:016x}");
        let file = format!("lib{}-{number:016x}.rlib", name.replace('-', "_"));
        let files = [
            format!(".fingerprint/{unit}/hash"),
            format!("build/{unit}/output"),
            format!("deps/{file}"),
        ];
        for file in files {
            let path = debug.join(file);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
            std::fs::write(path, whose.to_string()).expect("it is written");
        }
    }
}

fn seed(verb: &str, cache: &Path, target: &Path) -> Child {
    let mut command = Command::new(pages::root().join(".ci/seed"));
    command.arg(verb).arg(target).env("XDG_CACHE_HOME", cache).stdout(Stdio::piped());
    command.spawn().expect("bash is there")
}

fn said(child: Child) -> String {
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The paths below a folder, and whose they are.
fn files(folder: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let whose = std::fs::read_to_string(&path).expect("a file");
                let name = path.strip_prefix(folder).expect("it is below").display().to_string();
                found.push((name, whose));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn runs_that_end_at_once_keep_one_whole_build_of_what_is_not_ours() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cache, target) = (folder.path().join("cache"), |run| folder.path().join(format!("{run}")));
    (0..RUNS).for_each(|run| build(&target(run), run));
    let keeping: Vec<_> = (0..RUNS).map(|run| seed("keep", &cache, &target(run))).collect();
    // A run that takes before anything is kept finds nothing, and never a part of a build.
    let taking: Vec<_> = (RUNS..2 * RUNS).map(|run| seed("take", &cache, &target(run))).collect();
    let told: Vec<String> = keeping.into_iter().map(said).collect();
    if told.iter().any(|line| line.contains("of the disk are free")) {
        eprintln!("SKIPPED: .ci/seed keeps nothing on a disk that is nearly full");
        return;
    }
    assert_eq!(told.iter().filter(|line| line.contains("MiB kept in")).count(), 1, "{told:?}");
    taking.into_iter().map(said).for_each(drop);
    assert!(said(seed("take", &cache, &target(2 * RUNS))).contains("taken from"));
    let mut whole = 0;
    for run in RUNS..=2 * RUNS {
        let debug = target(run).join("debug");
        if !debug.exists() {
            continue;
        }
        let found = files(&debug);
        let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        let expected = [
            ".fingerprint/itoa-0000000000000000/hash",
            ".fingerprint/serde_json-0000000000000002/hash",
            "build/itoa-0000000000000000/output",
            "build/serde_json-0000000000000002/output",
            "deps/libitoa-0000000000000000.rlib",
            "deps/libserde_json-0000000000000002.rlib",
        ];
        assert_eq!(names, expected);
        assert!(
            found.iter().all(|(_, whose)| *whose == found[0].1),
            "of several builds: {found:?}"
        );
        whole += 1;
    }
    assert!(whole > 0);
    // The copies of the other runs are gone.
    let left = std::fs::read_dir(cache.join("guest-agent/deps")).expect("the cache").count();
    assert_eq!(left, 1);
    // A build that is there is left alone.
    assert!(said(seed("take", &cache, &target(0))).contains("there is a build already"));
}

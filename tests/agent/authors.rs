//! What authors of plugins have: a manifest, projects to begin with, and checks that find what is wrong.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::process::Command;

use crate::harness::{Bed, copy_program, plugins};

/// The program that is tried.
const PROGRAM: &str = env!("CARGO_BIN_EXE_guest-agent");

/// The gallery: what is wrong with a plugin, and the check that has to find it.
const GALLERY: [(&str, &str); 16] = [
    ("refuses-start", "start"),
    ("deaf", "health"),
    ("dies-of-questions", "question"),
    ("dies-of-config", "apply-garbage"),
    ("rude", "apply-text"),
    ("fears-the-machine", "vm-event"),
    ("slow-stop", "stop"),
    ("stays", "stop"),
    ("cannot-come-back", "kill"),
    ("litters", "restarts"),
    ("needs-disk", "full-disk"),
    ("writes-at-home", "read-only"),
    ("needs-home", "environment"),
    ("needs-host", "host-socket"),
    ("needs-root", "unprivileged"),
    ("stays", "removal"),
];

/// How many checks run beside each other.
const AT_ONCE: usize = 4;

/// Longest that a build with tools of another language may take, which may fetch packages, and longest
/// that a check may.
const BUILD: Duration = Duration::from_secs(180);

/// A plugin as a folder of sources: the sample plugin, with a flaw or without one.
pub(crate) fn sources(flaw: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let flaw = flaw.map(|flaw| format!(", \"--flaw\", {flaw:?}")).unwrap_or_default();
    let manifest = format!(
        "name = \"greeter\"\nentry_point = \"run\"\narguments = [\"sample-plugin\"{flaw}]\nconfig = \"hello\"\n\
         [start]\nattempts = 1\ntimeout = \"20s\"\n[stop]\ntimeout = \"2s\"\n\
         [build]\ncommand = \"mkdir -p package && install -m 0755 run.sh package/run\"\n\
         [pack]\nfolder = \"package\"\n"
    );
    std::fs::write(folder.path().join("plugin.toml"), manifest).unwrap();
    let script = format!("#!/bin/sh\nexec '{PROGRAM}' \"$@\"\n");
    std::fs::write(folder.path().join("run.sh"), script).unwrap();
    folder
}

async fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).env("HOME", "/").kill_on_drop(true);
    command.output().await.unwrap()
}

/// What `check --json` says of a folder.
async fn check(folder: &Path, more: &[&str]) -> (Output, Value) {
    let folder = folder.to_str().unwrap();
    let output = run(&[&["check", folder, "--json", "--pause", "100ms"], more].concat()).await;
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    crate::harness::contract::verdict("check", &report).unwrap();
    (output, report)
}

#[tokio::test]
async fn the_good_example_passes_every_check_that_this_machine_can_run() {
    let folder = sources(None);
    let junit = folder.path().join("check.xml");
    let record = folder.path().join("record.json");
    let files = ["--junit", junit.to_str().unwrap(), "--record", record.to_str().unwrap()];
    let (output, report) = check(folder.path(), &files).await;
    let checks = report["checks"].as_array().unwrap();
    assert!(output.status.success(), "{report:#}");
    assert_eq!(checks.len(), 22);
    let of = |result: &str| checks.iter().filter(|it| it["result"] == result).count();
    assert_eq!(of("failed"), 0, "{report:#}");
    assert!(of("passed") >= 15, "{report:#}");
    let xml = std::fs::read_to_string(junit).unwrap();
    assert!(xml.contains("tests=\"22\" failures=\"0\""), "{xml}");
    // The agent and the plugin of the check are gone.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains("/private/state/greeter"), "{mounts}");
    a_plan_takes_the_record(folder.path(), &record).await;
}

/// What `check` says of a folder holds for the archive that `pack` makes of it, and for no other.
async fn a_plan_takes_the_record(sources: &Path, record: &Path) {
    let said: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    crate::harness::contract::verdict("check-record", &said).unwrap();
    let bed = Bed::new().await;
    let archive = bed.dir().join("greeter.tar.gz").to_str().unwrap().to_owned();
    bed.cli(&["pack", sources.to_str().unwrap(), "-o", &archive]).await.ok();
    let plan = ["plan", "-f", &archive, "--require-check"];
    let refused = bed.cli(&plan).await;
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("greeter.tar.gz.check.json is not there"),
        "{}",
        refused.stdout
    );
    std::fs::copy(record, format!("{archive}.check.json")).unwrap();
    let proved = bed.cli(&plan).await.ok();
    assert!(proved.contains("check: passed at "), "{proved}");
    std::fs::write(sources.join("package/more"), "another archive").unwrap();
    bed.cli(&["pack", sources.to_str().unwrap(), "-o", &archive]).await.ok();
    let refused = bed.cli(&plan).await;
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert!(
        refused.stdout.contains("it is the record of an archive with the checksum"),
        "{}",
        refused.stdout
    );
    bed.finish().await;
}

#[tokio::test]
async fn each_broken_plugin_of_the_gallery_is_found() {
    let found = stream::iter(GALLERY)
        .map(|(flaw, trial)| async move {
            let folder = sources(Some(flaw));
            let (output, report) = check(folder.path(), &["--only", trial]).await;
            let checks = report["checks"].as_array().unwrap().clone();
            let finding = checks.into_iter().find(|it| it["check"] == trial).unwrap();
            (flaw, output.status.success(), finding)
        })
        .buffer_unordered(AT_ONCE)
        .collect::<Vec<_>>()
        .await;
    for (flaw, passed, finding) in found {
        if finding["result"] == "skipped" {
            eprintln!("SKIPPED: {flaw}: {}", finding["what"]);
            continue;
        }
        // A plugin need not run without privileges.
        let is_required = finding["required"] == true;
        let expected = if is_required { "failed" } else { "warned" };
        assert_eq!(finding["result"], expected, "{flaw}: {finding:#}");
        assert!(passed != is_required && finding["fix"].is_string(), "{flaw}: {finding:#}");
    }
}

#[tokio::test]
async fn a_manifest_takes_a_plugin_from_its_sources_to_a_machine() {
    let bed = Bed::new().await;
    let folder = sources(None);
    let archive = bed.dir().join("greeter.tar.gz").to_str().unwrap().to_owned();
    let sources = folder.path().to_str().unwrap();
    bed.cli(&["pack", sources, "-o", &archive, "--build", "--revision", "1"]).await.ok();
    bed.cli(&["install", "-f", &archive, "--wait"]).await.ok();
    bed.running("greeter", "1").await;
    assert_eq!(bed.ask("greeter", "you").await.results, ["hello, you"]);
    bed.cli(&["remove", "greeter", "--wait"]).await.ok();
    bed.gone("greeter").await;
    bed.finish().await;
}

/// Takes a fresh project through its tools, with the SDK of this checkout. Its program is built by its own
/// command, or is there already: `built` then looks at the project and puts the program where the command would.
async fn project_lives(
    language: &str,
    variables: &[(&str, &str)],
    built: Option<fn(project: &Path)>,
) {
    let mut builder = Bed::builder();
    for (name, value) in variables {
        builder = builder.variable(name, *value);
    }
    let bed = builder.start().await;
    let folder = bed.dir().join("hello").to_str().unwrap().to_owned();
    let sdk = sdk().to_str().unwrap().to_owned();
    bed.cli(&["new", &folder, "--lang", language, "--sdk", &sdk]).await.ok();
    let archive = bed.dir().join("hello.tar.gz").to_str().unwrap().to_owned();
    let mut pack = vec!["pack", &folder, "-o", &archive, "--revision", "1"];
    match built {
        None => pack.push("--build"),
        Some(built) => built(Path::new(&folder)),
    }
    bed.cli_within(BUILD, &pack).await.ok();
    let check =
        ["check", &archive, "--only", "apply-garbage", "--only", "stop", "--only", "removal"];
    bed.cli_within(BUILD, &check).await.ok();
    bed.cli(&["install", "-f", &archive, "--wait"]).await.ok();
    bed.running("hello", "1").await;
    assert_eq!(bed.ask("hello", "you").await.results, ["hello, you"]);
    bed.cli(&["remove", "hello", "--wait"]).await.ok();
    bed.gone("hello").await;
    bed.finish().await;
}

fn sdk() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk")
}

#[tokio::test]
async fn a_new_project_in_python_is_checked_packed_installed_and_removed() {
    let interpreter = std::env::var("GUEST_AGENT_PYTHON").ok();
    match interpreter.filter(|_| sdk().join("python/pyproject.toml").exists()) {
        Some(python) => project_lives("python", &[("PYTHON", &python)], None).await,
        None => eprintln!("SKIPPED: no project in Python: GUEST_AGENT_PYTHON names no interpreter"),
    }
}

#[tokio::test]
async fn a_new_project_in_go_is_checked_packed_installed_and_removed() {
    let module = sdk().join("go");
    let ready =
        std::process::Command::new("go").args(["mod", "download"]).current_dir(&module).output();
    if !module.exists() || !ready.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no project in Go: there is no `go`, or its modules cannot be had");
        return;
    }
    project_lives("go", &[], None).await;
}

/// Whether the project is what `sdk/rust` compiles as its example `new_project`, and cargo finds everything that its
/// manifest asks for. Building it again, with dependencies of its own, would take minutes of every run.
fn rust_project_is_the_example(project: &Path) {
    let program = std::fs::read_to_string(project.join("src/main.rs")).unwrap();
    let template = "src/scaffold/templates/rust/main.rs.in";
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(program, std::fs::read_to_string(workspace.join(template)).unwrap());
    // The versions that are here.
    std::fs::copy(workspace.join("Cargo.lock"), project.join("Cargo.lock")).unwrap();
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let found = std::process::Command::new(env!("CARGO"))
        .args(["metadata", "--offline", "--format-version", "1", "--filter-platform", &platform])
        .current_dir(project)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&found.stderr);
    assert!(found.status.success(), "the project's Cargo.toml is not resolved: {printed}");
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    let root = found["resolve"]["root"].as_str().unwrap();
    let nodes = found["resolve"]["nodes"].as_array().unwrap();
    let project_node = nodes.iter().find(|node| node["id"] == root).unwrap();
    let needs: Vec<_> = project_node["deps"].as_array().unwrap().iter().collect();
    let mut names: Vec<_> = needs.iter().map(|it| it["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["guest_agent_plugin", "tokio"]);
    let sdk = sdk().join("rust").display().to_string();
    let packages: Vec<_> = needs.iter().map(|it| it["pkg"].as_str().unwrap()).collect();
    assert!(packages.iter().any(|it| it.contains(&sdk)), "{packages:?}");
    let folder = project.join("package");
    std::fs::create_dir(&folder).unwrap();
    copy_program(&plugins::program("new_project"), &folder.join("hello"));
}

#[tokio::test]
async fn a_new_project_in_rust_is_compiled_checked_packed_installed_and_removed() {
    project_lives("rust", &[], Some(rust_project_is_the_example)).await;
}

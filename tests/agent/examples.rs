//! The plugins of `examples/`, built, packed and installed as their READMEs say.

use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

/// A folder of `examples/`.
fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {printed}");
}

/// Packs a folder, installs the archive, and takes the plugin from its installation to its removal.
/// Both examples are the same plugin.
async fn lives(folder: &Path, program: &str) {
    let mut bed = Bed::new().await;
    let folder = folder.to_str().unwrap();
    let archive = bed.dir().join("greeter.tar.gz").to_str().unwrap().to_owned();
    let pack = ["pack", folder, "-o", &archive, "--name", "greeter", "--entry-point", program];
    bed.cli(&[&pack[..], &["--revision", "1"]].concat()).await.ok();
    bed.cli(&["install", "-f", &archive, "--wait"]).await.ok();
    let first = bed.running("greeter", "1").await;
    assert_eq!(bed.ask("greeter", "you").await.results, ["hello, you"]);

    bed.cli(&["apply", "greeter", "--string", "salut", "--wait"]).await.ok();
    assert_eq!(bed.ask("greeter", "you").await.results, ["salut, you"]);
    let refused = bed.cli(&["apply", "greeter", "--string", "two\nlines", "--wait"]).await;
    assert!(refused.stderr.contains("a greeting is one line"), "{refused:?}");
    assert_eq!(bed.ask("greeter", "you").await.results, ["salut, you"]);
    let told = bed.cli(&["vm-event", "specialize"]).await.ok();
    assert!(told.contains("does not implement"), "{told}");

    bed.kill_agent().await;
    bed.start_agent().await;
    let adopted = bed.running("greeter", "1").await;
    assert_eq!(adopted.pid, first.pid, "it was adopted");
    signal(first.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("greeter", &first).await;
    assert_eq!(bed.ask("greeter", "you").await.results, ["salut, you"]);
    let printed = bed.plugin_output("greeter");
    assert!(printed.contains("started; 3 greetings so far"), "its files survive: {printed}");

    bed.cli(&[&pack[..], &["--revision", "2"]].concat()).await.ok();
    bed.cli(&["install", "-f", &archive, "--wait"]).await.ok();
    bed.running("greeter", "2").await;
    assert!(bed.plugin_output("greeter").contains("stopping; cleanup: false"));
    bed.configure(vec![orders::remove("greeter")]).await;
    bed.gone("greeter").await;
    bed.finish().await;
}

#[tokio::test]
async fn the_example_in_go_is_built_packed_installed_and_lives() {
    let example = example("go-plugin");
    let version = Command::new("go").arg("version").current_dir(&example).output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "SKIPPED: no plugin in Go: there is no `go` that can read examples/go-plugin/go.mod"
        );
        return;
    }
    let download = Command::new("go").args(["mod", "download"]).current_dir(&example).output();
    if !download.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no plugin in Go: its modules cannot be had");
        return;
    }
    // Built before there is a world that would wait for it.
    let folder = tempfile::tempdir().unwrap();
    succeeds(
        Command::new("go")
            .args(["build", "-mod=readonly", "-trimpath", "-o"])
            .arg(folder.path().join("greeter"))
            .arg(".")
            .env("CGO_ENABLED", "0")
            .current_dir(&example),
    );
    lives(folder.path(), "greeter").await;
}

#[tokio::test]
async fn the_example_in_python_is_built_packed_installed_and_lives() {
    let Some(interpreter) = std::env::var_os("GUEST_AGENT_PYTHON") else {
        eprintln!(
            "SKIPPED: no example in Python: GUEST_AGENT_PYTHON names no interpreter with grpcio"
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let build = example("python-plugin").join("build");
    succeeds(Command::new(build).arg(folder.path()).env("PYTHON", interpreter));
    lives(folder.path(), "greeter.py").await;
}

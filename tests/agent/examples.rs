//! The plugins of `examples/`, built, packed and installed as their READMEs say.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

/// Longest that an interpreter may take to load a plugin and to listen.
const START_PATIENCE: Duration = Duration::from_secs(30);

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
    assert!(printed.contains("started greetings=3"), "its files survive: {printed}");

    bed.cli(&[&pack[..], &["--revision", "2"]].concat()).await.ok();
    bed.cli(&["install", "-f", &archive, "--wait"]).await.ok();
    bed.running("greeter", "2").await;
    assert!(bed.plugin_output("greeter").contains("stopping cleanup=false"));
    bed.configure(vec![orders::remove("greeter")]).await;
    bed.gone("greeter").await;
    bed.finish().await;
    listens_on_this_machine_only(Path::new(folder).join(program)).await;
}

/// Google's agent passes `[::]:PORT` to every plugin.
async fn listens_on_this_machine_only(program: PathBuf) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut plugin = Command::new(program)
        .args(["--protocol=tcp", &format!("--address=[::]:{port}")])
        .spawn()
        .unwrap();
    let connected = tokio::time::timeout(START_PATIENCE, async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let connected = connected.await;
    let listeners = listeners(port);
    plugin.kill().unwrap();
    plugin.wait().unwrap();
    connected.expect("the plugin listens on 127.0.0.1");
    // As the kernel writes 127.0.0.1, ::ffff:127.0.0.1 and ::1.
    let of_this_machine =
        ["0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"];
    assert!(listeners.iter().all(|it| of_this_machine.contains(&it.as_str())), "{listeners:?}");
}

/// The addresses on which somebody listens on a port, as `/proc/net/tcp` and `tcp6` have them.
fn listeners(port: u16) -> Vec<String> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let lines = tables.into_iter().flatten();
    let local = lines.flat_map(|table| {
        let listening = table.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (*fields.get(3)? == "0A").then(|| fields[1].to_owned())
        });
        listening.collect::<Vec<_>>()
    });
    let of_port = local.filter_map(|local| {
        let (address, found) = local.split_once(':')?;
        (found == format!("{port:04X}")).then(|| address.to_owned())
    });
    of_port.collect()
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

//! An upgrade from the artifact server of a fleet: only what changed comes over the network. And each
//! end against other implementations, where the machine has them: those of Python and Go
//! (`tests/python/dictionary.py`, `tests/go/dictionary`), and a browser.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::LazyLock;

use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::console::Browser;
use crate::fleet_program;
use crate::harness::archive::{Archive, ArchiveSpec, Tarball, noise};
use crate::harness::{Bed, PATIENCE, RESOURCE, orders};

/// What the fleet says of the deltas that it sent.
const SENT: &str = "guest_fleet_artifact_sent_bytes_total{coding=\"dcz\"}";

/// Bytes of the plugin that stay the same.
const PADDING: usize = 400_000;

/// `guest-fleet serve` in a folder, and where it serves artifacts and metrics.
struct Served {
    child: Child,
    artifacts: String,
    http: String,
}

impl Served {
    async fn start(bed: &Bed) -> Self {
        let listen = format!("unix:{}", bed.dir().join("cp.sock").display());
        let mut child = Command::new(fleet_program::path())
            .args(["--ledger", "ledger.db", "serve", "--listen", &listen])
            .args(["--artifacts", "artifacts", "--http-listen", "127.0.0.1:0"])
            .current_dir(bed.dir())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut artifacts, mut http) = (String::new(), String::new());
        let reading = async {
            while http.is_empty() {
                let line = lines.next_line().await.unwrap().expect("it serves");
                if let Some(endpoint) = line.strip_prefix("artifacts http://") {
                    artifacts = endpoint.to_owned();
                }
                if let Some(endpoint) = line.strip_prefix("http http://") {
                    http = endpoint.to_owned();
                }
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.expect("it serves");
        // What it says later is not read; it must not wait for that.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Self { child, artifacts, http }
    }

    /// Runs a verb.
    async fn run(bed: &Bed, arguments: &[&str]) -> String {
        let output = Command::new(fleet_program::path())
            .args(["--ledger", "ledger.db"])
            .args(arguments)
            .current_dir(bed.dir())
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The head of an answer to a HEAD of an artifact, for one who has another one.
    async fn head(&self, digest: &str, has: &str) -> String {
        let request = format!(
            "HEAD /artifacts/echo/{digest} HTTP/1.1\r\nhost: fleet\r\nconnection: close\r\n\
             accept-encoding: dcz\r\navailable-dictionary: {has}\r\n\r\n"
        );
        ask(&self.artifacts, &request).await
    }

    /// Waits until there is a delta between two artifacts; returns how many bytes it has.
    async fn delta(&self, bed: &Bed, to: &str, from: &str) -> u64 {
        let delta = bed
            .within(PATIENCE * 4, "the fleet has made the delta", async || {
                let head = self.head(to, &dictionary(from)).await;
                let length = head.split_once("content-length: ")?.1.split_once('\r')?.0.to_owned();
                head.contains("content-encoding: dcz").then(|| length.parse::<u64>().unwrap())
            })
            .await;
        assert!(delta < 10_000, "{delta} bytes");
        delta
    }

    /// A figure of its metrics.
    async fn figure(&self, name: &str) -> u64 {
        let request = "GET /metrics HTTP/1.1\r\nhost: fleet\r\nconnection: close\r\n\r\n";
        figure(&ask(&self.http, request).await, name)
    }
}

async fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.to_lowercase()
}

/// The value of a sample.
fn figure(page: &str, name: &str) -> u64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value: f64 = line.unwrap_or_else(|| panic!("{name} in {page}")).trim().parse().unwrap();
    format!("{value:.0}").parse().unwrap()
}

/// What two revisions of a plugin have beside the program. A little of it changed.
fn paddings() -> (Vec<u8>, Vec<u8>) {
    let padding: Vec<u8> = noise().take(PADDING / 8).flat_map(u64::to_le_bytes).collect();
    let mut changed = padding.clone();
    changed[100_000..100_010].copy_from_slice(b"it changed");
    (padding, changed)
}

/// The name of a dictionary in requests, of a digest in hexadecimal digits.
fn dictionary(digest: &str) -> String {
    use base64::Engine;
    let byte = |place: usize| u8::from_str_radix(&digest[place..place + 2], 16).unwrap();
    let raw: Vec<u8> = (0..64).step_by(2).map(byte).collect();
    format!(":{}:", base64::engine::general_purpose::STANDARD.encode(raw))
}

/// Writes a revision of the echo plugin as a plain archive, pushes it and declares its release.
/// Returns its digest.
async fn release(bed: &Bed, revision: &str, padding: &[u8]) -> String {
    let data = Tarball::default().file("share/data", 0o644, padding);
    let bytes = ArchiveSpec::echo().with(data).into_bytes().await;
    let archive = format!("echo-{revision}.tar");
    std::fs::write(bed.dir().join(&archive), &bytes).unwrap();
    let arguments = ["artifact", "push", &archive, "--artifacts", "artifacts", "--plugin", "echo"];
    let more = ["--revision", revision, "--entry-point", "run"];
    let declared = Served::run(bed, &[&arguments[..], &more].concat()).await;
    let file = format!("release-{revision}.toml");
    std::fs::write(bed.dir().join(&file), &declared).unwrap();
    Served::run(bed, &["apply", "-f", &file]).await;
    let digest = declared.split_once("sha256 = \"").unwrap().1;
    digest[..64].to_owned()
}

async fn assign(bed: &Bed, revision: &str) {
    let assignment = format!(
        "[[assignment]]\nname = \"echo-all\"\nplugin = \"echo\"\nrevision = \"{revision}\"\n\
         select = \"env = prod\"\n"
    );
    std::fs::write(bed.dir().join("assignment.toml"), assignment).unwrap();
    Served::run(bed, &["apply", "-f", "assignment.toml"]).await;
}

#[tokio::test]
async fn an_upgrade_by_a_fleet_costs_the_bytes_of_what_changed() {
    let mut bed = Bed::builder().set("install.cache_max_bytes=268435456").build().await;
    bed.stop_control_plane().await;
    let fleet = Served::start(&bed).await;
    let (padding, changed) = paddings();
    let first = release(&bed, "1", &padding).await;
    assign(&bed, "1").await;
    bed.spawn_agent();
    bed.until("the agent can be labelled", async || {
        let label = Command::new(fleet_program::path())
            .args(["--ledger", "ledger.db", "agent", "label", RESOURCE, "env=prod"])
            .current_dir(bed.dir())
            .output()
            .await
            .unwrap();
        label.status.success().then_some(())
    })
    .await;
    bed.running("echo", "1").await;

    let second = release(&bed, "2", &changed).await;
    let delta = fleet.delta(&bed, &second, &first).await;
    assert_eq!(fleet.figure(SENT).await, 0);
    bed.until("the cache of the agent has the first archive", async || {
        cached(&bed.state_root(), &first).then_some(())
    })
    .await;
    assign(&bed, "2").await;
    bed.running("echo", "2").await;

    // Both ends counted the same bytes: those of the delta and no others.
    assert_eq!(fleet.figure(SENT).await, delta);
    let events = bed
        .until("the event says how it came", async || {
            let said = bed.cli(&["events", "--json"]).await;
            said.stdout.contains("what changed").then_some(said.stdout)
        })
        .await;
    assert!(events.contains(&format!("{delta} bytes")), "{events}");
    let explained = bed.cli(&["explain", "echo", "--json"]).await;
    assert!(explained.stdout.contains("what changed"), "{}", explained.stdout);
    // Other decoders make the same of it.
    for mut other in [python(), go()].into_iter().flatten() {
        let url = format!("http://{}/artifacts/echo/{second}", fleet.artifacts);
        other.args(["client", &url]).arg(bed.dir().join("echo-1.tar"));
        let output = other.output().await.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), second);
    }
    drop(fleet.child);
    bed.finish().await;
}

#[tokio::test]
async fn a_browser_takes_the_artifacts_of_a_fleet_as_what_changed() {
    let Some(mut browser) = Browser::start("a browser that fetches artifacts").await else {
        return;
    };
    let mut bed = Bed::builder().build().await;
    bed.stop_control_plane().await;
    let fleet = Served::start(&bed).await;
    let (padding, changed) = paddings();
    let first = release(&bed, "1", &padding).await;
    let second = release(&bed, "2", &changed).await;
    let delta = fleet.delta(&bed, &second, &first).await;

    // A page of the same origin, even one that says that it does not exist, may have its dictionaries.
    browser.open(&format!("http://{}/", fleet.artifacts)).await;
    assert_eq!(browser.evaluate(&fetch(&first)).await, first);
    assert_eq!(fleet.figure(SENT).await, 0);
    // It makes a dictionary of an answer when it likes to.
    bed.within(PATIENCE * 4, "the browser was sent what changed", async || {
        assert_eq!(browser.evaluate(&fetch(&second)).await, second);
        (fleet.figure(SENT).await > 0).then_some(())
    })
    .await;
    assert_eq!(fleet.figure(SENT).await, delta);
    browser.close().await;
    drop(fleet.child);
    bed.finish().await;
}

/// A script that fetches an artifact as if for the first time, and comes to its digest.
fn fetch(digest: &str) -> String {
    format!(
        "fetch('/artifacts/echo/{digest}', {{ cache: 'reload' }})
            .then(answer => answer.arrayBuffer())
            .then(bytes => crypto.subtle.digest('SHA-256', bytes))
            .then(digest => Array.from(new Uint8Array(digest), byte =>
                byte.toString(16).padStart(2, '0')).join(''))"
    )
}

#[tokio::test]
async fn a_delta_that_the_encoder_of_python_made_is_installed() {
    if let Some(python) = python() {
        installs_the_delta_of(python).await;
    }
}

#[tokio::test]
async fn a_delta_that_the_encoder_of_go_made_is_installed() {
    if let Some(go) = go() {
        installs_the_delta_of(go).await;
    }
}

/// Installs two revisions from the server of another implementation. The second one comes as a delta.
async fn installs_the_delta_of(mut other: Command) {
    let bed = Bed::builder().set("install.cache_max_bytes=268435456").start().await;
    let (padding, changed) = paddings();
    let mut digests = Vec::new();
    for (name, padding) in [("old", &padding), ("new", &changed)] {
        let data = Tarball::default().file("share/data", 0o644, padding);
        let bytes = ArchiveSpec::echo().with(data).into_bytes().await;
        std::fs::write(bed.dir().join(name), &bytes).unwrap();
        let digest = Sha256::digest(&bytes);
        digests.push(digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }
    other.arg("server").arg(bed.dir().join("old")).arg(bed.dir().join("new"));
    let mut child = other.stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let address = lines.next_line().await.unwrap().expect("an address");
    for (number, (name, sha256)) in ["old", "new"].into_iter().zip(&digests).enumerate() {
        let archive = Archive {
            name: name.to_owned(),
            url: format!("{address}/artifacts/echo/{name}"),
            sha256: sha256.clone(),
            entry_point: "run".to_owned(),
        };
        let revision = format!("r{number}");
        bed.configure(vec![orders::install("echo", &revision, &archive).order()]).await;
        bed.running("echo", &revision).await;
        bed.until("the cache has it", async || cached(&bed.state_root(), sha256).then_some(()))
            .await;
    }
    let first = lines.next_line().await.unwrap().expect("an answer");
    assert!(first.starts_with("identity "), "{first}");
    let second = lines.next_line().await.unwrap().expect("an answer");
    let bytes = second.strip_prefix("dcz ").expect("the delta was sent");
    assert!(bytes.parse::<u64>().unwrap() < 10_000, "{second}");
    bed.finish().await;
}

/// The program of the implementation in Go. `None`, with a line that says so, where it cannot be built.
fn go() -> Option<Command> {
    static PROGRAM: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/go/dictionary");
        let run = |arguments: &[&str]| {
            let mut go = std::process::Command::new("go");
            // As sdk/check builds, so that both share what was compiled.
            go.args(arguments).env("GOFLAGS", "-trimpath").env("CGO_ENABLED", "0");
            go.current_dir(&module).output()
        };
        if !run(&["mod", "download"]).is_ok_and(|output| output.status.success()) {
            eprintln!(
                "SKIPPED: no implementation of deltas in Go: there is no `go` that reads \
                 tests/go/dictionary/go.mod, or its modules cannot be had"
            );
            return None;
        }
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dictionary");
        let to = program.display().to_string();
        let output = run(&["build", "-mod=readonly", "-o", &to, "."]).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(program)
    });
    PROGRAM.as_ref().map(Command::new)
}

/// The script with the implementation of Python. `None`, with a line that says so, where the machine
/// has no such interpreter.
fn python() -> Option<Command> {
    let interpreter = std::env::var_os("GUEST_AGENT_PYTHON");
    let has_module = |interpreter: &std::ffi::OsString| {
        let check =
            std::process::Command::new(interpreter).args(["-c", "import zstandard"]).output();
        check.is_ok_and(|output| output.status.success())
    };
    let Some(interpreter) = interpreter.filter(has_module) else {
        eprintln!(
            "SKIPPED: no implementation of deltas in Python: GUEST_AGENT_PYTHON names no interpreter \
             with tests/python/requirements.txt"
        );
        return None;
    };
    let mut command = Command::new(interpreter);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/dictionary.py"));
    Some(command)
}

/// Whether there is an archive with what it may be the dictionary for, somewhere below a folder.
fn cached(folder: &Path, digest: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    entries.flatten().any(|entry| {
        let path = entry.path();
        match path.is_dir() {
            true => cached(&path, digest),
            false => {
                path.file_name().is_some_and(|name| name == digest)
                    && path.with_extension("dictionary").exists()
            }
        }
    })
}

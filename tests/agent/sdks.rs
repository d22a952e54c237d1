//! Plugins made with the SDKs for Go and Python, under the real agent: the examples in `sdk/go/examples` and
//! `sdk/python/examples`, which do the same in both languages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use nix::sys::signal::Signal;

use crate::harness::{Archive, ArchiveSpec, Bed, orders, signal};

/// A language, and how its examples are executed.
#[derive(Clone, Copy, Debug)]
enum Sdk {
    /// The folder with the programs.
    Go(&'static Path),
    /// An interpreter that has grpcio.
    Python(&'static Path),
}

// === impl Sdk ===

impl Sdk {
    /// The SDK for Go. Returns `None`, and prints a line that says so, on a machine without Go.
    fn go() -> Option<Self> {
        static BUILT: OnceLock<Result<PathBuf, &str>> = OnceLock::new();
        let built = BUILT.get_or_init(|| {
            let run = |arguments: &[&str]| {
                let mut go = Command::new("go");
                // As sdk/check builds, so that both share what was compiled.
                go.args(arguments).env("GOFLAGS", "-trimpath").env("CGO_ENABLED", "0");
                go.current_dir(sdk("go")).output()
            };
            if !run(&["version"]).is_ok_and(|output| output.status.success()) {
                return Err("there is no `go` that can read sdk/go/go.mod");
            }
            if !run(&["mod", "download"]).is_ok_and(|output| output.status.success()) {
                return Err("its modules cannot be had");
            }
            let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("sdk-go");
            std::fs::create_dir_all(&folder).unwrap();
            let to = format!("{}/", folder.display());
            let output = run(&["build", "-mod=readonly", "-o", &to, "./examples/..."]).unwrap();
            let printed = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "sdk/go/examples cannot be built: {printed}");
            Ok(folder)
        });
        match built {
            Ok(folder) => Some(Self::Go(folder)),
            Err(reason) => {
                eprintln!("SKIPPED: no plugin of the SDK for Go: {reason}");
                None
            }
        }
    }

    /// The SDK for Python. Returns `None`, and prints a line that says so, where no interpreter has
    /// what the SDK needs.
    fn python() -> Option<Self> {
        static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
        let found = FOUND.get_or_init(|| {
            let interpreter = PathBuf::from(std::env::var_os("GUEST_AGENT_PYTHON")?);
            let needs = "import grpc.aio, google.protobuf, google.rpc.status_pb2";
            let output = Command::new(&interpreter).args(["-c", needs]).output();
            output.is_ok_and(|output| output.status.success()).then_some(interpreter)
        });
        if found.is_none() {
            eprintln!(
                "SKIPPED: no plugin of the SDK for Python: GUEST_AGENT_PYTHON names no interpreter \
                 with tests/python/requirements.txt"
            );
        }
        found.as_deref().map(Self::Python)
    }

    /// Those of the two that this machine has.
    fn all() -> Vec<Self> {
        [Self::go(), Self::python()].into_iter().flatten().collect()
    }

    fn name(self) -> &'static str {
        match self {
            Self::Go(_) => "go",
            Self::Python(_) => "python",
        }
    }

    /// Shell words that become an example.
    fn executes(self, example: &str) -> String {
        match self {
            Self::Go(folder) => format!("exec '{}'", folder.join(example).display()),
            Self::Python(interpreter) => format!(
                "PYTHONDONTWRITEBYTECODE=1 PYTHONPATH='{}' exec '{}' '{}'",
                sdk("python").join("src").display(),
                interpreter.display(),
                sdk("python").join("examples").join(format!("{example}.py")).display()
            ),
        }
    }

    /// An archive with an example, which has these arguments of its own.
    async fn archive(self, bed: &Bed, example: &str, own: &str) -> Archive {
        let script = format!("{} {own} \"$@\"", self.executes(example));
        let name = format!("{example}-{}.tar", self.name());
        bed.archive(&name, ArchiveSpec::script(&script)).await
    }
}

fn sdk(language: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sdk").join(language)
}

/// Takes the counter from its installation to its removal.
async fn counts(sdk: Sdk) {
    let mut bed = Bed::new().await;
    let archive = sdk.archive(&bed, "counter", "").await;
    let typed = r#"{"step": 2, "unit": "sheep"}"#;
    bed.configure(vec![orders::install("counter", "1", &archive).config(typed).order()]).await;
    let first = bed.running("counter", "1").await;
    assert_eq!(bed.ask("counter", "settings").await.results, ["2 sheep"]);
    assert_eq!(bed.ask("counter", "count").await.results, ["2 sheep"]);
    assert_eq!(bed.ask("counter", "else").await.code, 1);

    let apply =
        async |config: &str| bed.cli(&["apply", "counter", "--string", config, "--wait"]).await;
    apply(r#"{"step": 5}"#).await.ok();
    assert_eq!(bed.ask("counter", "settings").await.results, ["5 things"]);
    for (wrong, reason) in [
        (r#"{"step": 0}"#, "step has to be 1 or more"),
        (r#"{"step": "hunter2"}"#, "step has to be a whole number"),
        (r#"{"stop": 1}"#, "there is no field"),
    ] {
        let refused = apply(wrong).await;
        assert!(refused.stderr.contains(reason), "{wrong}: {refused:?}");
        assert!(!refused.stderr.contains("hunter2"), "{refused:?}");
    }
    assert_eq!(bed.ask("counter", "settings").await.results, ["5 things"]);
    bed.cli(&["vm-event", "startup"]).await.ok();
    assert_eq!(bed.ask("counter", "events").await.results, ["startup"]);
    assert_eq!(bed.ask("counter", "settings").await.results, ["5 things"], "news is no order");

    bed.kill_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.running("counter", "1").await.pid, first.pid, "it was adopted");
    signal(first.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("counter", &first).await;
    assert_eq!(bed.ask("counter", "count").await.results, ["7 things"], "its state survives");

    bed.cli(&["stop", "counter", "--wait"]).await.ok();
    let printed = bed.plugin_output("counter").to_lowercase();
    assert!(printed.contains("stopped") && printed.contains("false"), "{printed}");
    bed.configure(vec![orders::remove("counter")]).await;
    bed.gone("counter").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_of_the_sdk_for_go_lives_its_life() {
    if let Some(sdk) = Sdk::go() {
        counts(sdk).await;
    }
}

#[tokio::test]
async fn a_plugin_of_the_sdk_for_python_lives_its_life() {
    if let Some(sdk) = Sdk::python() {
        counts(sdk).await;
    }
}

#[tokio::test]
async fn what_one_sdk_offers_another_follows() {
    let languages = Sdk::all();
    // Each follows the one before it, and a single one follows itself.
    let followed = languages.iter().cycle().skip(languages.len().saturating_sub(1));
    let pairs: Vec<(Sdk, Sdk)> = languages.iter().copied().zip(followed.copied()).collect();
    if pairs.is_empty() {
        return;
    }
    let mut bed = Bed::new().await;
    for (consumer, provider) in &pairs {
        let name = provider.name();
        let archive = provider.archive(&bed, "provider", &format!("{name} from-{name}")).await;
        let provider = orders::install(&format!("provider-{name}"), "1", &archive).order();
        let archive = consumer.archive(&bed, "consumer", name).await;
        let consumer = format!("consumer-{}", consumer.name());
        bed.configure(vec![provider, orders::install(&consumer, "1", &archive).order()]).await;
    }
    let greeted = async |bed: &Bed, consumer: &str, provider: &str| {
        bed.until(&format!("{consumer} is greeted by {provider}"), async || {
            let answer = bed.ask(consumer, "greet").await;
            (answer.results == [format!("from-{provider}")]).then_some(())
        })
        .await;
    };
    for (consumer, provider) in &pairs {
        let (consumer, name) = (format!("consumer-{}", consumer.name()), provider.name());
        let provider = format!("provider-{name}");
        bed.running(&consumer, "1").await;
        let first = bed.running(&provider, "1").await;
        greeted(&bed, &consumer, name).await;
        signal(first.pid.unwrap(), Signal::SIGKILL);
        bed.running_again(&provider, &first).await;
        greeted(&bed, &consumer, name).await;
        bed.until(&format!("{consumer} learns of the end and of the new entry"), async || {
            let heard = bed.ask(&consumer, "heard").await.results;
            let ended = heard.iter().position(|line| *line == format!("PLUGIN_ENDED {name}"))?;
            heard[ended..].contains(&format!("REGISTERED {name}")).then_some(())
        })
        .await;
    }
    bed.kill_agent().await;
    bed.start_agent().await;
    for (consumer, provider) in &pairs {
        let consumer = format!("consumer-{}", consumer.name());
        bed.running(&consumer, "1").await;
        greeted(&bed, &consumer, provider.name()).await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn admission_plugins_of_both_sdks_decide() {
    for sdk in Sdk::all() {
        let mut bed = Bed::builder().build().await;
        let words = format!("{} good other", sdk.executes("policy"));
        let command = serde_json::to_string(&["/bin/sh", "-c", &words]).unwrap();
        bed.set(format!("admission.command={command}"));
        bed.start_agent().await;
        let echo = bed.echo().await;
        let order = |name| orders::install(name, "1", &echo).order();
        bed.configure(vec![order("good"), order("bad")]).await;
        bed.running("good", "1").await;
        let details = bed.event(8, "bad", "1").await.details().into_owned();
        let reason = "bad is not on the list (PERMISSION_DENIED)";
        assert!(details.contains(reason), "{}: {details}", sdk.name());
        assert!(bed.log().contains("good 1 is on the list"), "{}", sdk.name());
        assert!(bed.stop_agent().await.success(), "{}: asked to go, it went", sdk.name());
        bed.start_agent().await;
        bed.finish().await;
    }
}

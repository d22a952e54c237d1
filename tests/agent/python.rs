//! Plugins in Python, which know the protocol from the `.proto` files alone.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::harness::{ArchiveSpec, Bed, orders, signal};

/// A Python that has grpcio, and the folder with the modules made of the `.proto` files.
pub(crate) struct Python {
    interpreter: PathBuf,
    modules: PathBuf,
}

impl Python {
    /// Returns `None`, and prints a line that says so, when the machine has no such interpreter.
    pub(crate) fn find(bed: &Bed) -> Option<Self> {
        let Some(interpreter) = std::env::var_os("GUEST_AGENT_PYTHON").map(PathBuf::from) else {
            eprintln!(
                "SKIPPED: no plugin in Python: GUEST_AGENT_PYTHON names no interpreter with \
                 tests/python/requirements.txt"
            );
            return None;
        };
        let modules = bed.dir().join("python");
        let generated = std::process::Command::new(&interpreter)
            .arg(scripts().join("scaffold.py"))
            .arg(&modules)
            .output();
        match generated {
            Ok(output) if output.status.success() => Some(Self { interpreter, modules }),
            Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) => panic!("{} cannot be run: {error}", interpreter.display()),
        }
    }

    /// Shell words that become a script. Plugins get a clean environment, so these words set the
    /// path of the generated modules.
    pub(crate) fn executes(&self, script: &str) -> String {
        format!(
            "GUEST_AGENT_PYTHON_GEN='{}' exec '{}' '{}'",
            self.modules.display(),
            self.interpreter.display(),
            scripts().join(script).display()
        )
    }
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python")
}

#[tokio::test]
async fn a_plugin_in_python_is_started_configured_watched_adopted_and_removed() {
    let mut bed = Bed::new().await;
    let Some(python) = Python::find(&bed) else { return bed.finish().await };
    let farewell = bed.dir().join("farewell");
    let script = format!("{} '{}' \"$@\"", python.executes("plugin.py"), farewell.display());
    let archive = bed.archive("python.tar", ArchiveSpec::script(&script)).await;
    bed.configure(vec![orders::install("py", "1", &archive).config("first").order()]).await;
    let first = bed.running("py", "1").await;
    let pid = first.pid.unwrap();
    assert_eq!(bed.ask("py", "config").await.results, ["first"]);
    assert_eq!(bed.ask("py", "pid").await.results, [pid.to_string()]);
    let state = bed.plugin_state("py").to_str().unwrap().to_owned();
    assert_eq!(bed.ask("py", "state").await.results, [state]);

    bed.configure(vec![orders::apply("py", Some("second"))]).await;
    bed.until("it has its new configuration", async || {
        (bed.ask("py", "config").await.results == ["second"]).then_some(())
    })
    .await;

    bed.kill_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.running("py", "1").await.pid, Some(pid), "it was adopted");

    signal(pid, Signal::SIGKILL);
    bed.running_again("py", &first).await;
    assert_eq!(bed.ask("py", "config").await.results, ["second"]);

    bed.configure(vec![orders::remove("py")]).await;
    bed.gone("py").await;
    assert_eq!(std::fs::read_to_string(&farewell).unwrap(), "cleanup");
    bed.finish().await;
}

#[tokio::test]
async fn plugins_in_python_offer_and_find_things_in_the_registry() {
    let mut bed = Bed::new().await;
    let Some(python) = Python::find(&bed) else { return bed.finish().await };
    let runs = |program: &str| ArchiveSpec::script(&format!("{program} \"$@\""));
    let provider = format!("{} python", python.executes("registry_provider.py"));
    let provider = bed.archive("provider.tar", runs(&provider)).await;
    let consumer = python.executes("registry_consumer.py");
    let consumer = bed.archive("consumer.tar", runs(&consumer)).await;
    let rust = bed.archive("rust.tar", ArchiveSpec::script_for("registry_consumer")).await;
    bed.configure(vec![orders::install("provider", "1", &provider).order()]).await;
    let first = bed.running("provider", "1").await;
    bed.configure(vec![
        orders::install("consumer", "1", &consumer).order(),
        orders::install("rust", "1", &rust).order(),
    ])
    .await;
    bed.running("consumer", "1").await;
    bed.running("rust", "1").await;
    // Either SDK finds what the other language offers.
    for plugin in ["consumer", "rust"] {
        assert_eq!(bed.ask(plugin, "greet hello").await.results, ["python"], "{plugin}");
    }
    let missing = bed.ask("consumer", "now nobody").await;
    assert!(missing.code == 1 && missing.results[0].starts_with("NOT_FOUND"), "{missing:?}");
    // Until h2 takes the escaped path of a socket for an authority (decision 41), the option has
    // to be set.
    let plain = bed.ask("consumer", "plain").await;
    assert_ne!(plain.results, ["OK"], "the option is not needed any more: say so in the pages");

    let heard = async |line: &str| {
        bed.until(&format!("the consumer hears {line:?}"), async || {
            let heard = bed.ask("consumer", "heard").await.results;
            heard.iter().any(|heard| heard == line).then_some(())
        })
        .await;
    };
    heard("snapshot of 1").await;
    assert_eq!(bed.ask("provider", "offer second 2").await.results, ["done"]);
    heard("registered second 2").await;
    assert_eq!(bed.ask("provider", "offer second 3").await.results, ["done"]);
    heard("updated second 3").await;
    assert_eq!(bed.ask("provider", "withdraw second").await.results, ["done"]);
    heard("withdrawn second").await;
    let unknown = bed.ask("provider", "offer not/a/name 1").await;
    assert!(unknown.results[0].starts_with("INVALID_ARGUMENT"), "{unknown:?}");

    signal(first.pid.unwrap(), Signal::SIGKILL);
    heard("ended hello").await;
    bed.running_again("provider", &first).await;
    assert_eq!(bed.ask("consumer", "greet hello").await.results, ["python"]);
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("consumer", "1").await;
    // Its channel waits before it connects again.
    bed.until("the consumer reaches the next agent", async || {
        (bed.ask("consumer", "greet hello").await.results == ["python"]).then_some(())
    })
    .await;
    bed.finish().await;
}

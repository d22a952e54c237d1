//! The link and a server of another implementation, which enforces gRFC A8 by itself.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::{Agent, LinkState, config, quick, within};
use crate::net::keepalive::Keepalive;

/// `tests/python/control_plane.py`. It ends when its standard input does.
struct Python {
    port: String,
    lines: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl Python {
    /// `None`, and a line that says so, where there is no Python with grpcio.
    async fn start(dir: &Path, permitted: Duration) -> Option<Self> {
        let Some(python) = std::env::var_os("GUEST_AGENT_PYTHON").map(PathBuf::from) else {
            eprintln!("SKIPPED: no server in Python: GUEST_AGENT_PYTHON names no interpreter");
            return None;
        };
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python");
        let generated =
            Command::new(&python).arg(scripts.join("scaffold.py")).arg(dir).status().await;
        assert!(generated.unwrap().success(), "the modules are generated");
        let mut child = Command::new(&python)
            .arg(scripts.join("control_plane.py"))
            .arg(permitted.as_millis().to_string())
            .env("GUEST_AGENT_PYTHON_GEN", dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let port = within("its port", lines.next_line()).await.unwrap().unwrap();
        Some(Self { port, lines, _child: child })
    }

    async fn registers(&mut self) {
        let line = within("a registration", self.lines.next_line()).await.unwrap();
        assert_eq!(line.as_deref(), Some("registered"));
    }
}

#[tokio::test]
async fn a_server_of_grpcio_ends_no_more_streams_once_the_interval_is_long_enough() {
    let dir = tempfile::tempdir().unwrap();
    let ms = Duration::from_millis;
    let Some(mut python) = Python::start(dir.path(), ms(600)).await else { return };
    let mut config = quick(config(&format!("http://127.0.0.1:{}", python.port)));
    config.keepalive = Arc::new(Keepalive::every(ms(250)));
    let keepalive = Arc::clone(&config.keepalive);
    let mut agent = Agent::start(config);
    for interval in [250, 500] {
        python.registers().await;
        agent.connects().await;
        assert_eq!(keepalive.interval(), Some(ms(interval)));
        let reason = agent.disconnects().await;
        assert!(reason.contains("too_many_pings"), "{reason}");
    }
    python.registers().await;
    agent.connects().await;
    // Time for five pings; the third bad one would end the stream.
    tokio::time::sleep(ms(5_500)).await;
    assert_eq!(keepalive.interval(), Some(ms(1_000)));
    assert!(matches!(agent.link.state(), LinkState::Connected { .. }));
    assert!(agent.heard.try_recv().is_err(), "nothing happened meanwhile");
}

//! A cluster of real nats-servers on loopback, for tests of any package:
//!
//! ```text
//! #[path = "../../fleet/tests/support/nats_cluster.rs"]
//! mod nats_cluster;
//! ```
//!
//! `NatsCluster::start` takes a folder for everything; nodes are killed, stopped, resumed and
//! started again. A shell beside each server kills it when the test's process is gone, whatever
//! ended that, or the process that [`Shape::owner`] names.

#![allow(dead_code, clippy::allow_attributes, reason = "a test uses a part of it")]

mod nats_server;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) use nats_server::program;

/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(60);

/// Starts a server, says its pid, and kills it when nobody holds the other end any more.
const GUARD: &str =
    r#""$0" -c "$1" >>"$2" 2>&1 & echo $!; read -r _; kill -9 $! 2>/dev/null; wait"#;

/// The same, until the process `$3` is gone; then it removes the folder `$4`, too.
const GUARD_OF_OWNER: &str = r#""$0" -c "$1" >>"$2" 2>&1 & echo $!
while kill -0 "$3" && kill -0 $!; do sleep 1; done
kill -9 $!; wait; kill -0 "$3" || rm -rf "$4""#;

/// What may differ from servers that are as they should be.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// How many servers there are; one is not in a cluster.
    pub(crate) servers: usize,
    /// The line of `sync_interval`.
    pub(crate) sync_interval: Option<&'static str>,
    /// The line of `max_payload`.
    pub(crate) max_payload: Option<&'static str>,
    /// Whether there is JetStream.
    pub(crate) jetstream: bool,
    /// More lines of every configuration.
    pub(crate) more: String,
    /// Process of a test runner: the servers run until it ends, and their folder is removed then.
    /// With `None`, the servers run until the process of the test ends.
    pub(crate) owner: Option<u32>,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            servers: 3,
            sync_interval: Some("always"),
            max_payload: Some("8MB"),
            jetstream: true,
            more: String::new(),
            owner: None,
        }
    }
}

/// One server.
#[derive(Debug)]
struct Node {
    port: u16,
    monitoring: u16,
    configuration: PathBuf,
    log: PathBuf,
    /// The shell and the server's pid, while it is meant to run.
    running: Option<(Child, i32)>,
}

/// The servers.
#[derive(Debug)]
pub(crate) struct NatsCluster {
    program: PathBuf,
    folder: PathBuf,
    owner: Option<u32>,
    nodes: Vec<Node>,
}

impl NatsCluster {
    /// Three servers as they should be, with their data below the folder.
    #[must_use]
    pub(crate) fn start(program: &Path, folder: &Path) -> Self {
        Self::start_as(program, folder, &Shape::default())
    }

    /// Servers of another shape. They are up when this returns.
    #[must_use]
    pub(crate) fn start_as(program: &Path, folder: &Path, shape: &Shape) -> Self {
        // Another program may take a port between its choice and its use.
        for _ in 0..5 {
            let mut cluster = Self::configure(program, folder, shape);
            for node in 0..cluster.nodes.len() {
                cluster.launch(node);
            }
            if cluster.is_up_within(LONG, shape.jetstream) {
                return cluster;
            }
        }
        panic!("nats-server does not come up: {}", folder.display());
    }

    fn configure(program: &Path, folder: &Path, shape: &Shape) -> Self {
        let ports = free_ports(3 * shape.servers);
        let routes: Vec<String> =
            ports.chunks(3).map(|ports| format!("nats-route://127.0.0.1:{}", ports[2])).collect();
        let nodes = ports.chunks(3).zip(1..).map(|(ports, number)| {
            let store = folder.join(format!("n{number}"));
            let mut blocks = vec![
                format!("server_name: n{number}"),
                format!("listen: 127.0.0.1:{}", ports[0]),
                format!("http: 127.0.0.1:{}", ports[1]),
                shape.more.clone(),
            ];
            blocks.extend(shape.max_payload.map(|payload| format!("max_payload: {payload}")));
            if shape.jetstream {
                let sync = shape.sync_interval.map(|it| format!("sync_interval: {it}"));
                let (store, sync) = (store.display(), sync.unwrap_or_default());
                blocks.push(format!("jetstream {{\n  store_dir: \"{store}\"\n  {sync}\n}}"));
            }
            if shape.servers > 1 {
                let (port, routes) = (ports[2], routes.join(", "));
                blocks.push(format!(
                    "cluster {{\n  name: tests\n  listen: 127.0.0.1:{port}\n  routes: [{routes}]\n}}"
                ));
            }
            let configuration = folder.join(format!("n{number}.conf"));
            fs::write(&configuration, blocks.join("\n") + "\n").expect("a configuration is written");
            let log = folder.join(format!("n{number}.log"));
            Node { port: ports[0], monitoring: ports[1], configuration, log, running: None }
        });
        let nodes = nodes.collect();
        Self { program: program.to_owned(), folder: folder.to_owned(), owner: shape.owner, nodes }
    }

    /// Servers that another process started: where [`ports`](Self::ports) said they are.
    #[must_use]
    pub(crate) fn join(ports: &str) -> Self {
        let nodes = ports.lines().map(|line| {
            let (port, monitoring) = line.split_once(' ').expect("two ports");
            Node {
                port: port.parse().expect("a port"),
                monitoring: monitoring.parse().expect("a port"),
                configuration: PathBuf::new(),
                log: PathBuf::new(),
                running: None,
            }
        });
        let nodes = nodes.collect();
        Self { program: PathBuf::new(), folder: PathBuf::new(), owner: None, nodes }
    }

    /// Where the servers are, for [`join`](Self::join).
    #[must_use]
    pub(crate) fn ports(&self) -> String {
        self.nodes.iter().map(|node| format!("{} {}\n", node.port, node.monitoring)).collect()
    }

    /// How many servers there are.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The address of a ledger on all servers, whose streams begin with the prefix.
    #[must_use]
    pub(crate) fn address(&self, prefix: &str) -> String {
        format!("{}?prefix={prefix}&monitor={}", self.servers(), self.monitoring())
    }

    /// All servers, as the beginning of an address.
    #[must_use]
    pub(crate) fn servers(&self) -> String {
        let ports: Vec<String> =
            self.nodes.iter().map(|it| format!("127.0.0.1:{}", it.port)).collect();
        format!("nats://{}", ports.join(","))
    }

    /// All monitoring pages, as the address of a ledger names them.
    #[must_use]
    pub(crate) fn monitoring(&self) -> String {
        let pages: Vec<String> =
            self.nodes.iter().map(|it| format!("127.0.0.1:{}", it.monitoring)).collect();
        pages.join(",")
    }

    /// Kills a server as the power would, but for its disk.
    pub(crate) fn kill(&mut self, node: usize) {
        if let Some((mut shell, pid)) = self.nodes[node].running.take() {
            // A stopped one dies as well.
            signal("KILL", pid);
            drop(shell.stdin.take());
            shell.wait().expect("the shell ends");
        }
    }

    /// Stops a server without its end: connections stay, and nothing is answered.
    pub(crate) fn stop(&self, node: usize) {
        if let Some((_, pid)) = &self.nodes[node].running {
            signal("STOP", *pid);
        }
    }

    /// Lets a stopped server go on.
    pub(crate) fn resume(&self, node: usize) {
        if let Some((_, pid)) = &self.nodes[node].running {
            signal("CONT", *pid);
        }
    }

    /// Starts a server that was killed.
    pub(crate) fn restart(&mut self, node: usize) {
        self.kill(node);
        self.launch(node);
    }

    /// Waits until all servers have a leader and everything that they missed.
    pub(crate) fn wait_healthy(&self) {
        assert!(self.is_up_within(LONG, true), "the cluster does not become healthy");
    }

    fn launch(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let mut command = Command::new("sh");
        command.args(["-c", if self.owner.is_some() { GUARD_OF_OWNER } else { GUARD }]);
        command.arg(&self.program).arg(&node.configuration).arg(&node.log);
        if let Some(owner) = self.owner {
            // A signal to the process group of one test must not kill servers that others use.
            command.arg(owner.to_string()).arg(&self.folder).stderr(Stdio::null()).process_group(0);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().expect("a shell starts");
        let mut line = String::new();
        let stdout = shell.stdout.take().expect("it has a stdout");
        BufReader::new(stdout).read_line(&mut line).expect("the shell says the pid");
        let pid = line.trim().parse().expect("a pid");
        node.running = Some((shell, pid));
    }

    fn is_up_within(&self, most: Duration, jetstream: bool) -> bool {
        let deadline = Instant::now() + most;
        while Instant::now() < deadline {
            let is_up = self.nodes.iter().filter(|node| node.running.is_some()).all(|node| {
                let health = get(node.monitoring, "/healthz");
                let has_leader = !jetstream
                    || self.nodes.len() == 1
                    || get(node.monitoring, "/jsz")
                        .is_some_and(|page| page.contains("\"leader\": \"n"));
                health.is_some_and(|page| page.contains("\"ok\"")) && has_leader
            });
            if is_up {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

impl Drop for NatsCluster {
    fn drop(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node);
        }
    }
}

fn signal(name: &str, pid: i32) {
    let sent = Command::new("kill")
        .arg(format!("-{name}"))
        .arg(pid.to_string())
        .stderr(Stdio::null())
        .status();
    sent.expect("a signal is sent");
}

/// Ports that nobody uses at the moment.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<TcpListener> =
        (0..count).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
    listeners.iter().map(|it| it.local_addr().expect("its address").port()).collect()
}

/// The body of a monitoring page, if it comes soon.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

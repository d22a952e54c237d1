//! The binary: listens, brings agents to the desired state, survives its own restart.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_fleet::messages;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tonic::transport::Endpoint;

use crate::client::{Agent, event, identity, registration};
use crate::{AGENT, CHANNEL, LONG};

struct Served {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Served {
    async fn start(directory: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_guest-fleet"))
            .arg("serve")
            .arg("--listen")
            .arg(format!("unix:{}/cp.sock", directory.display()))
            .arg("--state")
            .arg(directory.join("state"))
            .arg("--desired")
            .arg(directory.join("desired"))
            .arg("--artifacts")
            .arg(directory)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut served = Self { child, lines };
        served.line("artifacts http://127.0.0.1:").await;
        served.line("listening unix:").await;
        served
    }

    /// Waits for a line that begins like this and returns it.
    async fn line(&mut self, start: &str) -> String {
        loop {
            let line = tokio::time::timeout(LONG, self.lines.next_line()).await.expect(start);
            let line = line.unwrap().expect("it still runs");
            if line.starts_with(start) {
                return line;
            }
        }
    }

    async fn signal(&self, name: &str) {
        let pid = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().await.unwrap().success());
    }

    async fn stop(mut self) {
        self.signal("TERM").await;
        let status =
            tokio::time::timeout(LONG, self.child.wait()).await.expect("it stops").unwrap();
        assert!(status.success());
    }
}

async fn connect(directory: &Path) -> Agent {
    let endpoint = format!("unix:{}/cp.sock", directory.display());
    let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
    let mut agent = Agent::open(channel, &identity()).await.unwrap();
    agent.send(registration("r", AGENT, CHANNEL)).await;
    assert_eq!(agent.acknowledgement().await.0, "r");
    agent
}

/// Name and revision of the one plugin in the next configuration; acknowledges it and waits until
/// that was read, which it was when something sent later is acknowledged.
async fn configured(agent: &mut Agent) -> (String, String) {
    let (id, body) = agent.body().await;
    agent.answer(&id, None).await;
    agent.send_body("later", event("")).await;
    agent.acknowledgement().await;
    let states: ConfigurePluginStates = messages::unpack(&body).unwrap();
    let [entry] = states.configure_plugins.as_slice() else { panic!("one entry in {states:?}") };
    let plugin = entry.plugin.as_ref().unwrap();
    (plugin.name.clone(), plugin.revision_id.clone())
}

fn desire(directory: &Path, name: &str, revision: &str) {
    let json =
        format!(r#"{{"action":"INSTALL","plugin":{{"name":"{name}","revisionId":"{revision}"}}}}"#);
    fs::write(directory.join(format!("desired/{name}.json")), json).unwrap();
}

#[tokio::test]
async fn agents_are_brought_to_the_desired_state_and_not_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::create_dir(path.join("desired")).unwrap();
    desire(path, "a", "1");
    fs::write(path.join("desired/broken.json"), "{").unwrap();

    let mut served = Served::start(path).await;
    let mut agent = connect(path).await;
    assert_eq!(configured(&mut agent).await, ("a".into(), "1".into()));

    // An event is printed as one line, whatever stands in it.
    agent.send_body("e", event("two\nlines")).await;
    agent.acknowledgement().await;
    served.line("event ").await;
    let line = served.line("event ").await;
    assert!(line.contains("PLUGIN_STARTED") && line.contains(r#""two\nlines""#), "{line}");

    // After a reload only what changed is sent.
    desire(path, "b", "1");
    served.signal("HUP").await;
    assert_eq!(configured(&mut agent).await, ("b".into(), "1".into()));

    // A restart forgets nothing: the next thing sent is what changes next.
    served.stop().await;
    drop(agent);
    let mut served = Served::start(path).await;
    let mut agent = connect(path).await;
    served.line("connected ").await;
    desire(path, "a", "2");
    served.signal("HUP").await;
    assert_eq!(configured(&mut agent).await, ("a".into(), "2".into()));
    served.stop().await;
}

#[tokio::test]
async fn a_bad_command_line_is_refused() {
    let run = |arguments: &'static [&'static str]| async move {
        Command::new(env!("CARGO_BIN_EXE_guest-fleet")).args(arguments).output().await.unwrap()
    };
    assert_eq!(run(&["serve"]).await.status.code(), Some(2));
    assert_eq!(run(&["serve", "--listen", "nowhere"]).await.status.code(), Some(2));
    let open = run(&["serve", "--listen", "0.0.0.0:0"]).await;
    assert_eq!(open.status.code(), Some(1));
    assert!(String::from_utf8(open.stderr).unwrap().contains("not a loopback address"));
}

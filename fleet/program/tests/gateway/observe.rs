//! The program as those see it who watch it: health, metrics, the log, and a webhook.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Command;
use tonic::transport::Endpoint;

use crate::gateway::binary::Served;
use crate::gateway::client::{Agent, Down, event, identity, registration};
use crate::gateway::{AGENT, CHANNEL, LONG};

pub(crate) async fn get(at: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(at).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Asks until an answer is as it should be.
async fn until(at: &str, path: &str, is_so: impl Fn(&str) -> bool) -> String {
    let asking = async {
        loop {
            let answer = get(at, path).await;
            if is_so(&answer) {
                return answer;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LONG, asking).await.unwrap_or_else(|_| panic!("{path} never is so"))
}

#[tokio::test]
async fn a_server_says_how_it_is_and_tells_a_receiver_what_happens() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let receiver = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secret = directory.join("secret");
    fs::write(&secret, "0123456789abcdef").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let webhooks = directory.join("webhooks.toml");
    let text = format!(
        "[[webhook]]\nname = \"test\"\nurl = \"http://{}/hook\"\nsecret_file = \"{}\"\n",
        receiver.local_addr().unwrap(),
        secret.display()
    );
    fs::write(&webhooks, text).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_guest-fleet"))
        .args(["serve", "--http-listen", "127.0.0.1:0", "--log-format", "json"])
        .args(["--log-level", "info", "--ledger"])
        .arg(directory.join("ledger.db"))
        .arg("--listen")
        .arg(format!("unix:{}/cp.sock", directory.display()))
        .arg("--webhooks")
        .arg(&webhooks)
        .stdout(Stdio::piped())
        .stderr(Stdio::from(fs::File::create(directory.join("log")).unwrap()))
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let at = loop {
        let line = tokio::time::timeout(LONG, lines.next_line()).await.expect("it starts");
        let line = line.unwrap().expect("it runs");
        if let Some(at) = line.strip_prefix("http http://") {
            break at.to_owned();
        }
    };
    let alive = get(&at, "/healthz").await;
    assert!(alive.starts_with("HTTP/1.1 200 "), "{alive}");
    until(&at, "/readyz", |answer| answer.starts_with("HTTP/1.1 200 ")).await;
    let delivers = "guest_fleet_webhook_lag_seconds{webhook=\"test\"} 0";
    until(&at, "/metrics", |page| page.contains(delivers)).await;

    let endpoint = format!("unix:{}/cp.sock", directory.display());
    let channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
    let mut agent = Agent::open(channel, &identity()).await.unwrap();
    agent.send(registration("r", AGENT, CHANNEL)).await;
    assert_eq!(agent.acknowledgement().await.0, "r");
    agent.send_body("e1", event("first")).await;
    loop {
        let frame = agent.next().await.unwrap().expect("the stream is open");
        match frame.r#type {
            Some(Down::MessageResponse(_)) if frame.message_id == "e1" => break,
            Some(Down::MessageBody(_)) => agent.answer(&frame.message_id, None).await,
            _ => {}
        }
    }
    let (mut stream, _) = tokio::time::timeout(LONG, receiver.accept()).await.unwrap().unwrap();
    let mut got = Vec::new();
    while !String::from_utf8_lossy(&got).contains("\"details\":\"first\"") {
        let mut part = [0; 4096];
        let read = tokio::time::timeout(LONG, stream.read(&mut part)).await.unwrap().unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&got));
        got.extend_from_slice(&part[..read]);
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    let got = String::from_utf8(got).unwrap();
    assert!(got.starts_with("POST /hook HTTP/1.1\r\n"), "{got}");
    assert!(got.contains("guest-fleet-signature: v1="), "{got}");
    assert!(got.contains(&format!("\"agent\":\"{AGENT}\"")), "{got}");

    let page = until(&at, "/metrics", |page| {
        page.contains("guest_fleet_webhook_delivered_total{webhook=\"test\"} 1")
    })
    .await;
    for sample in [
        "guest_fleet_streams 1",
        "guest_fleet_events_total{kind=\"stored\"} 1",
        "guest_fleet_ready{check=\"view\"} 1",
        "guest_fleet_ledger_duration_seconds_count{engine=\"sqlite\",verb=\"append\"} 1",
    ] {
        assert!(page.lines().any(|line| line.starts_with(sample)), "{sample}:\n{page}");
    }
    assert!(!page.contains(AGENT), "no label has the name of an agent");

    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().await.unwrap().success());
    let status = tokio::time::timeout(LONG, child.wait()).await.expect("it stops").unwrap();
    assert!(status.success());
    let log = fs::read_to_string(directory.join("log")).unwrap();
    assert!(!log.is_empty());
    for line in log.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
    }
    assert!(log.contains("agent connected"), "{log}");
    assert!(!log.contains("0123456789abcdef"), "the secret is in the log");
}

#[tokio::test]
async fn a_webhook_that_is_not_allowed_stops_the_start_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let webhooks = directory.join("webhooks.toml");
    let text =
        "[[webhook]]\nname = \"a\"\nurl = \"https://hooks.example/?k=abc\"\nsecret_file = \"/s\"\n";
    fs::write(&webhooks, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_guest-fleet"))
        .args(["serve", "--webhook-host", "*.example.org", "--ledger"])
        .arg(directory.join("ledger.db"))
        .arg("--listen")
        .arg(format!("unix:{}/cp.sock", directory.display()))
        .arg("--webhooks")
        .arg(&webhooks)
        .output()
        .await
        .unwrap();
    assert!(!output.status.success());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("webhooks.toml:3:"), "{text}");
    assert!(text.contains("the host `hooks.example` is not allowed"), "{text}");
    assert!(!text.contains("abc"), "{text}");
}

#[tokio::test]
async fn a_torn_certificate_of_the_gateway_is_a_metric_and_the_former_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    let (certificate, key) = crate::gateway::tls::Authority::new().issue("localhost");
    let paths = [directory.join("tls.crt"), directory.join("tls.key")];
    fs::write(&paths[0], certificate).unwrap();
    fs::write(&paths[1], key).unwrap();
    let [cert, key] = [&paths[0], &paths[1]].map(|path| path.to_str().unwrap());
    let options = ["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"];
    let tls = ["--tls-cert", cert, "--tls-key", key];
    let mut served = Served::spawn(directory, &[options, tls].concat());
    let at = served.line("http http://").await.trim_start_matches("http http://").to_owned();
    let stuck = |value| format!("guest_fleet_certificate_stuck{{use=\"gateway\"}} {value}");
    let expiry = "guest_fleet_certificate_expiry_timestamp_seconds{use=\"gateway\"} ";
    let page = until(&at, "/metrics", |page| page.contains(&stuck(0))).await;
    let expires = page.lines().find(|line| line.starts_with(expiry)).unwrap().to_owned();
    fs::write(&paths[0], "torn").unwrap();
    let page = until(&at, "/metrics", |page| page.contains(&stuck(1))).await;
    assert!(page.contains(&expires), "the former one is served: {page}");
    served.stop().await;
}

//! The JSON command socket, as scripts and older tools of the machine use it.

use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::harness::{Bed, PATIENCE, orders};

impl Bed {
    fn command_socket(&self) -> PathBuf {
        self.dir().join("run/command.sock")
    }

    /// Sends a request as it is and reads the reply to its end.
    pub(crate) async fn say(&self, request: &str) -> Value {
        let talk = async {
            let mut stream = UnixStream::connect(self.command_socket()).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut reply = Vec::new();
            stream.read_to_end(&mut reply).await.unwrap();
            serde_json::from_slice(&reply).unwrap()
        };
        match tokio::time::timeout(PATIENCE, talk).await {
            Ok(reply) => reply,
            Err(_) => self.fail(format_args!("no reply to {request}")),
        }
    }
}

#[tokio::test]
async fn each_plugin_is_told_once_in_the_callers_own_words() {
    let bed = Bed::new().await;
    let (echo, trouble) = (bed.echo().await, bed.trouble().await);
    bed.configure(vec![
        orders::install("d-deaf", "1", &echo).order(),
        orders::install("b-good", "1", &trouble).order(),
        orders::install("c-refuses", "1", &trouble).arg("--apply=refuse").order(),
        orders::install("a-broken", "1", &trouble).arg("--exit-before-start=3").order(),
    ])
    .await;
    for plugin in ["d-deaf", "b-good", "c-refuses"] {
        bed.running(plugin, "1").await;
    }
    bed.status_where("a-broken", "it does not run", |status| {
        !status.busy && status.state == "CRASHED"
    })
    .await;
    let request = "{ \"command\": \"VmEvent\",\n  \"EVENT\": \"specialize\", \"extra\": [\"é\"] }";
    let reply = bed.say(request).await;
    let replies = reply.as_array().unwrap();
    let told: Vec<_> = replies
        .iter()
        .map(|it| (it["Plugin"].as_str().unwrap(), it["Status"].as_i64().unwrap()))
        .collect();
    assert_eq!(told, [("a-broken", 501), ("b-good", 0), ("c-refuses", 502), ("d-deaf", 0)]);
    for entry in replies {
        assert_eq!(entry.as_object().unwrap().len(), 3, "{entry}");
    }
    assert!(replies[2]["StatusMessage"].as_str().unwrap().contains("told to refuse"), "{reply}");
    assert_eq!(bed.ask("b-good", "config").await.results, [request]);
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_hangs_is_reported_and_delays_nobody() {
    let bed = Bed::builder().set("api.command_timeout=5s").start().await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("good", "1", &trouble).order()]).await;
    bed.running("good", "1").await;
    let hangs = orders::install("hangs", "1", &trouble).arg("--hang-after-start-ms=1");
    bed.configure(vec![hangs.order()]).await;
    bed.running("hangs", "1").await;
    let since = std::time::Instant::now();
    let reply = bed.say(r#"{"Command":"VmEvent","Event":"shutdown"}"#).await;
    assert!(since.elapsed() < PATIENCE / 2, "it took {:?}", since.elapsed());
    assert_eq!((&reply[0]["Plugin"], &reply[0]["Status"]), (&json!("good"), &json!(0)), "{reply}");
    assert_eq!(
        (&reply[1]["Plugin"], &reply[1]["Status"]),
        (&json!("hangs"), &json!(502)),
        "{reply}"
    );
    bed.finish().await;
}

#[tokio::test]
async fn two_hundred_connections_without_a_request_delay_nobody() {
    // None of them is given up for its silence.
    let bed = Bed::builder().set("api.command_timeout=60s").start().await;
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(UnixStream::connect(bed.command_socket()).await.unwrap());
    }
    let reply = bed.say(r#"{"Command":"agent.config.getoption","Option":"instance.id"}"#).await;
    assert_eq!(reply["Value"], "test");
    let mut heard = Vec::new();
    idle[0].read_to_end(&mut heard).await.unwrap();
    let reply: Value = serde_json::from_slice(&heard).unwrap();
    assert_eq!(reply["Status"], 103, "the oldest made room: {reply}");
    let newest = idle.pop().unwrap();
    let silence = newest.try_read(&mut [0]).unwrap_err();
    assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    drop(idle);
    bed.finish().await;
}

#[tokio::test]
async fn every_other_request_has_its_number() {
    let bed = Bed::builder().set("api.command_timeout=500ms").start().await;
    for (request, status) in [
        (r#"{"Command":"nothing"}"#, 101),
        (r#"{"command":7}"#, 102),
        ("nonsense", 102),
        (r#"{"Command":"VmEv"#, 104),
        (r#"{"Command":"VmEvent","Event":"lunch"}"#, 105),
        (r#"{"Command":"agent.config.getoption","Option":"log.nothing"}"#, 1),
        (r#"{"Command":"agent.config.getoption"}"#, 2),
        (r#"{"Command":"agent.config.getoption","Option":"log"}"#, 3),
    ] {
        assert_eq!(bed.say(request).await["Status"], status, "{request}");
    }
    let reply = bed.say(r#"{"COMMAND":"agent.config.getoption","option":"instance.id"}"#).await;
    let expected =
        json!({"Status": 0, "StatusMessage": "", "Option": "instance.id", "Value": "test"});
    assert_eq!(reply, expected);
    bed.finish().await;
}

#[tokio::test]
async fn the_socket_has_the_rights_that_were_configured_and_replaces_a_stale_one() {
    let mut bed = Bed::builder().set("api.command_socket_mode=0700").start().await;
    for _ in 0..2 {
        let found = std::fs::metadata(bed.command_socket()).unwrap();
        assert!(found.file_type().is_socket());
        assert_eq!(found.permissions().mode() & 0o777, 0o700);
        let level = r#"{"Command":"agent.config.getoption","Option":"log.level"}"#;
        assert_eq!(bed.say(level).await["Value"], "info");
        // Its socket stays behind.
        bed.kill_agent().await;
        assert!(bed.command_socket().exists());
        bed.start_agent().await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_foreign_file_in_its_place_is_left_alone_and_the_agent_works() {
    let mut bed = Bed::builder().build().await;
    std::fs::create_dir_all(bed.dir().join("run")).unwrap();
    std::fs::write(bed.command_socket(), "precious").unwrap();
    bed.start_agent().await;
    assert_eq!(std::fs::read_to_string(bed.command_socket()).unwrap(), "precious");
    bed.until("the log says so", async || bed.log().contains("not a socket").then_some(())).await;
    std::fs::remove_file(bed.command_socket()).unwrap();
    bed.finish().await;
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let bed = Bed::builder().set("api.command_socket_enabled=false").start().await;
    assert!(!bed.command_socket().exists());
    bed.finish().await;
}

//! Conversations on a real socket, with the real actors behind it on fakes.

use guest_agent_actors::fakes::Harness;
use proptest::prelude::*;
use serde_json::{Value, json};

use tokio::net::UnixStream;

use super::*;

/// What a connection came to.
#[derive(Debug, PartialEq)]
enum Heard {
    /// One JSON document, and then the end.
    Reply(Value),
    /// The end, and nothing before it.
    Nothing,
}

/// A socket with an agent behind it that has no plugins.
struct Bench {
    folder: tempfile::TempDir,
    agent: Harness,
    effective: watch::Sender<Arc<Config>>,
}

// === impl Bench ===

impl Bench {
    async fn new(timeout: Duration) -> Self {
        let folder = tempfile::Builder::new().prefix("ga-").tempdir_in("/tmp").expect("made");
        let mut config = Config::default();
        config.api.command_timeout = timeout;
        let (effective, in_effect) = watch::channel(Arc::new(config));
        let agent = Harness::awake().await;
        let listener = UnixListener::bind(folder.path().join("c.sock")).expect("a socket");
        let vm_events = agent.run(|system| std::future::ready(system.vm_events.clone())).await;
        let store = agent.run(|system| std::future::ready(system.store.clone())).await;
        let audit = AuditLog { store: store.recipient(), storage: agent.world.storage.port() };
        let commands = CommandSocket {
            vm_events,
            audit,
            config: in_effect,
            counters: ConnectionCounters::default(),
            vet: Arc::new(|_| Box::pin(std::future::ready(Ok(())))),
        };
        tokio::spawn(commands.serve(listener));
        Self { folder, agent, effective }
    }

    async fn connect(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("c.sock")).await.expect("it listens")
    }

    /// Sends pieces, each by itself, and then waits for the end, keeping its own side open or not.
    async fn say(&self, pieces: &[&[u8]], then: Then) -> Heard {
        let talk = async {
            let mut stream = self.connect().await;
            for piece in pieces {
                // The other side may have heard enough.
                if stream.write_all(piece).await.is_err() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if then == Then::Close {
                drop(stream.shutdown().await);
            }
            let mut heard = Vec::new();
            stream.read_to_end(&mut heard).await.expect("a clean end");
            if heard.is_empty() {
                return Heard::Nothing;
            }
            Heard::Reply(serde_json::from_slice(&heard).expect("one JSON document"))
        };
        let talk = tokio::time::timeout(Duration::from_secs(30), talk);
        self.agent.run(|_| talk).await.expect("the connection comes to an end")
    }

    async fn ask(&self, text: &str) -> Value {
        match self.say(&[text.as_bytes()], Then::Stay).await {
            Heard::Reply(reply) => reply,
            Heard::Nothing => panic!("no reply"),
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Stay,
    Close,
}

const LONG: Duration = Duration::from_secs(20);

fn get(option: &str) -> String {
    json!({ "Command": "agent.config.getoption", "Option": option }).to_string()
}

#[tokio::test]
async fn options_come_from_what_is_in_effect() {
    let bench = Bench::new(LONG).await;
    let found = bench.ask(&get("Plugins.Health_Interval")).await;
    let expected = json!({ "Status": 0, "StatusMessage": "",
        "Option": "Plugins.Health_Interval", "Value": "10s" });
    assert_eq!(found, expected);
    bench.effective.send_modify(|config| {
        Arc::make_mut(config).plugins.health_interval = Duration::from_secs(7);
    });
    assert_eq!(bench.ask(&get("plugins.health_interval")).await["Value"], "7s");
    assert_eq!(bench.ask(&get("api.command_socket_enabled")).await["Value"], "true");
    assert_eq!(bench.ask(&get("control_plane.endpoint")).await["Value"], "");
    for (option, status) in [("plugins.nothing", 1), ("nothing.at_all", 1), ("", 2), ("a", 3)] {
        assert_eq!(bench.ask(&get(option)).await["Status"], status, "{option}");
    }
}

#[tokio::test]
async fn secrets_are_not_shown() {
    let bench = Bench::new(LONG).await;
    bench.effective.send_modify(|config| {
        let command = &mut Arc::make_mut(config).admission.command;
        *command = ["/bin/admit", "--token=hidden"].map(str::to_owned).to_vec();
    });
    let shown = bench.ask(&get("admission.command")).await["Value"].to_string();
    assert!(shown.contains("/bin/admit") && !shown.contains("hidden"), "{shown}");
}

#[tokio::test]
async fn without_plugins_the_answer_is_an_empty_array() {
    let bench = Bench::new(LONG).await;
    assert_eq!(bench.ask(r#"{"Command":"VmEvent","Event":"startup"}"#).await, json!([]));
}

#[tokio::test]
async fn a_request_in_pieces_is_waited_for_and_one_that_does_not_come_is_late() {
    let bench = Bench::new(Duration::from_millis(300)).await;
    let text = get("log.level");
    let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
    let Heard::Reply(reply) = bench.say(&bytes, Then::Stay).await else { panic!("no reply") };
    assert_eq!(reply["Value"], "info");
    for half in [&b"{\"Command\""[..], b" ", b""] {
        let Heard::Reply(reply) = bench.say(&[half], Then::Stay).await else { panic!("no reply") };
        assert_eq!(reply["Status"], 104, "{reply}");
    }
    let nonsense = bench.say(&[b"{nonsense"], Then::Stay).await;
    assert!(matches!(nonsense, Heard::Reply(reply) if reply["Status"] == 102));
}

#[tokio::test]
async fn a_caller_that_sends_nothing_gets_nothing() {
    let bench = Bench::new(LONG).await;
    assert_eq!(bench.say(&[], Then::Close).await, Heard::Nothing);
    let half = bench.say(&[b"{\"Command\""], Then::Close).await;
    assert!(matches!(half, Heard::Reply(reply) if reply["Status"] == 102));
}

#[tokio::test]
async fn a_request_that_is_far_too_large_still_gets_its_reply() {
    let bench = Bench::new(LONG).await;
    let large = vec![b' '; 200 * 1024];
    let heard = bench.say(&[&large], Then::Stay).await;
    assert!(matches!(heard, Heard::Reply(reply) if reply["Status"] == 102));
}

#[tokio::test]
async fn idle_connections_keep_nobody_waiting_and_the_oldest_make_room() {
    // Nothing is given up for its silence before the test is over.
    let bench = Bench::new(Duration::from_secs(3600)).await;
    let mut idle = Vec::new();
    for number in 0..200 {
        let mut stream = bench.connect().await;
        if number % 2 == 1 {
            stream.write_all(b"{\"Command\"").await.expect("written");
        }
        idle.push(stream);
    }
    assert_eq!(bench.ask(&get("log.level")).await["Value"], "info");
    // The oldest have the reply of those that made room, also if they had begun a request.
    for mut stream in idle.drain(..2) {
        let mut heard = Vec::new();
        bench.agent.run(|_| stream.read_to_end(&mut heard)).await.expect("a clean end");
        let reply: Value = serde_json::from_slice(&heard).expect("one JSON document");
        assert_eq!(reply["Status"], 103, "{reply}");
    }
    // The newest were not touched.
    let mut byte = [0];
    for stream in idle.iter().rev().take(CONNECTIONS.each / 2) {
        let silence = stream.try_read(&mut byte).expect_err("it is open, and nothing was said");
        assert_eq!(silence.kind(), std::io::ErrorKind::WouldBlock);
    }
}

#[tokio::test]
async fn idle_connections_do_not_keep_others_out_for_ever() {
    let bench = Bench::new(Duration::from_millis(300)).await;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS.all * 2 {
        idle.push(bench.connect().await);
    }
    assert_eq!(bench.ask(&get("log.level")).await["Value"], "info");
}

#[tokio::test]
async fn callers_that_leave_in_the_middle_do_no_harm() {
    let bench = Bench::new(LONG).await;
    for _ in 0..CONNECTIONS.all * 2 {
        let mut stream = bench.connect().await;
        stream.write_all(get("log.level").as_bytes()).await.expect("written");
        drop(stream);
    }
    assert_eq!(bench.ask(&get("log.level")).await["Value"], "info");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn whatever_is_said_there_is_one_reply_or_a_clean_end(
        pieces in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..40),
                r#"(\{|\}|"Command"|:|"VmEvent"|,|"Event"|"startup"|\[|\]|"|\\| )"#
                    .prop_map(String::into_bytes),
            ],
            0..12,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("an event loop").block_on(async {
            let bench = Bench::new(Duration::from_millis(500)).await;
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let whole = pieces.concat();
            match bench.say(&pieces, Then::Close).await {
                Heard::Nothing => assert!(whole.is_empty()),
                Heard::Reply(reply) => assert!(reply.is_array() || reply["Status"].is_i64()),
            }
        });
    }
}

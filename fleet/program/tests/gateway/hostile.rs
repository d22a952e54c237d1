//! Hostile agents, a full disk and damaged records against the program, with an agent beside that
//! behaves: the server tells the hostile one what is wrong, memory stays bounded, nothing is lost, and the
//! neighbour gets its order.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use guest_agent_proto::agent_controlplane::current_plugin_states::DaemonPluginState;
use guest_agent_proto::agent_controlplane::{CurrentPluginStates, PluginEventMessage};
use guest_agent_proto::fleet::{AgentReport, PluginReport};
use guest_fleet_ledger::{Bucket, Ledger, Log, Revision, SqliteLedger, Write};
use guest_fleet_sessions::messages;
use http::uri::PathAndQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::gateway::binary::{Machine, Served, ask, declare};
use crate::gateway::client::{Agent, registration, with_metadata};
use crate::gateway::{AGENT, CHANNEL, LONG};
use crate::small_disk::SmallDisk;

const FOE: &str = "projects/1/zones/z/instances/foe";

/// More memory than the program needs for any of this: three times what was measured.
const GROWTH: u64 = 192 << 20;

fn metadata(resource: &str) -> [(&'static str, &str); 3] {
    [
        ("authentication", "Bearer token"),
        ("agent-communication-resource-id", resource),
        ("agent-communication-channel-id", CHANNEL),
    ]
}

async fn channel(directory: &Path) -> Channel {
    let endpoint = format!("unix:{}/cp.sock", directory.display());
    Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap()
}

/// A registered stream of any agent.
async fn stream(directory: &Path, resource: &str) -> Result<Agent, Status> {
    let mut agent = Agent::open(channel(directory).await, &metadata(resource)).await?;
    agent.send(registration("r", resource, CHANNEL)).await;
    loop {
        let frame = agent.next().await?.expect("the stream is open");
        if frame.message_id == "r" {
            return Ok(agent);
        }
    }
}

/// Most memory that a process ever had, in bytes.
fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

fn event(plugin: &str, details: usize) -> PluginEventMessage {
    PluginEventMessage {
        plugin_name: plugin.to_owned(),
        revision_id: "1".to_owned(),
        event_type: 4,
        event_timestamp: None,
        event_details: Some(vec![b'x'; details]),
    }
}

/// Sends an event and returns how it was answered; what else comes is left alone.
async fn tell(agent: &mut Agent, id: &str, event: &PluginEventMessage) -> Result<i32, Status> {
    agent.send_body(id, messages::pack(messages::PLUGIN_EVENT, event)).await;
    loop {
        let frame = agent.next().await?.ok_or_else(|| Status::aborted("it ended"))?;
        if let (true, Some(crate::gateway::client::Down::MessageResponse(response))) =
            (frame.message_id == id, frame.r#type)
        {
            return Ok(response.status.map_or(0, |status| status.code));
        }
    }
}

/// The entries that the log has of an agent, as subjects, ids and sizes.
async fn entries(directory: &Path, resource: &str) -> Vec<(String, String, usize)> {
    let ledger = SqliteLedger::open(&directory.join("ledger.db")).unwrap();
    let prefix = guest_fleet_ledger::records::event::subject(resource, "");
    let (mut found, mut after) = (Vec::new(), 0);
    loop {
        let page = ledger.read(Log::Events, &prefix, after, 1000).await.unwrap();
        let Some(last) = page.last() else { break };
        after = last.position;
        found.extend(page.into_iter().map(|it| (it.subject, it.id, it.value.len())));
    }
    ledger.close().await;
    found
}

/// Sends bytes as they are, where a message should be.
#[derive(Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let rest = from.remaining();
        Ok(Some(from.copy_to_bytes(rest)))
    }
}

/// Opens a stream whose first frame is these bytes; returns how it ends.
async fn first_frame(directory: &Path, bytes: Vec<u8>) -> Status {
    let mut client = tonic::client::Grpc::new(channel(directory).await);
    client.ready().await.unwrap();
    let path = "/google.cloud.agentcommunication.v1.AgentCommunication/StreamAgentMessages";
    let frames = tokio_stream::iter([Bytes::from(bytes)]);
    let request = with_metadata(frames, &metadata(FOE));
    let answered = client.streaming(request, PathAndQuery::from_static(path), Raw).await;
    let mut answers = match answered {
        Ok(answers) => answers.into_inner(),
        Err(status) => return status,
    };
    loop {
        match tokio::time::timeout(LONG, answers.message()).await.expect("it ends") {
            Ok(Some(_)) => {}
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        }
    }
}

/// Writes the head of a request without an end; returns how many bytes were taken.
async fn endless_head(directory: &Path) -> usize {
    const PIECE: usize = 16 << 10;
    let mut socket = UnixStream::connect(directory.join("cp.sock")).await.unwrap();
    let mut begin = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    begin.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // HEADERS of stream 1 that do not end.
    begin.extend([0, 0, 0, 1, 0, 0, 0, 0, 1]);
    socket.write_all(&begin).await.unwrap();
    let (mut read, mut write) = socket.split();
    let writes = async {
        let mut continuation = vec![0, 0x40, 0, 9, 0, 0, 0, 0, 1];
        // A literal header of one byte each, over and over.
        continuation.extend(b"\x00\x01a\x01b".iter().cycle().take(PIECE));
        let mut sent = 0;
        while sent < (256 << 20) && write.write_all(&continuation).await.is_ok() {
            sent += PIECE;
        }
        sent
    };
    let reads = async {
        let mut answer = [0; 4096];
        while read.read(&mut answer).await.is_ok_and(|count| count > 0) {}
    };
    tokio::time::timeout(LONG, async { tokio::join!(writes, reads).0 }).await.expect("it is closed")
}

#[tokio::test]
async fn a_hostile_agent_is_told_what_is_wrong_and_its_neighbour_gets_its_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let served = Served::start(path).await;
    let mut neighbour = Machine::connect(path, "").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    let before = peak(served.pid());

    // Connections that say nothing, or stop after half of a handshake.
    let mut idle = Vec::new();
    for number in 0..500 {
        let mut socket = UnixStream::connect(path.join("cp.sock")).await.unwrap();
        if number % 2 == 0 {
            socket.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
        }
        idle.push(socket);
    }

    // Bytes that are no protobuf message, and messages of another protocol.
    for (frame, code) in [
        (vec![0xff; 1000], Code::Internal),
        (Vec::new(), Code::InvalidArgument),
        (vec![0x0a, 0x01, b'1'], Code::InvalidArgument),
    ] {
        let ended = first_frame(path, frame.clone()).await;
        assert_eq!(ended.code(), code, "{} bytes: {ended}", frame.len());
        assert!(!ended.message().is_empty());
    }
    // A frame that is larger than any may be.
    let ended = first_frame(path, vec![0; (4 << 20) + 1]).await;
    assert_eq!(ended.code(), Code::OutOfRange, "{ended}");
    assert!(ended.message().contains("4194304"), "{ended}");
    assert!(endless_head(path).await < (16 << 20), "the head was taken");
    // Ids that are too long for any agent.
    let long = "x".repeat(256);
    let refused = Agent::open(channel(path).await, &metadata(&long)).await;
    let refused = match refused {
        Ok(mut agent) => agent.end().await.expect("a status"),
        Err(status) => status,
    };
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");

    // Plugins without number: in events, in a list, in a report.
    let mut foe = stream(path, FOE).await.unwrap();
    for number in 0..1100 {
        let name = format!("plugin-{number}");
        assert_eq!(tell(&mut foe, &name, &event(&name, 10)).await.unwrap(), 0, "{name}");
    }
    let names = (0..150_000).map(|number| format!("p-{number}"));
    let states = names.clone().map(|name| DaemonPluginState {
        name,
        current_revision_id: "1".to_owned(),
        ..DaemonPluginState::default()
    });
    let list = CurrentPluginStates {
        daemon_plugin_states: states.collect(),
        ..CurrentPluginStates::default()
    };
    foe.send_body("list", messages::pack(messages::CURRENT_PLUGIN_STATES, &list)).await;
    let plugins = names.map(|name| PluginReport { name, ..PluginReport::default() });
    let report = AgentReport { plugins: plugins.collect(), ..AgentReport::default() };
    foe.send_body("report", messages::pack(messages::AGENT_REPORT, &report)).await;
    // Names and ids that no key has room for.
    let invalid = i32::from(Code::InvalidArgument);
    assert_eq!(tell(&mut foe, "long", &event(&"n".repeat(600), 1)).await.unwrap(), invalid);
    assert_eq!(tell(&mut foe, &"i".repeat(600), &event("p", 1)).await.unwrap(), invalid);
    // Events as large as a message may be.
    let exhausted = i32::from(Code::ResourceExhausted);
    for number in 0..50 {
        let id = format!("large-{number}");
        let told = tell(&mut foe, &id, &event("large", 4_000_000)).await.unwrap();
        // What is above the limit of one agent is refused, and it may send it again later.
        assert!(told == 0 || told == exhausted, "{told}");
    }

    // It asks for much, reads nothing, and sends on for as long as anything takes it.
    let deaf = stream(path, FOE).await.unwrap();
    let flood = async {
        for number in 0..10_000 {
            deaf.send_body(
                &format!("f-{number}"),
                messages::pack(messages::PLUGIN_EVENT, &event("large", 100)),
            )
            .await;
        }
    };
    // The neighbour's order comes meanwhile.
    let work = async {
        declare(path, "1").await;
        let (id, revision, _) = neighbour.ordered().await;
        assert_eq!(revision, "1");
        neighbour.does(&id, "1").await;
    };
    tokio::select! {
        biased;
        () = work => {}
        () = async { flood.await; std::future::pending().await } => {}
    }

    let grown = peak(served.pid()) - before;
    eprintln!("it grew by {} MiB", grown >> 20);
    assert!(grown < GROWTH, "it grew by {} MiB", grown >> 20);
    drop(idle);
    // What is read page by page is one state of the log only while nobody appends.
    served.stop().await;
    let entries = entries(path, FOE).await;
    let subjects: BTreeSet<&str> = entries.iter().map(|(subject, ..)| subject.as_str()).collect();
    assert!(subjects.len() <= 1001, "{} subjects", subjects.len());
    for (subject, id, bytes) in &entries {
        assert!(*bytes < (66 << 10), "{subject} {id} has {bytes} bytes");
    }
    // Nothing that was acknowledged is lost. What has no place of its own shares one, of 200 entries.
    let ids: BTreeSet<&str> = entries.iter().map(|(_, id, _)| id.as_str()).collect();
    for number in 0..1000 {
        assert!(ids.contains(format!("plugin-{number}").as_str()), "plugin-{number} is lost");
    }
    assert!(entries.len() <= 1000 + 200, "{} entries", entries.len());
}

#[tokio::test]
async fn on_a_full_disk_events_are_asked_for_again_until_there_is_room_and_orders_go_on() {
    let Some(disk) = SmallDisk::mount(16) else { return };
    let path = disk.path();
    let served = Served::start(path).await;
    let mut neighbour = Machine::connect(path, "").await;
    let mut agent = stream(path, FOE).await.unwrap();
    let mut taken = Vec::new();
    let room = |bytes: usize| fs::write(path.join("ballast"), vec![7; bytes]);
    // Whatever is left is filled, a piece at a time.
    let mut ballast = 1 << 20;
    while room(ballast).is_ok() {
        ballast += 256 << 10;
    }
    let refused = loop {
        let id = format!("e-{}", taken.len());
        let code = tell(&mut agent, &id, &event("p", 60_000)).await.unwrap();
        if code != 0 {
            assert_eq!(code, i32::from(Code::Unavailable));
            break id;
        }
        taken.push(id);
        assert!(taken.len() < 190, "the disk is never full");
    };
    fs::remove_file(path.join("ballast")).unwrap();
    // The agent sends it again, as agents do.
    let deadline = tokio::time::Instant::now() + LONG;
    while tell(&mut agent, &refused, &event("p", 60_000)).await.unwrap() != 0 {
        assert!(tokio::time::Instant::now() < deadline, "it is never taken");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    taken.push(refused);
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    declare(path, "1").await;
    let (id, revision, _) = neighbour.ordered().await;
    assert_eq!(revision, "1");
    neighbour.does(&id, "1").await;
    served.stop().await;
    let ids: Vec<String> = entries(path, FOE).await.into_iter().map(|(_, id, _)| id).collect();
    assert_eq!(ids, taken, "lost, twice or out of order");
}

#[tokio::test]
async fn damaged_records_are_named_and_stop_the_agent_that_they_are_of_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let served = Served::start(path).await;
    let mut neighbour = Machine::connect(path, "").await;
    drop(stream(path, FOE).await.unwrap());
    let damage = async |bucket, key: &str| {
        let ledger = SqliteLedger::open(&path.join("ledger.db")).unwrap();
        loop {
            let found = ledger.get(bucket, key).await.unwrap();
            let expected = found.map_or(Revision::ABSENT, |found| found.revision);
            let value = Some(Bytes::from_static(b"\xff\xff garbage"));
            let write = Write { key: key.to_owned(), expected, value };
            // The server writes, too.
            if ledger.write(bucket, vec![write]).await.is_ok() {
                break;
            }
        }
        ledger.close().await;
    };
    damage(Bucket::Agents, FOE).await;
    damage(Bucket::Journal, FOE).await;
    let refused = match stream(path, FOE).await {
        // The registration is acknowledged before the records are read.
        Ok(mut stream) => stream.end().await.expect("a status"),
        Err(status) => status,
    };
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    assert!(refused.message().contains("records cannot be read"), "{refused}");

    // A damaged release is a release that is not there; nothing else waits for it.
    damage(Bucket::Configuration, "release/other/1").await;
    ask(path, &["agent", "label", AGENT, "env=prod"]).await;
    declare(path, "1").await;
    assert_eq!(neighbour.ordered().await.1, "1");
    served.stop().await;
}

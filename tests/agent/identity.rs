//! Identities of real agents of a fleet that others use, claim or lose: a cloned disk, a foreign id,
//! a rotation of the authority, a token that admits nobody.

use std::path::Path;
use std::time::{Duration, SystemTime};

use clap::Parser;
use guest_agent_lab::messages;
use guest_agent_proto::agent_communication::agent_communication_client::AgentCommunicationClient;
use guest_agent_proto::agent_communication::{
    MessageBody, RegisterConnection, StreamAgentMessagesRequest, StreamAgentMessagesResponse,
    stream_agent_messages_request,
};
use guest_agent_proto::fleet::AgentReport;
use guest_fleet::cli::context::{Caller, Context, Output};
use guest_fleet::cli::{self, Verb};
use guest_fleet_ledger::Bucket;
use guest_fleet_ledger::records::{self, agent::AgentRecord};
use guest_fleet_server::enroll::Authority;
use guest_fleet_server::zones::IanaZones;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

use crate::enrolment::{Fleet, fleet, make_due, said_of_the_link};
use crate::harness::{Bed, PATIENCE, RESOURCE};

/// The channel of agents: the streams of one agent on it replace each other.
const CHANNEL: &str = "compute.googleapis.com/google-guest-agent";

const OTHER: &str = "projects/1/zones/test/instances/other";

#[derive(Parser)]
#[command(name = "guest-fleet")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

/// What a verb of `guest-fleet` prints.
async fn ask(fleet: &Fleet, words: &[&str]) -> String {
    let arguments = Arguments::try_parse_from(["guest-fleet"].iter().chain(words)).unwrap();
    let (mut out, mut remarks) = (Vec::new(), Vec::new());
    let mut context = Context {
        ledger: &*fleet.ledger,
        out: &mut out,
        remarks: &mut remarks,
        input: &mut std::io::empty(),
        output: Output::Text,
        caller: Caller { who: "anna".to_owned(), from: "a test".to_owned() },
        now: SystemTime::now().try_into().unwrap(),
        zones: &IanaZones,
    };
    if let Err(failure) = cli::run(&arguments.verb, &mut context).await {
        panic!("{words:?}: {failure:?}");
    }
    String::from_utf8(out).unwrap()
}

/// A stream of whatever has these files of an agent.
struct Stream {
    out: mpsc::Sender<StreamAgentMessagesRequest>,
    inbound: Streaming<StreamAgentMessagesResponse>,
}

impl Stream {
    /// Opens a stream with the certificate in `files`; the metadata and the registration name these
    /// agents.
    async fn open(
        fleet: &Fleet,
        files: &Path,
        metadata: &str,
        registered: &str,
    ) -> Result<Self, Status> {
        let pem = std::fs::read(files.join("agent.pem")).unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(
                fleet.authorities.current().trust_pem(SystemTime::now()),
            ))
            .identity(Identity::from_pem(&pem, &pem));
        let endpoint = Endpoint::from_shared(fleet.gateway.endpoint()).unwrap();
        let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
        let (out, frames) = mpsc::channel(8);
        let mut request = Request::new(ReceiverStream::new(frames));
        for (name, value) in [
            ("agent-communication-resource-id", metadata),
            ("agent-communication-channel-id", CHANNEL),
        ] {
            request.metadata_mut().insert(name, value.parse().unwrap());
        }
        let mut client = AgentCommunicationClient::new(channel);
        let inbound = client.stream_agent_messages(request).await?.into_inner();
        let mut stream = Self { out, inbound };
        stream
            .send(stream_agent_messages_request::Type::RegisterConnection(RegisterConnection {
                protocol_version: 1,
                channel_id: CHANNEL.to_owned(),
                resource_id: registered.to_owned(),
            }))
            .await;
        stream.next().await.map(|_| stream)
    }

    async fn send(&self, what: stream_agent_messages_request::Type) {
        let frame = StreamAgentMessagesRequest { message_id: "1".to_owned(), r#type: Some(what) };
        self.out.send(frame).await.unwrap();
    }

    async fn send_body(&self, body: MessageBody) {
        self.send(stream_agent_messages_request::Type::MessageBody(body)).await;
    }

    async fn next(&mut self) -> Result<Option<StreamAgentMessagesResponse>, Status> {
        tokio::time::timeout(PATIENCE, self.inbound.message()).await.expect("a frame or an end")
    }
}

/// Has every agent of the site run a plugin.
async fn declare(fleet: &Fleet, bed: &Bed) {
    let archive = bed.echo().await;
    let declared = bed.dir().join("declared.toml");
    let text = format!(
        r#"
[[release]]
plugin = "echo"
revision = "1"
entry_point = "{}"
archives.any = {{ sha256 = "{}", url = "{}" }}

[[assignment]]
name = "echo"
plugin = "echo"
revision = "1"
select = "site = a"
"#,
        archive.entry_point, archive.sha256, archive.url
    );
    std::fs::write(&declared, text).unwrap();
    ask(fleet, &["apply", "-f", declared.to_str().unwrap()]).await;
}

#[tokio::test]
async fn a_cloned_disk_puts_the_agent_into_quarantine_until_a_person_releases_it() {
    let fleet = fleet().await;
    let mut bed = fleet.agent(RESOURCE).await;
    bed.start_agent().await;
    bed.until("its boot is recorded", async || {
        let found = fleet.ledger.get(Bucket::Agents, RESOURCE).await.unwrap()?;
        let record: AgentRecord = records::decode(RESOURCE, &found.value).unwrap();
        (!record.boots.is_empty()).then_some(())
    })
    .await;
    let files = bed.dir().join("state/fleet");
    // Two machines take turns: each ends the stream of the other.
    let mut turns = 0;
    bed.within(PATIENCE * 4, "the clone is noticed", async || {
        if ask(&fleet, &["agents"]).await.contains("quarantine") {
            return Some(());
        }
        let clone = Stream::open(&fleet, &files, RESOURCE, RESOURCE).await.ok()?;
        turns += 1;
        let report = AgentReport {
            boot_id: "the-clone".to_owned(),
            architecture: "amd64".to_owned(),
            ..AgentReport::default()
        };
        clone.send_body(messages::pack(messages::AGENT_REPORT, &report)).await;
        let connection = fleet.gateway.connection(RESOURCE)?;
        // The agent comes back by itself.
        drop(fleet.gateway.wait_reconnected(RESOURCE, &connection, PATIENCE).await);
        None
    })
    .await;
    assert!(turns < 10, "{turns} turns");
    let shown = ask(&fleet, &["agent", RESOURCE]).await;
    assert!(shown.contains("two machines use its identity"), "{shown}");
    assert!(shown.contains("guest-fleet agent release"), "{shown}");

    // It is connected, and gets no orders.
    fleet.gateway.wait_connected(RESOURCE, PATIENCE).await.unwrap();
    declare(&fleet, &bed).await;
    let explained = ask(&fleet, &["explain", RESOURCE, "echo"]).await;
    assert!(explained.contains("two machines use its identity"), "{explained}");
    // Longer than a gateway takes to see a change.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(bed.try_status().await.unwrap().plugins.is_empty(), "it was ordered something");

    ask(&fleet, &["agent", "release", RESOURCE]).await;
    bed.running("echo", "1").await;
    assert!(!ask(&fleet, &["agents"]).await.contains("quarantine"));
    bed.finish().await;
}

#[tokio::test]
async fn who_claims_the_id_of_another_agent_is_refused_and_the_other_is_not_disturbed() {
    let fleet = fleet().await;
    let mut bed = fleet.agent(RESOURCE).await;
    bed.start_agent().await;
    let before = fleet.gateway.connection(RESOURCE).unwrap();
    let mut thief = fleet.agent(OTHER).await;
    let files = thief.dir().join("state/fleet");

    // In the metadata, in the registration, or both.
    let refused = Stream::open(&fleet, &files, RESOURCE, RESOURCE).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains(RESOURCE) && refused.message().contains(OTHER), "{refused}");
    let refused = Stream::open(&fleet, &files, RESOURCE, OTHER).await.err().unwrap();
    assert_eq!(refused.code(), Code::PermissionDenied);
    let refused = Stream::open(&fleet, &files, OTHER, RESOURCE).await.err().unwrap();
    assert!(refused.message().starts_with("INVALID_REGISTER_REQUEST"), "{refused}");

    // A real agent that is set up with the other's name says why it is not connected.
    thief.set(format!("control_plane.resource={RESOURCE}"));
    thief.spawn_agent();
    thief
        .until("the agent says that the name is not its own", async || {
            let said = said_of_the_link(&thief).await;
            (said.contains(RESOURCE) && said.contains(OTHER)).then_some(())
        })
        .await;
    assert_eq!(fleet.gateway.connection(RESOURCE).unwrap().stream, before.stream);
    thief.finish().await;
    bed.finish().await;
}

#[tokio::test]
async fn an_agent_goes_through_a_rotation_of_the_authority_with_both_in_its_bundle() {
    let fleet = fleet().await;
    let mut bed = fleet.agent(RESOURCE).await;
    bed.start_agent().await;
    let trust = bed.dir().join("state/fleet/trust.pem");
    let authorities = || std::fs::read_to_string(&trust).unwrap().matches("BEGIN CERT").count();
    assert_eq!(authorities(), 1);
    let directory = fleet.directory.path();
    let former = bed.dir().join("former");
    std::fs::create_dir(&former).unwrap();
    std::fs::copy(bed.dir().join("state/fleet/agent.pem"), former.join("agent.pem")).unwrap();

    Authority::rotate(directory, SystemTime::now()).unwrap();
    fleet.authorities.refresh().await.unwrap();
    // With the certificate of the former authority, and knowing only that one.
    bed.stop_agent().await;
    bed.start_agent().await;
    bed.stop_agent().await;
    make_due(&bed);
    bed.start_agent().await;
    bed.until("the bundle has both", async || (authorities() == 2).then_some(())).await;
    bed.until("the certificate is renewed", async || {
        let now = std::fs::read(bed.dir().join("state/fleet/agent.pem")).unwrap();
        (now != std::fs::read(former.join("agent.pem")).unwrap()).then_some(())
    })
    .await;

    Authority::forget(directory, None).unwrap();
    fleet.authorities.refresh().await.unwrap();
    bed.stop_agent().await;
    bed.start_agent().await;
    bed.until("the former certificate connects no more", async || {
        let opened =
            tokio::task::spawn(try_former(fleet.gateway.endpoint(), former.clone(), trust.clone()));
        opened.await.unwrap().is_err().then_some(())
    })
    .await;
    bed.finish().await;
}

/// Connects with the certificate in `files`; the handshake ends before the first answer.
async fn try_former(
    endpoint: String,
    files: std::path::PathBuf,
    trust: std::path::PathBuf,
) -> Result<(), String> {
    let pem = std::fs::read(files.join("agent.pem")).unwrap();
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(std::fs::read(trust).unwrap()))
        .identity(Identity::from_pem(&pem, &pem));
    let endpoint = Endpoint::from_shared(endpoint).unwrap().tls_config(tls).unwrap();
    let channel = endpoint.connect().await.map_err(|error| error.to_string())?;
    let mut request = Request::new(tokio_stream::pending());
    for (name, value) in
        [("agent-communication-resource-id", RESOURCE), ("agent-communication-channel-id", CHANNEL)]
    {
        request.metadata_mut().insert(name, value.parse().unwrap());
    }
    let mut client = AgentCommunicationClient::new(channel);
    client.stream_agent_messages(request).await.map(drop).map_err(|status| status.to_string())
}

#[tokio::test]
async fn a_token_that_ended_or_was_used_up_admits_no_machine_and_says_so() {
    let fleet = fleet().await;
    let (first, second) = (Bed::builder().build().await, Bed::builder().build().await);
    let two_hours_ago = SystemTime::now() - Duration::from_secs(7200);
    let ended = fleet.token("ended", two_hours_ago).await;
    let said = fleet.enroll(&first, &ended, RESOURCE).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("expired") || said.stderr.contains("ended"), "{said:?}");
    assert!(said.stderr.contains("guest-fleet token"), "{said:?}");

    let one = fleet.token("one", SystemTime::now()).await;
    fleet.enroll(&first, &one, RESOURCE).await.ok();
    let said = fleet.enroll(&second, &one, OTHER).await;
    assert_eq!(said.code, 1, "{said:?}");
    assert!(said.stderr.contains("used"), "{said:?}");
    assert!(said.stderr.contains("guest-fleet token"), "{said:?}");
    assert!(!second.dir().join("state/fleet/agent.pem").exists());
    // The first one is what it was.
    assert!(ask(&fleet, &["agents"]).await.contains(RESOURCE));
    first.finish().await;
    second.finish().await;
}

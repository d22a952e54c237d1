//! Each mode alone, and a gateway with certificates on loopback.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_lab::Deaf;
use guest_agent_proto::agent_communication::agent_communication_client::AgentCommunicationClient;
use guest_agent_proto::agent_communication::{
    MessageBody, RegisterConnection, SendAgentMessageRequest, StreamAgentMessagesRequest,
    StreamAgentMessagesResponse, stream_agent_messages_request,
};
use guest_agent_serve_kit::front::{FrontLimits, PeerInfo, Rate};
use guest_agent_serve_kit::listen::Listen;
use guest_fleet_ledger::{MemoryLedger, SharedLedger};
use guest_fleet_sessions::Gateway;
use guest_fleet_sessions::admission::{Admission, Admitted, Peer};
use rcgen::{CertificateParams, KeyPair};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request, Status, Streaming};

use super::jwt::fixture::{AUDIENCE, ISSUER, Issuer};
use super::*;
use crate::enroll::id::AgentId;
use crate::enroll::issue::Issued;
use crate::enroll::listener::{self, Admits};
use crate::enroll::{Authorities, Authority, Revocations, agents, csr};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(60);

fn info(address: Option<&str>) -> PeerInfo {
    PeerInfo { address: address.map(|it| it.parse().expect("an address")), certificate: None }
}

async fn code(admission: &dyn Admission, info: &PeerInfo, bearer: Option<&str>) -> Code {
    match admission.admit(&Peer { info, bearer }, "vm-1").await {
        Ok(admitted) => {
            assert_eq!(admitted.agent, "vm-1");
            Code::Ok
        }
        Err(status) => status.code(),
    }
}

async fn jwt(
    directory: &tempfile::TempDir,
    issuer: &Issuer,
    audience: &str,
) -> Result<Jwt, JwtSetupError> {
    let path = directory.path().join("keys.json");
    std::fs::write(&path, issuer.jwks()).expect("written");
    Jwt::new(JwtSettings {
        audience: audience.to_owned(),
        issuer: Some(ISSUER.to_owned()),
        required: Vec::new(),
        id: "{sub}".to_owned(),
        keys: KeySource::File(path),
        allows_google_audience: false,
    })
    .await
}

#[tokio::test]
async fn a_signed_token_admits_the_agent_that_it_names_and_no_other() {
    let (directory, issuer) = (tempfile::tempdir().expect("a directory"), Issuer::new());
    let jwt = jwt(&directory, &issuer, AUDIENCE).await.expect("settings");
    let nobody = info(None);
    assert_eq!(code(&jwt, &nobody, Some(&issuer.token("vm-1"))).await, Code::Ok);
    assert_eq!(
        code(&jwt, &nobody, Some(&Issuer::new().token("vm-1"))).await,
        Code::Unauthenticated
    );
    assert_eq!(code(&jwt, &nobody, None).await, Code::Unauthenticated);
    let token = issuer.token("vm-2");
    let peer = Peer { info: &nobody, bearer: Some(&token) };
    let status = jwt.admit(&peer, "vm-1").await.expect_err("a foreign id");
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("vm-1") && status.message().contains("vm-2"), "{status}");
}

#[tokio::test]
async fn an_audience_that_others_take_is_refused_unless_it_is_allowed() {
    let (directory, issuer) = (tempfile::tempdir().expect("a directory"), Issuer::new());
    for audience in [GOOGLE_AUDIENCE, "https://AgentCommunication.googleapis.com/"] {
        let refused = jwt(&directory, &issuer, audience).await;
        assert!(matches!(refused.err(), Some(JwtSetupError::GoogleAudience)), "{audience}");
    }
    let empty = jwt(&directory, &issuer, "").await;
    assert!(matches!(empty.err(), Some(JwtSetupError::NoAudience)));
    let allowed = Jwt::new(JwtSettings {
        audience: GOOGLE_AUDIENCE.to_owned(),
        issuer: None,
        required: Vec::new(),
        id: "{sub}".to_owned(),
        keys: KeySource::File(directory.path().join("keys.json")),
        allows_google_audience: true,
    });
    allowed.await.expect("it is allowed");
}

#[tokio::test]
async fn a_claim_that_is_required_has_to_have_its_value() {
    let (directory, issuer) = (tempfile::tempdir().expect("a directory"), Issuer::new());
    let path = directory.path().join("keys.json");
    std::fs::write(&path, issuer.jwks()).expect("written");
    let requiring = async |claim: &str, value: &str| {
        let settings = JwtSettings {
            audience: AUDIENCE.to_owned(),
            issuer: None,
            required: vec![(claim.to_owned(), value.to_owned())],
            id: "{sub}".to_owned(),
            keys: KeySource::File(path.clone()),
            allows_google_audience: false,
        };
        let jwt = Jwt::new(settings).await.expect("settings");
        code(&jwt, &info(None), Some(&issuer.token("vm-1"))).await
    };
    assert_eq!(requiring("iss", ISSUER).await, Code::Ok);
    assert_eq!(requiring("/iss", ISSUER).await, Code::Ok);
    assert_eq!(requiring("iss", "https://other.example").await, Code::PermissionDenied);
    assert_eq!(requiring("/tenant/id", "7").await, Code::PermissionDenied);
}

#[tokio::test]
async fn each_agent_has_a_token_of_its_own_and_the_file_is_read_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tokens");
    let (first, second) = ("first-token-0123456789", "second-token-0123456789");
    let hashed = data_encoding::HEXLOWER.encode(&<sha2::Sha256 as sha2::Digest>::digest(second));
    std::fs::write(&path, format!("# agents\nvm-1 {first}\n\nvm-2 sha256:{hashed}\n"))
        .expect("written");
    let tokens = AgentTokens::open(path.clone()).await.expect("tokens");
    let admit = async |token: Option<&str>, resource: &str| {
        let peer = Peer { info: &info(None), bearer: token };
        tokens.admit(&peer, resource).await.map_or_else(|status| status.code(), |_| Code::Ok)
    };
    assert_eq!(admit(Some(first), "vm-1").await, Code::Ok);
    assert_eq!(admit(Some(second), "vm-2").await, Code::Ok);
    assert_eq!(admit(Some(first), "vm-2").await, Code::Unauthenticated);
    assert_eq!(admit(Some(second), "vm-3").await, Code::Unauthenticated);
    assert_eq!(admit(None, "vm-1").await, Code::Unauthenticated);
    // A token that is replaced, and one that is being replaced: two lines of one agent.
    std::fs::write(&path, format!("vm-1 {second}\nvm-1 third-token-0123456789\n"))
        .expect("written");
    assert_eq!(admit(Some(first), "vm-1").await, Code::Unauthenticated);
    assert_eq!(admit(Some(second), "vm-1").await, Code::Ok);
    assert_eq!(admit(Some("third-token-0123456789"), "vm-1").await, Code::Ok);
    // A file that is damaged meanwhile admits nobody by a guess: the former one counts.
    std::fs::write(&path, "vm-1\n").expect("written");
    assert_eq!(admit(Some(second), "vm-1").await, Code::Ok);
}

#[tokio::test]
async fn a_file_of_tokens_that_is_not_one_is_refused_with_its_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tokens");
    for (text, expected) in [
        ("vm-1 first-token-0123456789\nvm-2\n", "line 2"),
        ("vm-1 short\n", "line 1"),
        ("vm-1 sha256:00\n", "line 1"),
        ("a//b first-token-0123456789\n", "line 1"),
        ("# nothing\n", "no agent"),
    ] {
        std::fs::write(&path, text).expect("written");
        let error = AgentTokens::open(path.clone()).await.err().expect("refused").to_string();
        assert!(error.contains(expected) && error.contains("tokens"), "{error}");
        assert!(!error.contains("first-token"), "{error}");
    }
}

// === a gateway with certificates ===

struct World {
    _directory: tempfile::TempDir,
    ledger: Arc<MemoryLedger>,
    authority: Arc<Authority>,
    gateway: Gateway,
    _stop: tokio_util::sync::DropGuard,
}

async fn world(front: Option<FrontLimits>) -> World {
    let directory = tempfile::tempdir().expect("a directory");
    Authority::init(directory.path(), SystemTime::now()).expect("an authority");
    let authorities = Authorities::open(directory.path()).await.expect("an authority");
    let authority = authorities.current();
    let ledger = Arc::new(MemoryLedger::new());
    let (revocations, stop) = (Revocations::default(), CancellationToken::new());
    revocations.refresh(&*ledger).await.expect("read");
    let shared: SharedLedger = ledger.clone();
    tokio::spawn(revocations.clone().follow(shared, stop.clone()));
    let names = vec!["localhost".to_owned()];
    let secured = listener::secure(&authorities, names, Admits::Agents, &[b"h2"], stop.clone());
    let mutual = Arc::new(Mutual::new(authority.fleet().clone()));
    let admission = Arc::new(Watched::new(mutual, revocations));
    let mut builder = Gateway::builder(Arc::new(Deaf), admission)
        .listen(Listen::Tcp((Ipv4Addr::LOCALHOST, 0).into()))
        .secured(secured.expect("secured"));
    if let Some(front) = front {
        builder = builder.front(front);
    }
    let gateway = builder.start().await.expect("it starts");
    World { _directory: directory, ledger, authority, gateway, _stop: stop.drop_guard() }
}

impl World {
    /// A certificate of an agent that ends after `life`, and its key.
    fn issue(&self, agent: &str, life: Duration) -> (Issued, KeyPair) {
        let key = KeyPair::generate().expect("a key");
        let request = CertificateParams::default().serialize_request(&key).expect("a request");
        let proven = csr::check(&request.pem().expect("PEM")).expect("a request");
        let agent: AgentId = agent.parse().expect("an id");
        (self.authority.issue_agent(&proven, &agent, life, SystemTime::now()).expect("issued"), key)
    }

    async fn connect(
        &self,
        shown: Option<&(Issued, KeyPair)>,
    ) -> Result<Channel, tonic::transport::Error> {
        let trust = self.authority.trust_pem(SystemTime::now());
        let mut tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(trust))
            .domain_name("localhost");
        if let Some((issued, key)) = shown {
            tls = tls.identity(Identity::from_pem(issued.pem(), key.serialize_pem()));
        }
        let endpoint = Endpoint::from_shared(self.gateway.endpoint()).expect("an address");
        endpoint.tls_config(tls).expect("TLS").connect().await
    }

    /// Opens a stream as `resource` and registers.
    async fn stream(
        &self,
        channel: Channel,
        resource: &str,
    ) -> Result<Streaming<StreamAgentMessagesResponse>, Status> {
        let (out, frames) = mpsc::channel(1);
        let register = StreamAgentMessagesRequest {
            message_id: "1".to_owned(),
            r#type: Some(stream_agent_messages_request::Type::RegisterConnection(
                RegisterConnection {
                    protocol_version: 1,
                    channel_id: "c".to_owned(),
                    resource_id: resource.to_owned(),
                },
            )),
        };
        out.send(register).await.expect("room");
        // The stream of the client stays open for as long as the test runs.
        std::mem::forget(out);
        let request = with_metadata(ReceiverStream::new(frames), resource);
        let mut client = AgentCommunicationClient::new(channel);
        let mut stream = client.stream_agent_messages(request).await?.into_inner();
        tokio::time::timeout(LONG, stream.message()).await.expect("an answer").map(|_| stream)
    }
}

fn with_metadata<T>(message: T, resource: &str) -> Request<T> {
    let mut request = Request::new(message);
    let metadata = request.metadata_mut();
    metadata.insert("agent-communication-resource-id", resource.parse().expect("text"));
    metadata.insert("agent-communication-channel-id", "c".parse().expect("text"));
    request
}

async fn end(stream: &mut Streaming<StreamAgentMessagesResponse>) -> Status {
    loop {
        match tokio::time::timeout(LONG, stream.message()).await.expect("an end comes") {
            Ok(Some(_)) => {}
            Ok(None) => return Status::ok(""),
            Err(status) => return status,
        }
    }
}

#[tokio::test]
async fn an_agent_is_who_its_certificate_says_and_nobody_else() {
    let world = world(None).await;
    let mine = world.issue("vm-1", DAY);
    let channel = world.connect(Some(&mine)).await.expect("connected");
    world.stream(channel.clone(), "vm-1").await.expect("admitted");
    let status = world.stream(channel.clone(), "vm-2").await.expect_err("a foreign id");
    assert_eq!(status.code(), Code::PermissionDenied);
    assert!(status.message().contains("`vm-1`") && status.message().contains("`vm-2`"), "{status}");
    let message = SendAgentMessageRequest {
        resource_id: "vm-2".to_owned(),
        channel_id: "c".to_owned(),
        message_body: Some(MessageBody::default()),
    };
    let mut client = AgentCommunicationClient::new(channel);
    let sent = client.send_agent_message(with_metadata(message, "vm-2")).await;
    assert_eq!(sent.expect_err("a foreign id").code(), Code::PermissionDenied);
}

#[tokio::test]
async fn an_agent_without_a_certificate_of_this_authority_does_not_connect() {
    let (world, other) = (world(None).await, world(None).await);
    for shown in [None, Some(&other.issue("vm-1", DAY))] {
        let refused = match world.connect(shown).await {
            Ok(channel) => world.stream(channel, "vm-1").await.is_err(),
            Err(_) => true,
        };
        assert!(refused);
    }
    // Somebody else's certificate would be named, could it get here.
    let foreign = other.issue("vm-1", DAY).0.der;
    let info = PeerInfo { address: None, certificate: Some(Arc::new(foreign)) };
    let mutual = Mutual::new(world.authority.fleet().clone());
    assert_eq!(code(&mutual, &info, None).await, Code::PermissionDenied);
    assert_eq!(code(&mutual, &self::info(None), None).await, Code::Unauthenticated);
    let server = world.authority.certificate().clone();
    let info = PeerInfo { address: None, certificate: Some(Arc::new(server)) };
    assert_eq!(code(&mutual, &info, None).await, Code::Unauthenticated);
}

#[tokio::test]
async fn the_log_names_a_refused_agent_once_in_a_while_and_counts_the_others() {
    let (world, other) = (world(None).await, world(None).await);
    let log = tempfile::NamedTempFile::new().expect("a file");
    let file = Arc::new(log.reopen().expect("a file"));
    let lines = tracing_subscriber::fmt().with_writer(file).with_ansi(false).finish();
    let _logging = tracing::subscriber::set_default(lines);
    tokio::time::pause();
    let mutual = Arc::new(Mutual::new(world.authority.fleet().clone()));
    let admission = Counted::new(mutual, Arc::default());
    let shown = Some(Arc::new(other.issue("vm-1", DAY).0.der));
    let foreign = PeerInfo { address: None, certificate: shown };
    let refused = async |info: &PeerInfo| {
        let peer = Peer { info, bearer: None };
        let claimed = format!("vm-2\n\u{202e}{}", "x".repeat(1000));
        admission.admit(&peer, &claimed).await.expect_err("refused");
    };
    for _ in 0..3 {
        refused(&foreign).await;
    }
    refused(&info(None)).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    refused(&foreign).await;
    let log = std::fs::read_to_string(log.path()).expect("text");
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("is refused")).collect();
    let [first, claimed, later] = lines[..] else { panic!("{log}") };
    for part in [r#"agent="vm-1""#, "PermissionDenied", "of the fleet", "others=0"] {
        assert!(first.contains(part), "{first}");
    }
    for part in [r#"agent="vm-2\n\u{202e}xx"#, "shows no client certificate", "others=0"] {
        assert!(claimed.contains(part), "{claimed}");
    }
    assert!(claimed.len() < 600, "{claimed}");
    assert!(later.contains("others=2"), "{later}");
}

#[tokio::test]
async fn a_revoked_agents_stream_ends_and_it_does_not_come_back() {
    let world = world(None).await;
    let mine = world.issue("vm-1", DAY);
    let spent = crate::enroll::token::Spent {
        token: "web".to_owned(),
        agent: "vm-1".parse().expect("an id"),
        labels: Default::default(),
        is_ephemeral: false,
        may_replace: false,
        at: SystemTime::now(),
    };
    agents::enrol(&*world.ledger, &spent, &mine.0.facts, SystemTime::now())
        .await
        .expect("enrolled");
    let channel = world.connect(Some(&mine)).await.expect("connected");
    let other = world.issue("vm-2", DAY);
    let other = world.connect(Some(&other)).await.expect("connected");
    let mut theirs = world.stream(other, "vm-2").await.expect("admitted");
    let mut stream = world.stream(channel.clone(), "vm-1").await.expect("admitted");
    agents::revoke(&*world.ledger, &spent.agent, SystemTime::now()).await.expect("revoked");
    let status = end(&mut stream).await;
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let again = world.stream(channel, "vm-1").await.expect_err("revoked");
    assert!(again.message().contains("revoked"), "{again}");
    let quiet = tokio::time::timeout(Duration::from_millis(50), theirs.message()).await;
    assert!(quiet.is_err(), "others stay");
}

#[tokio::test]
async fn while_revocations_are_unknown_nobody_is_admitted() {
    let world = world(None).await;
    let mutual = Arc::new(Mutual::new(world.authority.fleet().clone()));
    let watched = Watched::new(mutual, Revocations::default());
    let mine = world.issue("vm-1", DAY).0.der;
    let info = PeerInfo { address: None, certificate: Some(Arc::new(mine)) };
    assert_eq!(code(&watched, &info, None).await, Code::Unavailable);
}

#[tokio::test]
async fn what_ended_admits_nobody_and_keeps_no_stream() {
    let world = world(None).await;
    let ended = world.issue("vm-1", Duration::ZERO).0;
    let info = PeerInfo { address: None, certificate: Some(Arc::new(ended.der)) };
    let mutual = Mutual::new(world.authority.fleet().clone());
    assert_eq!(code(&mutual, &info, None).await, Code::Unauthenticated);
    let admitted = Admitted { ends: Some(SystemTime::now()), ..Admitted::default() };
    assert_eq!(mutual.still(&admitted).expect_err("ended").code(), Code::Unauthenticated);
    let admitted = Admitted { ends: Some(SystemTime::now() + DAY), ..Admitted::default() };
    mutual.still(&admitted).expect("it lasts");
}

#[tokio::test]
async fn a_flood_of_connections_is_closed_before_tls_and_who_is_inside_stays() {
    let front = FrontLimits {
        rate: Rate { per_second: 1.0, burst: 4.0 },
        rate_per_address: None,
        connections: 10,
        handshake: Duration::from_secs(10),
    };
    let world = world(Some(front)).await;
    let mine = world.issue("vm-1", DAY);
    let channel = world.connect(Some(&mine)).await.expect("connected");
    world.stream(channel.clone(), "vm-1").await.expect("admitted");
    let mut refused = 0;
    for _ in 0..20 {
        refused += usize::from(world.connect(Some(&mine)).await.is_err());
    }
    assert!(refused > 0);
    world.stream(channel, "vm-1").await.expect("it is inside");
}

//! The server on loopback with real TLS, and clients that want what they must not get.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_proto::enrolment;
use guest_agent_serve_kit::tls;
use guest_fleet_ledger::{Faults, MemoryLedger};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::enroll::admit::Settings;
use crate::enroll::agents;
use crate::enroll::ca::{Authorities, Authority};
use crate::enroll::certificate::AgentCertificate;
use crate::enroll::csr;
use crate::enroll::id::AgentId;
use crate::enroll::token::{self, NewToken};

/// Nothing can be read or written.
const AWAY: Faults =
    Faults { stale: 0.0, ambiguous: 0.0, unavailable: 1.0, latency: Duration::ZERO };

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(60);

/// A certificate and its key.
type Shown = (CertificateDer<'static>, KeyPair);

struct World {
    directory: tempfile::TempDir,
    ledger: Arc<MemoryLedger>,
    authorities: Authorities,
    server: Server,
}

fn fast() -> Limits {
    let short = Duration::from_millis(300);
    Limits { head: short, body: short, ..Limits::default() }
}

async fn world(limits: Limits) -> World {
    let directory = tempfile::tempdir().expect("a directory");
    Authority::init(directory.path(), SystemTime::now()).expect("an authority");
    let authorities = Authorities::open(directory.path()).await.expect("an authority");
    let ledger = Arc::new(MemoryLedger::new());
    let enrolment = Enrolment::new(authorities.clone(), ledger.clone(), Settings::default());
    let (address, names) = ((Ipv4Addr::LOCALHOST, 0).into(), vec!["localhost".to_owned()]);
    let server = Server::start(address, names, enrolment, limits).await.expect("it starts");
    World { directory, ledger, authorities, server }
}

fn key() -> KeyPair {
    KeyPair::generate().expect("a key")
}

fn request(key: &KeyPair) -> String {
    CertificateParams::default().serialize_request(key).expect("a request").pem().expect("PEM")
}

async fn connect(
    address: SocketAddr,
    trust: &[CertificateDer<'static>],
    shown: Option<&Shown>,
) -> io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trust.iter().cloned());
    let config = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots);
    let config = match shown {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            config.with_client_auth_cert(vec![certificate.clone()], key).expect("a pair")
        }
    };
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Sends text and reads what comes until the end.
async fn exchange(stream: &mut TlsStream<TcpStream>, text: &str) -> io::Result<String> {
    stream.write_all(text.as_bytes()).await?;
    let mut answer = Vec::new();
    let reading = tokio::time::timeout(LONG, stream.read_to_end(&mut answer));
    match reading.await.expect("an end comes") {
        Err(error) if answer.is_empty() => Err(error),
        // The server need not say goodbye after its answer.
        _ => Ok(String::from_utf8(answer).expect("text")),
    }
}

fn http(path: &str, headers: &str, body: &str) -> String {
    let method = if body.is_empty() { "GET" } else { "POST" };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
         content-length: {length}\r\n\r\n{body}"
    )
}

impl World {
    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    async fn ask_raw(&self, shown: Option<&Shown>, text: &str) -> io::Result<(u16, Value)> {
        let trust = self.authorities.current().trust(SystemTime::now());
        let answer = exchange(&mut connect(self.address(), &trust, shown).await?, text).await?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        Ok((status.expect("a status"), serde_json::from_str(body).unwrap_or(Value::Null)))
    }

    async fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask_raw(None, &http(path, "", &body.to_string())).await.expect("an answer")
    }

    async fn token(&self, name: &str, uses: u32, agent: Option<&str>) -> String {
        let new = NewToken {
            name: name.to_owned(),
            uses,
            life: DAY,
            labels: [("site".to_owned(), "a".to_owned())].into(),
            is_ephemeral: false,
            agent: agent.map(|agent| agent.parse().expect("an id")),
            made_by: "anna".to_owned(),
        };
        token::create(&*self.ledger, new, SystemTime::now()).await.expect("a token")
    }

    async fn enroll(&self, token: &str, key: &KeyPair) -> enrolment::Granted {
        let (status, answer) =
            self.ask(enrolment::ENROLL, &json!({ "token": token, "csr": request(key) })).await;
        assert_eq!(status, 200, "{answer}");
        serde_json::from_value(answer).expect("an answer")
    }

    async fn renew(&self, shown: &Shown, key: &KeyPair) -> io::Result<(u16, Value)> {
        let body = json!({ "csr": request(key) }).to_string();
        self.ask_raw(Some(shown), &http(enrolment::RENEW, "", &body)).await
    }

    /// A certificate that was issued to an agent some days ago, for 30 days.
    fn issued(&self, agent: &str, days_ago: u32) -> Shown {
        let key = key();
        let proven = csr::check(&request(&key)).expect("a request");
        let agent: AgentId = agent.parse().expect("an id");
        let then = SystemTime::now() - DAY * days_ago;
        let authority = self.authorities.current();
        (authority.issue_agent(&proven, &agent, DAY * 30, then).expect("issued").der, key)
    }
}

fn shown(granted: &enrolment::Granted, key: KeyPair) -> Shown {
    (tls::certificates(&granted.certificate).expect("a certificate").remove(0), key)
}

fn code(answer: &Value) -> &str {
    for part in ["message", "fix"] {
        assert!(answer["error"][part].as_str().is_some_and(|text| text.len() > 5), "{answer}");
    }
    answer["error"]["code"].as_str().expect("a code")
}

#[tokio::test]
async fn a_machine_with_a_token_becomes_an_agent_and_renews() {
    let world = world(Limits::default()).await;
    let (token, first) = (world.token("web", 1, None).await, key());
    let granted = world.enroll(&token, &first).await;
    assert!(granted.agent_id.starts_with("a-"), "{granted:?}");
    assert!(granted.ends > granted.renew_at);
    assert_eq!(granted.trust, world.authorities.current().trust_pem(SystemTime::now()));
    let (mine, second) = (shown(&granted, first), key());
    let named = AgentCertificate::read(&mine.0).expect("a certificate");
    assert_eq!(named.agent.as_str(), granted.agent_id);
    let (status, renewed) = world.renew(&mine, &second).await.expect("an answer");
    assert_eq!((status, &renewed["agent_id"]), (200, &json!(granted.agent_id)));
    let (status, trust) = world.ask_raw(None, &http(enrolment::TRUST, "", "")).await.expect("it");
    assert_eq!((status, &trust["trust"]), (200, &json!(granted.trust)));
}

#[tokio::test]
async fn the_token_may_be_in_the_header_and_a_repeated_request_gets_the_same_id() {
    let world = world(Limits::default()).await;
    let (token, key) = (world.token("web", 1, None).await, key());
    let body = json!({ "csr": request(&key), "id": "vm/7" }).to_string();
    let text = http(enrolment::ENROLL, &format!("authorization: Bearer {token}\r\n"), &body);
    for _ in 0..2 {
        let (status, answer) = world.ask_raw(None, &text).await.expect("an answer");
        assert_eq!((status, &answer["agent_id"]), (200, &json!("vm/7")), "{answer}");
    }
}

#[tokio::test]
async fn of_two_machines_with_one_token_for_one_machine_one_becomes_an_agent() {
    let world = world(Limits::default()).await;
    let token = world.token("web", 1, None).await;
    let (first, second) = (key(), key());
    let body = |key: &KeyPair| json!({ "token": token, "csr": request(key) });
    let (body_1, body_2) = (body(&first), body(&second));
    let answers =
        tokio::join!(world.ask(enrolment::ENROLL, &body_1), world.ask(enrolment::ENROLL, &body_2));
    let mut statuses = [answers.0.0, answers.1.0];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 403], "{answers:?}");
}

#[tokio::test]
async fn what_is_wrong_is_answered_with_a_code_and_the_fix() {
    let world = world(Limits::default()).await;
    let token = world.token("web", 9, None).await;
    let revoked = world.token("old", 9, None).await;
    token::revoke(&*world.ledger, "old", SystemTime::now()).await.expect("revoked");
    let csr = request(&key());
    let odd = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).expect("a key");
    for (body, status, expected) in [
        (json!({ "csr": csr }), 401, "no_token"),
        (json!({ "csr": csr, "token": "web.wrong" }), 401, "token_unknown"),
        (json!({ "csr": csr, "token": revoked }), 403, "token_revoked"),
        (json!({ "csr": "garbage", "token": token }), 400, "bad_csr"),
        (json!({ "csr": request(&odd), "token": token }), 400, "bad_csr"),
        (json!({ "csr": csr, "token": token, "id": "../x" }), 400, "bad_id"),
        (json!({ "token": token }), 400, "bad_request"),
        (json!("x"), 400, "bad_request"),
    ] {
        let (found, answer) = world.ask(enrolment::ENROLL, &body).await;
        assert_eq!((found, code(&answer)), (status, expected), "{answer}");
    }
    let left = token::list(&*world.ledger).await.expect("tokens")[1].uses_left;
    assert_eq!(left, 9, "a request that is wrong takes no use");
    let (status, answer) = world.ask("/", &json!({})).await;
    assert_eq!((status, code(&answer)), (404, "not_found"));
    let answer = world.ask_raw(None, &http(enrolment::RENEW, "", "")).await.expect("an answer");
    assert_eq!((answer.0, code(&answer.1)), (405, "bad_method"));
    let (status, answer) = world.ask(enrolment::RENEW, &json!({ "csr": csr })).await;
    assert_eq!((status, code(&answer)), (401, "no_certificate"));
    world.ledger.set_faults(AWAY);
    let (status, answer) =
        world.ask(enrolment::ENROLL, &json!({ "csr": csr, "token": token })).await;
    assert_eq!((status, code(&answer)), (503, "unavailable"));
    assert!(!answer.to_string().contains("away"), "what is wrong inside is not told: {answer}");
}

#[tokio::test]
async fn an_id_in_use_is_given_to_an_operators_token_alone() {
    let world = world(Limits::default()).await;
    let open = world.token("web", 9, None).await;
    let body =
        |token: &str, key: &KeyPair| json!({ "token": token, "csr": request(key), "id": "vm-1" });
    let (first, second) = (key(), key());
    assert_eq!(world.ask(enrolment::ENROLL, &body(&open, &first)).await.0, 200);
    let (status, answer) = world.ask(enrolment::ENROLL, &body(&open, &second)).await;
    assert_eq!((status, code(&answer)), (409, "id_taken"));
    let bound = world.token("one", 1, Some("vm-1")).await;
    assert_eq!(world.ask(enrolment::ENROLL, &body(&bound, &second)).await.0, 200);
    let (status, answer) = world.ask(enrolment::ENROLL, &body(&open, &first)).await;
    assert_eq!((status, code(&answer)), (409, "id_taken"), "the former machine lost it");
}

#[tokio::test]
async fn a_certificate_that_ended_lately_renews_and_one_that_ended_long_ago_does_not() {
    let world = world(Limits::default()).await;
    let late = world.issued("a-1", 60);
    let (status, answer) = world.renew(&late, &key()).await.expect("an answer");
    assert_eq!(status, 200, "{answer}");
    // Longer ago than it may: the handshake fails already.
    let later = world.issued("a-1", 30 + 91);
    assert!(world.renew(&later, &key()).await.is_err());
}

#[tokio::test]
async fn a_revoked_certificate_does_not_renew() {
    let world = world(Limits::default()).await;
    let (token, key_1) = (world.token("web", 1, None).await, key());
    let granted = world.enroll(&token, &key_1).await;
    let mine = shown(&granted, key_1);
    let id = granted.agent_id.parse().expect("an id");
    agents::revoke(&*world.ledger, &id, SystemTime::now()).await.expect("revoked");
    let (status, answer) = world.renew(&mine, &key()).await.expect("an answer");
    assert_eq!((status, code(&answer)), (403, "revoked"));
}

#[tokio::test]
async fn a_certificate_of_another_authority_does_not_pass_the_handshake() {
    let (world, other) = (world(Limits::default()).await, world(Limits::default()).await);
    let foreign = other.issued("a-1", 0);
    assert!(world.renew(&foreign, &key()).await.is_err());
    // And an agent that trusts another authority does not talk to this server.
    let trust = other.authorities.current().trust(SystemTime::now());
    assert!(connect(world.address(), &trust, None).await.is_err());
}

#[tokio::test]
async fn an_agent_that_knows_the_former_authority_renews_after_a_rotation() {
    let world = world(Limits::default()).await;
    let (token, key_1) = (world.token("web", 1, None).await, key());
    let granted = world.enroll(&token, &key_1).await;
    let mine = shown(&granted, key_1);
    let former = world.authorities.current().trust(SystemTime::now());
    Authority::rotate(world.directory.path(), SystemTime::now()).expect("rotated");
    world.authorities.refresh().await.expect("read");
    let text = http(enrolment::RENEW, "", &json!({ "csr": request(&key()) }).to_string());
    // The listener takes the new authority in a moment.
    let deadline = tokio::time::Instant::now() + LONG;
    loop {
        let mut stream = connect(world.address(), &former, Some(&mine)).await.expect("trusted");
        let answer = exchange(&mut stream, &text).await.expect("an answer");
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        let granted: enrolment::Granted = serde_json::from_str(body).expect("an answer");
        assert_eq!(tls::certificates(&granted.trust).expect("trust").len(), 2);
        assert!(!granted.chain.is_empty());
        let shown = stream.get_ref().1.peer_certificates().expect("a chain").len();
        if shown == 3 {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "the listener keeps the former authority");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_server_shows_the_authority_whose_fingerprint_agents_know() {
    let world = world(Limits::default()).await;
    let authority = world.authorities.current();
    let trust = authority.trust(SystemTime::now());
    let stream = connect(world.address(), &trust, None).await.expect("trusted");
    let chain = stream.get_ref().1.peer_certificates().expect("a chain").to_vec();
    assert_eq!(chain.last(), Some(authority.certificate()));
}

#[tokio::test]
async fn slow_and_large_requests_are_ended() {
    let world = world(fast()).await;
    let half = "POST /v1/enroll HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{\"csr\":";
    let (status, answer) = world.ask_raw(None, half).await.expect("an answer");
    assert_eq!((status, code(&answer)), (408, "too_slow"));
    let head = world.ask_raw(None, "POST /v1/enroll HT").await;
    assert!(head.is_err() || head.is_ok_and(|(status, _)| status == 408));
    let large = http(enrolment::ENROLL, "", &"x".repeat((64 << 10) + 1));
    let (status, answer) = world.ask_raw(None, &large).await.expect("an answer");
    assert_eq!((status, code(&answer)), (413, "too_large"));
    let headers = format!("x: {}\r\n", "y".repeat(HEAD_BYTES));
    let (status, _) = world.ask_raw(None, &http(enrolment::TRUST, &headers, "")).await.expect("it");
    assert_eq!(status, 431);
    // Others are served all the while.
    assert_eq!(world.ask_raw(None, &http(enrolment::TRUST, "", "")).await.expect("it").0, 200);
}

#[tokio::test]
async fn a_flood_is_closed_before_tls_and_ends_with_the_flood() {
    let mut limits = Limits::default();
    limits.front.rate_per_address = Some(Rate { per_second: 50.0, burst: 3.0 });
    let world = world(limits).await;
    let trust = world.authorities.current().trust(SystemTime::now());
    let flood = (0..50).map(|_| connect(world.address(), &trust, None));
    let came = futures_util::future::join_all(flood).await;
    let came = came.iter().filter(|connection| connection.is_ok()).count();
    assert!((3..50).contains(&came), "{came}");
    let deadline = tokio::time::Instant::now() + LONG;
    while connect(world.address(), &trust, None).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "nobody comes in any more");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn connections_that_say_nothing_have_a_bound_and_an_end() {
    let mut limits = fast();
    limits.front.connections = 2;
    limits.front.handshake = Duration::from_millis(300);
    let world = world(limits).await;
    let mut silent = Vec::new();
    for _ in 0..8 {
        silent.push(TcpStream::connect(world.address()).await.expect("accepted"));
    }
    for stream in &mut silent {
        let mut byte = [0];
        let end = tokio::time::timeout(LONG, stream.read(&mut byte)).await.expect("an end comes");
        assert!(matches!(end, Ok(0) | Err(_)));
    }
    assert_eq!(world.ask_raw(None, &http(enrolment::TRUST, "", "")).await.expect("it").0, 200);
}

#[tokio::test]
async fn a_server_stops_and_leaves_its_address() {
    let world = world(Limits::default()).await;
    let address = world.address();
    assert!(matches!(address.ip(), IpAddr::V4(ip) if ip.is_loopback()));
    world.server.shutdown().await;
    TcpListener::bind(address).await.expect("the address is free");
}

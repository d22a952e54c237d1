//! The program, by how agents show who they are: signed tokens, tokens of their own, a shared token,
//! certificates, and certificates or tokens on one listener.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use guest_fleet_server::enroll::{AgentId, Authority, csr};
use rcgen::{CertificateParams, KeyPair};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tonic::Code;
use tonic::Status;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::gateway::CHANNEL;
use crate::gateway::binary::{Served, ask, program};
use crate::gateway::client::{Agent, registration};
use crate::gateway::tls;

const AUDIENCE: &str = "https://fleet.example";

/// Who signs tokens.
struct Issuer(EcdsaKeyPair);

impl Issuer {
    fn new() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let key = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        Self(EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap())
    }

    fn keys(&self, directory: &Path) -> PathBuf {
        let point = self.0.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
        let key = json!({ "kty": "EC", "crv": "P-256", "kid": "one", "x": x, "y": y });
        let path = directory.join("keys.json");
        fs::write(&path, json!({ "keys": [key] }).to_string()).unwrap();
        path
    }

    fn token(&self, instance: &str, audience: &str, tenant: &str) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let claims = json!({
            "aud": audience, "iss": "https://issuer.example", "exp": now + 3600, "iat": now,
            "machine": { "id": instance, "tenant": tenant },
        });
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let message =
            format!("{}.{}", part(&json!({ "alg": "ES256", "kid": "one" })), part(&claims));
        let signed = self.0.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signed))
    }
}

/// The options of a gateway that takes the tokens of an issuer.
fn jwt_options(keys: &Path) -> Vec<String> {
    let options = [
        ("--jwt-audience", AUDIENCE),
        ("--jwt-issuer", "https://issuer.example"),
        ("--jwt-keys", keys.to_str().unwrap()),
        ("--jwt-id", "vm/{/machine/id}"),
        ("--jwt-require", "/machine/tenant=ours"),
    ];
    options.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]).collect()
}

/// Certificate and key of the listener, in files.
struct Listener {
    authority: tls::Authority,
    options: Vec<String>,
}

impl Listener {
    fn new(directory: &Path) -> Self {
        let authority = tls::Authority::new();
        let (certificate, key) = authority.issue("localhost");
        let paths = (directory.join("tls.crt"), directory.join("tls.key"));
        fs::write(&paths.0, certificate).unwrap();
        fs::write(&paths.1, key).unwrap();
        let path = |path: &PathBuf| path.to_str().unwrap().to_owned();
        let options =
            vec!["--tls-cert".to_owned(), path(&paths.0), "--tls-key".to_owned(), path(&paths.1)];
        Self { authority, options }
    }

    fn tls(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.authority.pem()))
            .domain_name("localhost")
    }
}

/// Starts the program on a TCP address; returns it and its endpoint.
async fn serve(directory: &Path, options: &[&[String]]) -> (Served, String) {
    let mut arguments = vec!["--listen", "127.0.0.1:0"];
    arguments.extend(options.iter().flat_map(|options| options.iter().map(String::as_str)));
    let mut served = Served::spawn(directory, &arguments);
    let line = served.line("listening https://").await;
    (served, line.trim_start_matches("listening ").to_owned())
}

async fn connect(endpoint: &str, tls: ClientTlsConfig) -> Channel {
    let endpoint = Endpoint::from_shared(endpoint.to_owned()).unwrap();
    endpoint.tls_config(tls).unwrap().connect().await.unwrap()
}

/// What becomes of an agent that shows this token.
async fn code(channel: &Channel, resource: &str, token: Option<&str>) -> Code {
    let bearer = format!("Bearer {}", token.unwrap_or_default());
    let mut metadata = vec![
        ("agent-communication-resource-id", resource),
        ("agent-communication-channel-id", CHANNEL),
    ];
    metadata.extend(token.map(|_| ("authentication", bearer.as_str())));
    registered(channel, resource, &metadata)
        .await
        .map_or_else(|status| status.code(), |()| Code::Ok)
}

/// Whether an agent comes in that sends this.
async fn registered(
    channel: &Channel,
    resource: &str,
    metadata: &[(&'static str, &str)],
) -> Result<(), Status> {
    let mut agent = Agent::open(channel.clone(), metadata).await?;
    agent.send(registration("r", resource, CHANNEL)).await;
    let first = agent.next().await?;
    assert!(first.is_some(), "the stream ended without a status");
    Ok(())
}

/// Certificate and key of an agent, as the authority gives them out; no ledger knows of it.
fn issue(authority: &Authority, agent: &str) -> Identity {
    let key = KeyPair::generate().unwrap();
    let request = CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap();
    let checked = csr::check(&request.pem().unwrap()).unwrap();
    let id: AgentId = agent.parse().unwrap();
    let life = Duration::from_secs(3600);
    let issued = authority.issue_agent(&checked, &id, life, SystemTime::now()).unwrap();
    Identity::from_pem(issued.pem(), key.serialize_pem())
}

#[tokio::test]
async fn agents_are_admitted_by_signed_tokens_and_taken_in_until_they_are_revoked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let (issuer, listener) = (Issuer::new(), Listener::new(path));
    let jwt = jwt_options(&issuer.keys(path));
    let (served, endpoint) = serve(path, &[&listener.options, &jwt]).await;
    let channel = connect(&endpoint, listener.tls()).await;
    let good = issuer.token("7", AUDIENCE, "ours");
    assert_eq!(code(&channel, "vm/7", Some(&good)).await, Code::Ok);
    assert_eq!(code(&channel, "vm/8", Some(&good)).await, Code::PermissionDenied);
    let foreign = issuer.token("7", AUDIENCE, "theirs");
    assert_eq!(code(&channel, "vm/7", Some(&foreign)).await, Code::PermissionDenied);
    for bad in [
        issuer.token("7", "https://other.example", "ours"),
        issuer.token("7", "agentcommunication.googleapis.com", "ours"),
        Issuer::new().token("7", AUDIENCE, "ours"),
        "nothing".to_owned(),
    ] {
        assert_eq!(code(&channel, "vm/7", Some(&bad)).await, Code::Unauthenticated);
    }
    assert_eq!(code(&channel, "vm/7", None).await, Code::Unauthenticated);
    let agents = ask(path, &["agents", "--scan"]).await;
    assert!(agents.contains("vm/7") && !agents.contains("vm/8"), "{agents}");
    // Revocation counts whatever an agent shows.
    ask(path, &["agent", "revoke", "vm/7"]).await;
    let revoked = async {
        while code(&channel, "vm/7", Some(&good)).await != Code::PermissionDenied {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(crate::gateway::LONG, revoked).await.expect("it is revoked");
    served.stop().await;
}

#[tokio::test]
async fn agents_are_admitted_by_a_token_of_their_own_or_by_one_that_all_share() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let listener = Listener::new(path);
    let file = path.join("tokens");
    fs::write(&file, "vm-1 first-token-0123456789\nvm-2 second-token-0123456789\n").unwrap();
    let own = ["--agent-token-file".to_owned(), file.to_str().unwrap().to_owned()];
    let (served, endpoint) = serve(path, &[&listener.options, &own]).await;
    let channel = connect(&endpoint, listener.tls()).await;
    let (first, second) = ("first-token-0123456789", "second-token-0123456789");
    assert_eq!(code(&channel, "vm-1", Some(first)).await, Code::Ok);
    assert_eq!(code(&channel, "vm-2", Some(first)).await, Code::Unauthenticated);
    assert_eq!(code(&channel, "vm-2", Some(second)).await, Code::Ok);
    // It is replaced while the program runs.
    fs::write(&file, "vm-1 third-token-0123456789\n").unwrap();
    assert_eq!(code(&channel, "vm-1", Some(first)).await, Code::Unauthenticated);
    assert_eq!(code(&channel, "vm-1", Some("third-token-0123456789")).await, Code::Ok);
    served.stop().await;

    fs::write(&file, "shared-token\n").unwrap();
    let shared = ["--token-file".to_owned(), file.to_str().unwrap().to_owned()];
    let (served, endpoint) = serve(path, &[&listener.options, &shared]).await;
    let channel = connect(&endpoint, listener.tls()).await;
    assert_eq!(code(&channel, "vm-1", Some("shared-token")).await, Code::Ok);
    assert_eq!(code(&channel, "vm-1", Some(first)).await, Code::Unauthenticated);
    served.stop().await;
}

#[tokio::test]
async fn certificates_and_signed_tokens_are_taken_on_one_listener() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let authority = Authority::init(&path.join("ca"), SystemTime::now()).unwrap();
    let issuer = Issuer::new();
    let jwt = jwt_options(&issuer.keys(path));
    let ca = ["--ca".to_owned(), path.join("ca").to_str().unwrap().to_owned()];
    let (served, endpoint) = serve(path, &[&ca, &jwt]).await;
    let trust = authority.trust_pem(SystemTime::now());
    let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(trust));
    let token = issuer.token("7", AUDIENCE, "ours");

    let without = connect(&endpoint, trusting.clone()).await;
    assert_eq!(code(&without, "vm/7", Some(&token)).await, Code::Ok);
    assert_eq!(code(&without, "vm/7", None).await, Code::Unauthenticated);

    let shown = trusting.identity(issue(&authority, "a-1"));
    let with = connect(&endpoint, shown).await;
    assert_eq!(code(&with, "a-1", None).await, Code::Ok);
    // Who shows a certificate is that agent, whatever token comes with it.
    assert_eq!(code(&with, "vm/7", Some(&token)).await, Code::PermissionDenied);
    served.stop().await;
}

/// Decision 67: a certificate does not stand for a record, because who was revoked is in the ledger.
#[tokio::test]
async fn an_agent_with_a_certificate_and_without_a_record_is_told_to_enrol() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let authority = Authority::init(&path.join("ca"), SystemTime::now()).unwrap();
    let ca = ["--ca".to_owned(), path.join("ca").to_str().unwrap().to_owned()];
    let (served, endpoint) = serve(path, &[&ca]).await;
    let trust = Certificate::from_pem(authority.trust_pem(SystemTime::now()));
    let tls = ClientTlsConfig::new().ca_certificate(trust).identity(issue(&authority, "a-1"));
    let channel = connect(&endpoint, tls).await;
    let metadata =
        [("agent-communication-resource-id", "a-1"), ("agent-communication-channel-id", CHANNEL)];
    let mut agent = Agent::open(channel, &metadata).await.unwrap();
    agent.send(registration("r", "a-1", CHANNEL)).await;
    // The registration is answered before the ledger is asked.
    let refused = loop {
        match agent.next().await {
            Ok(frame) => assert!(frame.is_some(), "the stream ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    for words in ["`a-1`", "no record of it", "guest-fleet token create", "guest-agent enroll"] {
        assert!(refused.message().contains(words), "{words} is not in {refused}");
    }
    let agents = ask(path, &["agents", "--scan"]).await;
    assert!(!agents.contains("a-1"), "{agents}");
    served.stop().await;
}

#[tokio::test]
async fn options_that_do_not_fit_together_are_refused_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let issuer = Issuer::new();
    let keys = issuer.keys(path);
    let keys = keys.to_str().unwrap();
    let refused = async |options: &[&str], exit: i32, words: &[&str]| {
        let mut arguments = vec!["serve", "--listen", "127.0.0.1:0"];
        arguments.extend(options);
        let ran = program(path).args(&arguments).output();
        let output =
            tokio::time::timeout(crate::gateway::LONG, ran).await.expect("it ends").unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit), "{options:?}: {text}");
        for word in words {
            assert!(text.contains(word), "{options:?}: {word} is not in {text}");
        }
    };
    refused(&["--jwt-audience", "a"], 2, &["--jwt-keys", "--jwt-id"]).await;
    refused(&["--ca", "c", "--token-file", "t"], 2, &["--ca", "--token-file"]).await;
    refused(&["--ca", "c", "--agent-token-file", "t"], 2, &["--agent-token-file"]).await;
    refused(&["--token-file", "t", "--agent-token-file", "t"], 2, &["--token-file"]).await;
    let jwt = |audience| ["--jwt-audience", audience, "--jwt-id", "{sub}", "--jwt-keys"];
    let with = |audience, keys: &'static str| [&jwt(audience)[..], &[keys]].concat();
    refused(&with("a", "http://issuer.example/keys"), 2, &["https://"]).await;
    refused(&with("a", "/nowhere/keys.json"), 1, &["/nowhere/keys.json"]).await;
    refused(
        &[&with("a", "https://i.example/k")[..], &["--token-file", "t"]].concat(),
        2,
        &["--jwt-audience"],
    )
    .await;
    let google = [&jwt("agentcommunication.googleapis.com")[..], &[keys]].concat();
    refused(&google, 1, &["--jwt-allow-google-audience", "allow it"]).await;
    let template = ["--jwt-audience", "a", "--jwt-id", "same", "--jwt-keys", keys];
    refused(&template, 1, &["same", "{sub}"]).await;
    let file_ca = [&template[..3], &["{sub}", "--jwt-keys", keys, "--jwt-keys-ca", "x"]].concat();
    refused(&file_ca, 1, &["--jwt-keys-ca", "leave it out"]).await;
    let missing = path.join("none");
    refused(&["--agent-token-file", missing.to_str().unwrap()], 1, &["none"]).await;
}

#[tokio::test]
async fn a_certificate_that_ends_within_days_is_an_error_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = (SystemTime::now() + Duration::from_secs(10 * 24 * 3600)).into();
    let certificate = params.self_signed(&key).unwrap().pem();
    let (chain, private) = (path.join("tls.crt"), path.join("tls.key"));
    fs::write(&chain, certificate).unwrap();
    fs::write(&private, key.serialize_pem()).unwrap();
    let mut child = program(path)
        .args(["serve", "--listen", "127.0.0.1:0", "--tls-cert"])
        .arg(&chain)
        .arg("--tls-key")
        .arg(&private)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let told = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("a certificate ends within days") {
                return line;
            }
        }
        panic!("it ended");
    };
    let line = tokio::time::timeout(crate::gateway::LONG, told).await.expect("it is in the log");
    assert!(line.contains("ERROR") && line.contains("gateway") && line.contains("file"), "{line}");
    child.kill().await.unwrap();
}

//! A machine that becomes an agent of a fleet, renews its certificate and is shut out.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_fleet::ControlPlane;
use guest_fleet::enroll::admit::Settings;
use guest_fleet::enroll::listener::{self, Admits};
use guest_fleet::enroll::server::Limits;
use guest_fleet::enroll::token::{self, NewToken};
use guest_fleet::enroll::{Authorities, Authority, Enrolment, Revocations, Server, agents};
use guest_fleet::gateway::admission::{Mutual, Watched};
use guest_fleet::ledger::{MemoryLedger, SharedLedger};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::{Bed, PATIENCE, RESOURCE};

struct Fleet {
    _directory: tempfile::TempDir,
    ledger: SharedLedger,
    fingerprint: String,
    server: Server,
    gateway: ControlPlane,
    _stop: DropGuard,
}

async fn fleet() -> Fleet {
    let (directory, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    Authority::init(directory.path(), SystemTime::now()).unwrap();
    let authorities = Authorities::open(directory.path()).await.unwrap();
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let revocations = Revocations::default();
    revocations.refresh(&*ledger).await.unwrap();
    tokio::spawn(revocations.clone().follow(ledger.clone(), stop.clone()));
    let names = vec!["127.0.0.1".to_owned()];
    let secured =
        listener::secure(&authorities, names.clone(), Admits::Agents, &[b"h2"], stop.clone());
    let mutual = Mutual::new(authorities.current().fleet().clone());
    let gateway = ControlPlane::builder()
        .listen_tcp(([127, 0, 0, 1], 0).into())
        .secured(secured.unwrap())
        .admission(Arc::new(Watched::new(Arc::new(mutual), revocations)))
        .start()
        .await
        .unwrap();
    let settings = Settings { gateway: Some(gateway.endpoint()), ..Settings::default() };
    let enrolment = Enrolment::new(authorities.clone(), ledger.clone(), settings);
    let address = ([127, 0, 0, 1], 0).into();
    let server = Server::start(address, names, enrolment, Limits::default()).await.unwrap();
    let fingerprint = authorities.current().fingerprint();
    Fleet { _directory: directory, ledger, fingerprint, server, gateway, _stop: stop.drop_guard() }
}

/// Why the agent says that it is not connected.
async fn said_of_the_link(bed: &Bed) -> String {
    let said = bed.cli(&["status", "--json"]).await;
    let status: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
    status["agent"]["link"].to_string()
}

#[tokio::test]
async fn an_enrolled_agent_connects_renews_and_is_shut_out_when_it_is_revoked() {
    let fleet = fleet().await;
    let new = NewToken {
        name: "web".to_owned(),
        uses: 1,
        life: Duration::from_secs(3600),
        labels: [("site".to_owned(), "a".to_owned())].into(),
        is_ephemeral: false,
        agent: None,
        made_by: "anna".to_owned(),
    };
    let token = token::create(&*fleet.ledger, new, SystemTime::now()).await.unwrap();
    let mut bed = Bed::builder().build().await;
    let token_file = bed.dir().join("token");
    std::fs::write(&token_file, format!("{token}\n")).unwrap();
    let config = bed.dir().join("agent.toml").display().to_string();
    let server = format!("https://{}", fleet.server.address());
    let arguments = [
        "enroll",
        "--config",
        &config,
        "--server",
        &server,
        "--token-file",
        token_file.to_str().unwrap(),
        "--ca-sha256",
        &fleet.fingerprint,
        "--id",
        RESOURCE,
        "--write",
        "--json",
    ];
    let enrolled: Value = serde_json::from_str(&bed.cli(&arguments).await.ok()).unwrap();
    assert_eq!(enrolled["agent_id"], RESOURCE);
    let again = bed.cli(&arguments).await;
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("already") && again.stderr.contains("delete"), "{again:?}");

    // The certificate is due at once.
    let folder = bed.dir().join("state/fleet");
    let facts = folder.join("enrolled.json");
    let mut due: Value = serde_json::from_slice(&std::fs::read(&facts).unwrap()).unwrap();
    (due["renew_at"], due["ends"]) = (0.into(), 0.into());
    std::fs::write(&facts, due.to_string()).unwrap();
    let first = std::fs::read(folder.join("agent.pem")).unwrap();
    bed.control_plane.shutdown().await;
    bed.control_plane = fleet.gateway.clone();
    bed.set("control_plane.auth=mtls");
    bed.start_agent().await;
    bed.until("the certificate is renewed", async || {
        let is_new = std::fs::read(folder.join("agent.pem")).unwrap() != first;
        is_new.then_some(())
    })
    .await;

    // With another name it is nobody.
    bed.stop_agent().await;
    bed.set("control_plane.resource=projects/1/zones/test/instances/other");
    bed.spawn_agent();
    bed.until("the agent says that the name is not its own", async || {
        let said = said_of_the_link(&bed).await;
        (said.contains("instances/other") && said.contains(RESOURCE)).then_some(())
    })
    .await;
    bed.stop_agent().await;
    bed.set(format!("control_plane.resource={RESOURCE}"));
    bed.start_agent().await;

    let id = RESOURCE.parse().unwrap();
    agents::revoke(&*fleet.ledger, &id, SystemTime::now()).await.unwrap();
    fleet.gateway.wait_disconnected(RESOURCE, PATIENCE).await.unwrap();
    bed.until("the agent says that it was revoked", async || {
        said_of_the_link(&bed).await.contains("revoked").then_some(())
    })
    .await;
    bed.finish().await;
}

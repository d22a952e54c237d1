//! A machine that becomes an agent of a fleet, renews its certificate and is shut out.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_serve_kit::listen::Listen;
use guest_fleet_ledger::{MemoryLedger, SharedLedger};
use guest_fleet_server::admission::{Mutual, Watched};
use guest_fleet_server::enroll::admit::Settings;
use guest_fleet_server::enroll::listener::{self, Admits};
use guest_fleet_server::enroll::server::Limits;
use guest_fleet_server::enroll::token::{self, NewToken};
use guest_fleet_server::enroll::{Authorities, Authority, Enrolment, Revocations, Server, agents};
use guest_fleet_server::orders::{OrderSettings, Orders, UnknownAgents};
use guest_fleet_server::rollouts;
use guest_fleet_sessions::Gateway;
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::{Bed, PATIENCE, RESOURCE, Said};

pub(crate) struct Fleet {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) ledger: SharedLedger,
    pub(crate) authorities: Authorities,
    fingerprint: String,
    server: Server,
    pub(crate) gateway: Gateway,
    _stop: DropGuard,
}

/// A fleet with an authority, on the parts that `guest-fleet serve` is made of.
pub(crate) async fn fleet() -> Fleet {
    let (directory, stop) = (tempfile::tempdir().unwrap(), CancellationToken::new());
    Authority::init(directory.path(), SystemTime::now()).unwrap();
    let authorities = Authorities::open(directory.path()).await.unwrap();
    let ledger: SharedLedger = Arc::new(MemoryLedger::new());
    let revocations = Revocations::default();
    revocations.refresh(&*ledger).await.unwrap();
    tokio::spawn(revocations.clone().follow(ledger.clone(), stop.clone()));
    let names = vec!["127.0.0.1".to_owned()];
    let orders = Orders::new(
        ledger.clone(),
        OrderSettings { unknown_agents: UnknownAgents::Refused, ..OrderSettings::default() },
    );
    tokio::spawn(orders.clone().run());
    let settings = rollouts::Settings::default();
    tokio::spawn(rollouts::run(ledger.clone(), settings, stop.clone()));
    let secured =
        listener::secure(&authorities, names.clone(), Admits::Agents, &[b"h2"], stop.clone());
    let mutual = Mutual::new(authorities.current().fleet().clone());
    let admission = Arc::new(Watched::new(Arc::new(mutual), revocations));
    let gateway = Gateway::builder(orders, admission)
        .announces_fleet(true)
        .listen(Listen::Tcp(([127, 0, 0, 1], 0).into()))
        .secured(secured.unwrap())
        .start()
        .await
        .unwrap();
    let settings = Settings { gateway: Some(gateway.endpoint()), ..Settings::default() };
    let enrolment = Enrolment::new(authorities.clone(), ledger.clone(), settings);
    let address = ([127, 0, 0, 1], 0).into();
    let server = Server::start(address, names, enrolment, Limits::default()).await.unwrap();
    let fingerprint = authorities.current().fingerprint();
    let _stop = stop.drop_guard();
    Fleet { directory, ledger, authorities, fingerprint, server, gateway, _stop }
}

impl Fleet {
    /// A token of this name for one machine, made at a time.
    pub(crate) async fn token(&self, name: &str, now: SystemTime) -> String {
        let new = NewToken {
            name: name.to_owned(),
            uses: 1,
            life: Duration::from_secs(3600),
            labels: [("site".to_owned(), "a".to_owned())].into(),
            is_ephemeral: false,
            agent: None,
            made_by: "anna".to_owned(),
        };
        token::create(&*self.ledger, new, now).await.unwrap()
    }

    /// Runs `guest-agent enroll` for this id.
    pub(crate) async fn enroll(&self, bed: &Bed, token: &str, id: &str) -> Said {
        let token_file = bed.dir().join("token");
        std::fs::write(&token_file, format!("{token}\n")).unwrap();
        let config = bed.dir().join("agent.toml").display().to_string();
        let server = format!("https://{}", self.server.address());
        let arguments = [
            "enroll",
            "--config",
            &config,
            "--server",
            &server,
            "--token-file",
            token_file.to_str().unwrap(),
            "--ca-sha256",
            &self.fingerprint,
            "--id",
            id,
            "--write",
            "--json",
        ];
        bed.cli(&arguments).await
    }

    /// A machine that became the agent of this id and does not run yet.
    pub(crate) async fn agent(&self, id: &str) -> Bed {
        let mut bed = Bed::builder().build().await;
        let name = id.rsplit('/').next().unwrap_or("agent");
        let token = self.token(name, SystemTime::now()).await;
        self.enroll(&bed, &token, id).await.ok();
        bed.control_plane.shutdown().await;
        bed.gateway = self.gateway.clone();
        bed.set("control_plane.auth=mtls");
        bed.set(format!("control_plane.resource={id}"));
        bed
    }
}

/// Has the agent renew its certificate at once, when it starts.
pub(crate) fn make_due(bed: &Bed) {
    let facts = bed.dir().join("state/fleet/enrolled.json");
    let mut due: Value = serde_json::from_slice(&std::fs::read(&facts).unwrap()).unwrap();
    (due["renew_at"], due["ends"]) = (0.into(), 0.into());
    std::fs::write(&facts, due.to_string()).unwrap();
}

/// Why the agent says that it is not connected.
pub(crate) async fn said_of_the_link(bed: &Bed) -> String {
    let said = bed.cli(&["status", "--json"]).await;
    let status: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
    status["agent"]["link"].to_string()
}

#[tokio::test]
async fn an_enrolled_agent_connects_renews_and_is_shut_out_when_it_is_revoked() {
    let fleet = fleet().await;
    let token = fleet.token("web", SystemTime::now()).await;
    let mut bed = Bed::builder().build().await;
    let enrolled: Value =
        serde_json::from_str(&fleet.enroll(&bed, &token, RESOURCE).await.ok()).unwrap();
    assert_eq!(enrolled["agent_id"], RESOURCE);
    let again = fleet.enroll(&bed, &token, RESOURCE).await;
    assert_eq!(again.code, 1);
    assert!(again.stderr.contains("already") && again.stderr.contains("delete"), "{again:?}");

    make_due(&bed);
    let folder = bed.dir().join("state/fleet");
    let first = std::fs::read(folder.join("agent.pem")).unwrap();
    bed.control_plane.shutdown().await;
    bed.gateway = fleet.gateway.clone();
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

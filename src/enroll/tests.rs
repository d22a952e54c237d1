//! A machine and the fleet's server, both real, on loopback.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_serve_kit::certificate::{Pair, PairFiles};
use guest_fleet_ledger::{Fate, MemoryLedger};
use guest_fleet_server::enroll::admit::Settings;
use guest_fleet_server::enroll::server::Limits;
use guest_fleet_server::enroll::token::{self, NewToken};
use guest_fleet_server::enroll::{Authorities, Authority, Enrolment, Server, agents};

use super::files::Identity;
use super::join::{Join, JoinError, join};
use super::renew;
use super::request::{RequestError, Trust};

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(60);

struct Fleet {
    directory: tempfile::TempDir,
    ledger: Arc<MemoryLedger>,
    authorities: Authorities,
    server: Server,
}

async fn fleet() -> Fleet {
    let directory = tempfile::tempdir().expect("a directory");
    let ca = directory.path().join("ca");
    Authority::init(&ca, SystemTime::now()).expect("an authority");
    let authorities = Authorities::open(ca).await.expect("an authority");
    let ledger = Arc::new(MemoryLedger::new());
    let gateway = Some("https://gateway.example".to_owned());
    let settings = Settings { gateway, ..Settings::default() };
    let enrolment = Enrolment::new(authorities.clone(), ledger.clone(), settings);
    let (address, names) = ((Ipv4Addr::LOCALHOST, 0).into(), vec!["127.0.0.1".to_owned()]);
    let server = Server::start(address, names, enrolment, Limits::default()).await;
    Fleet { directory, ledger, authorities, server: server.expect("it starts") }
}

impl Fleet {
    async fn token(&self, name: &str) -> String {
        let new = NewToken {
            name: name.to_owned(),
            uses: 1,
            life: HOUR,
            labels: Default::default(),
            is_ephemeral: false,
            agent: None,
            made_by: "anna".to_owned(),
        };
        token::create(&*self.ledger, new, SystemTime::now()).await.expect("a token")
    }

    fn url(&self) -> String {
        format!("https://{}", self.server.address())
    }

    fn fingerprint(&self) -> Trust {
        let fingerprint = self.authorities.current().fingerprint();
        Trust::Fingerprint(fingerprint.parse().expect("a digest"))
    }

    fn join(&self, token: &str) -> Join {
        let (server, trust) = (self.url(), self.fingerprint());
        Join { server, trust, token: token.to_owned(), id: None }
    }
}

/// The identity of a machine whose state directory this is.
fn machine(state_dir: &Path) -> Identity {
    Identity::below(state_dir)
}

fn agent_file(identity: &Identity) -> Vec<u8> {
    std::fs::read(identity.agent()).expect("a file")
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;

    std::fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

#[tokio::test]
async fn a_machine_with_a_token_gets_a_key_and_a_certificate_that_fit() {
    let (fleet, state) = (fleet().await, tempfile::tempdir().expect("a directory"));
    let (identity, token) = (machine(state.path()), fleet.token("web").await);
    let joined = join(&identity, &fleet.join(&token)).await.expect("joined");
    assert_eq!(joined.gateway.as_deref(), Some("https://gateway.example"));
    let files = PairFiles { certificate: identity.agent(), key: identity.agent() };
    let pair = Pair::read(&files).expect("a pair");
    assert!(pair.validity.holds(SystemTime::now()));
    for path in [identity.agent(), identity.trust()] {
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    assert_eq!(mode(identity.folder()), 0o700);
    assert_eq!(identity.enrolled().expect("read").as_ref(), Some(&joined.enrolled));
    let left: Vec<_> = std::fs::read_dir(identity.folder()).expect("a folder").flatten().collect();
    assert_eq!(left.len(), 3, "nothing of the way is left: {left:?}");
    let again = join(&identity, &fleet.join(&token)).await;
    assert!(matches!(again, Err(JoinError::Already(_))));
}

#[tokio::test]
async fn a_server_is_known_by_its_authority_and_by_nothing_else() {
    let (fleet, other) = (fleet().await, fleet().await);
    let state = tempfile::tempdir().expect("a directory");
    let (identity, token) = (machine(state.path()), fleet.token("web").await);
    let pem = |fleet: &Fleet| {
        let path = fleet.directory.path().join("trust.pem");
        let trust = fleet.authorities.current().trust_pem(SystemTime::now());
        std::fs::write(&path, trust).expect("written");
        Trust::File(path)
    };
    let nobody = Trust::Fingerprint(Sha256Digest::of(b"nobody"));
    for trust in [nobody, other.fingerprint(), pem(&other), Trust::System] {
        let refused = join(&identity, &Join { trust, ..fleet.join(&token) }).await;
        let is_refused = matches!(
            refused,
            Err(JoinError::Request(RequestError::Send(_) | RequestError::Tls(_)))
        );
        assert!(is_refused, "{refused:?}");
    }
    for server in ["http://127.0.0.1:1", "https://", "x", "https://h/path", "https://u@h"] {
        let bad = Join { server: server.to_owned(), ..fleet.join(&token) };
        let refused = join(&identity, &bad).await;
        let is_refused = matches!(refused, Err(JoinError::Request(RequestError::Address(_))));
        assert!(is_refused, "{server}: {refused:?}");
    }
    let trusting = Join { trust: pem(&fleet), ..fleet.join(&token) };
    join(&identity, &trusting).await.expect("the token was shown to nobody else");
}

#[tokio::test]
async fn a_lost_answer_costs_no_use_of_the_token() {
    let (fleet, state) = (fleet().await, tempfile::tempdir().expect("a directory"));
    let (identity, token) = (machine(state.path()), fleet.token("web").await);
    fleet.ledger.script([Fate::Happened]);
    let first = join(&identity, &fleet.join(&token)).await.expect("joined").enrolled;
    // The machine is cut off before it has written anything but its key.
    let key: String = String::from_utf8(agent_file(&identity)).expect("PEM");
    let key = &key[..key.find("-----BEGIN CERTIFICATE").expect("a certificate")];
    std::fs::remove_dir_all(identity.folder()).expect("removed");
    std::fs::create_dir(identity.folder()).expect("made");
    std::fs::write(identity.folder().join("next.key"), key).expect("written");
    let second = join(&identity, &fleet.join(&token)).await.expect("joined").enrolled;
    assert_eq!(first.agent_id, second.agent_id);
    // Another machine has no use left.
    let other = tempfile::tempdir().expect("a directory");
    let refused = join(&machine(other.path()), &fleet.join(&token)).await;
    match refused {
        Err(JoinError::Request(RequestError::Refused(problem))) => {
            assert_eq!(problem.code, "token_used_up");
            assert!(problem.fix.contains("guest-fleet token create"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_certificate_is_renewed_with_a_new_key_and_a_revoked_one_is_not() {
    let (fleet, state) = (fleet().await, tempfile::tempdir().expect("a directory"));
    let (identity, token) = (machine(state.path()), fleet.token("web").await);
    let enrolled = join(&identity, &fleet.join(&token)).await.expect("joined").enrolled;
    let due = || {
        let mut enrolled = identity.enrolled().expect("read").expect("enrolled");
        enrolled.renew_at = 0;
        enrolled.ends = 0;
        let json = serde_json::to_vec(&enrolled).expect("JSON");
        std::fs::write(identity.folder().join("enrolled.json"), json).expect("written");
    };
    due();
    let first = agent_file(&identity);
    let keeping = tokio::spawn(renew::keep(identity.clone()));
    let deadline = tokio::time::Instant::now() + LONG;
    while identity.enrolled().expect("read").expect("enrolled").renew_at == 0 {
        assert!(tokio::time::Instant::now() < deadline, "it is not renewed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    keeping.abort();
    let second = agent_file(&identity);
    assert_ne!(first, second);
    let files = PairFiles { certificate: identity.agent(), key: identity.agent() };
    Pair::read(&files).expect("a pair");
    let id = enrolled.agent_id.parse().expect("an id");
    agents::revoke(&*fleet.ledger, &id, SystemTime::now()).await.expect("revoked");
    let enrolled = identity.enrolled().expect("read").expect("enrolled");
    let refused = renew::renew(&identity, &enrolled).await.expect_err("revoked");
    assert!(refused.to_string().contains("revoked"), "{refused}");
    assert_eq!(agent_file(&identity), second, "what is there stays");
}

#[tokio::test]
async fn files_that_were_damaged_are_named() {
    let state = tempfile::tempdir().expect("a directory");
    let identity = machine(state.path());
    assert_eq!(identity.enrolled().expect("none"), None);
    std::fs::create_dir(identity.folder()).expect("made");
    std::fs::write(identity.folder().join("enrolled.json"), "torn").expect("written");
    let error = identity.enrolled().expect_err("damaged").to_string();
    assert!(error.contains("enrolled.json"), "{error}");
}

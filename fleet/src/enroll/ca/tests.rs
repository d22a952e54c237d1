use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::UnixTime;
use rustls::server::WebPkiClientVerifier;

use super::*;
use crate::enroll::csr::{self, ProvenKey};
use crate::enroll::id::AgentId;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn new_authority() -> (tempfile::TempDir, Authority) {
    let directory = tempfile::tempdir().expect("a directory");
    let authority = Authority::init(directory.path(), SystemTime::now()).expect("an authority");
    (directory, authority)
}

fn proven() -> ProvenKey {
    let key = KeyPair::generate().expect("a key");
    let request = CertificateParams::default().serialize_request(&key).expect("a request");
    csr::check(&request.pem().expect("PEM")).expect("a proven key")
}

fn agent() -> AgentId {
    "a-1".parse().expect("an id")
}

/// Whether somebody who trusts `roots` and is shown `chain` takes the certificate.
fn takes(
    roots: &[CertificateDer<'static>],
    chain: &[CertificateDer<'static>],
    leaf: &CertificateDer<'_>,
) -> bool {
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        WebPkiClientVerifier::builder_with_provider(store.into(), provider).build().expect("roots");
    verifier.verify_client_cert(leaf, chain, UnixTime::now()).is_ok()
}

#[test]
fn an_authority_is_made_once_and_opened_again() {
    let (directory, made) = new_authority();
    let again = Authority::init(directory.path(), SystemTime::now()).expect("the same");
    let opened = Authority::open(directory.path()).expect("the same");
    assert_eq!(made.fingerprint(), again.fingerprint());
    assert_eq!(made.fingerprint(), opened.fingerprint());
    assert_eq!(made.fleet(), opened.fleet());
    for name in [KEY, CERTIFICATE, FLEET] {
        let mode = fs::metadata(directory.path().join(name)).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_certificate_names_its_agent_and_ends_after_its_life() {
    let (_directory, authority) = new_authority();
    let (key, now) = (proven(), SystemTime::now());
    let issued = authority.issue_agent(&key, &agent(), 30 * DAY, now).expect("a certificate");
    let read = certificate::AgentCertificate::read(&issued.der).expect("a certificate");
    assert_eq!((read.fleet, read.agent), (authority.fleet().clone(), agent()));
    assert_eq!(read.facts.key_digest, key.digest);
    assert_eq!(read.facts.serial.len(), 34);
    let life = read.facts.ends.duration_since(now).expect("it ends later");
    assert!(life <= 30 * DAY && life > 29 * DAY);
    assert!(takes(&authority.trust(now), &[], &issued.der));
}

#[test]
fn no_certificate_outlives_its_authority() {
    let (_directory, authority) = new_authority();
    let late = authority.ends() - DAY;
    let issued = authority.issue_agent(&proven(), &agent(), 30 * DAY, late).expect("a certificate");
    assert_eq!(issued.facts.ends, authority.ends());
    let after = authority.issue_agent(&proven(), &agent(), DAY, authority.ends() + DAY);
    assert!(matches!(after.err(), Some(AuthorityError::Ended)));
}

#[test]
fn a_server_certificate_does_not_serve_as_an_agents() {
    let (_directory, authority) = new_authority();
    let key = KeyPair::generate().expect("a key");
    let names = ["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    let issued = authority.issue_server(&key, &names, DAY, SystemTime::now()).expect("issued");
    assert!(!takes(&authority.trust(SystemTime::now()), &[], &issued.der));
    assert!(certificate::AgentCertificate::read(&issued.der).is_err());
    for bad in ["", "a b", "-", "http://x"] {
        let made = authority.issue_server(&key, &[bad.to_owned()], DAY, SystemTime::now());
        assert!(matches!(made.err(), Some(AuthorityError::Name { .. })), "{bad:?}");
    }
}

#[test]
fn after_a_rotation_old_and_new_certificates_are_taken_by_old_and_new_trust() {
    let (directory, first) = new_authority();
    let now = SystemTime::now();
    let early = first.issue_agent(&proven(), &agent(), DAY, now).expect("a certificate");
    let second = Authority::rotate(directory.path(), now).expect("rotated");
    assert_ne!(first.fingerprint(), second.fingerprint());
    assert_eq!(first.fleet(), second.fleet());
    let late = second.issue_agent(&proven(), &agent(), DAY, now).expect("a certificate");
    let (old, new) = (first.trust(now), second.trust(now));
    assert_eq!(new.len(), 2);
    assert!(takes(&new, &[], &early.der));
    assert!(takes(&new, &[], &late.der));
    assert!(!takes(&old, &[], &late.der), "nothing leads from the old trust to it");
    assert!(takes(&old, second.chain(), &late.der));
    assert_eq!(second.trust(first.ends() + DAY).len(), 1, "a former authority ends");
}

#[test]
fn a_forgotten_authority_is_trusted_no_longer() {
    let (directory, first) = new_authority();
    let now = SystemTime::now();
    let early = first.issue_agent(&proven(), &agent(), DAY, now).expect("a certificate");
    assert_eq!(Authority::forget(directory.path(), None).expect("none"), 0);
    Authority::rotate(directory.path(), now).expect("rotated");
    assert_eq!(Authority::forget(directory.path(), Some("00")).expect("none"), 0);
    let print = first.fingerprint().to_uppercase();
    assert_eq!(Authority::forget(directory.path(), Some(&print)).expect("one"), 1);
    let authority = Authority::open(directory.path()).expect("the present one");
    assert!(!takes(&authority.trust(now), authority.chain(), &early.der));
    assert!(authority.chain().is_empty());
}

#[test]
fn a_rotation_that_was_cut_off_is_finished_at_the_next_opening() {
    let (directory, _) = new_authority();
    let path = |name: &str| directory.path().join(name);
    let former = [KEY, CERTIFICATE].map(|name| fs::read(path(name)).expect("a file"));
    let rotated = Authority::rotate(directory.path(), SystemTime::now()).expect("rotated");
    let next: Vec<u8> = [KEY, CERTIFICATE, CHAIN]
        .iter()
        .flat_map(|name| fs::read(path(name)).expect("a file"))
        .collect();
    // As it is after the commit, and after only the key was put in place.
    for key_is_there in [false, true] {
        fs::write(path(NEXT), &next).expect("written");
        fs::set_permissions(path(NEXT), fs::Permissions::from_mode(0o600)).expect("set");
        fs::write(path(CERTIFICATE), &former[1]).expect("written");
        if !key_is_there {
            fs::write(path(KEY), &former[0]).expect("written");
        }
        let opened = Authority::open(directory.path()).expect("finished");
        assert_eq!(opened.fingerprint(), rotated.fingerprint());
        assert!(!path(NEXT).exists());
    }
}

#[test]
fn a_key_that_others_may_read_is_refused_with_the_fix() {
    let (directory, _) = new_authority();
    let key = directory.path().join(KEY);
    for mode in [0o644, 0o640, 0o604] {
        fs::set_permissions(&key, fs::Permissions::from_mode(mode)).expect("set");
        let error = Authority::open(directory.path()).err().expect("refused").to_string();
        assert!(error.contains("chmod 600") && error.contains(&format!("{mode:04o}")), "{error}");
    }
}

#[test]
fn missing_and_damaged_files_are_named() {
    let (directory, _) = new_authority();
    let nothing = tempfile::tempdir().expect("a directory");
    let missing = Authority::open(nothing.path()).err().expect("nothing").to_string();
    assert!(missing.contains("guest-fleet ca init"), "{missing}");
    let path = |name: &str| directory.path().join(name);
    let other = KeyPair::generate().expect("a key").serialize_pem();
    let key = fs::read_to_string(path(KEY)).expect("a file");
    fs::write(path(KEY), &other).expect("written");
    assert!(matches!(Authority::open(directory.path()).err(), Some(AuthorityError::Mismatch(_))));
    fs::write(path(KEY), key).expect("written");
    for name in [FLEET, CERTIFICATE, KEY] {
        let good = fs::read(path(name)).expect("a file");
        for bad in
            [b"".as_slice(), b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            fs::write(path(name), bad).expect("written");
            let error = Authority::open(directory.path()).err().expect("damaged").to_string();
            assert!(error.contains(name) && error.contains("backup"), "{error}");
        }
        fs::write(path(name), good).expect("written");
    }
}

#[tokio::test]
async fn a_rotation_by_another_process_is_seen() {
    let (directory, first) = new_authority();
    let authorities = Authorities::open(directory.path()).await.expect("opened");
    let mut changes = authorities.changes();
    authorities.refresh().await.expect("unchanged");
    assert!(!changes.has_changed().expect("open"));
    Authority::rotate(directory.path(), SystemTime::now()).expect("rotated");
    authorities.refresh().await.expect("read");
    assert!(changes.has_changed().expect("open"));
    assert_ne!(changes.borrow_and_update().fingerprint(), first.fingerprint());
    fs::remove_file(directory.path().join(KEY)).expect("removed");
    assert!(authorities.refresh().await.is_err());
    assert_ne!(authorities.current().fingerprint(), first.fingerprint(), "the newest one stays");
}

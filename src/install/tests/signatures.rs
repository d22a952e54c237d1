//! Archives that need a signature, and the result for those without a valid one.

use std::fs;
use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::{InstallError, InstallStep};

use super::super::trust::Trust;
use super::rig::{Rig, assert_failed, spec};
use super::tarball::{Tarball, gzip};
use crate::config::{Binding, TrustConfig};
use crate::install::trust::sign::{SigningKey, make_key};

/// A pair of keys in the rig's folder.
pub(super) struct Pair {
    secret: PathBuf,
    public: String,
}

impl Pair {
    pub(super) fn new(rig: &Rig, name: &str) -> Self {
        let secret = rig.dir.path().join(name);
        let (_, public) = make_key(&secret).expect("a key");
        Self { secret, public }
    }

    /// Signs the archive at a URL of the rig as a revision of a plugin.
    pub(super) fn sign(&self, url: &str, name: &str, revision: &str) {
        let path = url.strip_prefix("file:").expect("a file");
        let key = SigningKey::read(&self.secret).expect("readable");
        let (name, revision) = (name.parse().expect("a name"), revision.parse().expect("one"));
        let signature = key.sign(path.as_ref(), &name, &revision).expect("signed");
        fs::write(format!("{path}.minisig"), signature).expect("written");
    }
}

/// Trusts these keys, for the plugins that the signatures name.
pub(super) fn trust(keys: &[&Pair]) -> Trust {
    let keys = keys.iter().map(|pair| pair.public.clone()).collect();
    let config = TrustConfig { keys, key_files: Vec::new(), binding: Binding::Plugin };
    Trust::load(&config).expect("keys")
}

/// A rig with an archive at a URL, and its digest.
pub(super) async fn rig() -> (Rig, String, Sha256Digest) {
    let rig = Rig::new();
    let bytes = gzip(&Tarball::good().finish()).await;
    let url = rig.archive(&bytes);
    (rig, url, Sha256Digest::of(&bytes))
}

fn said(result: Result<impl Sized, InstallError>) -> String {
    Chain(&result.err().expect("it should have failed")).to_string()
}

#[tokio::test]
async fn only_what_a_trusted_key_signed_is_installed() {
    let (rig, url, sha256) = rig().await;
    let (ours, theirs) = (Pair::new(&rig, "ours"), Pair::new(&rig, "theirs"));
    rig.pipeline.set_trust(trust(&[&ours]));
    let install = || rig.install(spec(&url, sha256));

    let result = install().await;
    assert_failed(result, InstallStep::Verify, "not signed");
    assert!(said(install().await).contains(".bin.minisig"), "where it was looked for");
    theirs.sign(&url, "sample", "r1");
    assert_failed(install().await, InstallStep::Verify, "does not trust");
    ours.sign(&url, "another", "r1");
    assert_failed(install().await, InstallStep::Verify, "for another plugin");
    ours.sign(&url, "sample", "r0");
    assert_failed(install().await, InstallStep::Verify, "for another revision");
    let signature = format!("{}.minisig", url.trim_start_matches("file:"));
    fs::write(&signature, "<html>").expect("written");
    assert_failed(install().await, InstallStep::Verify, "web page");
    fs::write(&signature, vec![b'x'; 1 << 20]).expect("written");
    assert_failed(install().await, InstallStep::Verify, "too long");
    rig.assert_untouched();

    ours.sign(&url, "sample", "r1");
    install().await.expect("signed");
    assert!(rig.installed("run").exists());

    // The revision is installed: a later change of the trusted keys does not remove it.
    rig.pipeline.set_trust(trust(&[&theirs]));
    install().await.expect("nothing to do");
    rig.pipeline.set_trust(Trust::Unreadable("no such file".to_owned()));
    install().await.expect("nothing to do");
}

#[tokio::test]
async fn a_signature_of_other_bytes_is_refused_before_anything_is_visible() {
    let (rig, url, _) = rig().await;
    let ours = Pair::new(&rig, "ours");
    rig.pipeline.set_trust(trust(&[&ours]));
    ours.sign(&url, "sample", "r1");
    // The attacker changes the archive and puts its new checksum into the order, as a control plane
    // could.
    let tampered = gzip(&Tarball::good().file("extra", 0o755, b"evil").finish()).await;
    fs::write(url.trim_start_matches("file:"), &tampered).expect("written");
    let result = rig.install(spec(&url, Sha256Digest::of(&tampered))).await;
    assert_failed(result, InstallStep::Verify, "does not match this archive");
    rig.assert_untouched();
}

#[tokio::test]
async fn keys_that_cannot_be_read_are_nobodys() {
    let (rig, url, sha256) = rig().await;
    rig.pipeline.set_trust(Trust::Unreadable("no such file".to_owned()));
    let result = rig.install(spec(&url, sha256)).await;
    assert_failed(result, InstallStep::Verify, "no such file");
    rig.assert_untouched();
}

#[tokio::test]
async fn a_key_with_a_password_is_refused_with_how_to_make_another() {
    let rig = Rig::new();
    let pair = minisign::KeyPair::generate_unencrypted_keypair().expect("a pair");
    let open = pair.sk.to_box(None).expect("a file").to_string();
    let line = open.lines().nth(1).expect("a key");
    let mut bytes = STANDARD.decode(line).expect("base64");
    // This byte says that the rest is encrypted.
    bytes[2..4].copy_from_slice(b"Sc");
    let file = rig.dir.path().join("locked");
    fs::write(&file, open.replace(line, &STANDARD.encode(bytes))).expect("written");
    let error = SigningKey::read(&file).expect_err("locked").to_string();
    assert!(error.contains("keygen"), "{error}");
    let ours = Pair::new(&rig, "ours");
    assert!(make_key(&ours.secret).is_err(), "a key is never overwritten");
    SigningKey::read(&ours.secret).expect("still there");
}

//! Signed archives: which keys the agent trusts, what it refuses and what it reports.

use std::path::PathBuf;

use guest_agent_lab::{ArtifactFaults, StatusFault};
use nix::sys::signal::Signal;

use crate::harness::{Archive, ArchiveSpec, Bed, orders, signal};

/// A pair of keys in a bed's folder.
pub(crate) struct Pair {
    pub(crate) secret: PathBuf,
    public: String,
}

impl Pair {
    pub(crate) async fn new(bed: &Bed, name: &str) -> Self {
        let secret = bed.dir().join(name);
        let path = secret.to_string_lossy().into_owned();
        let made = bed.cli(&["keygen", "-o", &path, "--json"]).await.ok();
        let made: serde_json::Value = serde_json::from_str(&made).unwrap();
        Self { secret, public: made["key"].as_str().unwrap().to_owned() }
    }

    /// The signature of an archive.
    fn sign(&self, archive: &[u8], comment: &str) -> Vec<u8> {
        let text = std::fs::read_to_string(&self.secret).unwrap();
        let key = minisign::SecretKeyBox::from(text).into_unencrypted_secret_key().unwrap();
        let signature = minisign::sign(None, &key, archive, Some(comment), None).unwrap();
        signature.into_string().into_bytes()
    }
}

impl Bed {
    /// Trusts these keys from now on.
    pub(crate) async fn trust(&self, keys: &[&Pair]) {
        let path = self.dir().join("agent.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let rest = text.split("[trust]").next().unwrap();
        let keys: Vec<&str> = keys.iter().map(|pair| pair.public.as_str()).collect();
        std::fs::write(&path, format!("{rest}[trust]\nkeys = {keys:?}\n")).unwrap();
        let before = self.reloads();
        signal(self.agent_pid(), Signal::SIGHUP);
        self.until("it trusts", async || (self.reloads() > before).then_some(())).await;
    }

    fn reloads(&self) -> usize {
        self.log().matches("the configuration was read again").count()
    }

    /// Publishes the echo plugin under a name, and its signature.
    async fn signed(&self, name: &str, key: &Pair, comment: &str) -> Archive {
        let bytes = echo_bytes().await;
        let signature = key.sign(&bytes, comment);
        let archive = self.archive(name, ArchiveSpec::bytes(bytes)).await;
        self.artifacts.publish(&format!("{name}.minisig"), signature).unwrap();
        archive
    }

    /// Orders a revision of `echo`, which fails, and returns why.
    async fn refused(&self, revision: &str, archive: &Archive) -> String {
        self.configure(vec![orders::install("echo", revision, archive).order()]).await;
        self.event(8, "echo", revision).await.details().into_owned()
    }
}

async fn echo_bytes() -> Vec<u8> {
    ArchiveSpec::echo().padded(100_000).into_bytes().await
}

#[tokio::test]
async fn a_signed_archive_runs_and_everything_else_is_refused_with_the_reason() {
    let mut bed = Bed::new().await;
    let (ours, theirs) = (Pair::new(&bed, "ours").await, Pair::new(&bed, "theirs").await);
    bed.trust(&[&ours]).await;

    // It has no signature, so the agent does not request the archive.
    let unsigned = bed.archive("unsigned.tar", ArchiveSpec::echo()).await;
    let why = bed.refused("1", &unsigned).await;
    assert!(why.contains("not signed") && why.contains("unsigned.tar.minisig"), "{why}");
    assert_eq!(bed.artifacts.counters("unsigned.tar").requests, 0);
    let explained = bed.cli(&["explain", "echo"]).await.ok();
    assert!(explained.contains("not signed"), "{explained}");

    let foreign = bed.signed("foreign.tar", &theirs, "plugin:echo").await;
    let why = bed.refused("2", &foreign).await;
    assert!(why.contains("does not trust"), "{why}");

    let other = bed.signed("other.tar", &ours, "plugin:other").await;
    let why = bed.refused("3", &other).await;
    assert!(why.contains("plugin:other"), "{why}");

    // The archive was changed, and the attacker who changed it writes the orders, too.
    let mut tampered = bed.signed("tampered.tar", &ours, "plugin:echo").await;
    let replaced = bed.archive("tampered.tar", ArchiveSpec::trouble()).await;
    tampered.sha256 = replaced.sha256;
    let why = bed.refused("4", &tampered).await;
    assert!(why.contains("does not match this archive"), "{why}");

    // The signature was changed.
    let spoilt = bed.signed("spoilt.tar", &ours, "plugin:echo").await;
    let signature = ours.sign(&echo_bytes().await, "plugin:echo revision:9");
    let signature = String::from_utf8(signature).unwrap().replace("revision:9", "revision:5");
    bed.artifacts.publish("spoilt.tar.minisig", signature).unwrap();
    let why = bed.refused("5", &spoilt).await;
    assert!(why.contains("does not match this archive"), "{why}");
    assert_eq!(bed.plugin_files("echo"), [""; 0], "nothing of all that is there");

    let good = bed.signed("good.tar", &ours, "plugin:echo revision:6").await;
    bed.configure(vec![orders::install("echo", "6", &good).order()]).await;
    bed.running("echo", "6").await;
    assert!(bed.log().contains("signed by a trusted key"));

    // What runs keeps running when its signer is trusted no more, also over a restart of the agent;
    // what comes next needs the new key.
    let before = bed.running("echo", "6").await.pid;
    bed.trust(&[&theirs]).await;
    bed.configure(vec![orders::install("echo", "6", &good).order()]).await;
    let next = bed.signed("next.tar", &ours, "plugin:echo revision:7").await;
    let why = bed.refused("7", &next).await;
    assert!(why.contains("does not trust"), "{why}");
    assert!(bed.stop_agent().await.success());
    bed.start_agent().await;
    assert_eq!(bed.running("echo", "6").await.pid, before);
    let next = bed.signed("next.tar", &theirs, "plugin:echo revision:8").await;
    bed.configure(vec![orders::install("echo", "8", &next).order()]).await;
    bed.running("echo", "8").await;
    bed.finish().await;
}

#[tokio::test]
async fn a_server_in_trouble_is_asked_for_the_signature_again() {
    let bed = Bed::new().await;
    let ours = Pair::new(&bed, "ours").await;
    bed.trust(&[&ours]).await;
    let mut archive = bed.signed("echo.tar", &ours, "plugin:echo").await;
    let status = Some(StatusFault { status: 503, requests: 2 });
    bed.artifacts.set_faults("echo.tar.minisig", ArtifactFaults { status, ..Default::default() });
    // The query of the archive's URL gives access to the signature, too, and is in no report.
    archive.url.push_str("?X-Signature=S3CR3T");
    let order = orders::install("echo", "1", &archive).manifest(|m| m.download_attempt_count = 3);
    bed.configure(vec![order.order()]).await;
    bed.running("echo", "1").await;
    assert_eq!(bed.artifacts.counters("echo.tar.minisig").requests, 3);
    assert_eq!(bed.artifacts.counters("echo.tar").requests, 1, "only with its signature");
    assert!(!bed.log().contains("S3CR3T"));
    bed.finish().await;
}

#[tokio::test]
async fn keys_that_cannot_be_read_stop_installations_and_not_the_agent() {
    let key_file = "/nonexistent/keys.pub";
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await.pid;
    assert!(bed.stop_agent().await.success());
    let path = bed.dir().join("agent.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}[trust]\nkey_files = [{key_file:?}]\n")).unwrap();
    bed.start_agent().await;
    assert_eq!(bed.running("echo", "1").await.pid, before);
    let why = bed.refused("2", &bed.trouble().await).await;
    assert!(why.contains(key_file), "{why}");
    let config = path.to_string_lossy().into_owned();
    let said = bed.cli(&["config", "check", "--config", &config]).await;
    assert!(said.code == 1 && said.stderr.contains(key_file), "{said:?}");
    bed.finish().await;
}

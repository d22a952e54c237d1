//! Composes bodies of orders and keeps them: a gateway sends all agents of one architecture the same
//! body, and each session looks every few seconds whether its agent needs it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::view::{ReleaseName, Target};
use guest_fleet_ledger::Revision;
use guest_fleet_ledger::records::configuration::release_key;

use super::compose::{self, Body, ComposeError};
use crate::configuration::Configuration;
use crate::secrets::Secrets;
use crate::secrets::directory::Snapshot;

/// Most bytes of bodies that are kept. When more are composed, all are composed anew.
const KEPT_BYTES: usize = 32 << 20;

/// Composes the bodies of orders.
#[derive(Debug)]
pub(super) struct Composer {
    /// Where agents fetch archives that have no address of their own.
    artifacts: Option<String>,
    secrets: Secrets,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By release and by the name of its archive.
    bodies: BTreeMap<(ReleaseName, String), Composed>,
    bytes: usize,
}

/// A body, and what it was composed of.
#[derive(Debug)]
struct Composed {
    release: Revision,
    secrets: Snapshot,
    body: Arc<Body>,
}

// === impl Composer ===

impl Composer {
    pub(super) fn new(artifacts: Option<String>, secrets: Secrets) -> Self {
        Self { artifacts, secrets, kept: Mutex::default() }
    }

    /// The body of an order for a target that [`desired`](guest_fleet_core::desired) found.
    pub(super) fn body(
        &self,
        configuration: &Configuration,
        plugin: &str,
        target: &Target,
        architecture: &str,
    ) -> Result<Arc<Body>, ComposeError> {
        let Target::Revision(revision) = target else {
            return compose::removal(plugin).map(Arc::new);
        };
        let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.clone() };
        let found = compose::find(configuration.view(), &name, architecture)?;
        // Read first: a body with newer ones is composed once more, and never taken for older.
        let secrets = self.secrets.snapshot();
        let stamp = configuration.revision(&release_key(&name));
        let key = (name, found.name.to_owned());
        if let Some(made) = lock(&self.kept).bodies.get(&key)
            && made.release == stamp
            && made.secrets == secrets
        {
            return Ok(Arc::clone(&made.body));
        }
        let body = compose::installation(&key.0, &found, self.artifacts.as_deref(), &self.secrets)?;
        let body = Arc::new(body);
        lock(&self.kept).keep(key, Composed { release: stamp, secrets, body: body.clone() });
        Ok(body)
    }
}

// === impl Kept ===

impl Kept {
    fn keep(&mut self, key: (ReleaseName, String), composed: Composed) {
        let size = composed.body.size();
        if let Some(former) = self.bodies.remove(&key) {
            self.bytes -= former.body.size();
        }
        if self.bytes + size > KEPT_BYTES {
            *self = Self::default();
        }
        self.bytes += size;
        self.bodies.insert(key, composed);
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane::configure_plugin_states::{
        ConfigurePlugin, Manifest, Plugin, manifest::Config,
    };
    use guest_fleet_core::view::{Archive, Release};
    use prost::Message;
    use prost_types::Value;
    use prost_types::value::Kind;

    use super::*;
    use crate::secrets::directory::tests::{directory, write};
    use crate::secrets::reference::KEY;
    use guest_fleet_ledger::Change;
    use guest_fleet_ledger::records::configuration::ReleaseRecord;

    /// Puts a release into the configuration whose plugin has this configuration, with an archive for
    /// amd64 and one for all others.
    fn declare(configuration: &mut Configuration, revision: u64, config: Config) -> Target {
        let name = ReleaseName { plugin: "p".to_owned(), revision: "1".to_owned() };
        let archive = Archive { digest: "ab".repeat(32), url: "https://x/y".to_owned() };
        let order = ConfigurePlugin {
            plugin: Some(Plugin { entry_point: "p".to_owned(), ..Plugin::default() }),
            manifest: Some(Manifest { config: Some(config), ..Manifest::default() }),
            ..ConfigurePlugin::default()
        };
        let archives = ["amd64", "any"].map(|of| (of.to_owned(), archive.clone())).into();
        let release = Release { archives, order: order.encode_to_vec() };
        let key = release_key(&name);
        let value = Some(ReleaseRecord::of(&name, &release).encode_to_vec().into());
        configuration.change(&Change { key, revision: Revision(revision), value });
        Target::Revision(name.revision)
    }

    fn text(text: &str) -> Config {
        Config::StringConfig(text.to_owned())
    }

    fn refers_to(secret: &str) -> Config {
        let value = Value { kind: Some(Kind::StringValue(secret.to_owned())) };
        let fields = [(KEY.to_owned(), value)].into();
        Config::StructConfig(prost_types::Struct { fields })
    }

    fn composer() -> Composer {
        Composer::new(None, Secrets::default())
    }

    #[test]
    fn a_body_is_composed_once_for_all_agents_with_one_archive() {
        let (composer, mut configuration) = (composer(), Configuration::default());
        let target = declare(&mut configuration, 1, text("x"));
        let of = |architecture: &str| {
            composer.body(&configuration, "p", &target, architecture).expect("a body")
        };
        assert!(Arc::ptr_eq(&of("amd64"), &of("amd64")));
        assert!(Arc::ptr_eq(&of("arm64"), &of("riscv64")), "both have the archive for all");
        assert!(!Arc::ptr_eq(&of("amd64"), &of("arm64")));
        assert_eq!(lock(&composer.kept).bodies.len(), 2);
        let removal = composer.body(&configuration, "p", &Target::Absent, "amd64");
        assert_ne!(removal.expect("a body").digest, of("amd64").digest);
    }

    #[test]
    fn another_record_of_a_release_is_composed_anew() {
        let (composer, mut configuration) = (composer(), Configuration::default());
        let target = declare(&mut configuration, 1, text("x"));
        let former = composer.body(&configuration, "p", &target, "amd64").expect("a body");
        declare(&mut configuration, 2, text("y"));
        let body = composer.body(&configuration, "p", &target, "amd64").expect("a body");
        assert_ne!(body.digest, former.digest);
        assert_eq!(lock(&composer.kept).bodies.len(), 1);
    }

    #[tokio::test]
    async fn a_secret_that_changed_is_in_the_next_body_and_one_that_is_gone_in_none() {
        let folder = directory();
        write(folder.path(), "db", b"first");
        let secrets = Secrets::open(folder.path()).await.expect("it is opened");
        let composer = Composer::new(None, secrets.clone());
        let mut configuration = Configuration::default();
        let target = declare(&mut configuration, 1, refers_to("db"));
        let mut digests = Vec::new();
        for content in ["first", "first", "second"] {
            write(folder.path(), "db", content.as_bytes());
            secrets.refresh().await;
            let body = composer.body(&configuration, "p", &target, "amd64").expect("a body");
            digests.push(body.digest);
        }
        assert_eq!(digests[0], digests[1]);
        assert_ne!(digests[1], digests[2]);
        std::fs::remove_file(folder.path().join("db")).expect("removed");
        secrets.refresh().await;
        assert!(composer.body(&configuration, "p", &target, "amd64").is_err());
    }

    #[tokio::test]
    async fn files_that_did_not_change_are_the_same_secrets() {
        let folder = directory();
        write(folder.path(), "db", b"first");
        let secrets = Secrets::open(folder.path()).await.expect("it is opened");
        let before = secrets.snapshot();
        secrets.refresh().await;
        assert_eq!(secrets.snapshot(), before);
        write(folder.path(), "other", b"x");
        secrets.refresh().await;
        assert_ne!(secrets.snapshot(), before);
    }

    #[test]
    fn bodies_are_kept_up_to_a_bound() {
        let (composer, mut configuration) = (composer(), Configuration::default());
        let target = declare(&mut configuration, 1, text(&"x".repeat(1 << 19)));
        let body = composer.body(&configuration, "p", &target, "amd64").expect("a body");
        for number in 0..200 {
            let name = ReleaseName { plugin: "p".to_owned(), revision: number.to_string() };
            let (release, secrets) = (Revision(1), composer.secrets.snapshot());
            let composed = Composed { release, secrets, body: body.clone() };
            let mut kept = lock(&composer.kept);
            kept.keep((name, "any".to_owned()), composed);
            let held: usize = kept.bodies.values().map(|made| made.body.size()).sum();
            assert_eq!(kept.bytes, held);
            assert!(held <= KEPT_BYTES, "{held}");
        }
    }
}

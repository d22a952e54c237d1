//! Composes bodies of orders and keeps them: a gateway sends all agents of one architecture the same
//! body, and each session looks every few seconds whether its agent needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::view::{ReleaseName, Target};
use guest_fleet_ledger::Revision;
use guest_fleet_ledger::records::configuration::release_key;

use super::compose::{self, Body, ComposeError};
use crate::configuration::Configuration;
use crate::secrets::Secrets;
use crate::secrets::directory::Snapshot;
use crate::secrets::reference::SecretName;

/// Most bytes of bodies that are kept. When more are composed, all are composed anew.
const KEPT_BYTES: usize = 32 << 20;

/// Bytes of a body's own, about: that of a secret that is missing has no others.
const OWN_BYTES: usize = 1 << 10;

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
    bodies: BTreeMap<(ReleaseName, String), Arc<Composed>>,
    bytes: usize,
}

/// A body, and what it was composed of.
#[derive(Debug)]
struct Composed {
    release: Revision,
    files: Snapshot,
    secrets: BTreeSet<SecretName>,
    /// The body, or the secret that it lacks.
    body: Result<Arc<Body>, ComposeError>,
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
        let files = self.secrets.snapshot();
        let release = configuration.revision(&release_key(&name));
        let key = (name, found.name.to_owned());
        let made = lock(&self.kept).bodies.get(&key).cloned();
        if let Some(made) = made.filter(|made| made.release == release && made.files == files)
            && self.is_still_so(&made, configuration)
        {
            return made.body.clone();
        }
        let secrets = found.secrets();
        let secrets_of = (&self.secrets, configuration);
        let body = compose::installation(&key.0, &found, self.artifacts.as_deref(), secrets_of);
        let body = body.map(Arc::new);
        if matches!(body, Ok(_) | Err(ComposeError::Secret { .. })) {
            let made = Composed { release, files, secrets, body: body.clone() };
            lock(&self.kept).keep(key, made);
        }
        body
    }

    /// Whether the ledger still says the same of the secrets of a body. What it lacks is asked for once more.
    fn is_still_so(&self, made: &Composed, configuration: &Configuration) -> bool {
        // Each is asked for: a gateway tells what was asked for lately.
        let found = made.secrets.iter().map(|name| (name, self.secrets.find(name, configuration)));
        let found: Vec<_> = found.collect();
        match &made.body {
            Ok(_) => found.iter().all(|(_, found)| found.is_ok()),
            Err(ComposeError::Secret { name, problem }) => {
                let is_it = |it: &SecretName| it.as_str() == name;
                found.iter().any(|(it, found)| is_it(it) && found.as_ref() == Err(problem))
            }
            Err(_) => false,
        }
    }
}

// === impl Composed ===

impl Composed {
    /// Bytes that it takes in memory, about.
    fn size(&self) -> usize {
        let names: usize = self.secrets.iter().map(|name| name.as_str().len()).sum();
        OWN_BYTES + names + self.body.as_ref().map_or(0, |body| body.size())
    }
}

// === impl Kept ===

impl Kept {
    fn keep(&mut self, key: (ReleaseName, String), composed: Composed) {
        let size = composed.size();
        if let Some(former) = self.bodies.remove(&key) {
            self.bytes -= former.size();
        }
        if self.bytes + size > KEPT_BYTES {
            *self = Self::default();
        }
        self.bytes += size;
        self.bodies.insert(key, Arc::new(composed));
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
    use crate::secrets::directory::tests::{directory, opened, record, write};
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
        assert_ne!(removal.expect("a body").digests, of("amd64").digests);
    }

    #[test]
    fn another_record_of_a_release_is_composed_anew() {
        let (composer, mut configuration) = (composer(), Configuration::default());
        let target = declare(&mut configuration, 1, text("x"));
        let former = composer.body(&configuration, "p", &target, "amd64").expect("a body");
        declare(&mut configuration, 2, text("y"));
        let body = composer.body(&configuration, "p", &target, "amd64").expect("a body");
        assert_ne!(body.digests, former.digests);
        assert_eq!(lock(&composer.kept).bodies.len(), 1);
    }

    #[tokio::test]
    async fn a_secret_is_recorded_before_it_is_in_a_body_and_in_none_once_it_changed() {
        let folder = directory();
        write(folder.path(), "db", b"first");
        let secrets = opened(folder.path()).await;
        let composer = Composer::new(None, secrets.clone());
        let mut configuration = Configuration::default();
        let target = declare(&mut configuration, 1, refers_to("db"));
        let body = |configuration: &Configuration| {
            composer.body(configuration, "p", &target, "amd64").map(|body| body.digests)
        };
        let unrecorded = body(&configuration).expect_err("it is not recorded");
        assert!(unrecorded.is_for_a_moment(), "{unrecorded}");
        record(&secrets, &mut configuration, "gw-1");
        let first = body(&configuration).expect("a body");
        assert_eq!(body(&configuration), Ok(first));
        write(folder.path(), "db", b"second");
        secrets.refresh().await;
        let changed = body(&configuration).expect_err("it changed").to_string();
        assert!(changed.contains("`db@2`"), "{changed}");
        write(folder.path(), "db", b"first");
        secrets.refresh().await;
        assert_eq!(body(&configuration), Ok(first));
        // Another gateway recorded another content under this name, in a ledger that was restored.
        let elsewhere = directory();
        write(elsewhere.path(), "db", b"of another");
        let others = opened(elsewhere.path()).await;
        let mut restored = Configuration::default();
        declare(&mut restored, 1, refers_to("db"));
        others.refresh().await;
        drop(others.find(&SecretName::new("db").expect("a name"), &restored));
        record(&others, &mut restored, "gw-2");
        assert!(body(&restored).is_err(), "a body that was kept is no excuse");
    }

    #[tokio::test]
    async fn files_that_did_not_change_are_the_same_secrets() {
        let folder = directory();
        write(folder.path(), "db", b"first");
        let secrets = opened(folder.path()).await;
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
            let (release, files) = (Revision(1), composer.secrets.snapshot());
            let (secrets, body) = (BTreeSet::new(), Ok(body.clone()));
            let composed = Composed { release, files, secrets, body };
            let mut kept = lock(&composer.kept);
            kept.keep((name, "any".to_owned()), composed);
            let held: usize = kept.bodies.values().map(|made| made.size()).sum();
            assert_eq!(kept.bytes, held);
            assert!(held <= KEPT_BYTES, "{held}");
        }
    }
}

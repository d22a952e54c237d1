//! The orders of a script, and the results that their sender expects.

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_proto::agent_controlplane as pb;
use guest_agent_proto::agent_controlplane::configure_plugin_states as cfg;
use prost::Message;

use super::chance::Chance;

/// Stands for all plugins in the sequence of orders.
pub(crate) const ALL: &str = "all-of-them";

/// The plugin that no order names once it runs.
pub(crate) const BYSTANDER: &str = "bystander";

/// Revisions by their nature, which the first letter tells: good ones, ones that cannot take a
/// configuration while they run (`n`), ones that fail to install (`i`) or to start (`s`), that die
/// soon (`d`), and that say they are not well (`u`).
pub(crate) const REVISIONS: [&str; 9] = ["g1", "g2", "g3", "g1", "n1", "i1", "s1", "d1", "u1"];

/// A configuration that every plugin refuses to take while it runs.
pub(crate) const REFUSED: &str = "refuse this";

const CONFIGS: [Option<&str>; 4] = [None, Some("one"), Some("two"), Some(REFUSED)];

/// What a revision is like, whatever else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nature {
    Good,
    CannotApply,
    CannotInstall,
    CannotStart,
    Dies,
    Unwell,
}

pub(crate) fn nature(revision: &str) -> Nature {
    match revision.as_bytes().first() {
        Some(b'n') => Nature::CannotApply,
        Some(b'i') => Nature::CannotInstall,
        Some(b's') => Nature::CannotStart,
        Some(b'd') => Nature::Dies,
        Some(b'u') => Nature::Unwell,
        _ => Nature::Good,
    }
}

/// An order to run something.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    pub(crate) revision: &'static str,
    pub(crate) archive: u64,
    pub(crate) config: Option<&'static str>,
    pub(crate) arguments: Vec<String>,
    pub(crate) memory: i64,
    pub(crate) impatient: bool,
}

impl Install {
    pub(crate) fn of(revision: &'static str) -> Self {
        let arguments = Vec::new();
        Self { revision, archive: 0, config: None, arguments, memory: 0, impatient: false }
    }

    pub(crate) fn drawn(chance: &mut Chance) -> Self {
        Self {
            revision: chance.pick(&REVISIONS),
            archive: u64::from(chance.one_in(12)),
            config: chance.pick(&CONFIGS),
            arguments: if chance.one_in(4) { vec!["--other".to_owned()] } else { Vec::new() },
            memory: if chance.one_in(5) { 1 << 20 } else { 0 },
            impatient: chance.one_in(3),
        }
    }

    fn encode(&self, name: &str, number: u64) -> cfg::ConfigurePlugin {
        let seconds = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
        let config = self.config.map(|text| cfg::manifest::Config::StringConfig(text.to_owned()));
        let mut manifest =
            cfg::Manifest { max_memory_usage_bytes: self.memory, config, ..Default::default() };
        if self.impatient {
            manifest.download_timeout = seconds(1);
            manifest.start_timeout = seconds(2);
            manifest.stop_timeout = seconds(1);
            manifest.download_attempt_count = 1;
            manifest.start_attempt_count = 1;
        }
        let digest = format!("{} {}", self.revision, self.archive);
        let plugin = cfg::Plugin {
            name: name.to_owned(),
            revision_id: self.revision.to_owned(),
            gcs_signed_url: format!("https://store.example/{name}?n={number}"),
            entry_point: "bin/plugin".to_owned(),
            arguments: self.arguments.clone(),
            checksum: Sha256Digest::of(digest.as_bytes()).to_string(),
        };
        cfg::ConfigurePlugin {
            action: cfg::Action::Install.into(),
            plugin: Some(plugin),
            manifest: Some(manifest),
        }
    }
}

pub(crate) fn install(name: &str, install: &Install, number: u64) -> cfg::ConfigurePlugin {
    install.encode(name, number)
}

/// `number` makes the message unlike every other.
pub(crate) fn remove(name: &str, number: u64) -> cfg::ConfigurePlugin {
    cfg::ConfigurePlugin {
        action: cfg::Action::Remove.into(),
        plugin: Some(named(name, number)),
        manifest: None,
    }
}

pub(crate) fn apply(name: &str, config: Option<&str>, number: u64) -> cfg::ConfigurePlugin {
    let config = config.map(|text| cfg::manifest::Config::StringConfig(text.to_owned()));
    cfg::ConfigurePlugin {
        action: cfg::Action::Apply.into(),
        plugin: Some(named(name, number)),
        manifest: Some(cfg::Manifest { config, ..Default::default() }),
    }
}

fn named(name: &str, number: u64) -> cfg::Plugin {
    let gcs_signed_url = format!("https://store.example/{name}?n={number}");
    cfg::Plugin { name: name.to_owned(), gcs_signed_url, ..Default::default() }
}

/// An order that cannot be understood.
fn nonsense(name: &str, chance: &mut Chance, number: u64) -> cfg::ConfigurePlugin {
    let mut order = install(name, &Install::of("nonsense"), number);
    let plugin = order.plugin.as_mut().expect("it has one");
    match chance.below(4) {
        0 => plugin.checksum = "abc".to_owned(),
        1 => plugin.entry_point = "../../bin/sh".to_owned(),
        2 => plugin.revision_id = "current".to_owned(),
        _ => order.action = 77,
    }
    order
}

/// One order for one of `plugins`.
pub(crate) fn drawn(plugins: &[String], chance: &mut Chance, number: u64) -> cfg::ConfigurePlugin {
    let index = usize::try_from(chance.below(plugins.len() as u64)).expect("an index fits");
    let name = &plugins[index];
    match chance.below(20) {
        0..=10 => install(name, &Install::drawn(chance), number),
        11..=13 => remove(name, number),
        14..=17 => apply(name, chance.pick(&CONFIGS), number),
        18 => remove("never-heard-of", number),
        _ => nonsense(name, chance, number),
    }
}

pub(crate) fn encoded(orders: Vec<cfg::ConfigurePlugin>) -> Vec<u8> {
    pb::ConfigurePluginStates { configure_plugins: orders }.encode_to_vec()
}

//! Orders, as a control plane gives them.

use std::time::Duration;

use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};

use super::Archive;

/// An INSTALL that can be refined before it is given.
pub(crate) struct Install(ConfigurePlugin);

/// Orders a revision of a plugin from an archive, with quick limits in its manifest.
pub(crate) fn install(name: &str, revision: &str, archive: &Archive) -> Install {
    Install(ConfigurePlugin {
        action: Action::Install.into(),
        plugin: Some(Plugin {
            name: name.to_owned(),
            revision_id: revision.to_owned(),
            gcs_signed_url: archive.url.clone(),
            entry_point: archive.entry_point.clone(),
            arguments: Vec::new(),
            checksum: archive.sha256.clone(),
        }),
        manifest: Some(Manifest {
            stop_timeout: seconds(5.0),
            start_attempt_count: 2,
            ..Manifest::default()
        }),
    })
}

/// Orders a plugin to be removed.
pub(crate) fn remove(name: &str) -> ConfigurePlugin {
    let plugin = Plugin { name: name.to_owned(), ..Plugin::default() };
    ConfigurePlugin { action: Action::Remove.into(), plugin: Some(plugin), manifest: None }
}

/// Orders a configuration for a plugin; `None` clears it.
pub(crate) fn apply(name: &str, config: Option<&str>) -> ConfigurePlugin {
    let config = config.map(|text| Config::StringConfig(text.to_owned()));
    let plugin = Plugin { name: name.to_owned(), ..Plugin::default() };
    ConfigurePlugin {
        action: Action::Apply.into(),
        plugin: Some(plugin),
        manifest: Some(Manifest { config, ..Manifest::default() }),
    }
}

/// A duration as manifests have it.
pub(crate) fn seconds(seconds: f64) -> Option<prost_types::Duration> {
    Duration::from_secs_f64(seconds).try_into().ok()
}

// === impl Install ===

impl Install {
    /// Adds an argument of the plugin's own.
    pub(crate) fn arg(self, argument: impl Into<String>) -> Self {
        self.plugin(|plugin| plugin.arguments.push(argument.into()))
    }

    /// Gives it a configuration.
    pub(crate) fn config(self, config: &str) -> Self {
        let config = Config::StringConfig(config.to_owned());
        self.manifest(|manifest| manifest.config = Some(config))
    }

    /// Changes the manifest.
    pub(crate) fn manifest(mut self, change: impl FnOnce(&mut Manifest)) -> Self {
        change(self.0.manifest.get_or_insert_default());
        self
    }

    /// Changes the plugin's part of the order.
    pub(crate) fn plugin(mut self, change: impl FnOnce(&mut Plugin)) -> Self {
        change(self.0.plugin.get_or_insert_default());
        self
    }

    /// The order.
    pub(crate) fn order(self) -> ConfigurePlugin {
        self.0
    }
}

impl From<Install> for ConfigurePlugin {
    fn from(install: Install) -> Self {
        install.0
    }
}

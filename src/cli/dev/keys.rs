//! What keys do to the plugin.

use std::path::PathBuf;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Manifest, Plugin,
};
use guest_agent_proto::local::{ConfigureRequest, NotifyVmEventRequest, RestartRequest};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc;

use super::model::Update;
use crate::cli::client;
use crate::cli::failure::Failure;
use crate::cli::format::one_line;
use crate::cli::order;
use crate::manifest::PluginManifest;
use crate::manifest::package::Wanted;

/// Longest that one of them may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// All keys, for the screen.
pub(super) const HELP: &str = "b build  r restart  a apply the configuration  k kill -9  v startup event  s shutdown event  q quit";

/// What a key does to the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Restart,
    /// The configuration of the manifest, as it is now.
    Apply,
    Kill,
    Startup,
    Shutdown,
}

/// The plugin that it is done to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) socket: PathBuf,
    pub(super) folder: PathBuf,
    pub(super) name: String,
    pub(super) pid: Option<u32>,
}

// === impl Deed ===

impl Deed {
    pub(super) const fn of(key: char) -> Option<Self> {
        Some(match key {
            'r' => Self::Restart,
            'a' => Self::Apply,
            'k' => Self::Kill,
            'v' => Self::Startup,
            's' => Self::Shutdown,
            _ => return None,
        })
    }
}

/// Does it, and reports what came of it.
pub(super) async fn carry_out(deed: Deed, target: Target, tell: mpsc::Sender<Update>) {
    let said = match tokio::time::timeout(PATIENCE, perform(deed, target)).await {
        Ok(Ok(said)) => said,
        Ok(Err(failure)) => {
            let causes = failure.causes.iter().map(|cause| format!(": {cause}"));
            one_line(&std::iter::once(failure.reason.clone()).chain(causes).collect::<String>())
        }
        Err(_elapsed) => format!("the agent did not answer within {} s", PATIENCE.as_secs()),
    };
    // The screen may be gone.
    let _told = tell.send(Update::Acted(said)).await;
}

async fn perform(deed: Deed, target: Target) -> Result<String, Failure> {
    let Target { socket, folder, name, pid } = target;
    match deed {
        Deed::Restart => {
            client::connect(&socket).await?.restart(RestartRequest { name }).await?;
            Ok("restart requested".to_owned())
        }
        Deed::Apply => {
            let order = apply(folder, name)?;
            let orders = Some(ConfigurePluginStates { configure_plugins: vec![order] });
            let mut client = client::connect(&socket).await?;
            let answer = client.configure(ConfigureRequest { orders }).await?.into_inner();
            match answer.results.into_iter().find(|result| !result.error.is_empty()) {
                Some(refused) => Err(Failure::failed(format_args!(
                    "the agent refused the configuration: {}",
                    refused.error
                ))),
                None => Ok("the configuration of plugin.toml is being applied".to_owned()),
            }
        }
        Deed::Kill => {
            let pid = pid.and_then(|pid| i32::try_from(pid).ok());
            let pid = pid.ok_or_else(|| Failure::failed("the plugin does not run"))?;
            kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(|error| {
                Failure::failed(format_args!("failed to kill the process {pid}")).because(&error)
            })?;
            Ok(format!("killed the process {pid}"))
        }
        Deed::Startup => event(socket, "startup").await,
        Deed::Shutdown => event(socket, "shutdown").await,
    }
}

/// The order that hands the plugin the configuration of its manifest.
fn apply(folder: PathBuf, name: String) -> Result<ConfigurePlugin, Failure> {
    let manifest = PluginManifest::find(&folder)?;
    let json = Wanted::of(&folder, manifest).manifest_json()?;
    let mut whole = order::install_json(&name, "1", "file:///archive", &"0".repeat(64), "run", &[]);
    whole["manifest"] = serde_json::Value::Object(json);
    let whole = order::decode(&whole)
        .map_err(|error| Failure::failed("plugin.toml makes no order").because(&error))?;
    let config = whole.manifest.and_then(|manifest| manifest.config);
    Ok(ConfigurePlugin {
        action: Action::Apply.into(),
        plugin: Some(Plugin { name, ..Plugin::default() }),
        manifest: Some(Manifest { config, ..Manifest::default() }),
    })
}

async fn event(socket: PathBuf, event: &str) -> Result<String, Failure> {
    let request = NotifyVmEventRequest { event: event.to_owned() };
    let results =
        client::connect(&socket).await?.notify_vm_event(request).await?.into_inner().results;
    let said: Vec<String> = results
        .iter()
        .map(|result| format!("{} {}", result.status, one_line(&result.message)))
        .collect();
    Ok(format!("{event}: {}", said.join(", ")).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;

    use super::*;

    #[test]
    fn the_configuration_is_that_of_the_manifest_now() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join(crate::manifest::FILE);
        for text in ["one", "two"] {
            std::fs::write(&file, format!("name = \"a\"\nconfig = {text:?}\n")).expect("a file");
            let order = apply(folder.path().to_owned(), "a".to_owned()).expect("an order");
            assert_eq!(order.action(), Action::Apply);
            let config = order.manifest.and_then(|manifest| manifest.config);
            assert_eq!(config, Some(Config::StringConfig(text.to_owned())));
        }
        std::fs::write(&file, "name = 1").expect("a file");
        assert!(apply(folder.path().to_owned(), "a".to_owned()).is_err());
    }

    #[test]
    fn every_key_that_is_shown_does_something() {
        let keys = HELP.split("  ").filter_map(|it| it.chars().next());
        let others: Vec<char> = keys.filter(|key| Deed::of(*key).is_none()).collect();
        assert_eq!(others, ['b', 'q']);
    }
}

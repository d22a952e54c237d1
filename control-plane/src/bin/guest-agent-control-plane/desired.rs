//! Desired state from a directory: one `*.json` file per plugin, each a `ConfigurePlugin`.
//!
//! Every agent gets all of it, but only what differs from what the store says it was sent before: a
//! reconnect or a reload without a change sends nothing. A file that is taken away changes nothing;
//! a plugin is removed by a file with the action REMOVE.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use guest_agent_control_plane::ControlPlane;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_agent_proto::json;

/// What every agent should run, by plugin name.
pub(crate) type Desired = BTreeMap<String, ConfigurePlugin>;

/// Reads all files. A bad file is named on stderr and left out; the others count.
pub(crate) fn read(directory: &Path) -> anyhow::Result<Desired> {
    let mut desired = Desired::new();
    let entries = fs::read_dir(directory)
        .with_context(|| format!("failed to read the directory `{}`", directory.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    for path in paths {
        match read_file(&path) {
            Ok((name, plugin)) => {
                if desired.insert(name.clone(), plugin).is_some() {
                    eprintln!("`{}` replaces an earlier file of {name:?}", path.display());
                }
            }
            Err(error) => eprintln!("`{}` is left out: {error:#}", path.display()),
        }
    }
    Ok(desired)
}

fn read_file(path: &Path) -> anyhow::Result<(String, ConfigurePlugin)> {
    let plugin = json::configure_plugin_from_json(&fs::read_to_string(path)?)?;
    anyhow::ensure!(
        matches!(plugin.action(), Action::Install | Action::Remove),
        "the action must be INSTALL or REMOVE"
    );
    let name = plugin.plugin.as_ref().map(|plugin| plugin.name.clone()).unwrap_or_default();
    anyhow::ensure!(!name.is_empty(), "`plugin.name` is missing");
    Ok((name, plugin))
}

/// Sends an agent what it was not sent before. Returns how many plugins that is.
pub(crate) async fn bring_up_to_date(
    control_plane: &ControlPlane,
    resource: &str,
    desired: &Desired,
) -> anyhow::Result<usize> {
    let known = control_plane.desired(resource).await?;
    let missing: Vec<_> =
        desired.values().filter(|plugin| !known.contains(plugin)).cloned().collect();
    let count = missing.len();
    if count > 0 {
        let states = ConfigurePluginStates { configure_plugins: missing };
        // It is delivered in its own time; the event lines tell what came of it.
        drop(control_plane.configure(resource, states).await?);
    }
    Ok(count)
}

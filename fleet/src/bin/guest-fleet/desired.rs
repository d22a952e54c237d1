//! Desired state from a directory: one `*.json` file per plugin, each a `ConfigurePlugin`.
//!
//! Every agent should run all of these plugins. It is sent only the entries that differ from its
//! desired state in the store: a reconnect or a reload without a change sends nothing. Deleting a
//! file changes nothing; a file with the action REMOVE removes a plugin.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_agent_proto::json;
use guest_fleet::ControlPlane;

/// The plugins that every agent should run, by plugin name.
pub(crate) type Desired = BTreeMap<String, ConfigurePlugin>;

/// Reads all files. A bad file is named on stderr and left out; the others are used.
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

/// Sends an agent the entries that it was not sent before. Returns their number.
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
        // Nothing waits for the delivery; the event lines show its result.
        drop(control_plane.configure(resource, states).await?);
    }
    Ok(count)
}

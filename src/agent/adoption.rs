//! Adopts the plugins of a store that was lost, once, before the actors start.
//!
//! The records beside the revisions become records of the new store, so the actors bring these
//! plugins back as they bring back all others: they look for the processes, and start what does not
//! run any more.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::ports::{Storage, StorageError, Table, Write};
use tracing::{error, info, warn};

use crate::config::Config;
use crate::config::policy::Policies;
use crate::install::Pipeline;
use crate::os::procfs;
use crate::process::sandbox::{self, Host};
use crate::store::adoption::Adoption;

/// Adopts what can be adopted, if a store was lost since the last time. A failure leaves the plugins
/// alone: the next start tries again.
pub(super) async fn adopt_after_loss(
    storage: &dyn Storage,
    installer: &Arc<Pipeline>,
    config: &Config,
) {
    if let Err(error) = adopt(storage, installer, config).await {
        error!(error = %Chain(&error), "cannot adopt the plugins of the lost store; they are left alone");
    }
}

async fn adopt(
    storage: &dyn Storage,
    installer: &Arc<Pipeline>,
    config: &Config,
) -> Result<(), StorageError> {
    let Some(store) = Adoption::pending(storage).await? else { return Ok(()) };
    let known = storage.load(Table::Plugins).await?;
    let mut known: BTreeSet<Vec<u8>> = known.into_iter().map(|(key, _)| key).collect();
    let (installer, policies) = (Arc::clone(installer), config.policies.clone());
    let local = config.agent.local_plugin_dir.clone();
    let looked = tokio::task::spawn_blocking(move || {
        let host = Host::look();
        let mut found = installer.adoptable();
        found.retain(|(name, _)| !is_local(&local, name));
        for (name, record) in &mut found {
            if let Ok(snapshot) = record
                && let Err(why) = judge(name, snapshot, &policies, &host)
            {
                *record = Err(why);
            }
        }
        found
    });
    let found = looked.await.map_err(|error| StorageError {
        action: "look beside the revisions",
        cause: error.into(),
    })?;
    let mut adoption = Adoption { store, ..Adoption::default() };
    let mut records = Vec::new();
    for (name, record) in found {
        let key = name.as_str().as_bytes().to_vec();
        if !known.insert(key.clone()) {
            continue;
        }
        match record {
            Ok(snapshot) => {
                info!(plugin = %name, revision = %snapshot.state.spec.revision, "adopts it");
                adoption.adopted.push(name.to_string());
                let (table, value) = (Table::Plugins, snapshot.encode());
                records.push(Write::Put { table, key, value });
            }
            Err(reason) => {
                warn!(plugin = %name, reason, "does not adopt it");
                adoption.left.push((name.to_string(), reason));
            }
        }
    }
    adoption.write(storage, records).await
}

/// A local plugin comes back from its own folder.
fn is_local(dir: &Path, name: &PluginName) -> bool {
    dir.join(name.as_str()).exists()
}

/// Whether a living process runs as the user that today's policy says. The rest of a policy is
/// applied by the next start, as it is to a plugin that was not lost.
fn judge(
    name: &PluginName,
    snapshot: &Snapshot,
    policies: &Policies,
    host: &Host,
) -> Result<(), String> {
    let policy = policies.of(name);
    let Some(user) = &policy.user else { return Ok(()) };
    let living = snapshot.state.process().filter(|process| {
        procfs::stat(process.pid).is_some_and(|stat| stat.start_ticks == process.start_ticks)
    });
    let Some(process) = living else { return Ok(()) };
    let wanted = sandbox::resolve(Some(user), policy.group.as_ref(), host)
        .map_err(|error| format!("the policy of today cannot be applied: {}", Chain(&error)))?;
    let runs_as = procfs::users(process.pid).map(|(real, _)| real);
    match (wanted, runs_as) {
        (Some(wanted), Some(user)) if wanted.user != user => Err(format!(
            "its process {} runs as user {user}, and its policy says user {}",
            process.pid, wanted.user
        )),
        _ => Ok(()),
    }
}

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

#[cfg(test)]
mod tests {
    use guest_agent_actors::model::id::{BootId, Endpoint, Generation, Process, Sha256Digest};
    use guest_agent_actors::model::spec::{Artifact, ArtifactUrl, EntryPoint, PluginSpec, Source};
    use guest_agent_actors::plugin::machine;
    use guest_agent_actors::plugin::state::{Change, Phase};

    use super::*;
    use crate::config::policy::{Account, Policy};

    /// A plugin that runs as this process, or as one of its pid that has ended.
    fn running(start_ticks: u64) -> Snapshot {
        let artifact = Artifact { url: ArtifactUrl::new(""), sha256: Sha256Digest::of(b"") };
        let spec = PluginSpec::plain(
            "web".parse().expect("a name"),
            "1".parse().expect("a revision"),
            Source::Archive(artifact),
            EntryPoint::parse("run").expect("a path"),
        );
        let mut state = machine::begin(Generation(1), Arc::new(spec)).next;
        let boot = BootId("this".into());
        state.phase = Phase::Running {
            process: Process { pid: std::process::id(), start_ticks, boot },
            endpoint: Endpoint::from_stored("unix:/run/web.sock"),
            change: Change::None,
        };
        Snapshot::of(state)
    }

    #[test]
    fn a_process_of_another_user_than_the_policy_says_is_not_adopted() {
        let me = procfs::stat(std::process::id()).expect("this process");
        let (own, _) = procfs::users(me.pid).expect("this process");
        let (name, host) = ("web".parse().expect("a name"), Host::look());
        let judged = |user: Option<u32>, start_ticks| {
            let user = user.map(Account::Id);
            let group = user.is_some().then_some(Account::Id(own));
            let defaults = Policy { user, group, ..Policy::default() };
            let policies = Policies { defaults, ..Policies::default() };
            judge(&name, &running(start_ticks), &policies, &host)
        };
        assert_eq!(judged(None, me.start_ticks), Ok(()));
        assert_eq!(judged(Some(own), me.start_ticks), Ok(()));
        let why = judged(Some(own + 1), me.start_ticks).expect_err("another user");
        assert!(why.contains(&format!("runs as user {own}")), "{why}");
        // Whatever has the pid now is not the plugin, which the next start runs as its user.
        assert_eq!(judged(Some(own + 1), me.start_ticks + 1), Ok(()));
    }
}

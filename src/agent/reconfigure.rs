//! Applies a changed configuration without a restart.

use std::sync::Arc;

use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::RescanLocal;
use guest_agent_actors::system::System;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::args::configured;
use super::settings::{gate, policies};
use super::windows::windows;
use crate::agent::reload::Change;
use crate::config::{Config, ProcessEnvironment, Sources};
use crate::install::trust::Trust;
use crate::install::{Pipeline, RedirectRules};
use crate::observe::log;
use crate::process::launch::ProcessLauncher;

/// Reads the configuration again and applies the settings that need no restart. An invalid
/// configuration changes nothing. All other files of the machine that the agent reads at its start
/// are read again from here, too.
pub(super) async fn reload(
    sources: &Sources,
    effective: &watch::Sender<Arc<Config>>,
    system: &System,
    launcher: &ProcessLauncher,
    installer: &Pipeline,
) {
    system.manager.do_send(RescanLocal);
    let sources = sources.clone();
    let reading = tokio::task::spawn_blocking(move || configured(&ProcessEnvironment, &sources));
    let wanted = match reading.await {
        Ok(Ok(wanted)) => wanted,
        Ok(Err(error)) => {
            let (reason, causes) = (error.reason(), error.causes().join("; "));
            error!(
                reason,
                causes,
                "THE CONFIGURATION CANNOT BE USED; the agent continues with its current one"
            );
            return;
        }
        Err(error) => {
            error!(
                %error,
                "the configuration could not be read; the agent continues with its current one"
            );
            return;
        }
    };
    let trusted = wanted.trust.clone();
    let keys = match tokio::task::spawn_blocking(move || Trust::load(&trusted)).await {
        Ok(Ok(keys)) => keys,
        Ok(Err(error)) => {
            error!(
                error = %Chain(&error),
                "THE CONFIGURATION CANNOT BE USED; the agent continues with its current one"
            );
            return;
        }
        Err(error) => {
            error!(%error, "the keys could not be read; the agent continues with its current ones");
            return;
        }
    };
    installer.set_trust(keys);
    let Change { effective: config, applied, at_next_launch, needs_restart } =
        Change::between(&effective.borrow(), &wanted);
    launcher.use_policies(config.policies.clone());
    launcher.use_stop_grace(config.plugins.stop_grace);
    if !at_next_launch.is_empty() {
        let changed = at_next_launch.join(", ");
        info!(changed, "policies changed; each plugin gets its new one at its next start");
    }
    log::set_level(&config.log.level);
    let (policy, health) = policies(&config);
    system.reconfigure(policy, health, gate(&config));
    system.use_windows(windows(&config));
    installer.set_cache_max(config.install.cache_max_bytes);
    installer.set_redirect_rules(RedirectRules::configured(&config));
    effective.send_replace(Arc::new(config));
    let (changed, restart) = (applied.join(", "), needs_restart.join(", "));
    if needs_restart.is_empty() {
        info!(changed, "the configuration was read again");
    } else {
        warn!(changed, restart, "the configuration was read again; some settings need a restart");
    }
}

//! Notifies plugins, and stops them or lets them run, when the agent stops.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::{Dismiss, ListPlugins, Listed, NotifyVm, Save};
use guest_agent_actors::model::event::NewEvent;
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::model::vm_event::VmEvent;
use guest_agent_actors::ports::{
    Cleanup, Durability, Launcher, StopManner, StopOrder, Stopped, Storage,
};
use guest_agent_actors::system::System;
use guest_agent_actors::vm_events::{self, NOTIFY_WAIT};
use tracing::warn;

/// Longest time for the end of the plugins' actors.
const STOP_SLACK: Duration = Duration::from_secs(10);

/// The margin for the stop of a plugin beyond its own timeout: 5 s for SIGTERM, 5 s for SIGKILL,
/// and the checks of its processes.
const SIGNALS: Duration = Duration::from_secs(15);

/// Notifies plugins that they, or the whole machine, are about to stop. Bounded.
pub(super) async fn notify_shutdown(system: &System) {
    let notifying = system.vm_events.send(NotifyVm::of(VmEvent::Shutdown));
    match tokio::time::timeout(NOTIFY_WAIT + Duration::from_secs(1), notifying).await {
        Ok(Ok(Ok(_))) => {}
        Ok(Ok(Err(error))) => warn!(%error, "no plugin was notified of the shutdown"),
        Ok(Err(_)) | Err(_) => warn!("not every plugin may have been notified of the shutdown"),
    }
}

/// Stops all plugins at the same time. No actor supervises them meanwhile, so that none counts as
/// crashed and is started again. Their saved state stays, and the next agent process starts them.
pub(super) async fn stop_plugins(system: &System, launcher: &dyn Launcher) {
    const TIMEOUT: Duration = Duration::from_secs(30);
    let listed = tokio::time::timeout(STOP_SLACK, system.manager.send(ListPlugins)).await;
    let Ok(Ok(plugins)) = listed else {
        warn!("the manager does not list the running plugins; they continue to run");
        return;
    };
    // A plugin that is still busy after that time is stopped anyway.
    if tokio::time::timeout(STOP_SLACK, system.manager.send(Dismiss)).await.is_err() {
        warn!("not every plugin's actor ended; a plugin may be reported as crashed");
    }
    let stops = plugins.iter().map(async |Listed { view, .. }| {
        let stop = launcher.stop(StopOrder {
            name: view.name.clone(),
            process: None,
            endpoint: view.endpoint.clone(),
            cleanup: Cleanup::Keep,
            manner: StopManner::Politely { timeout: TIMEOUT },
        });
        let plugin = &view.name;
        match tokio::time::timeout(TIMEOUT + SIGNALS, stop).await {
            Ok(Ok(Stopped::NothingRan)) => None,
            Ok(Ok(Stopped::Ended(cause))) => {
                let (revision, why) = (view.revision.as_str(), format!("{cause}; the agent ended"));
                let now = SystemTime::now();
                Some(NewEvent::new(PluginEventKind::Stopped, plugin.as_str(), revision, now, &why))
            }
            Ok(Err(error)) => {
                warn!(%plugin, error = %Chain(&error), "a plugin could not be stopped");
                None
            }
            Err(_) => {
                warn!(%plugin, "did not stop in time");
                None
            }
        }
    });
    let events = join_all(stops).await.into_iter().flatten().collect();
    let save = Save { writes: vec![vm_events::forget_boot()], events, ..Save::default() };
    let saved = tokio::time::timeout(STOP_SLACK, system.store.send(save)).await;
    if !matches!(saved, Ok(Ok(Ok(())))) {
        warn!(
            "the end of the plugins could not be saved; the next start of the agent reports crashes"
        );
    }
}

/// Writes the acknowledged data that is still on its way to the store.
pub(super) async fn flush(system: &System, storage: &dyn Storage) {
    // The request passes through the store's actor, so that it comes after all earlier writes.
    drop(tokio::time::timeout(STOP_SLACK, system.store.send(Save::default())).await);
    if let Err(error) = storage.commit(Vec::new(), Durability::Durable).await {
        warn!(
            error = %Chain(&error),
            "the last delayed writes may be lost; the agent makes them again"
        );
    }
}

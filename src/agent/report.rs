//! The agent's report about itself to the control plane, once per start: where it runs, and how its
//! own modules started. It is sent beside the stream; no task waits for it, and a failure has no
//! effect.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::{DeliveryError, OutboundMessage};
use guest_agent_proto::agent_controlplane::guest_agent_module_metric::{Metric, ModuleStatus};
use guest_agent_proto::agent_controlplane::{
    GuestAgentModuleMetric, GuestAgentModuleMetrics, PlatformInfo,
};
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use prost::Message;
use tokio::sync::watch;
use tracing::debug;

use crate::hostinfo::metadata::State;
use crate::link::{Link, LinkState};

/// How often the agent tries to send each message.
const ATTEMPTS: u32 = 5;

/// The waits after failures. All attempts are made before they reach their ceiling.
const WAITS: Schedule =
    Schedule::doubling(Duration::from_secs(1), Duration::from_secs(16), Jitter::UpperHalf);

/// How long the metadata server's first answer is waited for, once there is a connection.
const PLATFORM_WAIT: Duration = Duration::from_secs(10);

/// Longest error text that is sent, in bytes.
const ERROR_MAX: usize = 1024;

/// The modules that the protocol knows and this agent has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Module {
    /// The actors, with the state that an earlier agent process saved.
    Core,
    /// The JSON command socket.
    Commands,
}

/// How the modules started.
#[derive(Clone, Debug, Default)]
pub(super) struct Modules(Vec<GuestAgentModuleMetric>);

// === impl Module ===

impl Module {
    fn metric(self) -> Metric {
        match self {
            Self::Core => Metric::CorePluginInitialization,
            Self::Commands => Metric::CommandInitialization,
        }
    }
}

// === impl Modules ===

impl Modules {
    /// The module began to start at that time, and runs now.
    pub(super) fn succeeded(&mut self, module: Module, begun_at: SystemTime) {
        self.push(module, begun_at, ModuleStatus::StatusSucceeded, String::new());
    }

    /// The module began to start at that time, and failed.
    pub(super) fn failed(&mut self, module: Module, begun_at: SystemTime, mut error: String) {
        let end = (0..=ERROR_MAX.min(error.len())).rev().find(|&at| error.is_char_boundary(at));
        error.truncate(end.unwrap_or(0));
        self.push(module, begun_at, ModuleStatus::StatusFailed, error);
    }

    /// The module is turned off.
    pub(super) fn disabled(&mut self, module: Module) {
        let now = SystemTime::now();
        self.push(module, now, ModuleStatus::StatusSkipped, String::new());
    }

    fn push(&mut self, module: Module, begun_at: SystemTime, status: ModuleStatus, error: String) {
        self.0.push(GuestAgentModuleMetric {
            metric_name: module.metric().into(),
            start_time: Some(begun_at.into()),
            // A clock that was set back meanwhile must not make it end before it began.
            end_time: Some(SystemTime::now().max(begun_at).into()),
            module_status: status.into(),
            enabled: status != ModuleStatus::StatusSkipped,
            error,
        });
    }
}

/// Sends both, as soon as there is a connection.
pub(super) async fn send(link: Link, mut metadata: watch::Receiver<State>, modules: Modules) {
    connected(&link).await;
    let known = metadata.wait_for(|state| *state != State::Unknown);
    let platform = match tokio::time::timeout(PLATFORM_WAIT, known).await {
        Ok(Ok(state)) => platform(&state),
        Ok(Err(_)) | Err(_) => platform(&State::Unknown),
    };
    deliver(&link, "agent_controlplane.PlatformInfo", &platform).await;
    let metrics = GuestAgentModuleMetrics { metrics: modules.0 };
    deliver(&link, "agent_controlplane.GuestAgentModuleMetrics", &metrics).await;
}

/// Whether the machine has a metadata server of the known kind.
fn platform(state: &State) -> PlatformInfo {
    match state {
        State::Unknown => PlatformInfo {
            on_gce: false,
            error: "the metadata server has not answered yet".to_owned(),
        },
        State::Absent { reason } => PlatformInfo { on_gce: false, error: reason.to_string() },
        State::Present { .. } => PlatformInfo { on_gce: true, error: String::new() },
    }
}

async fn deliver(link: &Link, kind: &str, body: &impl Message) {
    let mut backoff = Backoff::new(WAITS);
    for attempt in 1..=ATTEMPTS {
        connected(link).await;
        match link.send_unary(message(kind, body)).await {
            Ok(()) => return,
            Err(error) => {
                debug!(
                    kind,
                    attempt,
                    error = %Chain(&error),
                    "the report to the control plane could not be sent"
                );
                if matches!(error, DeliveryError::Refused(_)) && attempt > 1 {
                    return;
                }
            }
        }
        tokio::time::sleep(backoff.next(rand::random())).await;
    }
}

fn message(kind: &str, body: &impl Message) -> OutboundMessage {
    OutboundMessage {
        id: uuid::Uuid::new_v4().to_string(),
        labels: BTreeMap::from([("message_type".to_owned(), kind.to_owned())]),
        type_url: format!("type.googleapis.com/{kind}"),
        body: body.encode_to_vec(),
    }
}

async fn connected(link: &Link) {
    let mut state = link.watch_state();
    if state.wait_for(|state| matches!(state, LinkState::Connected { .. })).await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_reported_as_they_are() {
        let begun_at = SystemTime::now() + Duration::from_secs(3600);
        let mut modules = Modules::default();
        modules.succeeded(Module::Core, begun_at);
        modules.failed(Module::Commands, SystemTime::UNIX_EPOCH, "é".repeat(ERROR_MAX));
        modules.disabled(Module::Commands);
        let [core, failed, disabled] = &modules.0[..] else { panic!("{modules:?}") };
        assert_eq!(core.metric_name(), Metric::CorePluginInitialization);
        assert_eq!((core.module_status(), core.enabled), (ModuleStatus::StatusSucceeded, true));
        assert_eq!(core.start_time, core.end_time, "it cannot end before it began");
        assert_eq!((failed.module_status(), failed.enabled), (ModuleStatus::StatusFailed, true));
        assert_eq!(failed.error.len(), ERROR_MAX);
        assert_eq!(
            (disabled.module_status(), disabled.enabled),
            (ModuleStatus::StatusSkipped, false)
        );
    }

    #[test]
    fn the_platform_is_what_the_metadata_server_makes_it() {
        let tree =
            crate::hostinfo::metadata::Tree::parse(br#"{"instance": {}}"#).expect("a tree").into();
        assert!(platform(&State::Present { tree, trouble: None }).on_gce);
        let absent = platform(&State::Absent { reason: "gone".into() });
        assert_eq!((absent.on_gce, &*absent.error), (false, "gone"));
    }
}

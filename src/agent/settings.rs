//! The settings of the actors, as the configuration has them.

use std::sync::Arc;

use guest_agent_actors::admission::Gate;
use guest_agent_actors::model::health::HealthPolicy;
use guest_agent_actors::outbox::{Bounds, Destination};
use guest_agent_actors::plugin::restart::RestartPolicy;
use guest_agent_actors::plugin::state::Policy;
use guest_agent_actors::ports::AdmissionCommand;
use guest_agent_actors::system::Settings;
use guest_agent_actors::wire::AgentFacts;
use tokio::sync::watch;

use super::ground::Degraded;
use super::windows::windows;
use crate::config::Config;

pub(super) fn settings(
    config: &Config,
    destination: Destination,
    service_url: watch::Receiver<Arc<str>>,
    degraded: Option<&Degraded>,
) -> Settings {
    let (policy, health) = policies(config);
    Settings {
        policy,
        health,
        agent: AgentFacts {
            name: config.agent.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
        destination,
        outbox: Bounds::default(),
        gate: gate(config),
        service_url,
        refusing: degraded.map(|degraded| degraded.why.clone()),
        labels: Arc::new(config.labels.clone().into_iter().collect()),
        windows: windows(config),
    }
}

pub(super) fn policies(config: &Config) -> (Policy, HealthPolicy) {
    let plugins = &config.plugins;
    let policy = Policy {
        restart: RestartPolicy {
            initial: plugins.restart_initial_backoff,
            max: plugins.restart_max_backoff,
            ..RestartPolicy::default()
        },
        probation: plugins.probation,
    };
    let health = HealthPolicy {
        interval: plugins.health_interval,
        timeout: plugins.health_timeout,
        failures: plugins.health_failures,
    };
    (policy, health)
}

/// The admission plugin that the agent asks before each deployment.
pub(super) fn gate(config: &Config) -> Gate {
    let command = AdmissionCommand::new(&config.admission.command);
    Gate { command, timeout: config.admission.timeout }
}

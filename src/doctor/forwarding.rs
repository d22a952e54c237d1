//! Whether the logs of plugins get where `plugins.log_to` says.

use std::os::unix::net::UnixDatagram;

use super::check::{Agent, Finding, Host, Severity};
use crate::config::LogDestination;
use crate::observe::forwarding::TROUBLE;

/// Lines that were not forwarded stay in the files.
const MEANWHILE: &str = "correct that; the lines wait in the plugins' logs, and the agent tries again by \
                         itself";

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    match host.agent {
        // It says what it met with, also of the collector.
        Agent::Answers { itself, .. } => {
            let troubles = itself.agent.iter().flat_map(|agent| &agent.troubles);
            troubles.filter_map(|trouble| told(trouble)).collect()
        }
        Agent::Hidden { .. } => Vec::new(),
        Agent::Silent { .. } => journal(host).into_iter().collect(),
    }
}

/// What the agent says is wrong.
fn told(trouble: &str) -> Option<Finding> {
    let (to, why) = trouble.strip_prefix(TROUBLE)?.split_once(": ")?;
    Some(Finding::new(Severity::Warning, format!("{TROUBLE}{to}"), why, MEANWHILE))
}

/// Whether the journal could be reached.
fn journal(host: &Host<'_>) -> Option<Finding> {
    let plugins = &host.config.plugins;
    if !plugins.log_to.contains(&LogDestination::Journald) {
        return None;
    }
    let path = &plugins.log_journal_socket;
    let reached = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    let error = reached.err()?;
    Some(Finding::new(
        Severity::Warning,
        format!("{TROUBLE}{}", LogDestination::Journald),
        format!("nothing takes entries at {}: {error}", path.display()),
        "see `systemctl status systemd-journald`, correct plugins.log_journal_socket, or leave \
         \"journald\" out of plugins.log_to",
    ))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use guest_agent_proto::local::{AgentStatus, ExamineResponse, SweepResponse};

    use super::*;
    use crate::config::Config;

    #[test]
    fn what_the_agent_meets_with_is_a_finding() {
        let troubles = vec!["a store was lost".to_owned(), format!("{TROUBLE}otlp: no: answer")];
        let agent = Some(AgentStatus { troubles, ..AgentStatus::default() });
        let itself = Box::new(ExamineResponse { agent, ..ExamineResponse::default() });
        let leftovers = Ok(SweepResponse::default());
        let agent = Agent::Answers { itself, leftovers, plugins: Vec::new() };
        let config = Config::default();
        let host = Host { config: &config, agent: &agent, now: SystemTime::UNIX_EPOCH };
        let findings = check(&host);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].what, "the logs of plugins do not reach otlp");
        assert_eq!(findings[0].why, "no: answer");
    }

    #[test]
    fn without_an_agent_the_journal_is_looked_at_where_it_is_wanted() {
        let agent = Agent::Silent { reason: String::new(), hint: String::new(), process: None };
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.plugins.log_journal_socket = dir.path().join("socket");
        let look =
            |config: &Config| check(&Host { config, agent: &agent, now: SystemTime::UNIX_EPOCH });
        assert_eq!(look(&config), []);
        config.plugins.log_to = vec![LogDestination::Journald];
        let findings = look(&config);
        assert!(findings[0].why.contains("socket: No such file"), "{findings:?}");
        let _journal = UnixDatagram::bind(dir.path().join("socket")).expect("a socket");
        assert_eq!(look(&config), []);
    }
}

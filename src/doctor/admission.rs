//! Whether the admission plugin could be started: without it nothing is deployed.

use std::path::Path;

use guest_agent_actors::error::Chain;

use super::check::{Finding, Host, Severity};
use crate::process::admission::check_program;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let Some(program) = host.config.admission.command.first() else { return Vec::new() };
    let Err(error) = check_program(Path::new(program)) else { return Vec::new() };
    vec![Finding::new(
        Severity::Error,
        "the admission plugin cannot be started, so nothing can be deployed",
        Chain(&*error).to_string(),
        "install it and make it executable for the agent's user (chmod +x), correct \
         admission.command, or leave that empty to deploy without asking",
    )]
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::config::Config;
    use crate::doctor::Agent;

    fn findings(command: &[&str]) -> Vec<Finding> {
        let mut config = Config::default();
        config.admission.command = command.iter().map(|part| (*part).to_owned()).collect();
        let agent = Agent::Silent { reason: String::new(), hint: String::new(), process: None };
        check(&Host { config: &config, agent: &agent, now: SystemTime::UNIX_EPOCH })
    }

    #[test]
    fn a_program_that_is_missing_or_no_program_is_an_error() {
        assert_eq!(findings(&[]), []);
        assert_eq!(findings(&["/bin/sh", "-c", "true"]), []);
        for bad in ["/no/such/program", "/etc/passwd"] {
            let findings = findings(&[bad, "--token=hunter2"]);
            assert_eq!(findings.len(), 1, "{bad}");
            assert!(findings[0].why.contains(bad), "{findings:?}");
            assert!(!format!("{findings:?}").contains("hunter2"));
        }
    }
}

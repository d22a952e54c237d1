//! Plugins that need attention, by the agent's own verdict about each.

use guest_agent_actors::model::verdict::Cause;
use guest_agent_proto::local::{Hold, PluginStatus, VerdictLevel};
use jiff::Timestamp;

use super::check::{Agent, Finding, Host, Severity};
use crate::display::{self, one_line};

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let Agent::Answers { plugins, itself, .. } = host.agent else { return Vec::new() };
    let now = Timestamp::try_from(host.now).unwrap_or_default();
    let hold = itself.agent.as_ref().and_then(|agent| agent.hold.as_ref());
    let of_all = hold.map(|hold| held(hold, now));
    of_all.into_iter().chain(plugins.iter().filter_map(|plugin| finding(plugin, now))).collect()
}

/// A hold of all is easily forgotten where no plugin has an order that waits.
fn held(hold: &Hold, now: Timestamp) -> Finding {
    Finding::new(
        Severity::Note,
        "all plugins are held",
        format!("orders wait, {}", display::hold(hold, now)),
        "guest-agent release --all",
    )
}

fn finding(plugin: &PluginStatus, now: Timestamp) -> Option<Finding> {
    let name = one_line(&plugin.name);
    let (severity, word) = match display::level(plugin) {
        VerdictLevel::Failing => (Severity::Error, "failing"),
        VerdictLevel::Degraded => (Severity::Warning, "degraded"),
        VerdictLevel::Held => (Severity::Note, "held"),
        VerdictLevel::Busy | VerdictLevel::Ok | VerdictLevel::Unspecified => return None,
    };
    let verdict = plugin.verdict.as_ref()?;
    // What is not enforced is a finding of its own, for all plugins together; so is a manifest that
    // is refused, which `local` reads again.
    if [Cause::NotEnforced, Cause::ManifestRefused].iter().any(|it| verdict.cause == it.name()) {
        return None;
    }
    let help = one_line(&verdict.help);
    let fix = if verdict.cause == Cause::RemoveFails.name() {
        format!(
            "see what its processes wait for: {help}; the agent tries again by itself, and a process \
             that the kernel does not end goes with a restart of the machine only"
        )
    } else {
        help
    };
    let what = format!("the plugin {name} is {word}");
    Some(Finding::new(severity, what, display::sentence(plugin, now), fix))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use guest_agent_actors::model::verdict::Level;
    use guest_agent_proto::local::{SweepResponse, Verdict};

    use super::*;
    use crate::config::Config;

    fn plugin(name: &str, level: Level, cause: Cause) -> PluginStatus {
        let verdict = Verdict {
            level: level.name().to_owned(),
            cause: cause.name().to_owned(),
            reason: "why".to_owned(),
            help: format!("guest-agent logs {name}"),
            ..Verdict::default()
        };
        PluginStatus { name: name.to_owned(), verdict: Some(verdict), ..PluginStatus::default() }
    }

    #[test]
    fn each_plugin_that_needs_attention_is_a_finding_with_the_next_command() {
        let plugins = vec![
            plugin("loops", Level::Failing, Cause::CrashLoop),
            plugin("back", Level::Degraded, Cause::RevisionFailed),
            plugin("unlimited", Level::Degraded, Cause::NotEnforced),
            plugin("refused", Level::Failing, Cause::ManifestRefused),
            plugin("works", Level::Busy, Cause::Working),
            plugin("fine", Level::Ok, Cause::Fine),
            plugin("stuck", Level::Failing, Cause::RemoveFails),
            PluginStatus { name: "of-an-older-agent".to_owned(), ..PluginStatus::default() },
        ];
        let leftovers = Ok(SweepResponse::default());
        let agent = Agent::Answers { itself: Box::default(), leftovers, plugins };
        let config = Config::default();
        let findings = check(&Host { config: &config, agent: &agent, now: SystemTime::UNIX_EPOCH });
        let said: Vec<_> = findings
            .iter()
            .map(|it| (it.severity, it.what.as_str(), it.why.as_str(), it.fix.as_str()))
            .collect();
        let (error, warning) = (Severity::Error, Severity::Warning);
        assert_eq!(
            said[..2],
            [
                (error, "the plugin loops is failing", "why", "guest-agent logs loops"),
                (warning, "the plugin back is degraded", "why", "guest-agent logs back"),
            ]
        );
        let [.., (error, "the plugin stuck is failing", "why", fix)] = said[..] else {
            panic!("{said:?}")
        };
        assert_eq!((error, said.len()), (Severity::Error, 3));
        assert!(fix.contains("guest-agent logs stuck") && fix.contains("restart"), "{fix}");
    }
}

//! The maintenance windows, and when each opens next.

use std::time::SystemTime;

use guest_agent_actors::model::window::Opening;
use jiff::Timestamp;

use super::check::{Finding, Host, Severity};
use crate::display::age;

pub(super) fn check(host: &Host<'_>) -> Vec<Finding> {
    let windows = &host.config.maintenance.window;
    let now = Timestamp::try_from(host.now).unwrap_or_default();
    let mut findings = Vec::new();
    for window in windows {
        let Ok(parsed) = window.parse() else { continue };
        let moment = |at: Option<SystemTime>| at.and_then(|at| Timestamp::try_from(at).ok());
        let when = match parsed.opening(host.now) {
            Opening::Open { until } => match moment(until) {
                Some(until) => format!("it is open until {until}, for {} more", age(now, until)),
                None => "it is open".to_owned(),
            },
            Opening::Closed { until } => match moment(until) {
                Some(until) => format!("it opens at {until}, in {}", age(now, until)),
                None => "it is closed".to_owned(),
            },
        };
        let what = format!("changes of {} wait for a window", window.covers_in_words());
        let why = format!("{}: {when}", window.in_words());
        let fix =
            "change [[maintenance.window]], and reload the agent (SIGHUP), to change something now";
        findings.push(Finding::new(Severity::Note, what, why, fix));
    }
    findings
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::check::Agent;
    use super::*;
    use crate::config::{Config, MaintenanceConfig};

    #[test]
    fn a_window_is_shown_with_its_next_opening() {
        let maintenance = MaintenanceConfig::on_thursdays(&["web", "db"]);
        let config = Config { maintenance, ..Config::default() };
        let agent = Agent::Silent { reason: String::new(), hint: String::new() };
        let at = |hours: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(3600 * hours);
        let found = |hours| check(&Host { config: &config, agent: &agent, now: at(hours) });
        let [finding] = &found(1)[..] else { panic!("one window") };
        assert_eq!(finding.what, "changes of web, db wait for a window");
        assert!(
            finding.why.contains("thu from 02:00 to 03:00 UTC: it opens at 1970-01-01T02:00:00Z")
        );
        assert!(found(2)[0].why.contains("it is open until 1970-01-01T03:00:00Z"));
        let none = Config::default();
        assert_eq!(check(&Host { config: &none, agent: &agent, now: at(1) }).len(), 0);
    }
}

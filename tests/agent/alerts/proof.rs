//! Has promtool look at recordings: what fires, and which panels have data.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::ALERTS;
use super::recording::{JOB, Pace, Recording};
use super::rules::{self, Alert};
use crate::harness::promtool;

/// Alerts about what ends at a known time.
const EXPIRE: [&str; 2] = ["GuestAgentCertificateExpires", "GuestAgentTokenExpires"];

/// The recording of an incident, and the alerts that have to fire, with their times.
pub(super) struct Story {
    pub(super) recording: Recording,
    pub(super) moments: Vec<Moment>,
}

/// All that fires at one time.
pub(super) struct Moment {
    /// The number of the scrape.
    pub(super) at: usize,
    pub(super) fires: Vec<Fires>,
}

/// An alert that fires.
#[derive(Clone)]
pub(super) struct Fires {
    pub(super) alert: &'static str,
    /// Its labels beside those of the target.
    pub(super) labels: Vec<(&'static str, &'static str)>,
}

// === impl Story ===

impl Story {
    /// The series, the alerts of the file that fire at each moment, and a check that no alert fires at
    /// another time.
    fn test(&self, alerts: &[Alert]) -> Value {
        let Recording { instance, pace, .. } = self.recording;
        let seconds = |number: usize| {
            format!("{}s", u64::try_from(number).unwrap() * pace.interval().as_secs())
        };
        let target = [("job", JOB), ("instance", instance)];
        let each_moment = self.moments.iter().flat_map(|moment| {
            alerts.iter().map(|alert| {
                let firing = moment.fires.iter().filter(|it| it.alert == alert.name);
                json!({
                    "eval_time": seconds(moment.at),
                    "alertname": alert.name,
                    "exp_alerts": firing.map(|it| it.expected(alert, &target)).collect::<Vec<_>>(),
                })
            })
        });
        let all = self.moments.iter().flat_map(|moment| &moment.fires);
        let ever: BTreeSet<String> = all
            .map(|it| {
                let plugin = it.labels.iter().find(|(name, _)| *name == "plugin");
                let plugin = plugin.map(|(_, name)| format!(", plugin=\"{name}\""));
                format!("{{alertname=\"{}\"{}}}", it.alert, plugin.unwrap_or_default())
            })
            .collect();
        let ever = ever.into_iter().map(|labels| json!({ "labels": labels, "value": 1 }));
        json!({
            "name": instance,
            "interval": seconds(1),
            "input_series": self.recording.input_series(),
            "alert_rule_test": each_moment.collect::<Vec<_>>(),
            "promql_expr_test": [{
                "expr": "group by (alertname, plugin) (max_over_time(ALERTS{alertstate=\"firing\"}[60d]))",
                "eval_time": seconds(self.recording.last()),
                "exp_samples": ever.collect::<Vec<_>>(),
            }],
        })
    }
}

// === impl Fires ===

impl Fires {
    fn expected(&self, alert: &Alert, target: &[(&str, &str)]) -> Value {
        let labels = || self.labels.iter().copied().chain(target.iter().copied());
        let filled = |text: &str| {
            labels().fold(text.to_owned(), |text, (name, value)| {
                text.replace(&format!("{{{{ $labels.{name} }}}}"), value)
            })
        };
        let mut expected: serde_json::Map<String, Value> =
            labels().map(|(name, value)| (name.to_owned(), value.into())).collect();
        expected.insert("severity".to_owned(), alert.severity.clone().into());
        json!({
            "exp_labels": expected,
            "exp_annotations": {
                "summary": filled(&alert.summary),
                "description": filled(&alert.description),
                "runbook_url": alert.runbook,
            },
        })
    }
}

/// The series of a Prometheus that scrapes no agent at all.
fn nothing_is_scraped(alerts: &[Alert]) -> Value {
    let of = |alert: &Alert| {
        let missing = Fires { alert: "GuestAgentMissing", labels: Vec::new() };
        let is_it = alert.name == missing.alert;
        let expected = is_it.then(|| missing.expected(alert, &[("job", JOB)]));
        json!({
            "eval_time": "15m",
            "alertname": alert.name,
            "exp_alerts": expected.into_iter().collect::<Vec<_>>(),
        })
    };
    json!({
        "name": "nothing is scraped",
        "interval": "30s",
        "input_series": [],
        "alert_rule_test": alerts.iter().map(of).collect::<Vec<_>>(),
    })
}

/// Certificates and tokens that are about to end, next to others that are not. The series are made up:
/// until it ends, a certificate of a year is like any other, and nobody can wait for that.
fn what_expires(alerts: &[Alert]) -> Value {
    const DAY: u32 = 86400;
    let series = |metric: &str, label: &str, days: u32| {
        json!({
            "series": format!("{metric}{{job=\"{JOB}\",instance=\"ends\",{label}}}"),
            "values": format!("{}+0x300", days * DAY),
        })
    };
    let (certificate, token) = (
        "guest_agent_tls_certificate_expiry_timestamp_seconds",
        "guest_agent_http_token_expiry_timestamp_seconds",
    );
    let expected = [
        Fires { alert: EXPIRE[0], labels: vec![("use", "server")] },
        Fires { alert: EXPIRE[1], labels: vec![("name", "fleet")] },
    ];
    let target = [("job", JOB), ("instance", "ends")];
    let of = |alert: &Alert| {
        let firing = expected.iter().filter(|it| it.alert == alert.name);
        json!({
            "eval_time": "2h",
            "alertname": alert.name,
            "exp_alerts": firing.map(|it| it.expected(alert, &target)).collect::<Vec<_>>(),
        })
    };
    let about_these = |alert: &&Alert| EXPIRE.contains(&&*alert.name);
    json!({
        "name": "what ends soon",
        "interval": "30s",
        "input_series": [
            series(certificate, "use=\"server\"", 13),
            series(certificate, "use=\"client\"", 20),
            series(token, "name=\"fleet\"", 6),
            series(token, "name=\"console\"", 20),
        ],
        "alert_rule_test": alerts.iter().filter(about_these).map(of).collect::<Vec<_>>(),
    })
}

/// Every alert fires in its incident and at no other time, says promtool.
pub(super) fn of_alerts(stories: &[Story]) {
    let alerts = rules::all(ALERTS);
    let fired: BTreeSet<&str> = stories
        .iter()
        .flat_map(|story| &story.moments)
        .flat_map(|moment| moment.fires.iter().map(|it| it.alert))
        .chain(["GuestAgentMissing"])
        .chain(EXPIRE)
        .collect();
    let known: BTreeSet<&str> = alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(fired, known, "every alert has an incident");
    for pace in [Pace::MINUTES, Pace::DAYS] {
        let of_pace = stories.iter().filter(|story| story.recording.pace == pace);
        let mut tests: Vec<Value> = of_pace.map(|story| story.test(&alerts)).collect();
        if pace == Pace::MINUTES {
            tests.push(nothing_is_scraped(&alerts));
            tests.push(what_expires(&alerts));
        }
        check(&format!("alerts-{}", pace.factor), pace, &tests);
    }
}

/// Every query of the dashboard gives something in the fleet of all incidents, says promtool.
pub(super) fn of_dashboard(stories: &[Story], queries: &[String]) {
    let pace = Pace::MINUTES;
    let of_pace = || stories.iter().map(|story| &story.recording).filter(|it| it.pace == pace);
    let end = of_pace().map(Recording::last).max().unwrap();
    let end = u64::try_from(end).unwrap() * pace.interval().as_secs();
    let step = pace.interval().as_secs();
    let has_data = queries.iter().map(|query| {
        json!({
            "expr": format!("clamp_max(count(max_over_time(({query})[{end}s:{step}s])), 1)"),
            "eval_time": format!("{end}s"),
            "exp_samples": [{ "labels": "{}", "value": 1 }],
        })
    });
    let fleet = json!({
        "name": "the dashboard",
        "interval": format!("{step}s"),
        "input_series": of_pace().flat_map(Recording::input_series).collect::<Vec<_>>(),
        "promql_expr_test": has_data.collect::<Vec<_>>(),
    });
    check("dashboard", pace, &[fleet]);
}

/// Has promtool carry tests out.
fn check(name: &str, pace: Pace, tests: &[Value]) {
    let interval = format!("{}s", pace.interval().as_secs());
    promtool::test_rules(name, &rules::path(ALERTS), &interval, tests);
}

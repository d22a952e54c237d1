//! The alerts about a fleet and its dashboard, proven: the page of a real server that is well is recorded, each story puts
//! the series of a trouble in the place of those of the page, and promtool says which alerts that fires.
//!
//! ```text
//!   guest-fleet serve ─ /metrics ─► base ─┐
//!   stories: series that fire, and such that just do not ─┴─► promtool, with config/prometheus-fleet-alerts.yml
//! ```
//!
//! All other alerts of the file have to be silent in each story. A story may name only series that the reference of metrics
//! has, with their labels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::{Duration, Instant, sleep};

use crate::PATIENCE;
use crate::harness::{http, promtool};
use crate::plane::Plane;

mod stories;

#[path = "../alerts/rules.rs"]
mod rules;

use rules::Alert;
use stories::{STORIES, Story};

const ALERTS: &str = "config/prometheus-fleet-alerts.yml";
const DASHBOARD: &str = "config/grafana-fleet-dashboard.json";
const JOB: &str = "guest-fleet";
const INSTANCE: &str = "control-1";
/// Longer than most alerts wait, in minutes.
const DAY: u32 = 180;

/// Values by series, without job and instance.
type Series = BTreeMap<String, String>;

/// Figures of a fleet of a hundred agents, in the place of those of one that has none.
const WELL: [(&str, &str); 8] = [
    ("guest_fleet_streams", "98"),
    ("guest_fleet_agents{presence=\"present\"}", "98"),
    ("guest_fleet_agents{presence=\"away\"}", "2"),
    ("guest_fleet_rollouts{state=\"running\"}", "1"),
    ("guest_fleet_rollout_failures", "2"),
    ("guest_fleet_api_calls_total{call=\"GetStatus\",code=\"ok\"}", "0+60"),
    ("guest_fleet_refused_total{status=\"unavailable\"}", "3"),
    ("guest_fleet_standings{state=\"done\"}", "190"),
];

fn address(url: &str) -> SocketAddr {
    url.strip_prefix("http://").unwrap_or(url).parse().unwrap()
}

/// The page of a server that is ready and has counted its fleet.
async fn recorded() -> Series {
    let plane =
        Plane::start(&["--http-listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0"]).await;
    let made = plane.ask(&["access", "token", "create", "all", "--role", "viewer"]).await;
    let bearer = format!("Bearer {}", made["token"].as_str().unwrap());
    let api = address(plane.at("api"));
    let deadline = Instant::now() + PATIENCE;
    for bearer in [&*bearer, "Bearer gfa_nobody_has_this"] {
        // A token that was just made is known after a moment.
        let expected = if bearer.ends_with("this") { 401 } else { 200 };
        loop {
            let headers = [("authorization", bearer)];
            let reply = http::ask(api, "GET", "/v1/status", &headers).await.unwrap();
            if reply.status == expected {
                break;
            }
            assert!(Instant::now() < deadline, "{reply:?}");
            sleep(Duration::from_millis(100)).await;
        }
    }
    refused_machine(&plane).await;
    loop {
        let reply = http::ask(address(plane.at("http")), "GET", "/metrics", &[]).await.unwrap();
        let page = series(&reply.body);
        let ready = page.iter().filter(|(name, _)| name.starts_with("guest_fleet_ready"));
        let is_ready =
            ready.map(|(_, value)| value.parse() == Ok(1.0)).reduce(|all, one| all && one);
        if is_ready == Some(true) && page.contains_key("guest_fleet_index_age_seconds") {
            return page;
        }
        assert!(Instant::now() < deadline, "it does not become ready: {page:#?}");
        sleep(Duration::from_millis(200)).await;
    }
}

/// A machine with a token that nobody made.
async fn refused_machine(plane: &Plane) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_guest-agent"));
    command.args(["enroll", "--server", plane.at("enrolment"), "--token", "web.nobodymadethis"]);
    command.args(["--ca-sha256", &plane.fingerprint]);
    command.arg("--set").arg(format!("agent.state_dir={}", folder.path().display()));
    let config = folder.path().join("agent.toml");
    std::fs::write(&config, "").unwrap();
    command.arg("--config").arg(config).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.unwrap();
    assert!(!output.status.success(), "{output:?}");
}

fn series(page: &str) -> Series {
    let samples = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a sample");
            (series.to_owned(), value.to_owned())
        })
        .collect()
}

/// A series with job and instance.
fn whole(series: &str, job: &str) -> String {
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let gap = if labels == "}" { "" } else { "," };
    format!("{name}{{job=\"{job}\",instance=\"{INSTANCE}\"{gap}{labels}")
}

/// A value, or a sequence of them of which the last goes on for so long, as promtool takes it.
fn values(text: &str, minutes: u32) -> String {
    format!("{text}x{minutes}")
}

/// The series of a fleet that is well but for these.
fn input(base: &Series, more: &[(&str, &str)], job: &str, minutes: u32) -> Vec<Value> {
    let mut all = base.clone();
    all.insert("up".to_owned(), "1".to_owned());
    all.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    let all = all.iter();
    all.map(|(name, value)| json!({ "series": whole(name, job), "values": values(value, minutes) }))
        .collect()
}

/// A fleet in trouble.
#[derive(Clone)]
struct Trouble<'a> {
    story: &'a Story,
    job: String,
}

// === impl Trouble ===

impl Trouble<'_> {
    fn expected(&self, alert: &Alert) -> Value {
        let labels = || {
            let of_job = |(name, value): &(&'static str, &'static str)| match *name {
                "job" => ("job", self.job.clone()),
                name => (name, (*value).to_owned()),
            };
            self.story.labels.iter().map(of_job)
        };
        let filled = |text: &str| {
            labels().fold(text.to_owned(), |text, (name, value)| {
                text.replace(&format!("{{{{ $labels.{name} }}}}"), &value)
            })
        };
        let severity = ("severity", alert.severity.clone());
        json!({
            "exp_labels": labels().chain([severity]).collect::<BTreeMap<_, _>>(),
            "exp_annotations": {
                "summary": filled(&alert.summary),
                "description": filled(&alert.description),
                "runbook_url": alert.runbook,
            },
        })
    }
}

/// What every alert has to do at this minute.
fn expected(alerts: &[Alert], at: u32, troubles: &[Trouble<'_>]) -> Vec<Value> {
    let of = |alert: &Alert| {
        let firing = troubles.iter().filter(|it| it.story.alert == alert.name);
        let expected: Vec<Value> = firing.map(|it| it.expected(alert)).collect();
        json!({ "eval_time": format!("{at}m"), "alertname": alert.name, "exp_alerts": expected })
    };
    alerts.iter().map(of).collect()
}

/// Tests of stories. Those that end at one time are fleets side by side, each with a job of its own; alerts that ask for the
/// job by its name have a test each.
fn tests(alerts: &[Alert], base: &Series) -> Vec<Value> {
    let (mut tests, mut together) = (Vec::new(), BTreeMap::<u32, Vec<&Story>>::new());
    for story in STORIES {
        assert!(!story.calm.is_empty(), "{}: when does it just not fire?", story.alert);
        let alert = alerts.iter().find(|alert| alert.name == story.alert).unwrap();
        if !alert.expression.contains(&format!("job=\"{JOB}\"")) {
            together.entry(story.at).or_default().push(story);
            continue;
        }
        let trouble = Trouble { story, job: JOB.to_owned() };
        for (series, troubles) in [(story.fires, &[trouble][..]), (story.calm, &[][..])] {
            let input = input(base, series, JOB, story.at);
            tests.push(test(story.alert, input, expected(alerts, story.at, troubles)));
        }
    }
    for (at, stories) in together {
        let (mut series, mut troubles) = (input(base, &[], JOB, at), Vec::new());
        for (number, story) in stories.into_iter().enumerate() {
            let job = format!("fleet-{number}");
            series.extend(input(base, story.fires, &job, at));
            series.extend(input(base, story.calm, &format!("calm-{number}"), at));
            troubles.push(Trouble { story, job });
        }
        tests.push(test(&format!("in {at} minutes"), series, expected(alerts, at, &troubles)));
    }
    tests
}

fn test(name: &str, input: Vec<Value>, expected: Vec<Value>) -> Value {
    json!({
        "name": name,
        "interval": "1m",
        "input_series": input,
        "alert_rule_test": expected,
    })
}

/// Has promtool carry tests out.
fn check(name: &str, tests: &[Value]) {
    promtool::test_rules(name, &rules::path(ALERTS), "1m", tests);
}

/// The labels of each sample of the reference.
fn reference() -> BTreeMap<String, BTreeSet<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/fleet-metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut known = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let name = cells[0].trim_start_matches("| ").trim_matches('`');
        let mut labels: BTreeSet<String> =
            cells[2].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        known.insert(name.to_owned(), labels.clone());
        if cells[1] == "histogram" {
            for part in ["sum", "count"] {
                known.insert(format!("{name}_{part}"), labels.clone());
            }
            labels.insert("le".to_owned());
            known.insert(format!("{name}_bucket"), labels);
        }
    }
    assert!(known.len() > 40, "metrics are found");
    known
}

#[test]
fn stories_are_about_series_that_there_are() {
    let known = reference();
    let told = STORIES.iter().flat_map(|story| story.fires.iter().chain(story.calm));
    for (series, _) in told.chain(&WELL).filter(|(series, _)| *series != "up") {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels: BTreeSet<String> = labels
            .split(',')
            .filter_map(|label| Some(label.split_once('=')?.0.to_owned()))
            .collect();
        assert_eq!(known.get(name), Some(&labels), "{series}");
    }
}

#[tokio::test]
async fn every_alert_of_a_fleet_fires_in_its_story_and_in_no_other() {
    promtool::check(&["check", "rules", &rules::path(ALERTS).display().to_string()], "");
    if !promtool::is_here("alerts and dashboard of a fleet are not tried out") {
        return;
    }
    let alerts = rules::all(ALERTS);
    let told: BTreeSet<&str> =
        STORIES.iter().map(|story| story.alert).chain(["GuestFleetMissing"]).collect();
    let known: BTreeSet<&str> = alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(told, known, "every alert has a story");

    let mut base = recorded().await;
    let known = reference();
    for series in base.keys() {
        let name = series.split('{').next().unwrap_or(series);
        assert!(known.contains_key(name), "{name} is on the page and not in the reference");
    }
    for answer in [
        "guest_fleet_api_calls_total{call=\"GetStatus\",code=\"ok\"}",
        "guest_fleet_certificates_refused_total{asked=\"enrolment\"",
    ] {
        assert!(base.keys().any(|series| series.starts_with(answer)), "no {answer}: {base:#?}");
    }
    base.extend(WELL.map(|(name, value)| (name.to_owned(), value.to_owned())));

    let mut tests = tests(&alerts, &base);
    let calm = (1..=DAY / 60).flat_map(|hour| expected(&alerts, hour * 60, &[])).collect();
    tests.push(test("a calm day", input(&base, &[], JOB, DAY), calm));
    let missing = Story { alert: "GuestFleetMissing", labels: &[("job", JOB)], ..Story::NONE };
    let missing = Trouble { story: &missing, job: JOB.to_owned() };
    tests.push(test("nothing is scraped", Vec::new(), expected(&alerts, 15, &[missing])));
    check("fleet", &tests);
    dashboard(&base);
}

/// Every query of the dashboard gives something in a fleet in which everything happens.
fn dashboard(base: &Series) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DASHBOARD);
    let document: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut queries = BTreeSet::new();
    for panel in document["panels"].as_array().unwrap() {
        let targets = panel["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
        assert!(panel["type"] == "row" || !targets.is_empty(), "a panel without a query: {panel}");
        queries.extend(targets.iter().map(|it| it["expr"].as_str().unwrap().to_owned()));
    }
    for list in document["templating"]["list"].as_array().unwrap() {
        let query = list["query"].as_str().unwrap();
        if let Some(inside) = query.strip_prefix("label_values(") {
            let (series, label) = inside.trim_end_matches(')').rsplit_once(", ").unwrap();
            queries.insert(format!("count by ({label}) ({series})"));
        }
    }
    assert!(queries.len() > 40, "queries are found");
    let all: Vec<(&str, &str)> = STORIES.iter().flat_map(|story| story.fires).copied().collect();
    // One of a time, beside those that stories have.
    let more = [
        ("guest_fleet_order_duration_seconds_bucket{le=\"+Inf\",outcome=\"done\"}", "0+1"),
        ("guest_fleet_order_duration_seconds_bucket{le=\"10.0\",outcome=\"done\"}", "0+1"),
        ("guest_fleet_webhook_delivered_total{webhook=\"pager\"}", "0+1"),
        ("guest_fleet_webhook_failures_total{webhook=\"pager\"}", "0"),
        ("up", "1"),
    ];
    let has_data = queries.iter().map(|query| {
        let filled = [("$__rate_interval", "4m"), ("$job", JOB), ("$instance", ".*")]
            .iter()
            .fold(query.clone(), |query, (name, value)| query.replace(name, value));
        assert!(!filled.contains('$'), "a variable that is not known: {query}");
        json!({
            "expr": format!("clamp_max(count({filled}), 1)"),
            "eval_time": "60m",
            "exp_samples": [{ "labels": "{}", "value": 1 }],
        })
    });
    let has_data: Vec<Value> = has_data.collect();
    let input = input(base, &[&all[..], &more].concat(), JOB, DAY);
    let test = json!({
        "name": "the dashboard",
        "interval": "1m",
        "input_series": input,
        "promql_expr_test": has_data,
    });
    check("fleet-dashboard", &[test]);
}

//! Has promtool look at recorded pages and at stories: what fires.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::plane::Page;
use super::stories::{STORIES, Story, WELL};
use super::{ALERTS, INSTANCE, JOB};
use crate::alerts::rules::{self, Alert};
use crate::harness::promtool;

/// For how many minutes the page of an incident is calm, and in trouble: longer than alerts wait.
const CALM: u32 = 30;
const TROUBLE: u32 = 60;

/// Longer than most alerts wait, in minutes.
const DAY: u32 = 180;

/// The label of alerts about the whole fleet.
pub(super) const JOB_LABEL: (&str, &str) = ("job", JOB);

/// Labels of an alert, without its severity.
pub(super) type Labels = &'static [(&'static str, &'static str)];

/// Values by series, without job and instance, as promtool takes them.
type Series = BTreeMap<String, String>;

/// The recording of an incident.
pub(super) struct Incident {
    pub(super) name: &'static str,
    /// The page while all was well.
    pub(super) calm: Page,
    /// The page in the trouble.
    pub(super) trouble: Page,
    /// Durations that were seen to grow with time in the trouble, in seconds.
    pub(super) grows: &'static [&'static str],
    /// All that fires.
    pub(super) fires: Vec<Fires>,
}

/// An alert that fires.
#[derive(Clone)]
pub(super) struct Fires {
    pub(super) alert: &'static str,
    pub(super) labels: Labels,
}

// === impl Incident ===

impl Incident {
    /// The calm page for a while, then that of the trouble.
    fn series(&self) -> Series {
        let names: BTreeSet<&String> = self.calm.keys().chain(self.trouble.keys()).collect();
        let of = |name: &String| {
            // A time that is repeated n times is there n + 1 times.
            let calm = match self.calm.get(name) {
                Some(value) => format!("{value}x{}", CALM - 1),
                None => format!("_x{CALM}"),
            };
            let trouble = match self.trouble.get(name) {
                Some(value) if self.grows.contains(&name.as_str()) => {
                    format!("{value}+60x{TROUBLE}")
                }
                Some(value) => format!("{value}x{TROUBLE}"),
                None => "stale".to_owned(),
            };
            format!("{calm} {trouble}")
        };
        let mut all: Series = names.into_iter().map(|name| (name.clone(), of(name))).collect();
        all.insert("up".to_owned(), format!("1x{}", CALM + TROUBLE));
        all
    }
}

// === impl Fires ===

impl Fires {
    /// As promtool expects it, where the fleet has this job.
    fn expected(&self, alert: &Alert, job: &str) -> Value {
        let labels = || {
            self.labels
                .iter()
                .map(|(name, value)| (*name, if *name == "job" { job } else { value }))
        };
        let filled = |text: &str| {
            labels().fold(text.to_owned(), |text, (name, value)| {
                text.replace(&format!("{{{{ $labels.{name} }}}}"), value)
            })
        };
        let severity = ("severity", alert.severity.as_str());
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

impl Story {
    fn fires(&self) -> Fires {
        Fires { alert: self.alert, labels: self.labels }
    }
}

/// A series with job and instance.
fn whole(series: &str, job: &str) -> String {
    let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
    let gap = if labels == "}" { "" } else { "," };
    format!("{name}{{job=\"{job}\",instance=\"{INSTANCE}\"{gap}{labels}")
}

fn input<'a>(series: impl IntoIterator<Item = (&'a String, &'a String)>, job: &str) -> Vec<Value> {
    let series = series.into_iter();
    series.map(|(name, values)| json!({ "series": whole(name, job), "values": values })).collect()
}

/// The alerts that fire at this minute, with the job of their fleet, in the form in which promtool expects them.
fn expected(alerts: &[Alert], at: u32, fires: &[(Fires, String)]) -> Vec<Value> {
    let of = |alert: &Alert| {
        let firing = fires.iter().filter(|(fires, _)| fires.alert == alert.name);
        let expected: Vec<Value> = firing.map(|(it, job)| it.expected(alert, job)).collect();
        json!({ "eval_time": format!("{at}m"), "alertname": alert.name, "exp_alerts": expected })
    };
    alerts.iter().map(of).collect()
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

/// While all is well no alert fires; in the trouble those of the incident do, and no other does at any time.
pub(super) fn of_incidents(incidents: &[Incident]) {
    let alerts = rules::all(ALERTS);
    let of = |incident: &Incident| {
        let fires = incident.fires.iter().map(|it| (it.clone(), JOB.to_owned()));
        let fires: Vec<_> = fires.collect();
        let mut moments = expected(&alerts, CALM - 1, &[]);
        moments.extend(expected(&alerts, CALM + TROUBLE - 1, &fires));
        let names: BTreeSet<&str> = incident.fires.iter().map(|it| it.alert).collect();
        let ever = names
            .into_iter()
            .map(|name| json!({ "labels": format!("{{alertname=\"{name}\"}}"), "value": 1 }));
        let mut test = test(incident.name, input(&incident.series(), JOB), moments);
        test["promql_expr_test"] = json!([{
            "expr": "group by (alertname) (max_over_time(ALERTS{alertstate=\"firing\"}[1d]))",
            "eval_time": format!("{}m", CALM + TROUBLE),
            "exp_samples": ever.collect::<Vec<_>>(),
        }]);
        test
    };
    let tests: Vec<Value> = incidents.iter().map(of).collect();
    check("fleet-incidents", &tests);
}

/// Each alert fires in its story, on the calm page of a fleet, and no other does.
pub(super) fn of_stories(calm: &Page) {
    let alerts = rules::all(ALERTS);
    let told = STORIES.iter().map(|story| story.alert).chain(["GuestFleetMissing"]);
    let known: BTreeSet<&str> = alerts.iter().map(|alert| &*alert.name).collect();
    assert_eq!(told.collect::<BTreeSet<_>>(), known, "every alert has a story");
    let reference = reference();
    for series in calm.keys() {
        let name = series.split('{').next().unwrap_or(series);
        assert!(reference.contains_key(name), "{name} is on the page and not in the reference");
    }
    let base: Series = calm.iter().map(|(name, value)| (name.clone(), value.to_string())).collect();
    let hours = (1..=DAY / 60).flat_map(|hour| expected(&alerts, hour * 60, &[]));
    let day = test("a calm day", told_on(&base, &[], JOB, DAY), hours.collect());
    // Dozens of fleets side by side have more buckets than promtool takes in. The story about them has its own.
    let is_small = |name: &String| !name.starts_with("guest_fleet_ledger_duration_");
    let small = base.into_iter().filter(|(name, _)| is_small(name)).collect();
    let mut tests = tests(&alerts, &small);
    tests.push(day);
    let missing = Fires { alert: "GuestFleetMissing", labels: &[JOB_LABEL] };
    let mut missing = expected(&alerts, 10, &[(missing, JOB.to_owned())]);
    missing.extend(expected(&alerts, 9, &[]));
    tests.push(test("nothing is scraped", Vec::new(), missing));
    check("fleet-stories", &tests);
}

/// The series of a fleet that is well but for these.
fn told_on(base: &Series, more: &[(&str, &str)], job: &str, minutes: u32) -> Vec<Value> {
    let mut all = base.clone();
    all.insert("up".to_owned(), "1".to_owned());
    for (name, values) in WELL.iter().chain(more) {
        all.insert((*name).to_owned(), (*values).to_owned());
    }
    // The last value goes on.
    all.values_mut().for_each(|values| *values = format!("{values}x{minutes}"));
    input(&all, job)
}

/// Tests of stories. Those that end at one time are fleets side by side, each with a job of its own; alerts that ask for
/// the job by its name have a test each.
fn tests(alerts: &[Alert], base: &Series) -> Vec<Value> {
    let (mut tests, mut together) = (Vec::new(), BTreeMap::<u32, Vec<&Story>>::new());
    for story in STORIES {
        assert!(!story.calm.is_empty(), "{}: when does it just not fire?", story.alert);
        let alert = alerts.iter().find(|alert| alert.name == story.alert).unwrap();
        if !alert.expression.contains(&format!("job=\"{JOB}\"")) {
            together.entry(story.at).or_default().push(story);
            continue;
        }
        let fires = [(story.fires(), JOB.to_owned())];
        for (series, fires) in [(story.fires, &fires[..]), (story.calm, &[][..])] {
            let input = told_on(base, series, JOB, story.at);
            tests.push(test(story.alert, input, expected(alerts, story.at, fires)));
        }
    }
    for (at, stories) in together {
        let (mut series, mut fires) = (told_on(base, &[], JOB, at), Vec::new());
        for (number, story) in stories.into_iter().enumerate() {
            let job = format!("fleet-{number}");
            series.extend(told_on(base, story.fires, &job, at));
            series.extend(told_on(base, story.calm, &format!("calm-{number}"), at));
            fires.push((story.fires(), job));
        }
        tests.push(test(&format!("in {at} minutes"), series, expected(alerts, at, &fires)));
    }
    tests
}

/// The labels of each sample of the reference.
fn reference() -> BTreeMap<String, BTreeSet<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference/fleet-metrics.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut known = BTreeMap::new();
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split(" | ").collect();
        let name = cells[0].trim_start_matches("| ").trim_matches('`');
        let labels = cells[2].split('`').skip(1).step_by(2).map(str::to_owned);
        let mut labels: BTreeSet<String> = labels.collect();
        if cells[1] == "histogram" {
            for part in ["sum", "count"] {
                known.insert(format!("{name}_{part}"), labels.clone());
            }
            labels.insert("le".to_owned());
            known.insert(format!("{name}_bucket"), labels);
        } else {
            known.insert(name.to_owned(), labels);
        }
    }
    assert!(known.len() > 40, "metrics are found");
    known
}

/// Every series of a story is one that a page can have.
pub(super) fn stories_name_series_of_the_reference() {
    let known = reference();
    let told = STORIES.iter().flat_map(|story| story.fires.iter().chain(story.calm));
    for (series, _) in told.chain(WELL).filter(|(series, _)| *series != "up") {
        let (name, labels) = series.split_once('{').unwrap_or((series, ""));
        let labels = labels.split(',').filter_map(|it| Some(it.split_once('=')?.0.to_owned()));
        assert_eq!(known.get(name), Some(&labels.collect()), "{series}");
    }
}

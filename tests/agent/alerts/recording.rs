//! The series that a Prometheus would have of an agent: its page, scraped at a steady beat.
//!
//! Nobody can wait an hour for an alert, so time is stretched, all of it by one factor: a scrape of every half
//! second counts as one of every half minute, and each metric that is a time is stretched with it, by the unit
//! that the catalogue has for it. The beds of the incidents have the agent's own times (pauses, probation,
//! health checks) shortened by the same factor. What the stretch cannot reach is in decision 62.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use guest_agent::observe::metrics::catalogue::{Kind, METRICS, Unit};
use guest_agent_proto::local::GetStatusRequest;
use guest_agent_proto::local::local_agent_client::LocalAgentClient;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use crate::harness::http::ask;
use crate::harness::observe::dial;
use crate::harness::{Bed, PATIENCE};

/// The job that the alerts are about.
pub(super) const JOB: &str = "guest-agent";

/// Longest that a scrape may take.
const SCRAPE_WAIT: Duration = Duration::from_secs(2);

/// From here on a number of seconds is a point in time.
const MOMENTS: f64 = 1e9;

/// How often pages are scraped, and what that counts as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) beat: Duration,
    pub(super) factor: u32,
}

/// The series of one agent.
#[derive(Clone, Debug)]
pub(super) struct Recording {
    pub(super) instance: &'static str,
    pub(super) pace: Pace,
    begun: SystemTime,
    /// For each scrape whether it succeeded; nothing for one that there was no time for.
    scrapes: BTreeMap<usize, bool>,
    /// Values by the number of their scrape.
    series: BTreeMap<String, BTreeMap<usize, f64>>,
}

/// Scrapes an agent through all its restarts, until the recording is stopped.
pub(super) struct Recorder {
    recording: Arc<Mutex<Recording>>,
    /// The number of the last scrape, and of the last that succeeded.
    last: watch::Receiver<(usize, usize)>,
    pace: Pace,
    task: JoinHandle<()>,
}

// === impl Pace ===

impl Pace {
    /// A minute lasts a second.
    pub(super) const MINUTES: Self = Self { beat: Duration::from_millis(500), factor: 60 };

    /// Two hours last a second: for what has no pace of its own.
    pub(super) const DAYS: Self = Self { beat: Duration::from_millis(250), factor: 7200 };

    /// The time that lies between two scrapes in the recording.
    pub(super) fn interval(self) -> Duration {
        self.beat * self.factor
    }

    /// How many scrapes there are in so long a time, with one more because it begins between two.
    fn scrapes_in(self, time: Duration) -> usize {
        usize::try_from(time.as_secs().div_ceil(self.interval().as_secs())).unwrap() + 1
    }

    /// The value of a sample in stretched time.
    fn stretched(self, name: &str, value: f64, begun: SystemTime) -> f64 {
        let metric = METRICS.iter().find(|it| it.samples().iter().any(|known| known == name));
        let metric = metric.unwrap_or_else(|| panic!("{name} is not in the catalogue"));
        match (metric.unit, metric.kind) {
            (Unit::Seconds, Kind::Gauge | Kind::Counter) => {
                let begun = begun.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
                let since = if value > MOMENTS { value - begun } else { value };
                since * f64::from(self.factor)
            }
            // How long a commit or a download takes is a property of this machine, and nothing waits
            // for it by the clock.
            (Unit::Seconds, Kind::Histogram | Kind::Info)
            | (
                Unit::Bytes | Unit::Number,
                Kind::Gauge | Kind::Counter | Kind::Histogram | Kind::Info,
            ) => value,
        }
    }
}

// === impl Recorder ===

impl Recorder {
    /// Begins to scrape the agent of a bed, which need not run yet.
    pub(super) fn start(bed: &Bed, instance: &'static str, pace: Pace) -> Self {
        let recording = Recording {
            instance,
            pace,
            begun: SystemTime::now(),
            scrapes: BTreeMap::new(),
            series: BTreeMap::new(),
        };
        let recording = Arc::new(Mutex::new(recording));
        let (noted, last) = watch::channel((0, 0));
        let task = tokio::spawn(scrape(bed.socket(), recording.clone(), noted, pace.beat));
        Self { recording, last, pace, task }
    }

    /// Waits so long, in stretched time; returns the number of the last scrape.
    pub(super) async fn pass(&self, time: Duration) -> usize {
        let until = self.last.borrow().0 + self.pace.scrapes_in(time);
        self.until("scrapes go on", |(last, _)| last >= until).await.0
    }

    /// Waits for the next scrape that succeeds.
    pub(super) async fn next(&self) {
        let before = self.last.borrow().0;
        self.until("a scrape succeeds", |(_, good)| good > before).await;
    }

    async fn until(
        &self,
        what: &str,
        condition: impl Fn((usize, usize)) -> bool,
    ) -> (usize, usize) {
        let mut last = self.last.clone();
        let waited = tokio::time::timeout(PATIENCE * 2, last.wait_for(|it| condition(*it))).await;
        *waited.unwrap_or_else(|_| panic!("not so in time: {what}")).unwrap()
    }

    /// Ends the recording and returns it.
    pub(super) fn stop(self) -> Recording {
        self.task.abort();
        self.recording.lock().unwrap().clone()
    }
}

async fn scrape(
    socket: PathBuf,
    recording: Arc<Mutex<Recording>>,
    noted: watch::Sender<(usize, usize)>,
    beat: Duration,
) {
    let begun = Instant::now();
    let mut ticks = tokio::time::interval_at(begun, beat);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut at = None;
    loop {
        let due = ticks.tick().await.duration_since(begun);
        let number = usize::try_from(due.as_millis() / beat.as_millis()).unwrap();
        let answer = tokio::time::timeout(SCRAPE_WAIT, page_of(&mut at, &socket)).await;
        let page = match answer {
            Ok(page) => {
                recording.lock().unwrap().note(number, page.as_deref());
                page
            }
            // An agent that is gone refuses at once. One that answers so late has no processor: in
            // stretched time that would be minutes, so it counts as a scrape without time.
            Err(_) => None,
        };
        if page.is_none() {
            at = None;
        }
        noted.send_modify(|(last, good)| {
            *last = number;
            if page.is_some() {
                *good = number;
            }
        });
    }
}

/// The page of the agent. It has another port in each of its lives, which its socket tells.
async fn page_of(
    at: &mut Option<std::net::SocketAddr>,
    socket: &std::path::Path,
) -> Option<String> {
    if at.is_none() {
        let mut client = LocalAgentClient::new(dial(socket.to_owned()).await.ok()?);
        let status = client.get_status(GetStatusRequest::default()).await.ok()?;
        *at = status.into_inner().agent?.http.parse().ok();
    }
    let reply = ask((*at)?, "GET", "/metrics", &[]).await.ok()?;
    (reply.status == 200).then_some(reply.body)
}

// === impl Recording ===

impl Recording {
    fn note(&mut self, number: usize, page: Option<&str>) {
        self.scrapes.insert(number, page.is_some());
        let up = if page.is_some() { 1.0 } else { 0.0 };
        self.push(number, "up", "", up);
        let lines = page.unwrap_or_default().lines();
        for line in lines.filter(|line| !line.starts_with('#') && !line.is_empty()) {
            let (sample, value) = line.rsplit_once(' ').expect("a sample");
            let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
            let value: f64 = value.parse().expect("a number");
            let value = self.pace.stretched(name, value, self.begun);
            self.push(number, name, labels.trim_end_matches('}'), value);
        }
    }

    fn push(&mut self, number: usize, name: &str, labels: &str, value: f64) {
        let gap = if labels.is_empty() { "" } else { "," };
        let instance = self.instance;
        let series = format!("{name}{{job=\"{JOB}\",instance=\"{instance}\"{gap}{labels}}}");
        self.series.entry(series).or_default().insert(number, value);
    }

    /// The number of the last scrape.
    pub(super) fn last(&self) -> usize {
        self.scrapes.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// How much a series grew in the last so long, in stretched time.
    pub(super) fn growth(&self, of: &str, time: Duration) -> f64 {
        let found = self.series.iter().find(|(name, _)| name.starts_with(of));
        let (_, values) = found.unwrap_or_else(|| panic!("no series {of}"));
        let from = self.last().saturating_sub(self.pace.scrapes_in(time));
        let mut recent = values.range(from..).map(|(_, value)| *value);
        let first = recent.next().unwrap_or_default();
        recent.next_back().unwrap_or(first) - first
    }

    /// The series as promtool takes them.
    pub(super) fn input_series(&self) -> Vec<serde_json::Value> {
        let series = self.series.iter().map(
            |(name, values)| serde_json::json!({ "series": name, "values": self.in_words(values) }),
        );
        series.collect()
    }

    /// A value for each beat: a number; `stale` where a scrape had none any more, as Prometheus marks
    /// it; `_` where there was none before, or no scrape.
    fn in_words(&self, values: &BTreeMap<usize, f64>) -> String {
        let mut is_there = false;
        let words = (0..=self.last()).map(|number| match values.get(&number) {
            Some(value) => {
                is_there = true;
                value.to_string()
            }
            None if is_there && self.scrapes.contains_key(&number) => {
                is_there = false;
                "stale".to_owned()
            }
            None => "_".to_owned(),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

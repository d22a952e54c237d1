//! What agents were ordered and did of it, by their own records: the deeds of played agents, and the
//! events of real ones.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::agents::{Deed, Line, Outcome, read_lines};
use crate::crowd::{Agents, Member, real_verb};

/// Milliseconds since the Unix epoch.
pub(super) fn milliseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    u64::try_from(now).unwrap()
}

/// An order, as its agent knows it. Times are in milliseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// What is to be installed; empty while the agent has not told that it began.
    pub(super) revision: String,
    /// The second in which it was made; `None` of real agents, whose events do not have it.
    pub(super) generation: Option<u64>,
    pub(super) taken: u64,
    /// When the agent told what became of it, or took a newer one.
    pub(super) settled: Option<u64>,
}

/// What one agent did about the plugin.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    pub(super) id: String,
    pub(super) orders: Vec<Order>,
    /// The revisions whose processes were started.
    pub(super) launched: Vec<String>,
    /// The revisions that crashed or were not installed.
    pub(super) failed: Vec<String>,
    /// The revision that runs.
    pub(super) runs: Option<String>,
    /// Its process, of a real one.
    pub(super) pid: Option<u64>,
}

/// What all agents did until now.
pub(super) async fn lives(agents: &[Agents], plugin: &str) -> Vec<Life> {
    let mut lives = Vec::new();
    for agents in agents {
        for member in agents.members() {
            let life = match agents.is_real() {
                true => real(member, plugin).await,
                false => played(member, plugin),
            };
            lives.push(life);
        }
    }
    lives
}

/// The process of a plugin of a real agent, and its revision.
pub(super) async fn process(member: &Member, plugin: &str) -> Option<(u64, String)> {
    let status: Value =
        serde_json::from_str(&real_verb(member, &["status", "--json"]).await.ok()?).unwrap();
    let plugins = status["plugins"].as_array()?;
    let found = plugins.iter().find(|found| found["name"] == plugin)?;
    if found["state"] != "RUNNING" {
        return None;
    }
    Some((found["pid"].as_u64()?, found["revision"].as_str()?.to_owned()))
}

fn played(member: &Member, plugin: &str) -> Life {
    let mut life = Life { id: member.id.clone(), ..Life::default() };
    for Line { at, deed } in read_lines(&member.directory) {
        match deed {
            Deed::Taken { plugin: of, generation } if of == plugin => {
                life.takes(at, Some(generation));
            }
            Deed::Told { plugin: of, revision, event } if of == plugin => {
                life.tells(at, &revision, event);
            }
            Deed::Launched { plugin: of, revision } if of == plugin => life.launched.push(revision),
            Deed::Crashed { plugin: of, revision } if of == plugin => life.failed.push(revision),
            _ => {}
        }
    }
    life.runs = crate::agents::running(&member.directory).remove(plugin);
    life
}

async fn real(member: &Member, plugin: &str) -> Life {
    let mut life = Life { id: member.id.clone(), ..Life::default() };
    let said = real_verb(member, &["events", "--json"]).await.unwrap();
    for event in said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
        if event["plugin"] != plugin {
            continue;
        }
        let at: jiff::Timestamp = event["at"].as_str().unwrap().parse().unwrap();
        let at = u64::try_from(at.as_millisecond()).unwrap();
        let revision = event["revision"].as_str().unwrap().to_owned();
        match event["type"].as_str().unwrap() {
            "PLUGIN_CONFIG_INSTALL" => {
                life.takes(at, None);
                life.tells(at, &revision, Outcome::Begun);
            }
            "PLUGIN_INSTALLED" => life.tells(at, &revision, Outcome::Installed),
            "PLUGIN_INSTALL_FAILED" => life.tells(at, &revision, Outcome::NotInstalled),
            "PLUGIN_STARTED" => life.launched.push(revision),
            "PLUGIN_CRASHED" => life.failed.push(revision),
            _ => {}
        }
    }
    let found = process(member, plugin).await;
    (life.pid, life.runs) = found.unzip();
    life
}

/// The most orders that were in flight at one time. An order that has no end is in flight until now.
pub(super) fn most_in_flight(spans: impl IntoIterator<Item = (u64, Option<u64>)>) -> usize {
    let mut steps: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for (from, until) in spans {
        if until.is_some_and(|until| until <= from) {
            continue;
        }
        steps.entry(from).or_default().0 += 1;
        if let Some(until) = until {
            steps.entry(until).or_default().1 += 1;
        }
    }
    let (mut open, mut most) = (0_usize, 0);
    for (begun, ended) in steps.into_values() {
        open = open + begun - ended;
        most = most.max(open);
    }
    most
}

// === impl Life ===

impl Life {
    fn takes(&mut self, at: u64, generation: Option<u64>) {
        if let Some(former) = self.orders.last_mut() {
            former.settled.get_or_insert(at);
        }
        let order = Order { revision: String::new(), generation, taken: at, settled: None };
        self.orders.push(order);
    }

    fn tells(&mut self, at: u64, revision: &str, event: Outcome) {
        if event == Outcome::NotInstalled {
            self.failed.push(revision.to_owned());
        }
        let Some(order) = self.orders.last_mut() else { return };
        match event {
            Outcome::Begun => revision.clone_into(&mut order.revision),
            Outcome::Installed | Outcome::NotInstalled if order.revision == revision => {
                order.settled.get_or_insert(at);
            }
            Outcome::Installed | Outcome::NotInstalled => {}
        }
    }

    /// Whether it was ordered this revision.
    pub(super) fn was_ordered(&self, revision: &str) -> bool {
        self.orders.iter().any(|order| order.revision == revision)
    }

    /// Whether this revision failed on it.
    pub(super) fn has_failed(&self, revision: &str) -> bool {
        self.failed.iter().any(|failed| failed == revision)
    }
}

#[test]
fn orders_that_follow_each_other_are_not_in_flight_together() {
    let spans = [(1, Some(3)), (2, Some(4)), (3, None), (4, Some(4)), (4, Some(5))];
    assert_eq!(most_in_flight(spans), 2);
    assert_eq!(most_in_flight([(1, None), (2, None), (3, Some(9))]), 3);
    assert_eq!(most_in_flight([]), 0);
}

//! The first page: what needs somebody, the worst first; then the fleet in numbers, the rollouts that go on,
//! and what changed in the last hour.

use guest_agent_proto::fleet_api::{
    AuditEntry, Gateway, GatewayState, PluginCounts, Rollout, Standing, Status,
};
use jiff::{Timestamp, ToSpan};
use maud::{Markup, html};

use super::pieces::{
    Ages, Tone, ago, by_hand, cell, counted, counted_when, fact, moment, one_line, page_of, pill,
    query, revision, shell,
};
use super::rollout::history;
use super::rollouts::{is_live, table};
use super::shown::Shown;
use super::standing;

/// Most entries of the last hour that are shown.
const CHANGES: usize = 20;

/// What the page is made from.
pub(super) struct Now {
    /// The counts.
    pub(super) status: Status,
    /// All rollouts.
    pub(super) rollouts: Vec<Rollout>,
    /// All gateways; `None` where the visitor does not see the whole fleet.
    pub(super) gateways: Option<Vec<Gateway>>,
    /// The newest entries of the audit record; `None` likewise.
    pub(super) audit: Option<Vec<AuditEntry>>,
    /// What time it is.
    pub(super) at: Timestamp,
}

/// How urgent something is. What comes first is shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Nothing reaches any agent.
    NoGateway,
    /// A rollout halted: a person has to say how it goes on.
    Halted,
    /// What is rolled out fails on machines, and goes on.
    Spreading,
    /// Machines could not do what was ordered, or went back.
    Failed,
    /// A gateway is silent.
    GatewaySilent,
    /// Nobody counts, so that this page is not what is.
    OldCounts,
    /// Machines do not say what became of their orders.
    Silent,
    /// Machines are out of reach, or get no orders.
    Away,
    /// What is declared cannot be.
    Declared,
    /// A rollout waits for a person.
    Waits,
}

/// Something that needs somebody.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// How urgent it is.
    pub(super) rank: Rank,
    /// What it is, in a word.
    word: String,
    /// What it is about.
    title: Markup,
    /// Why, and how many.
    text: String,
    /// The command that shows more.
    help: String,
}

/// The page.
pub(super) fn page(now: &Now, ages: Ages) -> Shown {
    let items = items(now);
    let going: Vec<&Rollout> = now.rollouts.iter().filter(|it| is_live(&it.state)).collect();
    let live = html! {
        @if items.is_empty() {
            p class="done" { "Nothing needs anybody now." }
        } @else {
            section class="attention" aria-labelledby="attention-title" {
                h2 id="attention-title" {
                    (items.len()) @if items.len() == 1 { " thing needs" } @else { " things need" } " somebody"
                }
                ul { @for item in &items { (item.shown()) } }
            }
        }
        section aria-labelledby="fleet-title" {
            div class="title" {
                h2 id="fleet-title" { "The fleet" }
                (counted_when(now.status.index.as_ref(), ages))
            }
            (numbers(now))
        }
        @if !going.is_empty() {
            section aria-labelledby="going-title" {
                div class="title" {
                    h2 id="going-title" { "Rollouts that go on" }
                    a href="/console/rollouts" { "All rollouts" }
                }
                (table(&going))
            }
        }
        section aria-labelledby="hour-title" {
            div class="title" {
                h2 id="hour-title" { "Changed in the last hour" }
                a href="/console/audit" { "All changes" }
            }
            (last_hour(now, ages))
        }
        (by_hand("guest-fleet status"))
    };
    let mut page = Shown::new("Now", "/", live);
    page.fixed = html! { h1 class="hidden" { "Now" } };
    page.said =
        items.first().map(|item| format!("{}: {}", item.word, item.text)).unwrap_or_default();
    page
}

/// Everything that needs somebody, the worst first.
pub(super) fn items(now: &Now) -> Vec<Item> {
    let mut items = Vec::new();
    items.extend(now.gateways.iter().flat_map(|all| of_gateways(all)));
    items.extend(now.rollouts.iter().filter_map(of_rollout));
    items.extend(now.status.plugins.iter().flat_map(of_plugin));
    items.extend(of_agents(&now.status));
    if now.status.index.as_ref().is_some_and(|index| index.old) {
        items.push(Item {
            rank: Rank::OldCounts,
            word: "old".to_owned(),
            title: html! { "Counts" },
            text: "nobody keeps the counts up to date, so this page shows how it was".to_owned(),
            help: "guest-fleet gateways".to_owned(),
        });
    }
    // Those of one rank stay in the order of their names.
    items.sort_by_key(|item| item.rank);
    items
}

fn of_gateways(all: &[Gateway]) -> Vec<Item> {
    let item = |rank, text: String| Item {
        rank,
        word: "gateways".to_owned(),
        title: html! { a href="/console/system" { "Gateways" } },
        text,
        help: "guest-fleet gateways".to_owned(),
    };
    let is = |state| all.iter().filter(move |gateway| gateway.state() == state);
    if is(GatewayState::Serving).next().is_none() {
        return vec![item(
            Rank::NoGateway,
            "no gateway serves: no order reaches any agent".to_owned(),
        )];
    }
    let silent: Vec<String> =
        is(GatewayState::Silent).map(|gateway| one_line(&gateway.host)).collect();
    if silent.is_empty() {
        return Vec::new();
    }
    let count = counted(u64::try_from(silent.len()).unwrap_or(u64::MAX), "gateway");
    vec![item(Rank::GatewaySilent, format!("{count} silent: {}", silent.join(", ")))]
}

fn of_rollout(rollout: &Rollout) -> Option<Item> {
    let progress = rollout.progress.as_ref();
    let failures = progress.map_or(0, |progress| progress.failures);
    let (rank, text) = match rollout.state.as_str() {
        "halted" => (Rank::Halted, rollout.cause.clone().unwrap_or_else(|| "it halted".to_owned())),
        "paused" => (Rank::Waits, "it is paused until somebody resumes it".to_owned()),
        "waiting for approval" => (Rank::Waits, "its next wave waits for an approval".to_owned()),
        "running" | "soaking" if failures > 0 => {
            let first = progress.and_then(|progress| progress.fingerprints.first());
            let first = first.map(|it| format!(", {} × {}", it.agents, it.fingerprint));
            let count = counted(failures.into(), "machine");
            (Rank::Spreading, format!("{count} failed{}", first.unwrap_or_default()))
        }
        "rolling back" if failures > 0 => (Rank::Waits, "it goes back now".to_owned()),
        _ => return None,
    };
    Some(Item {
        rank,
        word: rollout.state.clone(),
        title: html! {
            a href=(page_of("rollout", &rollout.name)) { (one_line(&rollout.name)) } " "
            span class="quiet" { (one_line(&rollout.plugin)) " " (revision(rollout.to.as_deref())) }
        },
        text,
        help: format!("guest-fleet rollout show {}", shell(&rollout.name)),
    })
}

/// What is wrong with a revision of a plugin: at most one line for each thing that can be.
fn of_plugin(counts: &PluginCounts) -> Vec<Item> {
    let states = counts.wanted.iter().flat_map(|wanted| &wanted.states);
    let count = |wanted: &[Standing]| {
        let of = states.clone().filter(|one| wanted.contains(&one.state()));
        of.map(|one| one.agents).fold(0, u64::saturating_add)
    };
    let all = counts.wanted.as_ref().map_or(0, |wanted| wanted.agents);
    let what = format!("{} {}", one_line(&counts.plugin), revision(counts.revision.as_deref()));
    let item = |rank, standing: Standing, text: String| {
        let (plugin, state) = (counts.plugin.as_str(), standing::option(standing));
        let page = query(&[("plugin", plugin), ("state", state)]);
        Item {
            rank,
            word: standing::word(standing).to_owned(),
            title: html! { a href={ "/console/agents" (page) } { (what) } },
            text,
            help: format!("guest-fleet agents --plugin {} --state {state}", shell(plugin)),
        }
    };
    let mut items = Vec::new();
    for (rank, standing, words) in [
        (Rank::Failed, Standing::Failed, "could not do what was ordered"),
        (Rank::Failed, Standing::TakenBack, "went back to what they had"),
        (Rank::Silent, Standing::Silent, "have not said in time what became of their order"),
        (Rank::Declared, Standing::Conflict, "are wanted different things by two assignments"),
        (Rank::Declared, Standing::NoRelease, "wait for a release that was never declared"),
        (Rank::Declared, Standing::NoArchive, "have no archive for their architecture"),
    ] {
        let found = count(&[standing]);
        if found > 0 {
            items.push(item(
                rank,
                standing,
                format!("{found} of {} {words}", counted(all, "machine")),
            ));
        }
    }
    items
}

fn of_agents(status: &Status) -> Vec<Item> {
    let Some(agents) = &status.agents else { return Vec::new() };
    let item = |word: &str, text: String, page: &str, help: &str| Item {
        rank: Rank::Away,
        word: word.to_owned(),
        title: html! { a href=(page) { "Agents" } },
        text,
        help: help.to_owned(),
    };
    let mut items = Vec::new();
    if agents.away > 0 {
        let text = format!("{} not seen for a quarter of an hour", counted(agents.away, "machine"));
        items.push(item("away", text, "/console/agents", "guest-fleet agents"));
    }
    if agents.quarantined > 0 {
        let count = counted(agents.quarantined, "machine");
        let text = format!("{count} without orders, because two machines use one identity");
        items.push(item(
            "quarantined",
            text,
            "/console/enrolment",
            "guest-fleet agents --state quarantined",
        ));
    }
    items
}

fn numbers(now: &Now) -> Markup {
    let agents = now.status.agents.unwrap_or_default();
    let serving = now.gateways.as_ref().map(|all| {
        let serve = all.iter().filter(|gateway| gateway.state() == GatewayState::Serving).count();
        html! { strong { (serve) } " of " (all.len()) " serve" }
    });
    let number = |count: u64| Some(html! { strong class="number" { (count) } });
    html! {
        dl class="cards" {
            (fact("Present", number(agents.present)))
            (fact("Away", number(agents.away)))
            (fact("Never seen", number(agents.never_seen)))
            (fact("Quarantined", number(agents.quarantined)))
            (fact("Archived", number(agents.archived)))
            (fact("Gateways", serving))
        }
    }
}

fn last_hour(now: &Now, ages: Ages) -> Markup {
    let Some(audit) = &now.audit else { return history(None, ages) };
    let since = now.at.checked_sub(1.hour()).unwrap_or(Timestamp::MIN);
    let is_new = |entry: &&AuditEntry| moment(entry.at.as_ref()).is_some_and(|at| at >= since);
    let entries: Vec<AuditEntry> = audit.iter().filter(is_new).cloned().collect();
    html! {
        @if entries.is_empty() {
            p class="empty" {
                "Nothing. "
                @if let Some(newest) = audit.first() { "The last change was " (ago(newest.at.as_ref(), ages)) "." }
            }
        } @else {
            (history(Some(&entries[..entries.len().min(CHANGES)]), ages))
            @if entries.len() > CHANGES { p class="quiet" { (entries.len() - CHANGES) " more." } }
        }
    }
}

// === impl Item ===

impl Item {
    fn shown(&self) -> Markup {
        let tone = if self.rank <= Rank::OldCounts { Tone::Bad } else { Tone::Busy };
        html! {
            li {
                h3 { (pill(tone, &self.word)) " " (self.title) }
                p { (cell(&self.text)) }
                p class="quiet" { code { (one_line(&self.help)) } }
            }
        }
    }
}

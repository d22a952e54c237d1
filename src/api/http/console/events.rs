//! The page of events: filters, a time axis, and the ways to newer and older ones. Also the list of
//! events that other pages show.

use std::time::Duration;

use guest_agent_console_kit::chart::Counts;
use guest_agent_console_kit::live::Parts;
use guest_agent_console_kit::pieces::query;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::fleet::PluginHealthEvent;
use guest_agent_proto::local::Event;
use jiff::{SignedDuration, Timestamp};
use maud::{Markup, html};
use serde::Deserialize;

use super::choice::Choice;
pub(super) use super::fold::{Line, fold};
use super::pieces::{Ages, ago, class, page_of};
use crate::display::{
    Tone, age, event_kind, event_word, one_line, second, shortened, timestamp, values,
};

/// How many events are on a page, before loops are folded.
pub(super) const PAGE: usize = 100;

/// How many events of a loop are listed.
const FOLDED_MAX: usize = 50;

/// In how many parts the time axis counts.
const PARTS: usize = 60;

/// Longest name of a plugin that is looked for, in characters.
const NAME_MAX: usize = 64;

/// Whether a list says whose its events are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// They are of many plugins.
    Shown,
    /// All are of one.
    Left,
}

/// What is looked for, as the address of a page says it. What makes no sense counts as nothing.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Query {
    #[serde(default)]
    plugin: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    since: String,
    before: Option<u64>,
}

/// Which events are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Wanted {
    /// The plugin whose they are; empty for all.
    pub(super) plugin: String,
    /// Their kind.
    pub(super) kind: Kind,
    /// How long ago they may be.
    pub(super) since: Since,
    /// Only those with smaller numbers; `None` for the newest.
    pub(super) before: Option<u64>,
}

/// The kind of an event, as people look for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    #[default]
    All,
    /// Something failed or crashed.
    Failures,
    /// Somebody ordered something, and what became of it.
    Orders,
    /// Processes began and ended.
    Processes,
}

/// How long ago an event may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Since {
    #[default]
    Always,
    Hour,
    Day,
    Week,
}

/// What is shown.
#[derive(Clone, Debug)]
pub(super) struct Events {
    /// What is looked for.
    pub(super) wanted: Wanted,
    /// The events, the newest first, as many as were read.
    pub(super) events: Vec<Event>,
    /// The number below which there may be more.
    pub(super) older: Option<u64>,
}

// === impl Kind ===

impl Choice for Kind {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::All, "", "All kinds"),
        (Self::Failures, "failures", "Failures"),
        (Self::Orders, "orders", "Orders"),
        (Self::Processes, "processes", "Processes"),
    ];
}

impl Kind {
    fn has(self, event: &Event) -> bool {
        use PluginEventType as Type;
        let kind = values::event_type(event);
        match self {
            Self::All => true,
            Self::Failures => event_kind(event).1 == Tone::Bad,
            Self::Processes => {
                values::health_event(event) != PluginHealthEvent::Unspecified
                    || matches!(
                        kind,
                        Type::PluginStarted
                            | Type::PluginStartFailed
                            | Type::PluginCrashed
                            | Type::PluginStopped
                            | Type::PluginExecutionCompleted
                            | Type::PluginExecutionFailed
                    )
            }
            Self::Orders => matches!(
                kind,
                Type::PluginConfigInstall
                    | Type::PluginInstalled
                    | Type::PluginInstallFailed
                    | Type::PluginConfigRemove
                    | Type::PluginRemoved
                    | Type::PluginRemoveFailed
                    | Type::PluginConfigApply
                    | Type::PluginConfigApplied
                    | Type::PluginConfigApplyFailed
            ),
        }
    }
}

// === impl Since ===

impl Choice for Since {
    const ALL: &'static [(Self, &'static str, &'static str)] = &[
        (Self::Always, "", "Any time"),
        (Self::Hour, "1h", "Last hour"),
        (Self::Day, "24h", "Last day"),
        (Self::Week, "7d", "Last 7 days"),
    ];
}

impl Since {
    /// The earliest moment that counts.
    fn begin(self, now: Timestamp) -> Timestamp {
        let hours = match self {
            Self::Always => return Timestamp::MIN,
            Self::Hour => 1,
            Self::Day => 24,
            Self::Week => 7 * 24,
        };
        now.checked_sub(SignedDuration::from_hours(hours)).unwrap_or(Timestamp::MIN)
    }
}

// === impl Wanted ===

impl From<Query> for Wanted {
    fn from(query: Query) -> Self {
        Self {
            plugin: query.plugin.trim().chars().take(NAME_MAX).collect(),
            kind: Kind::of_word(&query.kind).unwrap_or_default(),
            since: Since::of_word(&query.since).unwrap_or_default(),
            before: query.before,
        }
    }
}

impl Wanted {
    /// Whether an event is shown.
    pub(super) fn has(&self, event: &Event, now: Timestamp) -> bool {
        (self.plugin.is_empty() || event.plugin == self.plugin)
            && self.kind.has(event)
            && timestamp(event.at.as_ref()).is_none_or(|at| at >= self.since.begin(now))
    }

    /// This as a query, beside these pairs.
    pub(super) fn query(&self, more: &[(&str, &str)]) -> String {
        let before = self.before.map(|before| before.to_string()).unwrap_or_default();
        let own = [
            ("plugin", &*self.plugin),
            ("kind", self.kind.word()),
            ("since", self.since.word()),
            ("before", &*before),
        ];
        query(&[more, &own].concat())
    }

    fn of_page(&self, before: Option<u64>) -> String {
        let page = Self { before, ..self.clone() };
        format!("/console/events{}", page.query(&[]))
    }
}

// === impl Events ===

impl Events {
    /// The parts of the page that change by themselves, each under its id.
    pub(super) fn parts(&self, ages: Ages) -> Parts {
        let lines = fold(self.events.clone());
        vec![
            ("axis", self.axis()),
            ("events", list(&lines, ages, Names::Shown)),
            ("pages", self.pages()),
            ("said", said(lines.first())),
        ]
    }

    /// The whole page, without its frame.
    pub(super) fn page(&self, ages: Ages) -> Markup {
        let parts: std::collections::BTreeMap<_, _> = self.parts(ages).into_iter().collect();
        let Wanted { plugin, kind, since, .. } = &self.wanted;
        html! {
            div class="title" {
                h1 { "Events" }
                form method="get" action="/console/events" role="search" class="filters" {
                    label class="hidden" for="of" { "Only those of this plugin" }
                    input id="of" name="plugin" type="search" maxlength="64" placeholder="Of one plugin"
                        value=(plugin);
                    label class="hidden" for="kind" { "Kind" }
                    select id="kind" name="kind" {
                        @for (choice, word, name) in Kind::ALL {
                            option value=(word) selected[choice == kind] { (name) }
                        }
                    }
                    label class="hidden" for="since" { "Time" }
                    select id="since" name="since" {
                        @for (choice, word, name) in Since::ALL {
                            option value=(word) selected[choice == since] { (name) }
                        }
                    }
                    button type="submit" { "Show" }
                }
            }
            section aria-label="Events" {
                div id="axis" { (parts["axis"]) }
                div id="events" { (parts["events"]) }
                nav id="pages" class="pages" aria-label="Pages of events" { (parts["pages"]) }
            }
        }
    }

    /// How many there were, and when.
    fn axis(&self) -> Markup {
        let times: Vec<(Timestamp, bool)> = self
            .events
            .iter()
            .filter_map(|event| {
                Some((timestamp(event.at.as_ref())?, event_kind(event).1 == Tone::Bad))
            })
            .collect();
        let Some(first) = times.iter().map(|(at, _)| *at).min() else { return html! {} };
        let last = times.iter().map(|(at, _)| *at).max().unwrap_or(first);
        let bad = times.iter().filter(|(_, is_bad)| *is_bad).count();
        let described = format!(
            "{} events from {} to {}, {bad} of them failures",
            times.len(),
            second(first),
            second(last)
        );
        let counts = Counts::of(&times, (first, last), PARTS, described);
        let form = if last.duration_since(first) > SignedDuration::from_hours(20) {
            "%Y-%m-%d %H:%M"
        } else {
            "%H:%M:%S"
        };
        html! {
            figure class="chart axis-of-time" {
                (counts.bars())
                div class="axis times" aria-hidden="true" {
                    span { (first.strftime(form).to_string()) }
                    span { (times.len()) " events, " (bad) @if bad == 1 { " failure" } @else { " failures" } }
                    span { (last.strftime(form).to_string()) " UTC" }
                }
            }
        }
    }

    fn pages(&self) -> Markup {
        html! {
            @if self.wanted.before.is_some() {
                a href=(self.wanted.of_page(None)) rel="prev" { "Newest" }
            }
            @if let Some(older) = self.older {
                a href=(self.wanted.of_page(Some(older))) rel="next" { "Older" }
            } @else if self.wanted.before.is_some() {
                span class="quiet" { "These are the oldest that are kept." }
            }
        }
    }
}

/// Events as a list. The newest is the first.
pub(super) fn list(lines: &[Line], ages: Ages, names: Names) -> Markup {
    html! {
        @if lines.is_empty() { p class="empty" { "Nothing has happened." } }
        ol class="events" {
            @for line in lines {
                @if line.folded.is_empty() { (single(&line.event, ages, names)) }
                @else { (folded(line, ages, names)) }
            }
        }
    }
}

fn single(event: &Event, ages: Ages, names: Names) -> Markup {
    html! {
        li class=(class(event_kind(event).1)) {
            span class="when" { (ago(event.at.as_ref(), ages)) }
            span class="kind" { (event_word(event)) }
            span class="what" {
                (subject(event, names))
                @if !event.details.is_empty() {
                    span class="details" { (one_line(&event.details)) }
                }
            }
        }
    }
}

/// A loop: how often it failed in which time, when, and what it said last.
fn folded(line: &Line, ages: Ages, names: Names) -> Markup {
    let at = |event: &Event| timestamp(event.at.as_ref());
    let newest = line.folded.first().and_then(at);
    let oldest = line.folded.last().and_then(at);
    let first_seq = line.folded.last().map_or(0, |event| event.seq);
    let failures = line.failures();
    let times = line.folded.iter().filter(|event| event_kind(event).1 == Tone::Bad);
    let times: Vec<_> = times.filter_map(|event| Some((at(event)?, true))).collect();
    let within = oldest.zip(newest).map(|(oldest, newest)| age(oldest, newest));
    let described = format!("{failures} failures, spread over the time of the loop");
    let counts = oldest
        .zip(newest)
        .map(|(oldest, newest)| Counts::of(&times, (oldest, newest), PARTS / 2, described));
    html! {
        li class="bad" {
            span class="when" { (ago(line.event.at.as_ref(), ages)) }
            span class="kind" {
                (event_word(&line.event)) " " (failures) " times"
                @if let Some(within) = within { " in " (within) }
            }
            span class="what" {
                (subject(&line.event, names))
                @if let Some(counts) = counts { " " span class="beat" { (counts.bars()) } }
                @if !line.event.details.is_empty() {
                    span class="details" { (one_line(&line.event.details)) }
                }
                details id={ "loop-" (first_seq) } {
                    summary { "Each of them" }
                    ol class="events" {
                        @for event in line.folded.iter().take(FOLDED_MAX) { (single(event, ages, Names::Left)) }
                    }
                    @if line.folded.len() > FOLDED_MAX {
                        p class="quiet" { "And " (line.folded.len() - FOLDED_MAX) " more before." }
                    }
                }
            }
        }
    }
}

fn subject(event: &Event, names: Names) -> Markup {
    html! {
        @if names == Names::Shown && !event.plugin.is_empty() {
            a href=(page_of(&event.plugin)) { (one_line(&event.plugin)) } " "
        }
        code { (shortened(&one_line(&event.revision), 40)) }
    }
}

/// The newest event as a sentence, for screen readers.
pub(super) fn said(line: Option<&Line>) -> Markup {
    html! {
        @if let Some(Line { event, .. }) = line {
            (one_line(&event.plugin)) ": " (event_word(event))
        }
    }
}

/// How long a page waits for older events.
pub(super) const READ_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: PluginEventType, second: i64) -> Event {
        Event {
            plugin: "web".to_owned(),
            r#type: kind.as_str_name().to_owned(),
            at: Some(prost_types::Timestamp { seconds: second, nanos: 0 }),
            ..Event::default()
        }
    }

    #[test]
    fn what_is_wanted_is_what_the_query_says() {
        let own = str::to_owned;
        let query = Query {
            plugin: own(" web "),
            kind: own("failures"),
            since: own("1h"),
            before: Some(7),
        };
        let wanted = Wanted::from(query);
        assert_eq!(wanted.query(&[]), "?plugin=web&kind=failures&since=1h&before=7");
        let now = Timestamp::from_second(10_000).expect("a time");
        assert!(wanted.has(&event(PluginEventType::PluginCrashed, 9_000), now));
        assert!(!wanted.has(&event(PluginEventType::PluginCrashed, 6_000), now), "too old");
        assert!(!wanted.has(&event(PluginEventType::PluginStarted, 9_000), now), "no failure");
        let other = Event { plugin: own("web2"), ..event(PluginEventType::PluginCrashed, 9_000) };
        assert!(!wanted.has(&other, now));
        let nonsense = Query { kind: own("odd"), since: own("1y"), ..Query::default() };
        assert_eq!(Wanted::from(nonsense), Wanted::default());
    }

    #[test]
    fn every_known_event_is_an_order_or_about_a_process() {
        for number in 1..40 {
            let Ok(kind) = PluginEventType::try_from(number) else { continue };
            let event = event(kind, 0);
            assert_ne!(Kind::Orders.has(&event), Kind::Processes.has(&event), "{kind:?}");
        }
        let own = [PluginHealthEvent::PluginUnhealthy, PluginHealthEvent::PluginHealthy];
        for kind in own {
            let event = Event { r#type: kind.as_str_name().to_owned(), ..Event::default() };
            assert!(Kind::Processes.has(&event) && !Kind::Orders.has(&event), "{kind:?}");
        }
    }
}

//! Rules for every rendered page: no text becomes markup, wherever the text comes from, and every
//! page has what screen readers need.

use std::time::{Duration, SystemTime};

use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::Point;
use guest_agent_actors::model::spec::Limits;
use guest_agent_proto::host::{Entry, Offer};
use guest_agent_proto::local::{
    AgentStatus, AuditEntry, Event, ExplainResponse, Health, Hold, LastExit, ListAuditResponse,
    NotEnforced, Pending, PluginMove, PluginOrder, PluginStatus, PluginTrouble, PluginWait,
    RuleVerdict, RulesVerdict, TriggerPlan, Verdict, VerdictLevel,
};
use proptest::prelude::*;

use super::log::Part;
use super::overview::Overview;
use super::plugin::Plugin;
use super::row::Row;
use super::*;
use crate::api::http::access::Access;
use crate::api::http::session::Sight;
use crate::display;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn visitor(access: Access) -> Visitor {
    Visitor { access, token: None, caller: None, sight: Sight::All, session: None }
}

/// A plugin in whose every text there is this one.
fn status(text: &str) -> PluginStatus {
    let text = || text.to_owned();
    let at = || Some(prost_types::Timestamp::default());
    PluginStatus {
        name: "web".to_owned(),
        revision: text(),
        state: text(),
        kind: text(),
        installation: text(),
        pid: Some(7),
        started_at: at(),
        restarts: 3,
        last_exit: Some(LastExit {
            kind: "oom".to_owned(),
            detail: text(),
            at: at(),
            ..LastExit::default()
        }),
        health: Some(Health { code: 1, results: vec![text(), text()], at: at() }),
        pending: Some(Pending {
            revision: text(),
            state: text(),
            error: text(),
            ..Pending::default()
        }),
        config_hash: text(),
        address: text(),
        install_path: text(),
        reason: text(),
        not_enforced: vec![NotEnforced { what: text(), why: text(), fix: text() }],
        ..PluginStatus::default()
    }
}

fn row(text: &str) -> Row {
    let point = |second: u64| Point {
        at: SystemTime::UNIX_EPOCH + Duration::from_secs(second),
        cpu_percent: 12.5,
        memory_bytes: 5 << 20,
        cpu_time: Duration::from_secs(second),
    };
    Row { plugin: status(text), points: (0..20).map(|n| point(n * 10)).collect() }
}

fn event(text: &str) -> Event {
    Event {
        at: Some(prost_types::Timestamp::default()),
        plugin: "web".to_owned(),
        revision: text.to_owned(),
        r#type: text.to_owned(),
        details: text.to_owned(),
        ..Event::default()
    }
}

fn overview_of(text: &str) -> Overview {
    let own = || text.to_owned();
    let agent = AgentStatus {
        version: own(),
        link: own(),
        instance_id: own(),
        troubles: vec![own()],
        started_at: Some(prost_types::Timestamp::default()),
        hold: Some(Hold { by: own(), ..Hold::default() }),
        ..AgentStatus::default()
    };
    let mut urgent = row(text);
    let level = VerdictLevel::Failing.into();
    let verdict = Verdict { reason: own(), help: own(), level_value: level, ..Verdict::default() };
    urgent.plugin.verdict = Some(verdict);
    Overview {
        agent,
        readiness: Readiness::Ready { without: Vec::new() },
        view: View { filter: own(), ..View::default() },
        attention: vec![urgent],
        rest: vec![row(text)],
        matching: 2,
        counts: overview::counts([status(text)].iter()),
        events: lines_of(text),
    }
}

/// An event, and a loop of four.
fn lines_of(text: &str) -> Vec<events::Line> {
    let crash = Event { r#type: "PLUGIN_CRASHED".to_owned(), ..event(text) };
    events::fold(vec![event(text), crash.clone(), crash.clone(), crash.clone(), crash])
}

fn events_of(text: &str) -> events::Events {
    let wanted = events::Wanted { plugin: text.to_owned(), before: Some(3), ..Default::default() };
    let events = lines_of(text).into_iter().map(|line| line.event).collect();
    events::Events { wanted, events, older: Some(1) }
}

fn audited(text: &str) -> Vec<AuditEntry> {
    let own = || text.to_owned();
    let entry = AuditEntry { who: own(), detail: own(), refused: own(), ..AuditEntry::default() };
    // No plugin can have a name with a blank, and so none has a page.
    vec![entry.clone(), AuditEntry { plugin: format!("{text} {text}"), ..entry }]
}

fn plugin_of(text: &str) -> Plugin {
    let own = || text.to_owned();
    let at = || Some(prost_types::Timestamp::default());
    let rule = RuleVerdict {
        scope: own(),
        attribute: own(),
        operator: own(),
        value: own(),
        found: Some(own()),
        holds: own(),
        why: own(),
        ..RuleVerdict::default()
    };
    let rules = RulesVerdict {
        verdict: own(),
        because: own(),
        match_policy: own(),
        on_match: own(),
        on_default: own(),
        rules: vec![rule],
        ..RulesVerdict::default()
    };
    let why = ExplainResponse {
        status: Some(status(text)),
        doing: own(),
        since: at(),
        moves: vec![PluginMove { at: at(), state: own(), why: own() }],
        waits: vec![PluginWait { what: own(), until: at() }],
        trouble: Some(PluginTrouble { at: at(), r#type: own(), why: own() }),
        rules: Some(rules),
        triggers: vec![TriggerPlan { trigger: own(), last: own(), next: at() }],
        last_output: own(),
        order: Some(PluginOrder {
            entry_point: own(),
            arguments: vec![own()],
            sha256: own(),
            source: own(),
            signed_by: own(),
            config: Some(own()),
            ..PluginOrder::default()
        }),
    };
    let offer = Offer {
        r#type: own(),
        name: own(),
        version: own(),
        socket_path: own(),
        ..Offer::default()
    };
    Plugin {
        row: row(text),
        why: Some(why),
        limits: Limits { memory_bytes: Some(6 << 20), cpu_percent: Some(50), tasks: None },
        offers: vec![Entry { offer: Some(offer), ..Entry::default() }],
        events: lines_of(text),
        log: Some(Part { text: own(), from: 3, next: 10, end: 20, ..Part::default() }),
        audit: Some(audited(text)),
        now: NOW,
    }
}

/// All that is rendered from texts.
fn all_pages(text: &str) -> String {
    let visitor = visitor(Access::Act);
    let plugin = plugin_of(text);
    let asked = log::Asked { find: text.to_owned(), times: "on".to_owned(), at: None };
    let mut told = plugin.row.plugin.clone();
    told.name = text.to_owned();
    told.rollback_to = text.to_owned();
    told.rolled_back = text.to_owned();
    told.hold = Some(Hold { by: text.to_owned(), ..Hold::default() });
    let finding = doctor::finding(text);
    let questions = act::Deed::ALL.map(|deed| act::question(deed, &told, &visitor));
    let pages = [
        overview_of(text).page(Ages::At(NOW)),
        overview_of(text).page(Ages::Left),
        plugin.page(Ages::At(NOW), &visitor, None),
        plugin.page(Ages::Left, &visitor, None),
        events_of(text).page(Ages::At(NOW)),
        events_of(text).page(Ages::Left),
        log::page("web", plugin.log.as_ref().unwrap(), &asked),
        doctor::page(&[finding]),
        audit::page(&ListAuditResponse { entries: audited(text), more: true }, text, Ages::Left),
    ];
    pages.into_iter().chain(questions).map(maud::Markup::into_string).collect()
}

/// The tags of a page with the names of their attributes: what a browser takes for markup.
fn markup(page: &str) -> Vec<String> {
    let mut tags = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let (mut tag, mut quoted) = (String::new(), false);
        let mut end = rest.len();
        for (index, c) in rest.char_indices() {
            match c {
                '"' => quoted = !quoted,
                '>' if !quoted => {
                    end = index;
                    break;
                }
                _ if !quoted => tag.push(c),
                _ => {}
            }
        }
        tags.push(tag);
        rest = &rest[end..];
    }
    tags
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Only the texts differ between a page of harmless texts and one of any others: there is the
    /// same markup in both, tag by tag and attribute by attribute.
    #[test]
    fn law_no_text_becomes_markup(text in "[\\PC\n\t]{0,40}(<script>|\"|'|&lt;|</pre>| onload=|<!--|]]>|>)[\\PC\n\t]{0,40}") {
        let hostile = format!("x{}x", text.replace('\n', " "));
        prop_assert_eq!(markup(&all_pages(&hostile)), markup(&all_pages("xyzx")));
    }

    #[test]
    fn law_no_part_of_a_log_has_control_characters(text in "[\\x00-\\x1f\\x7f-\\u{9f}\\u{202a}-\\u{202e}a]{0,20}") {
        let part = Part { text, ..Part::default() };
        let shown = log::lines(&part).into_string();
        prop_assert!(!shown.chars().any(|c| display::moves_others(c) && c != '\n' && c != '\t'));
    }
}

#[test]
fn a_visitor_that_may_only_look_sees_no_buttons() {
    let plugin = plugin_of("x");
    let page = |access| plugin.page(Ages::At(NOW), &visitor(access), None).into_string();
    assert!(!page(Access::Read).contains("/web/stop"));
    assert!(page(Access::Act).contains("/web/stop"));
}

/// What needs attention stands before everything else, with its reason and the next step.
#[test]
fn what_needs_attention_comes_first() {
    let overview = overview_of("x");
    let page = overview.page(Ages::At(NOW)).into_string();
    let place = |what: &str| page.find(what).unwrap_or_else(|| panic!("{what} is not in {page}"));
    assert!(place("1 needs attention") < place("Next: <code>x</code>"));
    assert!(place("Next: <code>x</code>") < place("class=\"plugins\""));
}

#[test]
fn charts_have_words_for_readers_that_do_not_see_them() {
    let page = plugin_of("x").page(Ages::At(NOW), &visitor(Access::Read), None).into_string();
    assert!(page.contains("CPU: now 12%, at most 12% in the last 4 min"), "{page}");
    assert!(page.contains("Memory: now 5.0 MiB, at most 5.0 MiB in the last 4 min"), "{page}");
    assert_eq!(page.matches("<svg").count(), page.matches("role=\"img\" aria-label").count());
    assert!(page.contains("of 6.0 MiB allowed"));
}

/// What is sent again and again says the same until something happened, however late it is.
#[test]
fn parts_that_are_sent_change_only_when_something_happened() {
    let parts = |overview: &Overview| {
        let parts = overview.parts(Ages::Left).into_iter();
        parts.map(|(id, part)| (id, part.into_string())).collect::<Vec<_>>()
    };
    let mut overview = overview_of("x");
    let before = parts(&overview);
    assert_eq!(parts(&overview), before);
    overview.rest[0].plugin.restarts += 1;
    let changed = parts(&overview).into_iter().zip(before).filter(|(new, old)| new != old);
    assert_eq!(changed.map(|(new, _)| new.0).collect::<Vec<_>>(), ["plugins"]);
}

#[test]
fn the_newest_events_are_kept_and_no_more() {
    let timeline = Timeline::new();
    for seq in 0..700 {
        let plugin = if seq % 2 == 0 { "even" } else { "odd" };
        let details = "d".repeat(10_000);
        timeline.keep(Event { seq, plugin: plugin.to_owned(), details, ..event("x") });
    }
    let newest = timeline.newest(usize::MAX, Sight::All, |_| true);
    assert_eq!(newest.len(), timeline::KEPT_MAX);
    assert!(newest.iter().map(|event| event.seq).eq((200..700).rev()));
    assert!(newest.iter().all(|event| event.details.len() < 1000));
    assert_eq!(timeline.before(), Some(200));
    let odd = timeline.newest(3, Sight::All, |event| event.plugin == "odd");
    assert_eq!(odd.iter().map(|event| event.seq).collect::<Vec<_>>(), [699, 697, 695]);
}

/// A visitor who may not read a plugin's log does not see the plugin's last output either, in any
/// field that can hold it.
#[test]
fn last_words_are_left_out_everywhere() {
    let words = "it ended; its last output:\na secret";
    let left = "it ended; its last output is shown with a token only";
    let mut why = plugin_of(words).why.unwrap();
    hidden::of_answer(&mut why);
    let status = why.status.unwrap();
    let (pending, exit) = (status.pending.unwrap(), status.last_exit.unwrap());
    let (step, plan) = (&why.moves[0], &why.triggers[0]);
    for text in [
        &why.trouble.unwrap().why,
        &step.why,
        &plan.last,
        &status.reason,
        &pending.error,
        &exit.detail,
    ] {
        assert_eq!(text, left);
    }
    assert_eq!((why.last_output.as_str(), why.order), ("", None));
    let timeline = Timeline::new();
    timeline.keep(event(words));
    assert_eq!(timeline.newest(1, Sight::WithoutOutput, |_| true)[0].details, left);
    assert_eq!(timeline.newest(1, Sight::All, |_| true)[0].details, words);
}

/// A log is read in parts that join without a gap, and no part is longer than it may be.
#[tokio::test]
async fn parts_of_a_log_join_and_are_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let logs = crate::process::logs::PluginLogs::new(folder.path().to_owned(), None, 1 << 20);
    let name: PluginName = "web".parse().unwrap();
    let nothing = Part::read(logs.clone(), name.clone(), log::Wanted::Last(100)).await.unwrap();
    assert_eq!(nothing, Part::default());
    let text: String = (0..20_000).map(|line| format!("line {line}\n")).collect();
    std::fs::write(folder.path().join("web.log"), &text).unwrap();
    let (mut all, mut at) = (String::new(), 0);
    while at < u64::try_from(text.len()).unwrap() {
        let part = Part::read(logs.clone(), name.clone(), log::Wanted::From(at)).await.unwrap();
        assert!(u64::try_from(part.text.len()).unwrap() <= log::PAGE && part.next > at);
        assert_eq!((part.from, part.end), (at, u64::try_from(text.len()).unwrap()));
        at = part.next;
        all.push_str(&part.text);
    }
    assert!(all == text);
    let tail = Part::read(logs, name, log::Wanted::Last(log::TAIL)).await.unwrap();
    assert!(tail.text.ends_with("line 19999\n") && tail.text.starts_with("line "));
    assert!(u64::try_from(tail.text.len()).unwrap() <= log::TAIL);
    assert_eq!(tail.next, tail.end);
}

/// A search finds lines whatever their case, the newest where there are too many, and says when they
/// were written as a page does.
#[tokio::test]
async fn a_search_shows_the_newest_lines_with_the_text() {
    let folder = tempfile::tempdir().unwrap();
    let logs = crate::process::logs::PluginLogs::new(folder.path().to_owned(), None, 1 << 20);
    let name: PluginName = "web".parse().unwrap();
    let text: String = (0..20_000)
        .map(|n| format!("line {n} {}\n", if n % 10 == 3 { "ERROR" } else { "ok" }))
        .collect();
    std::fs::write(folder.path().join("web.log"), text + "an error without an end").unwrap();
    let wanted = log::Wanted::With("error".to_owned());
    let found = Part::read(logs.clone(), name.clone(), wanted).await.unwrap();
    let lines: Vec<&str> = found.text.lines().collect();
    assert_eq!(lines.len(), 501);
    assert_eq!(&lines[498..], ["line 19983 ERROR", "line 19993 ERROR", "an error without an end"]);
    let nothing = log::Wanted::With("nowhere".to_owned());
    assert_eq!(Part::read(logs, name, nothing).await.unwrap().text, "");
}

/// Lines come whole however the pieces of a log are cut, and a line without an end is not as long as
/// its writer wants.
#[test]
fn lines_are_put_together_from_pieces() {
    let text = b"one\ntwo\nthree".as_slice();
    for cut in 0..=text.len() {
        let mut lines = log::Lines::default();
        let mut found = lines.take(&text[..cut], &Vec::new());
        found.extend(lines.take(&text[cut..], &Vec::new()));
        let found: Vec<&str> = found.iter().map(|(line, _)| line.as_str()).collect();
        assert_eq!((found.as_slice(), lines.pending()), (["one", "two"].as_slice(), 5), "{cut}");
        assert_eq!(lines.rest().unwrap().0, "three");
    }
    let mut lines = log::Lines::default();
    for _ in 0..100 {
        assert_eq!(lines.take(&[b'x'; 1000], &Vec::new()), []);
    }
    assert_eq!((lines.rest().unwrap().0.len(), lines.pending()), (log::LINE_MAX, 0));
}

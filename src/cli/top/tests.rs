//! What `top` looks like, and the laws of its model.

use std::time::Duration;

use guest_agent_proto::local::{
    AgentStatus, Event, GetStatusResponse, Hold, Pending, PluginStatus, Usage, Verdict,
};
use insta::assert_snapshot;
use jiff::Timestamp;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::canvas::Theme;
use super::deed::{Deed, Wish};
use super::feed::{Detail, Update};
use super::model::{EVENTS_MAX, Face, Flow, Happened, Key, Model, Order};
use super::view::view;

const NOW: i64 = 1_900_000_000;

fn now() -> Timestamp {
    Timestamp::from_second(NOW).expect("a time")
}

fn ago(seconds: i64) -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp { seconds: NOW - seconds, nanos: 0 })
}

fn plugin(name: &str, state: &str) -> PluginStatus {
    PluginStatus {
        name: name.to_owned(),
        revision: "1.4".to_owned(),
        state: state.to_owned(),
        ..PluginStatus::default()
    }
}

fn running(name: &str, cpu: f64, mebibytes: u64) -> PluginStatus {
    let wave = [0.1, 0.3, 0.2, 0.5, 0.9, 1.0, 0.7, 0.4, 0.6, 0.8, 1.0];
    let usage = wave.map(|part| Usage {
        at: ago(1),
        cpu_percent: cpu * part,
        memory_bytes: mebibytes << 20,
    });
    PluginStatus {
        pid: Some(4711),
        started_at: ago(3 * 3600),
        restarts: 2,
        cpu_percent: Some(cpu),
        memory_bytes: Some(mebibytes << 20),
        usage: usage.to_vec(),
        ..plugin(name, "RUNNING")
    }
}

fn event(seq: u64, kind: &str, plugin: &str, details: &str) -> Update {
    Update::Event(Box::new(Event {
        seq,
        at: ago(60 - i64::try_from(seq).unwrap_or_default()),
        r#type: kind.to_owned(),
        plugin: plugin.to_owned(),
        revision: "1.4".to_owned(),
        details: details.to_owned(),
        ..Event::default()
    }))
}

fn status(plugins: Vec<PluginStatus>) -> Update {
    let agent = AgentStatus {
        version: "0.1.0".to_owned(),
        started_at: ago(200),
        link: "connected to https://control.example:443".to_owned(),
        link_connected: true,
        outbox_depth: 2,
        ..AgentStatus::default()
    };
    Update::Status(Box::new(GetStatusResponse { plugins, agent: Some(agent) }))
}

fn everything() -> Vec<PluginStatus> {
    let mut upgrading = running("billing", 1.5, 80);
    upgrading.pending = Some(Pending {
        revision: "1.5".to_owned(),
        state: "INSTALLING".to_owned(),
        ..Pending::default()
    });
    let mut failed = plugin("backup", "INSTALL_FAILED");
    failed.revision.clear();
    failed.reason = "failed to download the archive: the server answered 404".to_owned();
    vec![failed, upgrading, running("metrics", 42.5, 12), running("日本語のプラグイン", 0.0, 1)]
}

fn told(model: &mut Model, told: impl IntoIterator<Item = Update>) {
    for told in told {
        assert_eq!(model.update(Happened::Update(told), now()), Flow::GoOn);
    }
}

fn pressed(model: &mut Model, keys: impl IntoIterator<Item = Key>) -> Flow {
    let press = |_, key| model.update(Happened::Pressed(key), now());
    keys.into_iter().fold(Flow::GoOn, press)
}

fn model() -> Model {
    let mut model = Model::new(now(), Order::Name);
    told(&mut model, [Update::Connected, status(everything())]);
    told(
        &mut model,
        [
            event(1, "PLUGIN_INSTALLED", "metrics", ""),
            event(2, "PLUGIN_STARTED", "metrics", ""),
            event(3, "PLUGIN_CRASHED", "metrics", "exited with code 3\n\x1b[31mlast words"),
            event(4, "PLUGIN_INSTALL_FAILED", "backup", "failed to download the archive"),
        ],
    );
    model
}

/// What stands on a terminal of this size.
fn picture(model: &Model, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).expect("a terminal");
    let theme = Theme::new(false);
    terminal.draw(|frame| view(model, theme, frame.area(), frame.buffer_mut())).expect("a picture");
    terminal.backend().to_string()
}

// === deeds ===

#[test]
fn a_deed_is_carried_out_after_a_yes_and_after_nothing_else() {
    let mut model = model();
    let metrics = [Key::Down, Key::Down];
    let _stays = pressed(&mut model, metrics);
    assert_eq!(model.selected().map(|plugin| &*plugin.name), Some("metrics"));
    for no in [Key::Char('n'), Key::Escape, Key::Enter, Key::Char('q')] {
        assert_eq!(pressed(&mut model, [Key::Char('R'), no]), Flow::GoOn);
        assert_eq!((&model.wish, model.face), (&None, Face::List), "{no:?}");
    }
    let _stays = pressed(&mut model, [Key::Char('R'), Key::Resized]);
    assert!(picture(&model, 80, 24).contains("restart metrics? it is stopped and started again"));
    let _stays = pressed(&mut model, [Key::Char('y')]);
    let wish = Wish { name: "metrics".to_owned(), deed: Deed::Restart };
    assert_eq!(model.wish.take(), Some(wish));
    told(&mut model, [Update::Answered("metrics: restart requested".to_owned())]);
    assert!(picture(&model, 80, 24).contains("metrics: restart requested"));
    let _stays = pressed(&mut model, [Key::Up]);
    assert!(!picture(&model, 80, 24).contains("restart requested"));
}

#[test]
fn one_key_stops_and_starts_and_one_holds_and_releases() {
    let of = |key, change: fn(&mut PluginStatus)| {
        let mut plugin = plugin("a", "RUNNING");
        change(&mut plugin);
        Deed::of(key, &plugin)
    };
    let stopped = |plugin: &mut PluginStatus| {
        let cause = "stopped".to_owned();
        plugin.verdict = Some(Verdict { cause, ..Verdict::default() });
    };
    assert_eq!(of('S', |_| {}), Some(Deed::Stop));
    assert_eq!(of('S', stopped), Some(Deed::Start));
    assert_eq!(of('H', |_| {}), Some(Deed::Hold));
    assert_eq!(of('H', |plugin| plugin.hold = Some(Hold::default())), Some(Deed::Release));
    assert_eq!(of('H', |plugin| "2".clone_into(&mut plugin.rolled_back)), Some(Deed::Release));
    assert_eq!(of('B', |_| {}), Some(Deed::Rollback));
    assert_eq!(of('x', |_| {}), None);
}

#[test]
fn a_question_about_a_plugin_that_is_gone_is_withdrawn() {
    let mut model = model();
    let _stays = pressed(&mut model, [Key::Char('S')]);
    assert!(matches!(model.face, Face::Asking(_)));
    told(&mut model, [status(vec![running("metrics", 1.0, 1)])]);
    assert_eq!(model.face, Face::List);
    let _stays = pressed(&mut model, [Key::Char('y')]);
    assert_eq!(model.wish, None);
}

// === pictures ===

#[test]
fn the_usual_terminal() {
    assert_snapshot!(picture(&model(), 80, 24));
}

#[test]
fn a_narrow_terminal() {
    assert_snapshot!(picture(&model(), 40, 16));
}

#[test]
fn a_wide_terminal_has_room_for_notes() {
    assert_snapshot!(picture(&model(), 140, 20));
}

#[test]
fn a_low_terminal_shows_the_selected_plugin() {
    let mut model = model();
    assert_eq!(pressed(&mut model, [Key::End]), Flow::GoOn);
    assert_snapshot!(picture(&model, 80, 6));
}

#[test]
fn before_the_agent_answered() {
    assert_snapshot!(picture(&Model::new(now(), Order::Name), 60, 5));
}

#[test]
fn no_plugins() {
    let mut model = Model::new(now(), Order::Name);
    told(&mut model, [Update::Connected, status(Vec::new())]);
    assert_snapshot!(picture(&model, 60, 8));
}

#[test]
fn an_agent_that_went_away() {
    let mut model = model();
    let why = "the socket /run/guest-agent/agent.sock does not exist".to_owned();
    told(&mut model, [Update::Lost { why, retry_in: Duration::from_secs(2) }]);
    assert_snapshot!(picture(&model, 80, 14));
    told(&mut model, [Update::Connected, status(everything())]);
    assert!(!picture(&model, 80, 14).contains("NOT REACHABLE"));
}

#[test]
fn a_filter_while_it_is_written() {
    let mut model = model();
    let keys = [Key::Char('/'), Key::Char('M'), Key::Char('e')];
    assert_eq!(pressed(&mut model, keys), Flow::GoOn);
    assert_snapshot!(picture(&model, 60, 8));
    assert_eq!(pressed(&mut model, [Key::Char('x')]), Flow::GoOn);
    assert!(picture(&model, 60, 8).contains("no plugin has this"));
}

#[test]
fn one_plugin_from_near() {
    let mut model = model();
    assert_eq!(pressed(&mut model, [Key::Down, Key::Down, Key::Enter]), Flow::GoOn);
    assert_eq!(model.looked_at(), Some("metrics"));
    assert!(picture(&model, 60, 8).contains("…"), "until it is known");
    let detail = Detail {
        name: "metrics".to_owned(),
        explained: vec!["metrics is RUNNING: it runs for 3h".to_owned(), "x".repeat(100)],
        printed: vec!["listening".to_owned(), "asked".to_owned()],
    };
    told(&mut model, [Update::Detail(detail)]);
    assert_snapshot!(picture(&model, 60, 12));
    told(&mut model, [status(Vec::new())]);
    assert!(picture(&model, 60, 12).contains("this plugin was removed"));
    assert_eq!(pressed(&mut model, [Key::Escape]), Flow::GoOn);
    assert_eq!((model.face, model.looked_at()), (Face::List, None));
}

#[test]
fn the_help() {
    let mut model = model();
    assert_eq!(pressed(&mut model, [Key::Char('?')]), Flow::GoOn);
    assert_snapshot!(picture(&model, 80, 22));
}

#[test]
fn without_colour_nothing_is_coloured_and_the_selection_is_still_seen() {
    let area = Rect::new(0, 0, 80, 24);
    let styles = |colour| {
        let mut buffer = Buffer::empty(area);
        view(&model(), Theme::new(colour), area, &mut buffer);
        buffer.content().iter().map(ratatui::buffer::Cell::style).collect::<Vec<_>>()
    };
    let is_coloured = |style: &ratatui::style::Style| {
        ![None, Some(Color::Reset)].contains(&style.fg)
            || ![None, Some(Color::Reset)].contains(&style.bg)
    };
    assert!(!styles(false).iter().any(is_coloured));
    assert!(styles(true).iter().any(is_coloured));
    let selected = |style: &ratatui::style::Style| style.add_modifier.contains(Modifier::REVERSED);
    assert_eq!(styles(false).into_iter().filter(selected).count(), 80);
}

// === keys ===

fn names(model: &Model) -> Vec<&str> {
    model.visible().iter().map(|plugin| plugin.name.as_str()).collect()
}

#[test]
fn a_column_sorts_and_the_same_key_again_turns_it_round() {
    let mut model = model();
    let mut sorted = |key| {
        assert_eq!(pressed(&mut model, [Key::Char(key)]), Flow::GoOn);
        names(&model).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(sorted('c'), ["metrics", "billing", "日本語のプラグイン", "backup"]);
    assert_eq!(sorted('c'), ["backup", "日本語のプラグイン", "billing", "metrics"]);
    assert_eq!(sorted('m'), ["billing", "metrics", "日本語のプラグイン", "backup"]);
    assert_eq!(sorted('s')[0], "backup", "what failed comes first");
    assert_eq!(sorted('r')[3], "backup");
    assert_eq!(sorted('n'), ["backup", "billing", "metrics", "日本語のプラグイン"]);
}

#[test]
fn a_selected_plugin_stays_selected_until_it_goes_then_its_neighbour_is() {
    let mut model = model();
    assert_eq!(pressed(&mut model, [Key::Down, Key::Char('c'), Key::Char('c')]), Flow::GoOn);
    assert_eq!(names(&model)[model.selection().expect("one")], "billing");
    let mut left = everything();
    left.retain(|plugin| plugin.name != "billing");
    told(&mut model, [status(left)]);
    assert_eq!(model.selection(), Some(2));
    told(&mut model, [status(Vec::new())]);
    assert_eq!(model.selection(), None);
}

#[test]
fn escape_goes_back_step_by_step() {
    let mut model = model();
    let filter = [Key::Char('/'), Key::Char('m'), Key::Enter, Key::Enter];
    assert_eq!(pressed(&mut model, filter), Flow::GoOn);
    assert!(matches!(model.face, Face::Detail { .. }));
    assert_eq!(pressed(&mut model, [Key::Escape]), Flow::GoOn);
    assert_eq!((model.face, model.filter.as_str()), (Face::List, "m"));
    assert_eq!(pressed(&mut model, [Key::Escape]), Flow::GoOn);
    assert_eq!(model.filter, "");
    assert_eq!(pressed(&mut model, [Key::Escape]), Flow::Quit);
}

#[test]
fn an_interrupt_ends_it_wherever_it_comes() {
    for keys in [&[][..], &[Key::Char('?')], &[Key::Enter], &[Key::Char('/'), Key::Char('q')]] {
        let mut model = model();
        assert_eq!(pressed(&mut model, keys.iter().copied()), Flow::GoOn);
        assert_eq!(pressed(&mut model, [Key::Interrupt]), Flow::Quit);
    }
}

// === laws ===

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        any::<char>().prop_map(Key::Char),
        proptest::sample::select(vec!['/', '?', 'n', 's', 'r', 'c', 'm', 'g', 'G', 'j', 'k'])
            .prop_map(Key::Char),
        proptest::sample::select(vec![
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Enter,
            Key::Escape,
            Key::Backspace,
            Key::Resized,
        ]),
    ]
}

fn any_plugin() -> impl Strategy<Value = PluginStatus> {
    let name = proptest::sample::select(vec!["a", "b", "metrics", "日本", "x\u{1b}[2J"]);
    let state = proptest::sample::select(vec!["RUNNING", "CRASHED", "EXECUTION_COMPLETED", ""]);
    (name, state, any::<f64>(), any::<u64>(), any::<i64>(), any::<Option<u32>>()).prop_map(
        |(name, state, cpu, memory, started, pid)| PluginStatus {
            cpu_percent: Some(cpu),
            memory_bytes: Some(memory),
            started_at: Some(prost_types::Timestamp { seconds: started, nanos: 0 }),
            pid,
            usage: vec![Usage { at: None, cpu_percent: cpu, memory_bytes: memory }; 3],
            reason: "because".to_owned(),
            ..plugin(name, state)
        },
    )
}

fn any_happening() -> impl Strategy<Value = Happened> {
    prop_oneof![
        4 => any_key().prop_map(Happened::Pressed),
        2 => proptest::collection::vec(any_plugin(), 0..8)
            .prop_map(|plugins| Happened::Update(status(plugins))),
        1 => any::<u64>()
            .prop_map(|seq| Happened::Update(event(seq % 50, "PLUGIN_STARTED", "a", ""))),
        1 => any::<u64>().prop_map(|wait| Happened::Update(Update::Lost {
            why: "gone".to_owned(),
            retry_in: Duration::from_secs(wait),
        })),
        1 => Just(Happened::Update(Update::Connected)),
        1 => Just(Happened::Update(Update::Detail(Detail {
            name: "a".to_owned(),
            ..Detail::default()
        }))),
        1 => Just(Happened::Beat),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn law_whatever_happens_there_is_a_picture_and_something_visible_is_selected(
        happenings in proptest::collection::vec(any_happening(), 0..40),
        columns in 0_u16..150,
        rows in 0_u16..50,
    ) {
        let mut model = Model::new(now(), Order::Name);
        let area = Rect::new(0, 0, columns, rows);
        for happened in happenings {
            let _whether_it_goes_on = model.update(happened, now());
            if !matches!(model.face, Face::Detail { .. }) {
                prop_assert_eq!(model.selection().is_none(), model.visible().is_empty());
            }
            prop_assert!(model.events.len() <= EVENTS_MAX);
            let mut buffer = Buffer::empty(area);
            view(&model, Theme::new(true), area, &mut buffer);
        }
    }

    #[test]
    fn law_sorting_loses_no_plugin(plugins in proptest::collection::vec(any_plugin(), 0..8), keys in "[nsrcm]{0,5}") {
        let mut model = Model::new(now(), Order::Name);
        told(&mut model, [status(plugins.clone())]);
        prop_assert_eq!(pressed(&mut model, keys.chars().map(Key::Char)), Flow::GoOn);
        let mut before: Vec<_> = plugins.iter().map(|plugin| plugin.name.as_str()).collect();
        let mut after = names(&model);
        before.sort_unstable();
        after.sort_unstable();
        prop_assert_eq!(before, after);
    }
}

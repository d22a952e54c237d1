use std::time::{Duration, SystemTime};

use super::super::gap::second;
use super::*;
use crate::model::event::PluginEventKind;
use proptest::prelude::*;

const NOBODY: BTreeSet<Arc<str>> = BTreeSet::new();

fn event(plugin: &str, seq: u64, kind: PluginEventKind) -> Waiting {
    let event = NewEvent::new(kind, plugin, "1", second(seq), "in words");
    Waiting::new(StoredEvent { seq, id: format!("id-{seq}").into(), event })
}

fn bounds(events: usize) -> Bounds {
    Bounds { events, bytes: usize::MAX, history: 0 }
}

/// What waits of a plugin: numbers of events, and of markers how many events they stand for.
fn kept(backlog: &Backlog, plugin: &str) -> Vec<(u64, u64)> {
    let events = backlog.queues.get(plugin).into_iter().flat_map(|queue| &queue.events);
    events.map(|(seq, event)| (*seq, event.gap.map_or(0, |gap| gap.events))).collect()
}

/// The backlog that a restarted agent finds when these writes were carried out.
fn reloaded(disk: &BTreeMap<Vec<u8>, Vec<u8>>) -> Backlog {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    for (key, value) in disk {
        backlog.push(Waiting::decode(key, value).expect("its own record"));
    }
    backlog
}

fn carry_out(disk: &mut BTreeMap<Vec<u8>, Vec<u8>>, writes: Vec<Write>) {
    for write in writes {
        match write {
            Write::Put { key, value, .. } => drop(disk.insert(key, value)),
            Write::Delete { key, .. } => {
                assert!(disk.remove(&key).is_some(), "deleted what was not there");
            }
        }
    }
}

#[test]
fn chatter_goes_before_outcomes_however_old_they_are() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    backlog.push(event("a", 1, PluginEventKind::InstallRequested));
    backlog.push(event("a", 2, PluginEventKind::Started));
    backlog.push(event("a", 3, PluginEventKind::Installed));
    backlog.push(event("a", 4, PluginEventKind::Crashed));
    backlog.push(event("a", 5, PluginEventKind::Started));
    backlog.drop_overflow(&bounds(3), &NOBODY);
    assert_eq!(kept(&backlog, "a"), [(1, 0), (2, 3), (3, 0)]);
    backlog.drop_overflow(&bounds(2), &NOBODY);
    assert_eq!(kept(&backlog, "a"), [(2, 4), (3, 0)], "then the oldest outcome");
}

#[test]
fn a_marker_has_a_kind_that_every_server_knows() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    (1..=4).for_each(|seq| backlog.push(event("a", seq, PluginEventKind::Unhealthy)));
    backlog.drop_overflow(&bounds(2), &NOBODY);
    let (told, _) = backlog.begin_sending(&"a".into(), 1).expect("the marker");
    assert!(told.event.kind.is_public() && told.event.details.contains("3 events"), "{told:?}");
}

#[test]
fn a_gap_tells_how_many_and_of_when_in_the_place_of_the_first() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    (1..=4).for_each(|seq| backlog.push(event("a", seq, PluginEventKind::Crashed)));
    backlog.drop_overflow(&bounds(2), &NOBODY);
    assert_eq!(kept(&backlog, "a"), [(1, 3), (4, 0)]);
    let (told, record) = backlog.begin_sending(&"a".into(), 1).expect("it is there");
    assert!(record.is_some(), "it is durable before it is sent");
    assert_ne!(&*told.id, "id-1", "under that id the event itself may have been heard");
    assert_eq!((told.seq, told.event.kind), (1, PluginEventKind::Crashed));
    assert!(
        told.event
            .details
            .starts_with("3 events from 1970-01-01T00:00:01Z to 1970-01-01T00:00:03Z were dropped"),
        "{}",
        told.event.details
    );
}

#[test]
fn a_noisy_plugin_costs_a_quiet_one_nothing() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    backlog.push(event("quiet", 1, PluginEventKind::Started));
    for seq in 2..100 {
        backlog.push(event("noisy", seq, PluginEventKind::Crashed));
        backlog.drop_overflow(&bounds(10), &NOBODY);
    }
    assert_eq!(kept(&backlog, "quiet"), [(1, 0)]);
    assert_eq!(kept(&backlog, "noisy")[0], (2, 90));
}

#[test]
fn a_marker_that_was_sent_is_not_changed_any_more() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    (1..=4).for_each(|seq| backlog.push(event("a", seq, PluginEventKind::Crashed)));
    backlog.drop_overflow(&bounds(3), &NOBODY);
    backlog.begin_sending(&"a".into(), 1).expect("it is there");
    (5..=6).for_each(|seq| backlog.push(event("a", seq, PluginEventKind::Crashed)));
    backlog.drop_overflow(&bounds(4), &NOBODY);
    assert_eq!(kept(&backlog, "a"), [(1, 2), (3, 2), (5, 0), (6, 0)]);
}

#[test]
fn what_is_under_way_is_spared_and_what_was_sent_goes_last() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    backlog.push(event("a", 1, PluginEventKind::Crashed));
    backlog.push(event("b", 2, PluginEventKind::Crashed));
    backlog.begin_sending(&"a".into(), 1).expect("it is there");
    let in_flight = BTreeSet::from(["a".into()]);
    backlog.drop_overflow(&bounds(1), &in_flight);
    assert_eq!(kept(&backlog, "a"), [(1, 0)], "nothing is known of it yet");
    assert_eq!(kept(&backlog, "b"), [(2, 1)]);
    backlog.drop_overflow(&bounds(1), &NOBODY);
    assert_eq!(backlog.len(), 1);
    let total: u64 = kept(&backlog, "a").iter().chain(&kept(&backlog, "b")).map(|k| k.1).sum();
    assert_eq!(total, 2);
}

#[test]
fn gaps_of_more_plugins_than_are_kept_are_counted_together() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    for seq in 1..=500 {
        backlog.push(event(&format!("p{seq}"), seq, PluginEventKind::RemoveFailed));
        backlog.drop_overflow(&bounds(10), &NOBODY);
        assert!(backlog.len() <= 10);
    }
    let gaps: Vec<Gap> = backlog.take_all().iter().filter_map(|waiting| waiting.gap).collect();
    let others = 10 - gaps.len() as u64;
    assert_eq!(gaps.iter().map(|gap| gap.events).sum::<u64>(), 500 - others);
    assert!(gaps.iter().any(|gap| gap.elsewhere > 0));
}

#[test]
fn bytes_are_bounded_too() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    let large = "x".repeat(10_000);
    let bounds = Bounds { events: usize::MAX, bytes: 100_000, history: 0 };
    for seq in 1..=100 {
        let mut waiting = event("a", seq, PluginEventKind::Crashed);
        waiting.recorded.event.details = large.as_str().into();
        backlog.push(waiting);
        backlog.drop_overflow(&bounds, &NOBODY);
        assert!(backlog.bytes <= bounds.bytes);
    }
    assert_eq!(kept(&backlog, "a")[0], (1, 91));
}

#[test]
fn bounds_that_nothing_fits_in_do_not_hang() {
    let mut backlog = Backlog::new(Arc::new(crate::ports::RandomIds));
    (1..=5).for_each(|seq| backlog.push(event(&format!("p{seq}"), seq, PluginEventKind::Crashed)));
    let none = Bounds { events: 0, bytes: 0, history: 0 };
    backlog.drop_overflow(&none, &NOBODY);
    assert_eq!(backlog.len(), 1, "one marker tells of everything");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "how long it really takes is the question")]
fn dropping_among_a_hundred_thousand_events_is_cheap() {
    let (mut backlog, bounds) =
        (Backlog::new(Arc::new(crate::ports::RandomIds)), Bounds::default());
    let names: Vec<String> = (0..50).map(|n| format!("plugin-{n}")).collect();
    let events = (1u64..=200_000).zip(names.iter().cycle()).map(|(seq, name)| {
        let kind = if seq % 3 == 0 { PluginEventKind::Installed } else { PluginEventKind::Crashed };
        event(name, seq, kind)
    });
    let events: Vec<Waiting> = events.collect();
    let began = std::time::Instant::now();
    let mut deleted = 0;
    for waiting in events {
        backlog.push(waiting);
        let writes = backlog.drop_overflow(&bounds, &NOBODY);
        deleted += writes.iter().filter(|write| matches!(write, Write::Delete { .. })).count();
    }
    let took = began.elapsed();
    assert_eq!((backlog.len(), deleted), (bounds.events, 200_000 - bounds.events));
    // It is three to four seconds without optimization; a scan per event would be minutes.
    println!("200,000 events took {took:?}");
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[derive(Clone, Debug)]
enum Act {
    Push {
        plugin: u8,
        kind: i32,
    },
    Overflow,
    Send(u8),
    /// Acknowledged after it was sent.
    Settle(u8),
    Crash,
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        6 => (0u8..4, 1i32..=13).prop_map(|(plugin, kind)| Act::Push { plugin, kind }),
        3 => Just(Act::Overflow),
        1 => (0u8..4).prop_map(Act::Send),
        1 => (0u8..4).prop_map(Act::Settle),
        1 => Just(Act::Crash),
    ]
}

proptest! {
    /// Every event is sent, waits, or is counted in a gap exactly once; across restarts, too.
    #[test]
    fn law_every_event_is_accounted_for_once(
        acts in proptest::collection::vec(any_act(), 1..120), limit in 1usize..8
    ) {
        let (mut backlog, mut disk) = (Backlog::new(Arc::new(crate::ports::RandomIds)), BTreeMap::new());
        let (mut pushed, mut told) = (0u64, 0u64);
        let mut last_told = BTreeMap::<Arc<str>, u64>::new();
        let weight = |waiting: &Waiting| waiting.gap.map_or(1, |gap| gap.events);
        for act in acts {
            match act {
                Act::Push { plugin, kind } => {
                    pushed += 1;
                    let kind = crate::wire::event_kind(kind).expect("a number of the table");
                    let waiting = event(&plugin.to_string(), pushed, kind);
                    disk.insert(number_key(pushed), waiting.encode());
                    backlog.push(waiting);
                }
                Act::Overflow => {
                    let writes = backlog.drop_overflow(&bounds(limit), &NOBODY);
                    carry_out(&mut disk, writes);
                    prop_assert!(backlog.len() <= limit);
                }
                Act::Send(plugin) | Act::Settle(plugin) => {
                    let plugin: Arc<str> = plugin.to_string().into();
                    let first = backlog.firsts().find(|(of, _)| **of == plugin).map(|(_, seq)| seq);
                    let Some(seq) = first else { continue };
                    let (recorded, write) = backlog.begin_sending(&plugin, seq).expect("the first");
                    prop_assert!(backlog.is_first(&recorded));
                    carry_out(&mut disk, write.into_iter().collect());
                    if matches!(act, Act::Settle(_)) {
                        let before = last_told.insert(plugin.clone(), seq);
                        prop_assert!(before < Some(seq), "order per plugin");
                        told += weight(&backlog.take(&plugin, seq).expect("it was sent"));
                        disk.remove(&number_key(seq));
                    }
                }
                Act::Crash => {
                    backlog = reloaded(&disk);
                }
            }
            let on_disk: u64 = reloaded(&disk).take_all().iter().map(weight).sum();
            prop_assert_eq!(on_disk + told, pushed);
            let all = backlog.queues.values().flat_map(|queue| queue.events.values());
            let (count, bytes, waits) = all.fold((0, 0, 0), |(count, bytes, waits), waiting| {
                (count + 1, bytes + waiting.size(), waits + weight(waiting))
            });
            prop_assert_eq!((count, bytes, waits), (backlog.len, backlog.bytes, pushed - told));
        }
    }

    #[test]
    fn law_a_marker_record_gives_back_what_was_recorded(
        events in 1u64.., others in any::<u64>(), seconds in 0u64..4_000_000_000, sent in any::<bool>()
    ) {
        let mut marker = begun(
        event("a", 7, PluginEventKind::Crashed),
        Gap::of(SystemTime::UNIX_EPOCH),
        "marker".into(),
    );
        let to = second(seconds);
        let elsewhere = others.min(events);
        marker.gap = Some(Gap { events, elsewhere, from: SystemTime::UNIX_EPOCH, to });
        marker.sent = sent;
        let decoded = Waiting::decode(&number_key(7), &marker.encode()).expect("its own bytes");
        prop_assert_eq!(&decoded, &marker);
        // Who knows nothing of gaps reads what it says.
        let read = StoredEvent::decode(&number_key(7), &marker.encode()).expect("its own bytes");
        prop_assert_eq!(read, marker.told());
    }
}

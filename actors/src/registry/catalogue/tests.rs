//! Laws of the catalogue, over any sequence of actions of plugins.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::entry::RawOffer;
use super::*;
use crate::model::id::BootId;

/// An input of a registry.
#[derive(Clone, Debug)]
enum Deed {
    Register {
        plugin: u8,
        kind: u8,
        name: u8,
        instance: u8,
        version: u8,
    },
    Deregister {
        plugin: u8,
        kind: u8,
        name: u8,
        instance: u8,
    },
    /// The plugin's process ends and another one starts; the registry learns of it now or later.
    Restart {
        plugin: u8,
        heard: bool,
    },
    /// The agent starts anew, and probes this entry.
    AgentRestarts {
        probes: u8,
    },
}

fn any_deed() -> impl Strategy<Value = Deed> {
    let small = || 0u8..3;
    prop_oneof![
        6 => (small(), small(), small(), small(), small()).prop_map(
            |(plugin, kind, name, instance, version)| Deed::Register {
                plugin, kind, name, instance, version
            }
        ),
        3 => (small(), small(), small(), small()).prop_map(
            |(plugin, kind, name, instance)| Deed::Deregister { plugin, kind, name, instance }
        ),
        2 => (small(), any::<bool>()).prop_map(|(plugin, heard)| Deed::Restart { plugin, heard }),
        1 => (0u8..8).prop_map(|probes| Deed::AgentRestarts { probes }),
    ]
}

/// A registry and the processes of its plugins.
struct World {
    catalogue: Catalogue,
    processes: [u64; 3],
    all_events: Vec<Event>,
}

fn plugin(number: u8) -> PluginName {
    format!("p{number}").parse().expect("a name")
}

fn process(start_ticks: u64) -> Process {
    Process { pid: 7, start_ticks, boot: BootId("b".into()) }
}

fn registrant(number: u8, start_ticks: u64) -> Registrant {
    Registrant { plugin: plugin(number), process: process(start_ticks), uid: 0 }
}

fn offer(kind: u8, name: u8, instance: u8, version: u8) -> Offer {
    let raw = RawOffer {
        kind: format!("k{kind}"),
        name: format!("n{name}"),
        instance: format!("i{instance}"),
        version: version.to_string(),
        socket: "/run/x.sock".to_owned(),
        ..RawOffer::default()
    };
    Offer::parse(raw, &plugin(0)).expect("an offer")
}

fn all(catalogue: &Catalogue) -> Vec<Arc<Entry>> {
    catalogue.entries(&Filter::default()).cloned().collect()
}

impl World {
    fn new() -> Self {
        Self { catalogue: Catalogue::default(), processes: [1; 3], all_events: Vec::new() }
    }

    fn by(&self, number: u8) -> Registrant {
        registrant(number, self.processes[usize::from(number)])
    }

    fn tell(&mut self, events: Vec<Event>) {
        for event in events {
            self.catalogue.apply(&event);
            self.all_events.push(event);
        }
    }

    fn act(&mut self, deed: &Deed) {
        let now = SystemTime::UNIX_EPOCH;
        match *deed {
            Deed::Register { plugin, kind, name, instance, version } => {
                let before = all(&self.catalogue);
                let offer = offer(kind, name, instance, version);
                match self.catalogue.register(&self.by(plugin), offer.clone(), now) {
                    Ok(registration) => {
                        self.tell(registration.events);
                        let at = self.catalogue.at(offer.key()).expect("it was registered");
                        assert_eq!(*at, registration.entry);
                        assert_eq!((&at.offer, at.standing), (&offer, Standing::Verified));
                    }
                    Err(Refusal::Taken { .. }) => assert_eq!(before, all(&self.catalogue)),
                    Err(other) => panic!("{other}"),
                }
            }
            Deed::Deregister { plugin, kind, name, instance } => {
                let key = offer(kind, name, instance, 0).key().clone();
                let knew = self.catalogue.kinds.contains_key(&key.kind);
                match self.catalogue.deregister(&self.by(plugin), &key) {
                    Ok(events) => {
                        assert!(knew && events.len() <= 1);
                        self.tell(events);
                        assert!(self.catalogue.at(&key).is_none());
                    }
                    Err(Refusal::UnknownKind(_)) => assert!(!knew),
                    Err(Refusal::NotYours { .. }) => assert!(self.catalogue.at(&key).is_some()),
                    Err(other) => panic!("{other}"),
                }
            }
            Deed::Restart { plugin: number, heard } => {
                let before = &mut self.processes[usize::from(number)];
                let ended = process(*before);
                *before += 1;
                if heard {
                    let events = self.catalogue.ended(&plugin(number), &ended);
                    self.tell(events);
                    self.catalogue.forget_life(&plugin(number), &ended);
                }
            }
            Deed::AgentRestarts { probes } => {
                let entries = all(&self.catalogue).into_iter().rev();
                let entries = entries.map(|entry| (*entry).clone()).collect();
                let lives = self.catalogue.lives.clone();
                let kinds = self.catalogue.kinds.keys().cloned().collect();
                let sequence = self.catalogue.sequence;
                let mut restored = Catalogue::restore(entries, lives, kinds, sequence);
                std::mem::swap(&mut self.catalogue, &mut restored);
                let (was, is) = (all(&restored), all(&self.catalogue));
                assert_eq!(was.len(), is.len());
                for (was, is) in was.iter().zip(&is) {
                    let standing = Standing::Unverified;
                    assert_eq!(**is, Entry { standing, ..(**was).clone() });
                }
                // From here on events begin with this catalogue.
                self.all_events.clear();
                if let Some(entry) = is.get(usize::from(probes)) {
                    let events = self.catalogue.answered(entry.key(), entry.order);
                    assert_eq!(events.len(), 1);
                    self.tell(events);
                    let again = self.catalogue.answered(entry.key(), entry.order);
                    assert_eq!(again, [], "it is verified once");
                }
            }
        }
    }

    fn check_invariants(&self) {
        let mut keys = BTreeSet::new();
        let mut lives: BTreeMap<PluginName, (Process, Epoch)> = BTreeMap::new();
        for (kind, names) in &self.catalogue.kinds {
            for (name, instances) in names {
                assert!(!instances.is_empty(), "{kind}/{name} is there without an entry");
                for pair in instances.windows(2) {
                    assert!(pair[0].order > pair[1].order, "not the newest first");
                }
                let filter = Filter { kind: Some(kind.clone()), name: Some(name.clone()) };
                let current: Vec<_> = self.catalogue.current(&filter).collect();
                assert_eq!(current, [&instances[0]]);
                for entry in instances {
                    assert!(keys.insert(entry.key().clone()), "{} twice", entry.key());
                    let Registrant { plugin, process, .. } = entry.registrant.clone();
                    let life = (process, entry.epoch);
                    let known = lives.entry(plugin).or_insert_with(|| life.clone());
                    assert_eq!(*known, life, "two lives of one plugin");
                }
            }
        }
        for (sequence, event) in self.all_events.windows(2).map(|pair| (pair[0].sequence, &pair[1]))
        {
            assert_eq!(event.sequence, sequence + 1, "a gap, or out of order");
        }
    }
}

proptest! {
    #[test]
    fn law_one_entry_per_instance_the_newest_first_without_gaps(
        deeds in proptest::collection::vec(any_deed(), 0..60)
    ) {
        let mut world = World::new();
        for deed in &deeds {
            world.act(deed);
            world.check_invariants();
        }
    }

    #[test]
    fn law_events_rebuild_the_catalogue_from_wherever_a_watcher_begins(
        deeds in proptest::collection::vec(any_deed(), 1..60), begins in 0usize..60
    ) {
        let mut world = World::new();
        let mut watcher = None;
        for (number, deed) in deeds.iter().enumerate() {
            let restarts = matches!(deed, Deed::AgentRestarts { .. });
            if watcher.is_none() && number >= begins {
                watcher = Some(world.catalogue.clone());
            }
            let before = world.all_events.len();
            world.act(deed);
            if restarts {
                // The stream ended; it begins with a snapshot.
                watcher = watcher.map(|_| world.catalogue.clone());
            } else if let Some(watcher) = &mut watcher {
                for event in &world.all_events[before..] {
                    watcher.apply(event);
                }
            }
            if let Some(watcher) = &watcher {
                prop_assert_eq!(all(watcher), all(&world.catalogue));
                prop_assert_eq!(watcher.sequence, world.catalogue.sequence);
            }
        }
    }

    #[test]
    fn law_a_later_life_has_a_higher_epoch(
        deeds in proptest::collection::vec(any_deed(), 0..60)
    ) {
        let mut world = World::new();
        let mut epochs: BTreeMap<PluginName, (u64, Epoch)> = BTreeMap::new();
        for deed in &deeds {
            world.act(deed);
            for entry in all(&world.catalogue) {
                let Registrant { plugin, process, .. } = &entry.registrant;
                let life = (process.start_ticks, entry.epoch);
                let before = epochs.insert(plugin.clone(), life);
                if let Some((ticks, epoch)) = before {
                    prop_assert_eq!(ticks.cmp(&life.0), epoch.cmp(&life.1));
                }
            }
        }
    }
}

fn registered(world: &mut World, by: u8, offer: Offer) -> Vec<Event> {
    let now = SystemTime::UNIX_EPOCH;
    let events = world.catalogue.register(&world.by(by), offer, now).expect("taken").events;
    world.tell(events.clone());
    events
}

#[test]
fn a_known_instance_is_updated_in_its_place_and_only_when_it_changed() {
    let mut world = World::new();
    registered(&mut world, 0, offer(0, 0, 0, 0));
    registered(&mut world, 1, offer(0, 0, 1, 0));
    assert_eq!(registered(&mut world, 0, offer(0, 0, 0, 0)), []);
    let events = registered(&mut world, 0, offer(0, 0, 0, 1));
    assert!(
        matches!(&events[..], [Event { sequence: 3, change: Change::Updated(_) }]),
        "{events:?}"
    );
    let order: Vec<_> = all(&world.catalogue).iter().map(|e| e.key().to_string()).collect();
    assert_eq!(order, ["k0/n0/i1", "k0/n0/i0"]);
}

#[test]
fn a_type_is_reported_unknown_before_a_name_and_stays_known() {
    let mut world = World::new();
    let key = offer(0, 0, 0, 0).key().clone();
    let find = |world: &World| world.catalogue.find(&key.kind, &key.name, None).err();
    assert_eq!(find(&world), Some(Refusal::UnknownKind(key.kind.clone())));
    assert!(world.catalogue.deregister(&world.by(0), &key).is_err());
    registered(&mut world, 0, offer(0, 0, 0, 0));
    let gone = world.catalogue.deregister(&world.by(0), &key).expect("it is there");
    world.tell(gone);
    assert!(matches!(find(&world), Some(Refusal::UnknownName { .. })));
    assert_eq!(world.catalogue.deregister(&world.by(0), &key), Ok(Vec::new()));
}

#[test]
fn a_new_process_takes_the_place_of_the_former_one_and_late_words_of_that_are_refused() {
    let mut world = World::new();
    registered(&mut world, 0, offer(0, 0, 0, 0));
    registered(&mut world, 0, offer(1, 0, 0, 0));
    world.processes[0] = 2;
    let events = registered(&mut world, 0, offer(0, 0, 0, 0));
    let gone =
        |event: &&Event| matches!(event.change, Change::Deregistered(_, Reason::PluginEnded));
    assert_eq!((events.len(), events.iter().filter(gone).count()), (3, 2));
    let late = registrant(0, 1);
    let now = SystemTime::UNIX_EPOCH;
    let refused = world.catalogue.register(&late, offer(2, 0, 0, 0), now);
    assert_eq!(refused, Err(Refusal::Superseded(plugin(0))));
    let key = offer(0, 0, 0, 0).key().clone();
    assert_eq!(world.catalogue.deregister(&late, &key), Ok(Vec::new()));
    assert_eq!(world.catalogue.ended(&plugin(0), &process(1)), []);
    assert_eq!(all(&world.catalogue).len(), 1);
}

#[test]
fn nothing_grows_without_bound() {
    let mut world = World::new();
    let by = world.by(0);
    let now = SystemTime::UNIX_EPOCH;
    for number in 0..u8::try_from(PLUGIN_ENTRIES_MAX).expect("small") {
        registered(&mut world, 0, offer(number, 0, 0, 0));
    }
    let full = world.catalogue.register(&by, offer(0, 1, 0, 0), now);
    assert_eq!(full, Err(Refusal::TooManyOfPlugin(plugin(0))));
    for number in 1..=u8::try_from(ENTRIES_MAX / PLUGIN_ENTRIES_MAX).expect("small") {
        let other = registrant(number + 100, 1);
        for entry in 0..u8::try_from(PLUGIN_ENTRIES_MAX).expect("small") {
            let Ok(more) = world.catalogue.register(&other, offer(0, entry, number, 0), now) else {
                assert_eq!(all(&world.catalogue).len(), ENTRIES_MAX);
                return;
            };
            world.tell(more.events);
        }
    }
    panic!("it is never full");
}

#[test]
fn types_without_entries_make_room_for_others() {
    let mut world = World::new();
    for number in 0..KINDS_MAX {
        let kind: Kind = format!("k{number}").parse().expect("a type");
        world.catalogue.kinds.insert(kind, BTreeMap::new());
    }
    let raw = RawOffer {
        kind: "another".to_owned(),
        name: "n".to_owned(),
        socket: "/x".to_owned(),
        ..RawOffer::default()
    };
    let offer = Offer::parse(raw, &plugin(0)).expect("an offer");
    let registration = world.catalogue.register(&world.by(0), offer, SystemTime::UNIX_EPOCH);
    let forgotten = registration.expect("there is room").forgotten.expect("one makes it");
    world.catalogue.forget_kind(&forgotten);
    assert_eq!(world.catalogue.kinds.len(), KINDS_MAX - 1);
}

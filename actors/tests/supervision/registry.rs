//! What plugins offer, through the ends of plugins and of the agent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::fakes::{CrashPoint, Harness};
use guest_agent_actors::messages::{Deregister, NotRegistered, Register};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::{BootId, Process};
use guest_agent_actors::ports::Table;
use guest_agent_actors::registry::catalogue::{Catalogue, Change, Filter, Reason, Refusal};
use guest_agent_actors::registry::entry::{
    Entry, Epoch, Key, Kind, Name, Offer, RawOffer, Registrant, Standing,
};
use guest_agent_actors::registry::view::{RegistryUpdate, RegistryView, Watcher};

use super::support::*;

fn offer(name: &str, version: &str) -> Offer {
    let raw = RawOffer {
        kind: "greeter".to_owned(),
        name: name.to_owned(),
        version: version.to_owned(),
        socket: format!("/run/{name}.sock"),
        ..RawOffer::default()
    };
    Offer::parse(raw, &"p".parse().unwrap()).unwrap()
}

fn kind() -> Kind {
    "greeter".parse().unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// The living process of the plugin `p`.
fn registrant(agent: &Harness) -> Registrant {
    let (pid, _) = agent.world.launcher.alive("p")[0];
    let process = Process { pid, start_ticks: pid.into(), boot: BootId("boot-1".into()) };
    Registrant { plugin: "p".parse().unwrap(), process, uid: 0 }
}

async fn register(agent: &Harness, offer: Offer) -> Result<Arc<Entry>, NotRegistered> {
    let by = registrant(agent);
    agent.run(|system| system.registry.send(Register { by, offer })).await.unwrap()
}

async fn deregister(agent: &Harness, key: Key) -> Result<(), NotRegistered> {
    let by = registrant(agent);
    agent.run(|system| system.registry.send(Deregister { by, key })).await.unwrap()
}

async fn view(agent: &Harness) -> RegistryView {
    agent.run(|system| std::future::ready(system.offers.clone())).await
}

async fn entries(agent: &Harness) -> Vec<Arc<Entry>> {
    view(agent).await.look(|catalogue| catalogue.entries(&Filter::default()).cloned().collect())
}

async fn next(agent: &Harness, watcher: &mut Watcher) -> RegistryUpdate {
    let next = agent.run(|_| tokio::time::timeout(MINUTE, watcher.next())).await;
    next.expect("something is told").expect("the agent lives")
}

async fn changed(agent: &Harness, watcher: &mut Watcher) -> Change {
    match next(agent, watcher).await {
        RegistryUpdate::Changed(event) => event.change,
        RegistryUpdate::Snapshot { .. } => panic!("a change was expected"),
    }
}

/// An agent whose plugin `p` runs.
async fn with_plugin() -> Harness {
    agent_with("p", "1").await
}

#[tokio::test(start_paused = true)]
async fn an_entry_is_durable_when_it_is_answered_and_comes_back_unverified_until_probed() {
    let mut agent = with_plugin().await;
    let before = register(&agent, offer("a", "1")).await.unwrap();
    assert_eq!(before.standing, Standing::Verified);
    agent.world.prober.silence("/run/a.sock");
    agent.crash_and_wake().await;
    let after = entries(&agent).await;
    assert_eq!(after.len(), 1);
    assert_eq!(*after[0], Entry { standing: Standing::Unverified, ..(*before).clone() });
    agent.pass(MINUTE).await;
    assert_eq!(entries(&agent).await[0].standing, Standing::Unverified);
    let probes = agent.world.prober.probes();
    assert!((5..40).contains(&probes), "{probes} probes in a minute");

    let mut watcher = view(&agent).await.watch(Filter::default());
    assert!(matches!(next(&agent, &mut watcher).await, RegistryUpdate::Snapshot { .. }));
    agent.world.prober.answer("/run/a.sock");
    let Change::Updated(entry) = changed(&agent, &mut watcher).await else { panic!("an update") };
    assert_eq!(*entry, *before);
    // The same life goes on under its number.
    let again = register(&agent, offer("b", "1")).await.unwrap();
    assert_eq!(again.epoch, before.epoch);
    let probes = agent.world.prober.probes();
    agent.pass(HOUR).await;
    assert_eq!(agent.world.prober.probes(), probes, "what is verified is not probed");
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_another_user_took_over_is_not_verified() {
    let mut agent = with_plugin().await;
    register(&agent, offer("a", "1")).await.unwrap();
    agent.world.prober.set_user(4711);
    agent.crash_and_wake().await;
    agent.pass(HOUR).await;
    assert_eq!(entries(&agent).await[0].standing, Standing::Unverified);
}

#[tokio::test(start_paused = true)]
async fn entries_end_with_their_process_and_a_new_one_has_a_higher_epoch() {
    let agent = with_plugin().await;
    let before = register(&agent, offer("a", "1")).await.unwrap();
    register(&agent, offer("b", "1")).await.unwrap();
    let mut watcher = view(&agent).await.watch(Filter::default());
    next(&agent, &mut watcher).await;
    agent.world.launcher.exit("p", ExitCause::Signaled(11));
    for _ in 0..2 {
        let change = changed(&agent, &mut watcher).await;
        assert!(matches!(change, Change::Deregistered(_, Reason::PluginEnded)), "{change:?}");
    }
    assert!(agent.world.storage.keys(Table::Registry).iter().all(|key| key[0] != b'e'));
    agent.until("p runs again", HOUR, |world, _| !world.launcher.alive("p").is_empty()).await;
    let after = register(&agent, offer("a", "1")).await.unwrap();
    assert!(after.epoch > before.epoch && after.order > before.order);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_ends_while_the_agent_is_away_leaves_no_entry_and_watchers_are_told() {
    let mut agent = with_plugin().await;
    register(&agent, offer("a", "1")).await.unwrap();
    agent.crash();
    agent.world.launcher.exit("p", ExitCause::Exited(0));
    agent.wake().await;
    let mut watcher = view(&agent).await.watch(Filter::default());
    match next(&agent, &mut watcher).await {
        RegistryUpdate::Snapshot { entries, .. } if entries.is_empty() => {}
        RegistryUpdate::Snapshot { .. } => {
            let change = changed(&agent, &mut watcher).await;
            assert!(matches!(change, Change::Deregistered(_, Reason::PluginEnded)), "{change:?}");
        }
        RegistryUpdate::Changed(event) => panic!("no snapshot first: {event:?}"),
    }
    agent.pass(SOON).await;
    agent.crash_and_wake().await;
    assert_eq!(entries(&agent).await, []);
}

#[tokio::test(start_paused = true)]
async fn what_the_disk_does_not_take_is_refused_but_an_end_is_shown_all_the_same() {
    let mut agent = with_plugin().await;
    register(&agent, offer("a", "1")).await.unwrap();
    agent.world.storage.set_failing(true);
    let refused = register(&agent, offer("b", "1")).await;
    assert!(matches!(refused, Err(NotRegistered::NotSaved(_))), "{refused:?}");
    let refused = deregister(&agent, offer("a", "1").key().clone()).await;
    assert!(matches!(refused, Err(NotRegistered::NotSaved(_))), "{refused:?}");
    assert_eq!(entries(&agent).await.len(), 1);
    agent.world.launcher.exit("p", ExitCause::Exited(0));
    agent.pass(SOON).await;
    assert_eq!(entries(&agent).await, []);
    agent.world.storage.set_failing(false);
    agent.pass(MINUTE).await;
    agent.crash_and_wake().await;
    assert_eq!(entries(&agent).await, []);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_in_a_registration_has_all_of_it_or_nothing() {
    for point in [CrashPoint::Before, CrashPoint::After] {
        let mut agent = with_plugin().await;
        let commit = agent.world.storage.commits() + 1;
        agent.world.storage.crash_at(commit, point);
        let by = registrant(&agent);
        let offer = offer("a", "1");
        let answered = agent
            .run(|system| {
                let registering = system.registry.send(Register { by, offer });
                async { tokio::time::timeout(SOON, registering).await.is_ok() }
            })
            .await;
        assert!(!answered, "it was answered before it was durable");
        agent.crash_and_wake().await;
        let expected = usize::from(point == CrashPoint::After);
        assert_eq!(entries(&agent).await.len(), expected, "{point:?}");
        // After another try, the entry exists once, with the number of its process.
        let entry = register(&agent, self::offer("a", "1")).await.unwrap();
        assert_eq!(entries(&agent).await.len(), 1);
        assert!(entry.epoch > Epoch(0));
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_it_is_offered_and_a_restarted_agent_waits_for_the_probe() {
    let mut agent = with_plugin().await;
    let offers = view(&agent).await;
    let (kind, name) = (kind(), name("a"));
    let by = registrant(&agent);
    let waited = agent
        .run(|system| {
            let registry = system.registry.clone();
            let offering = async move {
                tokio::time::sleep(MINUTE).await;
                registry.send(Register { by, offer: offer("a", "7") }).await
            };
            let waiting = offers.wait(&kind, &name, None);
            async {
                let (entry, registered) = tokio::join!(waiting, offering);
                registered.unwrap().unwrap();
                entry.unwrap()
            }
        })
        .await;
    assert_eq!(waited.offer.version(), "7");
    agent.world.prober.silence("/run/a.sock");
    agent.crash_and_wake().await;
    let offers = view(&agent).await;
    let in_vain = agent
        .run(|_| async {
            tokio::time::timeout(MINUTE, offers.wait(&kind, &name, None)).await.is_err()
        })
        .await;
    assert!(in_vain, "nobody answers, and nobody is to be told otherwise");
    agent.world.prober.answer("/run/a.sock");
    let found = agent.run(|_| async { offers.wait(&kind, &name, None).await.is_ok() }).await;
    assert!(found);
}

/// The view of a watcher that applies all changes that it receives.
#[derive(Default)]
struct Believer(BTreeMap<Key, Arc<Entry>>, u64);

impl Believer {
    fn believe(&mut self, told: RegistryUpdate) {
        match told {
            RegistryUpdate::Snapshot { entries, sequence } => {
                self.0 = entries.into_iter().map(|entry| (entry.key().clone(), entry)).collect();
                self.1 = sequence;
            }
            RegistryUpdate::Changed(event) => {
                assert_eq!(event.sequence, self.1 + 1, "a gap");
                self.1 = event.sequence;
                let entry = event.change.entry().clone();
                match event.change {
                    Change::Registered(_) | Change::Updated(_) => {
                        self.0.insert(entry.key().clone(), entry);
                    }
                    Change::Deregistered(..) => drop(self.0.remove(entry.key())),
                }
            }
        }
    }

    fn knows(&self, catalogue: &Catalogue) -> bool {
        let filter = Filter::default();
        let all = catalogue.entries(&filter);
        let all: BTreeMap<_, _> = all.map(|entry| (entry.key().clone(), entry.clone())).collect();
        all == self.0 && catalogue.sequence() == self.1
    }
}

#[tokio::test(start_paused = true)]
async fn a_hundred_watchers_as_slow_as_they_like_end_up_knowing_the_same() {
    let agent = with_plugin().await;
    let offers = view(&agent).await;
    let mut watchers: Vec<_> =
        (0..100).map(|_| (offers.watch(Filter::default()), Believer::default())).collect();
    let mut snapshots = 0;
    for round in 0..600_usize {
        let offer = offer(&format!("n{}", round % 7), &round.to_string());
        if round % 11 == 10 {
            deregister(&agent, offer.key().clone()).await.unwrap();
        } else {
            register(&agent, offer).await.unwrap();
        }
        // Watcher number n reads every n-th round, and the last ones not at all.
        for (number, (watcher, believer)) in watchers.iter_mut().enumerate() {
            if number < 90 && round % (number + 1) == 0 {
                let told = next(&agent, watcher).await;
                snapshots += usize::from(matches!(told, RegistryUpdate::Snapshot { .. }));
                believer.believe(told);
            }
        }
    }
    for (watcher, believer) in &mut watchers {
        while offers.look(|catalogue| !believer.knows(catalogue)) {
            let told = next(&agent, watcher).await;
            snapshots += usize::from(matches!(told, RegistryUpdate::Snapshot { .. }));
            believer.believe(told);
        }
    }
    assert!(snapshots > 100, "nobody fell behind, so nothing was shown");
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_about_what_it_asked_for_and_ends_with_the_agent() {
    let mut agent = with_plugin().await;
    let filter = Filter { kind: Some(kind()), name: Some(name("b")) };
    let mut watcher = view(&agent).await.watch(filter);
    assert!(matches!(next(&agent, &mut watcher).await, RegistryUpdate::Snapshot { .. }));
    for version in ["1", "2"] {
        register(&agent, offer("a", version)).await.unwrap();
    }
    register(&agent, offer("b", "3")).await.unwrap();
    let Change::Registered(entry) = changed(&agent, &mut watcher).await else { panic!("new") };
    assert_eq!(entry.offer.version(), "3");
    agent.crash();
    let ended = tokio::time::timeout(Duration::from_secs(1), watcher.next()).await;
    assert!(ended.expect("it ends").is_err());
}

#[tokio::test(start_paused = true)]
async fn unknown_types_are_told_from_unknown_names() {
    let agent = with_plugin().await;
    let key = offer("a", "1").key().clone();
    let unknown = deregister(&agent, key.clone()).await;
    let refused = NotRegistered::Refused(Refusal::UnknownKind(kind())).to_string();
    assert_eq!(unknown.expect_err("nothing was offered").to_string(), refused);
    register(&agent, offer("a", "1")).await.unwrap();
    deregister(&agent, key.clone()).await.unwrap();
    deregister(&agent, key).await.unwrap();
    let found = view(&agent).await.find(&kind(), &name("a"), None);
    assert!(matches!(found, Err(Refusal::UnknownName { .. })), "{found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_makes_no_sense_is_set_aside_and_the_others_come_back() {
    let mut agent = with_plugin().await;
    register(&agent, offer("a", "1")).await.unwrap();
    register(&agent, offer("b", "1")).await.unwrap();
    let keys = agent.world.storage.keys(Table::Registry);
    let torn = keys.iter().find(|key| key.ends_with(b"a\0p")).unwrap().clone();
    agent.crash();
    agent.world.storage.plant(Table::Registry, &torn, &[0xff; 9]);
    agent.wake().await;
    let left = entries(&agent).await;
    assert_eq!(left.iter().map(|entry| entry.key().name.to_string()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(agent.world.storage.aside()[0].1, torn);
}

//! Decides when one-shot plugins run again, and when rules are evaluated again.
//!
//! ```text
//!   Manager ── Seen(view) ──► Scheduler ── Fire, FactsMoved ──► Manager ──► Plugin
//! ```
//!
//! It stores nothing about plugins: the occurrences that a plugin ran for are in the plugin's own
//! state and come with its view, so a trigger may be fired again and again without harm, and after
//! a restart of the agent a missed run is fired once. The one fact it stores is when the instance
//! began, because beats of intervals are counted from there.
//!
//! The wall clock decides the number of the beat, so that beats keep their phase over restarts and
//! while the machine is suspended. Beats that were missed are one run; between two runs is at least
//! half an interval of real time, so that a clock that jumps back and forth makes no burst.
//!
//! Rules themselves are in [`rules`]; what a trigger or a fact does to a plugin is in
//! `plugin/runs.rs`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::prelude::*;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{error, info};

use crate::error::Chain;
use crate::messages::{FactsMoved, Fire, PlanOf, Planned, Save, Seen, TriggerKind, Unseen};
use crate::model::facts::FactSet;
use crate::model::id::{BootId, PluginName};
use crate::model::runs::{Firing, Mark, Marks};
use crate::model::spec::Triggers;
use crate::model::view::PluginView;
use crate::ports::{Ports, Table, Write};

pub mod rules;

/// Key of the instance and its beginning, among the facts.
const INSTANCE: &[u8] = b"instance_began";

/// The longest time between two looks at the clock, which may have been set.
const LOOK: Duration = Duration::from_secs(30);

/// Changes of facts within this time lead to one evaluation.
const FACTS_PAUSE: Duration = Duration::from_millis(100);

/// The receivers of the scheduler's messages.
#[derive(Clone)]
pub struct SchedulerHandles {
    /// Makes the beginning of the instance durable.
    pub store: Recipient<Save>,
    /// Passes triggers on.
    pub fire: Recipient<Fire>,
    /// Has rules evaluated again.
    pub facts_moved: Recipient<FactsMoved>,
}

/// The scheduler's actor.
pub struct SchedulerActor {
    ports: Ports,
    facts: watch::Receiver<Arc<FactSet>>,
    handles: SchedulerHandles,
    /// Unknown until the facts were read.
    calendar: Option<Calendar>,
    plugins: BTreeMap<PluginName, Entry>,
    next_look: Option<SpawnHandle>,
}

/// One plugin that runs to completion.
struct Entry {
    view: Arc<PluginView>,
    /// When a tick was last fired, by the monotonic clock.
    fired: Option<Instant>,
}

/// The occurrences of all triggers. Pure.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Calendar {
    boot: BootId,
    instance: Arc<str>,
    began: SystemTime,
}

// === impl Calendar ===

impl Calendar {
    /// The number of the current beat of an interval.
    fn beat(&self, interval: Duration, now: SystemTime) -> u64 {
        let since = now.duration_since(self.began).unwrap_or_default();
        let beats = since.as_nanos() / interval.as_nanos().max(1);
        u64::try_from(beats).unwrap_or(u64::MAX)
    }

    /// When the next beat begins.
    fn next_beat(&self, interval: Duration, now: SystemTime) -> Option<SystemTime> {
        let beats = u128::from(self.beat(interval, now).checked_add(1)?);
        let nanos = u64::try_from(interval.as_nanos().checked_mul(beats)?).ok()?;
        self.began.checked_add(Duration::from_nanos(nanos))
    }

    /// The triggers for which a plugin has not run yet, beats of its interval apart.
    fn due(&self, triggers: Triggers, marks: &Marks) -> Vec<Firing> {
        let mut due = Vec::new();
        if triggers.startup && marks.startup != Mark::Of(self.boot.clone()) {
            due.push(Firing::Startup(self.boot.clone()));
        }
        if triggers.firstboot && marks.firstboot != Mark::Of(self.instance.clone()) {
            due.push(Firing::FirstBoot(self.instance.clone()));
        }
        due
    }
}

// === impl SchedulerActor ===

impl SchedulerActor {
    /// A scheduler that knows no plugin yet.
    #[must_use]
    pub fn new(ports: Ports, handles: SchedulerHandles) -> Self {
        let facts = ports.facts.watch();
        Self { ports, facts, handles, calendar: None, plugins: BTreeMap::new(), next_look: None }
    }

    /// Looks up when this instance began. The first agent of the instance sets it to now.
    fn read_calendar(&mut self, facts: &[(Vec<u8>, Vec<u8>)], ctx: &mut Context<Self>) {
        let machine = &self.ports.machine;
        let (boot, instance) = (machine.boot_id(), Arc::from(machine.instance_id()));
        let known = facts.iter().find(|(key, _)| key == INSTANCE);
        let began = known.and_then(|(_, value)| read_beginning(value, &instance));
        let began = began.unwrap_or_else(|| {
            let now = self.ports.clock.now();
            info!(%instance, "a new instance begins");
            let value = write_beginning(&instance, now);
            let write = Write::Put { table: Table::Facts, key: INSTANCE.to_vec(), value };
            let save = self.handles.store.send(Save { writes: vec![write], ..Save::default() });
            ctx.spawn(save.into_actor(self).map(|result, _, _| {
                // The next agent process then counts from its own start.
                if let Ok(Err(error)) = result {
                    error!(%error, "cannot remember when this instance began");
                }
            }));
            now
        });
        self.calendar = Some(Calendar { boot, instance, began });
        self.look(ctx);
    }

    /// Fires all triggers that are due, and runs again when the next beat begins.
    fn look(&mut self, ctx: &mut Context<Self>) {
        let Some(calendar) = &self.calendar else { return };
        let now = self.ports.clock.now();
        let mut pause = LOOK;
        for (name, entry) in &mut self.plugins {
            entry.fire(name, calendar, now, &self.handles.fire);
            let next = entry.interval().and_then(|interval| calendar.next_beat(interval, now));
            if let Some(until) = next.and_then(|next| next.duration_since(now).ok()) {
                pause = pause.min(until);
            }
        }
        if let Some(earlier) = self.next_look.take() {
            ctx.cancel_future(earlier);
        }
        // A timer has milliseconds; before the beat there would be nothing to do but wait again.
        let pause = pause.max(Duration::from_millis(1)) + Duration::from_millis(1);
        self.next_look = Some(ctx.run_later(pause, |this, ctx| {
            this.next_look = None;
            this.look(ctx);
        }));
    }

    fn hear_facts(&self, ctx: &mut Context<Self>) {
        let mut facts = self.facts.clone();
        let changed = async move {
            facts.mark_unchanged();
            let changed = facts.changed().await;
            tokio::time::sleep(FACTS_PAUSE).await;
            changed.map(|()| facts)
        };
        ctx.spawn(changed.into_actor(self).map(|changed, this, ctx| {
            // An error means that the port is gone, so the facts cannot change any more.
            if let Ok(facts) = changed {
                this.facts = facts;
                this.handles.facts_moved.do_send(FactsMoved);
                this.hear_facts(ctx);
            }
        }));
    }
}

// === impl Entry ===

impl Entry {
    fn triggers(&self) -> Option<Triggers> {
        self.view.spec.execution.one_shot().map(|one_shot| one_shot.triggers)
    }

    fn interval(&self) -> Option<Duration> {
        self.triggers()?.interval
    }

    /// Fires the triggers for which the plugin has not run yet.
    fn fire(
        &mut self,
        name: &PluginName,
        calendar: &Calendar,
        now: SystemTime,
        recipient: &Recipient<Fire>,
    ) {
        let Some(triggers) = self.triggers() else { return };
        for firing in calendar.due(triggers, &self.view.runs.marks) {
            recipient.do_send(Fire { name: name.clone(), firing });
        }
        let Some(interval) = triggers.interval else { return };
        let beat = calendar.beat(interval, now);
        let makes_it_run = match &self.view.runs.marks.interval {
            Mark::Of(last) if *last == beat => return,
            Mark::Of(last) => beat > *last,
            Mark::Never | Mark::Counted => false,
        };
        if makes_it_run {
            if self.fired.is_some_and(|fired| fired.elapsed() < interval / 2) {
                return;
            }
            self.fired = Some(Instant::now());
        }
        recipient.do_send(Fire { name: name.clone(), firing: Firing::Interval(beat) });
    }
}

impl Actor for SchedulerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(4096);
        self.hear_facts(ctx);
        let storage = self.ports.storage.clone();
        let load = async move { storage.load(Table::Facts).await };
        ctx.spawn(load.into_actor(self).map(|facts, this, ctx| {
            let facts = facts.unwrap_or_else(|error| {
                error!(error = %Chain(&error), "cannot read when this instance began");
                Vec::new()
            });
            this.read_calendar(&facts, ctx);
        }));
    }
}

impl Handler<Seen> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Seen(view): Seen, ctx: &mut Self::Context) {
        let name = view.name.clone();
        let fired = self.plugins.remove(&name).and_then(|before| before.fired);
        self.plugins.insert(name, Entry { view, fired });
        self.look(ctx);
    }
}

impl Handler<Unseen> for SchedulerActor {
    type Result = ();

    fn handle(&mut self, Unseen(name): Unseen, _: &mut Self::Context) {
        self.plugins.remove(&name);
    }
}

impl Handler<PlanOf> for SchedulerActor {
    type Result = MessageResult<PlanOf>;

    fn handle(&mut self, PlanOf(name): PlanOf, _: &mut Self::Context) -> Self::Result {
        let now = self.ports.clock.now();
        let plan = self.plugins.get(&name).zip(self.calendar.as_ref());
        let Some((entry, calendar)) = plan else { return MessageResult(Vec::new()) };
        let triggers = entry.triggers().unwrap_or_default();
        let marks = &entry.view.runs.marks;
        let heeded = |heeded: bool| if heeded { "used" } else { "not used yet" };
        let mut all = Vec::new();
        if triggers.startup {
            let ran = marks.startup == Mark::Of(calendar.boot.clone());
            let last = format!("this boot: {}", heeded(ran));
            all.push(Planned { kind: TriggerKind::Startup, last, next: None });
        }
        if triggers.firstboot {
            let ran = marks.firstboot == Mark::Of(calendar.instance.clone());
            let last = format!("this instance: {}", heeded(ran));
            all.push(Planned { kind: TriggerKind::FirstBoot, last, next: None });
        }
        if let Some(interval) = triggers.interval {
            let last = match &marks.interval {
                Mark::Of(beat) => format!("tick {beat} of the instance: used"),
                Mark::Counted | Mark::Never => "no tick was used yet".to_owned(),
            };
            let next = calendar.next_beat(interval, now);
            all.push(Planned { kind: TriggerKind::Interval(interval), last, next });
        }
        MessageResult(all)
    }
}

/// The record of an instance's beginning: the time in nanoseconds, then the instance.
fn write_beginning(instance: &str, began: SystemTime) -> Vec<u8> {
    let since = began.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{} {instance}", since.as_nanos()).into_bytes()
}

/// The beginning, if the record is of this instance.
fn read_beginning(record: &[u8], instance: &str) -> Option<SystemTime> {
    let (nanos, of) = std::str::from_utf8(record).ok()?.split_once(' ')?;
    let since = Duration::from_nanos(nanos.parse().ok()?);
    (of == instance).then(|| SystemTime::UNIX_EPOCH.checked_add(since))?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(n: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(n)
    }

    fn calendar() -> Calendar {
        Calendar { boot: BootId("b".into()), instance: "i".into(), began: second(1_000) }
    }

    #[test]
    fn beats_are_counted_from_the_beginning_of_the_instance() {
        let (calendar, minute) = (calendar(), Duration::from_secs(60));
        assert_eq!(calendar.beat(minute, second(1_059)), 0);
        assert_eq!(calendar.beat(minute, second(1_060)), 1);
        assert_eq!(calendar.next_beat(minute, second(1_060)), Some(second(1_120)));
        // A clock that was set to before the instance began.
        assert_eq!(calendar.beat(minute, second(5)), 0);
        assert_eq!(calendar.next_beat(minute, second(5)), Some(second(1_060)));
        // No value of the clock makes it overflow.
        let year = Duration::from_secs(366 * 24 * 3600);
        assert_eq!(calendar.next_beat(year, second(1 << 60)), None);
    }

    #[test]
    fn a_trigger_is_due_until_it_was_heeded() {
        let calendar = calendar();
        let triggers = Triggers { startup: true, firstboot: true, interval: None };
        let mut marks = Marks::default();
        let startup = Firing::Startup(BootId("b".into()));
        let firstboot = Firing::FirstBoot("i".into());
        assert_eq!(calendar.due(triggers, &marks), [startup, firstboot.clone()]);
        marks.startup = Mark::Of(BootId("b".into()));
        assert_eq!(calendar.due(triggers, &marks), [firstboot]);
        marks.firstboot = Mark::Of("i".into());
        assert_eq!(calendar.due(triggers, &marks), []);
        assert_eq!(calendar.due(Triggers::default(), &Marks::default()), []);
    }

    #[test]
    fn the_beginning_of_another_instance_does_not_count() {
        let record = write_beginning("here", second(77));
        assert_eq!(read_beginning(&record, "here"), Some(second(77)));
        assert_eq!(read_beginning(&record, "elsewhere"), None);
        for damaged in [&b""[..], b"77", b"x here", b"\xff here", b"-1 here"] {
            assert_eq!(read_beginning(damaged, "here"), None);
        }
    }
}

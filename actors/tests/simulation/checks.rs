//! What has to hold when all trouble is over, and again after one more round of orders without any.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use guest_agent_actors::messages::{Listed, NumberedOrder, Submission};
use guest_agent_actors::model::act::Act;
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::model::view::{Activity, PluginView, Reported};
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::State;
use guest_agent_actors::ports::Table;

use super::fate::show;
use super::orders::{self, ALL, BYSTANDER, Install, Nature, nature};
use super::run::Run;
use super::story;

/// An installation that never answers is given up after 15 minutes and what its order says.
/// Everything else is faster, but may have to happen before or after it.
const CONVERGES_WITHIN: Duration = Duration::from_secs(2 * 3600);

/// Within this, every deadline of a plugin that flaps or hangs in its start has passed, and the
/// agent has reported the outcome of its order: 30 s for the start, and 90 s for an adapter that
/// ignores it.
const LAST_DEADLINES: Duration = Duration::from_secs(150);

/// Whether all is as it should be; if not, what is not.
type Verdict = Result<(), String>;

/// What was last ordered of a plugin, by the orders that were taken.
#[derive(Clone, Debug)]
enum Desired {
    Nothing,
    Installed {
        revision: String,
        order: u64,
        last_apply: Option<u64>,
    },
    /// It depends on how far an order was when a hold came.
    Unknown,
}

// === impl Run: the end ===

impl Run {
    pub(crate) async fn check_end(&mut self) {
        self.converge("after the trouble", Self::has_converged).await;
        if self.is_over() {
            return;
        }
        self.pass(LAST_DEADLINES).await;
        let released = self.agent.submit(Submission::AskedOfAll(Act::Release)).await;
        self.demand(released.map(drop).map_err(|error| format!("no hold can end: {error}")));
        self.pass(LAST_DEADLINES).await;
        self.converge("after the release", Self::has_converged).await;
        self.check_messages();
        self.check_numbers();
        self.check_events();
        self.check_outcomes().await;
        self.check_bystander();
        if self.is_over() {
            return;
        }
        self.check_last_round().await;
    }

    fn is_over(&self) -> bool {
        !self.doom.ledger().violations.is_empty()
    }

    fn demand(&self, verdict: Verdict) {
        if let Err(what) = verdict {
            self.doom.ledger().violated(what);
        }
    }

    async fn converge(&mut self, when: &str, holds: fn(&Self, &[Listed]) -> Verdict) {
        let mut waited = Duration::ZERO;
        loop {
            let listed = self.agent.list().await;
            let Err(why) = holds(self, &listed) else { return };
            if waited > CONVERGES_WITHIN {
                return self.demand(Err(format!("does not converge {when}: {why}")));
            }
            if self.is_over() {
                return;
            }
            let pause = (waited / 10).max(Duration::from_secs(1)).min(Duration::from_secs(60));
            waited += pause;
            self.pass(pause).await;
        }
    }

    fn has_converged(&self, listed: &[Listed]) -> Verdict {
        let ledger = self.doom.ledger();
        for message in &self.server.messages {
            if !ledger.acknowledged.contains(&message.id) {
                return Err(format!("{} is not acknowledged", message.id));
            }
        }
        if self.server.is_sending() {
            return Err("frames are on their way".to_owned());
        }
        for plugin in listed {
            let view = &plugin.view;
            // It dies soon whenever it is started, and is started again for ever.
            let flaps = nature(view.revision.as_str()) == Nature::Dies
                && matches!(view.state, Reported::Starting | Reported::Running | Reported::Crashed)
                && view.pending.as_ref().is_none_or(|pending| !pending.error.is_empty());
            if view.activity != Activity::Settled && !flaps {
                return Err(format!("{} is busy: {view:?}", view.name));
            }
        }
        let storage = &self.agent.world.storage;
        let keys = |table| storage.keys(table);
        if !keys(Table::Inbox).is_empty() {
            return Err(format!("the inbox has {:?}", keys(Table::Inbox)));
        }
        if !keys(Table::Outbox).is_empty() {
            return Err(format!("the outbox has {:?}", keys(Table::Outbox)));
        }
        let names: Vec<Vec<u8>> =
            listed.iter().map(|plugin| plugin.view.name.as_str().into()).collect();
        if keys(Table::Plugins) != names {
            return Err("there are records without plugins, or plugins without records".to_owned());
        }
        if self.is_on_probation() {
            return Err("a revision is on probation".to_owned());
        }
        Ok(())
    }

    /// Whether an old revision is kept beside one that runs. The trial of one that a person stopped waits.
    fn is_on_probation(&self) -> bool {
        let storage = &self.agent.world.storage;
        let records = storage.keys(Table::Plugins).into_iter();
        let records = records.filter_map(|key| storage.read(Table::Plugins, &key));
        let mut snapshots = records.filter_map(|bytes| Snapshot::decode(&bytes).ok());
        let waits = |state: &State| state.person.stopped.is_some();
        snapshots.any(|snapshot| snapshot.state.trial.is_some() && !waits(&snapshot.state))
    }

    /// Nothing was acknowledged before it was durable, and nothing was carried out twice.
    fn check_messages(&self) {
        let ledger = self.doom.ledger();
        let mut wrong = Vec::new();
        for message in &self.server.messages {
            let decoded = guest_agent_actors::wire::decode_orders(
                &message.body,
                guest_agent_actors::model::origin::Origin::ControlPlane,
            );
            let has_orders = decoded.expect("orders").iter().any(Result::is_ok);
            let taken = ledger.taken.get(&message.body).copied().unwrap_or_default();
            // A newer one was taken, or was refused for what it says.
            let is_outdated = message.number.as_ref().is_some_and(|(plugin, number)| {
                ledger.numbers.get(plugin).is_some_and(|newest| newest > number)
            });
            if has_orders && taken == 0 && !is_outdated {
                wrong.push(format!("{} was acknowledged and never durable", message.id));
            }
            let most = message.arrived.borrow().values().copied().max().unwrap_or_default();
            let may_forget = self.deeds.clock_jumps > 0 || self.deeds.facts_torn;
            if taken > most && !may_forget {
                let arrived = message.arrived.borrow();
                wrong.push(format!("{} was taken {taken} times; it came {arrived:?}", message.id));
            }
        }
        for number in self.submitted() {
            if !ledger.accepted.contains_key(&number) {
                wrong.push(format!("order {number} was answered as durable and was not"));
            }
        }
        drop(ledger);
        wrong.into_iter().for_each(|what| self.demand(Err(what)));
    }

    /// No order of a fleet was taken after a newer one for its plugin.
    fn check_numbers(&self) {
        if self.deeds.facts_torn {
            return;
        }
        let ledger = self.doom.ledger();
        let numbered: BTreeMap<_, _> =
            self.server.messages.iter().map(|it| (&it.body, it)).collect();
        let (mut newest, mut wrong) = (BTreeMap::<&str, u64>::new(), Vec::new());
        for message in ledger.bodies.iter().filter_map(|body| numbered.get(body)) {
            let Some((plugin, number)) = &message.number else { continue };
            let newest = newest.entry(plugin).or_default();
            if number < newest {
                wrong.push(format!(
                    "{} is number {number} for {plugin}, after {newest}",
                    message.id
                ));
            }
            *newest = *number.max(newest);
        }
        drop(ledger);
        wrong.into_iter().for_each(|what| self.demand(Err(what)));
    }

    /// Every event was told, in the order in which it was recorded, and the stories make sense.
    fn check_events(&self) {
        let ledger = self.doom.ledger();
        let mut wrong = Vec::new();
        for (id, (life, seq, plugin)) in &ledger.recorded {
            if !ledger.heard.contains_key(id) && !self.deeds.torn.contains(id) {
                wrong.push(format!("event {seq} of agent {life} about {plugin} was never told"));
            }
        }
        for (plugin, told) in &ledger.told {
            let places: Vec<_> =
                told.iter().filter_map(|told| ledger.recorded.get(&told.id)).collect();
            let places: Vec<_> = places.iter().map(|(life, seq, _)| (life, seq)).collect();
            if !places.is_sorted() {
                wrong.push(format!("events of {plugin} were told out of order: {places:?}"));
            }
            if self.deeds.untold.contains(plugin) || self.deeds.lost.contains(plugin) {
                continue;
            }
            let none = BTreeSet::new();
            let refusals = self.refusals.get(plugin).unwrap_or(&none);
            if let Err(why) = story::check(told, refusals) {
                wrong.push(format!("the story of {plugin}: {why}: {}", numbers_of(told)));
            }
            for (revision, count) in count(told, 4) {
                let key = (plugin.clone(), revision.clone());
                let started = ledger.started.get(&key).copied().unwrap_or_default();
                if count > started {
                    wrong.push(format!(
                        "{plugin} {revision} was told {count} times as started, and was {started} times"
                    ));
                }
            }
            let trouble =
                told.iter().find(|told| matches!(told.number, 7 | 9) && !told.revision.is_empty());
            let nature_is_good = told
                .iter()
                .all(|told| matches!(nature(&told.revision), Nature::Good | Nature::CannotApply));
            if let Some(trouble) = trouble
                && nature_is_good
                && !ledger.harmed.contains(plugin)
                && self.deeds.reboots == 0
            {
                wrong.push(format!("nothing was done to {plugin}, but it was told {trouble:?}"));
            }
        }
        drop(ledger);
        wrong.into_iter().for_each(|what| self.demand(Err(what)));
    }

    /// Every plugin is in the state of its last order, or its failure was reported.
    async fn check_outcomes(&self) {
        let listed = self.agent.list().await;
        let mut wrong = Vec::new();
        for name in &self.plugins {
            let view = listed.iter().map(|plugin| &*plugin.view).find(|v| v.name.as_str() == name);
            if let Err(why) = self.is_real(name, view) {
                wrong.push(why);
            }
            if self.deeds.lost.contains(name) || self.deeds.untold.contains(name) {
                continue;
            }
            if let Err(why) = self.is_as_ordered(name, view) {
                wrong.push(why);
            }
        }
        wrong.into_iter().for_each(|what| self.demand(Err(what)));
    }

    /// What is shown of a plugin is what there is of it.
    fn is_real(&self, name: &str, view: Option<&PluginView>) -> Verdict {
        let ledger = self.doom.ledger();
        let process = ledger.processes.get(name);
        let world = &self.agent.world;
        let Some(view) = view else {
            let files = world.installer.on_disk(name);
            let remains = !files.is_empty() && !self.deeds.lost.contains(name);
            return if process.is_some() || remains {
                Err(format!("{name} is gone, but there is {process:?} {files:?}"))
            } else {
                Ok(())
            };
        };
        match (view.state, process) {
            (Reported::Running, Some(process)) => {
                let hash =
                    process.config.as_ref().map(guest_agent_actors::model::spec::Config::digest);
                if view.pid != Some(process.pid) || view.revision != process.spec.revision {
                    Err(format!("{name} is shown as {view:?}, and {process:?} runs"))
                } else if view.config_hash != hash {
                    let config = show(process.config.as_ref());
                    Err(format!("{name} has {config}, which is not what is reported"))
                } else if world.installer.current(name).as_deref() != Some(view.revision.as_str()) {
                    Err(format!("{name} {} runs and is not current", view.revision))
                } else {
                    Ok(())
                }
            }
            (Reported::Running, None) if nature(view.revision.as_str()) != Nature::Dies => {
                Err(format!("{name} is shown as running, and does not"))
            }
            (Reported::InstallFailed, Some(process)) => {
                Err(format!("{name} is shown as {:?}, and {process:?} runs", view.state))
            }
            _ => Ok(()),
        }
    }

    /// What the orders leave wanted, but for those that a hold makes wait.
    fn desired(&self, name: &str) -> Desired {
        let ledger = self.doom.ledger();
        let (mut desired, mut held) = (Desired::Nothing, Held::default());
        for order in orders_for(&ledger.in_order, name) {
            let Some(order) = held.next(order) else { continue };
            let number = order.generation.0;
            match (&order.order, &mut desired) {
                (Order::Install(spec), _) => {
                    let revision = spec.revision.to_string();
                    desired = Desired::Installed { revision, order: number, last_apply: None };
                }
                (Order::Remove, _) => desired = Desired::Nothing,
                (Order::Apply(_), Desired::Installed { last_apply, .. }) => {
                    *last_apply = Some(number);
                }
                (Order::Apply(_) | Order::Restart | Order::Asked(_), _) => {}
            }
        }
        if held.is_uncertain { Desired::Unknown } else { desired }
    }

    /// Whether a person stopped the plugin and nobody started it since.
    fn is_stopped(&self, name: &str) -> bool {
        let ledger = self.doom.ledger();
        let (mut stopped, mut held) = (false, Held::default());
        for order in orders_for(&ledger.in_order, name) {
            let Some(order) = held.next(order) else { continue };
            match &order.order {
                Order::Asked(Act::Stop(_)) => stopped = true,
                Order::Asked(Act::Start) | Order::Remove => stopped = false,
                Order::Install(_)
                | Order::Apply(_)
                | Order::Restart
                | Order::Asked(
                    Act::Rollback(_)
                    | Act::Hold(_)
                    | Act::Release
                    | Act::Dismiss { .. }
                    | Act::Limit(_),
                ) => {}
            }
        }
        stopped
    }

    /// The limits that a person gave the plugin; `None` where it may have been gone when the person did.
    fn limits(&self, name: &str) -> Option<Limits> {
        let ledger = self.doom.ledger();
        let (mut limits, mut held, mut is_there) =
            (Some(Limits::default()), Held::default(), false);
        for order in orders_for(&ledger.in_order, name) {
            let Some(order) = held.next(order) else { continue };
            match &order.order {
                Order::Install(_) => is_there = true,
                Order::Remove => (limits, is_there) = (Some(Limits::default()), false),
                Order::Asked(Act::Limit(given)) => {
                    let given = given.as_ref().map(|given| given.limits).unwrap_or_default();
                    limits = (is_there && held.waits.is_none()).then_some(given);
                }
                Order::Apply(_)
                | Order::Restart
                | Order::Asked(
                    Act::Stop(_)
                    | Act::Start
                    | Act::Rollback(_)
                    | Act::Hold(_)
                    | Act::Release
                    | Act::Dismiss { .. },
                ) => {}
            }
        }
        limits.filter(|_| !held.is_uncertain)
    }

    fn is_as_ordered(&self, name: &str, view: Option<&PluginView>) -> Verdict {
        let desired = self.desired(name);
        let (revision, order, last_apply) = match (desired, view) {
            (Desired::Unknown, _) => return Ok(()),
            (Desired::Nothing, None) => return Ok(()),
            (Desired::Nothing, Some(view)) => {
                return Err(format!("{name} was to be removed, and is there: {view:?}"));
            }
            (Desired::Installed { revision, .. }, None) => {
                return Err(format!("{name} was to run {revision}, and is not there"));
            }
            (Desired::Installed { revision, order, last_apply }, Some(_)) => {
                (revision, order, last_apply)
            }
        };
        let view = view.expect("it was just seen");
        // A stop of a plugin that was not there stopped nothing.
        if self.is_stopped(name) && view.state == Reported::Stopped {
            return Ok(());
        }
        let limits = self.limits(name);
        let ledger = self.doom.ledger();
        let told = ledger.told.get(name).map(Vec::as_slice).unwrap_or_default();
        let asked = told.iter().rposition(|t| t.number == 1 && t.revision == revision);
        let since = asked.map(|asked| &told[asked..]).unwrap_or_default();
        let has = |number| since.iter().any(|t| t.number == number && t.revision == revision);
        if !has(3) && !has(8) {
            return Err(format!("what became of {name} {revision} was never told"));
        }
        if has(8) {
            // The failure was reported; an older revision may run, or none.
            return Ok(());
        }
        if view.revision.as_str() != revision {
            return Err(format!("{name} was to run {revision}, and there is {view:?}"));
        }
        // What was installed while a person had it stopped is started for the first time by that
        // person, and its failure is the end of that start and not of the order.
        let number = |n: i32| since.iter().position(|t| t.number == n && t.revision == revision);
        let unstarted = number(4).is_none() && number(9) > number(3);
        if view.state == Reported::Crashed && unstarted {
            return Ok(());
        }
        let flaps = nature(&revision) == Nature::Dies;
        if view.state != Reported::Running && !flaps {
            return Err(format!("{name} {revision} was installed, and is {:?}", view.state));
        }
        let mut latest = ledger.in_order.iter().rev();
        let found = latest.find(|it| it.generation.0 == order && it.name.as_str() == name);
        let Some(Order::Install(spec)) = found.map(|found| &found.order) else {
            return Err("orders do not change".to_owned());
        };
        let Some(process) = ledger.processes.get(name) else { return Ok(()) };
        let own = view.limit_override.as_ref().map(|own| own.limits).unwrap_or_default();
        if process.spec.arguments != spec.arguments || process.spec.limits != own.or(spec.limits) {
            return Err(format!(
                "{name} was started as {:?}, and {spec:?} was ordered, with {own:?} of its owner",
                process.spec
            ));
        }
        if limits.is_some_and(|limits| limits != own) {
            return Err(format!("{name} has limits of its owner that nobody ordered: {own:?}"));
        }
        if last_apply.is_none() && process.config != spec.config {
            let (has, wanted) = (show(process.config.as_ref()), show(spec.config.as_ref()));
            return Err(format!("{name} has {has} and was to have {wanted}"));
        }
        Ok(())
    }

    /// No order named it, so it never changed.
    fn check_bystander(&self) {
        let ledger = self.doom.ledger();
        let told = ledger.told.get(BYSTANDER).map(Vec::as_slice).unwrap_or_default();
        let numbers: Vec<i32> = told.iter().map(|told| told.number).collect();
        let spoiled = self.deeds.untold.contains(BYSTANDER) || self.deeds.disk_faults;
        let restarts = numbers.iter().skip(3).filter(|number| **number == 4).count() as u64;
        let expected = numbers.starts_with(&[1, 4, 3])
            // A process that had not started yet when the agent died is stopped.
            && numbers[3..].iter().all(|number| matches!(number, 4 | 6))
            && restarts <= self.deeds.reboots;
        let alive = ledger.processes.contains_key(BYSTANDER);
        drop(ledger);
        if !alive {
            self.demand(Err("the bystander does not run".to_owned()));
        }
        if !spoiled && !expected {
            self.demand(Err(format!("nobody touched the bystander, and it was told {numbers:?}")));
        }
    }

    /// A person lets a plugin run again.
    async fn start(&mut self, name: &str) {
        let name = name.parse().expect("a name");
        let submission = Submission::Asked(name, Act::Start);
        let started = self.agent.submit(submission).await;
        self.demand(started.map(drop).map_err(|error| format!("nobody can start it: {error}")));
    }

    /// Without trouble everything ends exactly as ordered.
    async fn check_last_round(&mut self) {
        self.doom.log("THE LAST ROUND");
        let names = self.plugins.clone();
        let listed = self.agent.list().await;
        let stopped: Vec<_> =
            listed.iter().filter(|plugin| plugin.view.stopped.is_some()).collect();
        for plugin in &stopped {
            self.start(plugin.view.name.as_str()).await;
        }
        if !stopped.is_empty() {
            // What such a start leads to ends before the round begins.
            self.pass(LAST_DEADLINES).await;
            self.converge("after the starts", Self::has_converged).await;
        }
        let before: BTreeMap<String, usize> = {
            let ledger = self.doom.ledger();
            names.iter().map(|n| (n.clone(), ledger.told.get(n).map_or(0, Vec::len))).collect()
        };
        let mut last = Install::of("g9");
        last.config = Some("the last one");
        let number = self.next_number();
        let all = names.iter().map(|name| orders::install(name, &last, number)).collect();
        self.server.order(orders::encoded(all));
        self.converge("in the last round", Self::runs_the_last).await;
        let number = self.next_number();
        let all = names.iter().map(|name| orders::apply(name, Some("the very last"), number));
        self.server.order(orders::encoded(all.collect()));
        self.converge("in the last round", Self::has_converged).await;
        let listed = self.agent.list().await;
        for name in &names {
            let view = listed.iter().map(|plugin| &*plugin.view).find(|v| v.name.as_str() == name);
            self.demand(self.is_real(name, view));
            self.demand(self.is_as_ordered(name, view));
            let ledger = self.doom.ledger();
            let told = ledger.told.get(name).map(Vec::as_slice).unwrap_or_default();
            let fresh = &told[before[name]..];
            let story = story::check(fresh, &BTreeSet::new());
            let numbers = numbers_of(fresh);
            let applied = fresh.iter().any(|told| told.number == 12);
            drop(ledger);
            // What an upgrade of before lets go is told late.
            if let Err(why) = story {
                self.demand(Err(format!("the last round of {name}: {why}: {numbers}")));
            }
            if !applied {
                self.demand(Err(format!("{name} was not told as applied in the last round")));
            }
        }
        if self.is_over() {
            return;
        }
        let number = self.next_number();
        let all = names.iter().map(|name| orders::remove(name, number)).collect();
        self.server.order(orders::encoded(all));
        self.converge("after all was removed", Self::only_the_bystander_is_left).await;
        self.check_events();
        self.check_bystander();
    }

    fn runs_the_last(&self, listed: &[Listed]) -> Verdict {
        self.has_converged(listed)?;
        for name in &self.plugins {
            let view = listed.iter().map(|plugin| &plugin.view).find(|v| v.name.as_str() == name);
            match view {
                Some(view) if view.revision.as_str() == "g9" && view.state == Reported::Running => {
                }
                other => return Err(format!("{name} does not run g9: {other:?}")),
            }
        }
        Ok(())
    }

    fn only_the_bystander_is_left(&self, listed: &[Listed]) -> Verdict {
        self.has_converged(listed)?;
        let processes: Vec<String> = self.doom.ledger().processes.keys().cloned().collect();
        if listed.len() != 1 || processes != [BYSTANDER] {
            return Err(format!("there are {} plugins and {processes:?}", listed.len()));
        }
        for name in &self.plugins {
            let files = self.agent.world.installer.on_disk(name);
            if !files.is_empty() {
                return Err(format!("{name} left {files:?}"));
            }
        }
        Ok(())
    }
}

/// The orders for a plugin, in sequence, those for all of them included.
fn orders_for<'a>(
    all: &'a [NumberedOrder],
    name: &'a str,
) -> impl Iterator<Item = &'a NumberedOrder> {
    all.iter().filter(move |order| [name, ALL].contains(&order.name.as_str()))
}

/// What a hold does with a sequence of orders.
#[derive(Default)]
struct Held<'a> {
    is_held: bool,
    waits: Option<&'a NumberedOrder>,
    /// Whether what is wanted depends on how far an order was when the hold came.
    is_uncertain: bool,
}

impl<'a> Held<'a> {
    /// The order that is carried out when this one comes, if one is.
    fn next(&mut self, order: &'a NumberedOrder) -> Option<&'a NumberedOrder> {
        match &order.order {
            Order::Asked(Act::Hold(_)) => {
                self.is_held = true;
                None
            }
            Order::Asked(Act::Release) => {
                self.is_held = false;
                let waits = self.waits.take();
                if waits.is_some_and(|order| !matches!(order.order, Order::Apply(_))) {
                    self.is_uncertain = false;
                }
                waits
            }
            Order::Install(_) | Order::Remove | Order::Apply(_) if self.is_held => {
                // It takes the place of one that may have waited since the hold came.
                self.is_uncertain |= matches!(order.order, Order::Apply(_));
                self.waits = Some(order);
                None
            }
            Order::Install(_) | Order::Remove => {
                self.is_uncertain = false;
                Some(order)
            }
            Order::Apply(_) | Order::Restart | Order::Asked(_) => Some(order),
        }
    }
}

fn count(told: &[story::Told], number: i32) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for told in told.iter().filter(|told| told.number == number) {
        *counts.entry(told.revision.clone()).or_default() += 1;
    }
    counts
}

fn numbers_of(told: &[story::Told]) -> String {
    let numbers = told.iter().map(|told| format!("{}({})", told.number, told.revision));
    numbers.collect::<Vec<_>>().join(" ")
}

//! Looks at what an agent has: for its orders, for drift, and for decisions.

use std::collections::BTreeMap;

use guest_fleet_core::desired::{Agent, ordered};
use guest_fleet_core::drift::Lack;
use guest_fleet_core::journal::{Observed, Told};
use tokio::time::Instant;

use super::AgentTask;
use super::journal::SaveError;
use super::looks::Source;
use super::reported;
use crate::orders::observed::is_contradicted;

// === impl AgentTask ===

impl AgentTask {
    /// Takes a list in once it is certain that no report follows.
    pub(super) async fn observe_list(&mut self, now: Instant) -> Result<(), SaveError> {
        let listed_at = self.told.listed_at();
        let is_known = self.told.known_at().is_some_and(|at| at <= now);
        let is_new = is_known && self.observed_at != listed_at;
        if is_new && self.told.plugins(now).is_some() {
            self.observe(Source::List).await?;
            if let Some(states) = self.told.listed() {
                let architecture = self.told.agent(&self.record).architecture;
                self.keep(reported::of_list(states, &architecture)).await;
            }
            self.observed_at = listed_at;
        }
        Ok(())
    }

    /// Takes into the journal what a report or a list says of all plugins.
    pub(super) async fn observe(&mut self, source: Source) -> Result<(), SaveError> {
        let Some(plugins) = self.told.plugins(Instant::now()) else { return Ok(()) };
        let now = self.shared.settings.environment.wall();
        let drifted = self.look(&plugins, source);
        let told = &self.told;
        self.journal
            .change(|journal| {
                let mut changed = false;
                for plugin in journal.names() {
                    let Some(observed) = told.plugin(Some(&plugins), &plugin) else { continue };
                    changed |= journal.told(&plugin, &Told::Listed(&observed), now);
                    if let Some(lack) = drifted.get(&plugin) {
                        changed |= journal.drifted(&plugin, lack, now);
                    }
                }
                changed
            })
            .await
    }

    /// Looks whether the agent lacks what its orders brought; returns what is certain, by plugin.
    fn look(
        &mut self,
        plugins: &BTreeMap<String, Observed>,
        source: Source,
    ) -> BTreeMap<String, Lack> {
        let mut drifted = BTreeMap::new();
        let is_report = self.told.has_report();
        // Such a list may be from before the report.
        if is_report && source == Source::OtherList {
            return drifted;
        }
        let at = (Instant::now(), self.shared.settings.drift_apart);
        let (journal, told) = (&self.journal, &self.told);
        let leaves_out = told.leaves_out();
        let is_by_list = is_report && source == Source::List;
        let list = if is_by_list { told.last_list() } else { None };
        for plugin in journal.names() {
            let Some(observed) = told.plugin(Some(plugins), plugin) else { continue };
            if leaves_out && !plugins.contains_key(plugin) {
                continue;
            }
            let order = journal.entry(plugin).order;
            let target = order.as_ref().map(|order| &order.target);
            if let (Some(list), Some(target)) = (&list, target)
                && is_contradicted(list.get(plugin), &observed, target)
            {
                self.looks.forget(plugin);
                continue;
            }
            if let Some(lack) = self.looks.look(plugin, order.as_ref(), &observed, at) {
                let agent = &self.session.resource;
                tracing::warn!(%agent, plugin, ?lack, "the agent lacks what its order brought");
                drifted.insert(plugin.to_owned(), lack);
            }
        }
        drifted
    }

    /// The agent as decisions see it.
    pub(super) fn decided_on(&self, now: Instant) -> Agent {
        let mut agent = self.told.agent(&self.record);
        let found = self.told.plugins(now).unwrap_or_default();
        let (journal, wall) = (&self.journal, self.shared.settings.environment.wall());
        let orders = journal.ordered().map(|(plugin, ordered)| {
            let found = found.get(&plugin);
            // Of what an order brought that the journal does not know, the agent alone tells.
            let newer =
                found.filter(|it| journal.entry(&plugin).unknown_generation(it, wall).is_some());
            (plugin, ordered.outdated(newer.map(Observed::target)))
        });
        let there = found.iter().filter(|(_, found)| !found.is_local);
        let there =
            there.filter_map(|(plugin, found)| Some((plugin.clone(), found.revision.clone()?)));
        agent.ordered = ordered(there, orders);
        agent
    }
}

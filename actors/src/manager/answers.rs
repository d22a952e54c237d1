//! What the manager answers from its roster: lists of plugins, explanations, what plugins use and
//! need.
//!
//! The first lists after a start wait until each plugin of an earlier life has found out whether
//! its process still lives, for [`RECONCILE_WAIT`] at most: until then its view is the one of
//! before, and a plugin that died meanwhile would be listed as running.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::{oneshot, watch};

use super::{Entry, Lists, ManagerActor};
use crate::messages::{
    CountInbox, Explain, ExplainYourself, Explained, HowLong, ListPlugins, ListReferences,
    ListUsage, ListViews, Listed,
};
use crate::model::id::PluginName;
use crate::plugin::at_most::at_most;
use crate::ports::References;

/// Longest that a list waits for plugins of an earlier life to find their processes. All look at
/// the same time.
const RECONCILE_WAIT: Duration = Duration::from_secs(2);

// === impl ManagerActor: answers ===

impl ManagerActor {
    /// Lists are answered when the plugins of an earlier life know whether they run.
    pub(super) fn begin_to_answer(
        &mut self,
        lists: Vec<oneshot::Sender<Vec<Listed>>>,
        ctx: &mut Context<Self>,
    ) {
        self.lists = Lists::Reconciling { lists };
        if self.reconciling.is_empty() {
            self.answer_lists();
        } else {
            ctx.run_later(RECONCILE_WAIT, |this, _| this.answer_lists());
        }
    }

    /// A plugin of an earlier life knows whether it runs, or is gone.
    pub(super) fn reconciled(&mut self, name: &PluginName) {
        if self.reconciling.remove(name) && self.reconciling.is_empty() {
            self.answer_lists();
        }
    }

    /// Answers the lists that waited. Later ones do not wait.
    pub(super) fn answer_lists(&mut self) {
        let Lists::Reconciling { lists } = &mut self.lists else { return };
        let lists = std::mem::take(lists);
        self.lists = Lists::Answered;
        for list in lists {
            drop(list.send(self.list()));
        }
    }

    /// The names on the roster, as others may look at them.
    #[must_use]
    pub fn there(&self) -> watch::Receiver<Option<BTreeSet<PluginName>>> {
        self.there.subscribe()
    }

    /// Moves whenever the roster does, for the report to a fleet.
    pub(crate) fn moves_for_report(&self) -> watch::Receiver<u64> {
        self.version_for_report.subscribe()
    }

    /// The plugins of an earlier agent process are all back.
    pub(super) fn show_all(&self) {
        self.there.send_replace(Some(self.roster.keys().cloned().collect()));
    }

    pub(super) fn show_there(&self, name: &PluginName) {
        self.there.send_if_modified(|there| {
            there.as_mut().is_some_and(|there| there.insert(name.clone()))
        });
    }

    pub(super) fn show_gone(&self, name: &PluginName) {
        self.there.send_if_modified(|there| there.as_mut().is_some_and(|there| there.remove(name)));
    }

    pub(super) fn list(&self) -> Vec<Listed> {
        let listed = |entry: &Entry| Listed {
            view: entry.view.clone(),
            points: entry.points.iter().copied().collect(),
            sampled: entry.sampled,
            newest: entry.newest,
            refusal: self.machine.told.get(entry.view.name.as_str()).cloned(),
        };
        self.roster.values().filter(|entry| entry.retired.is_none()).map(listed).collect()
    }
}

impl Handler<Explain> for ManagerActor {
    type Result = ResponseFuture<Option<Explained>>;

    fn handle(&mut self, Explain(name): Explain, _: &mut Self::Context) -> Self::Result {
        let entry = self.roster.get(&name).filter(|entry| entry.retired.is_none());
        let asked = entry.map(|entry| (entry.address.send(ExplainYourself), entry.newest));
        let refusal = self.machine.told.get(name.as_str()).cloned();
        Box::pin(async move {
            let (asked, newest) = asked?;
            Some(Explained { explanation: asked.await.ok()?, newest, refusal })
        })
    }
}

impl Handler<HowLong> for ManagerActor {
    type Result = MessageResult<HowLong>;

    fn handle(&mut self, HowLong(orders): HowLong, _: &mut Self::Context) -> Self::Result {
        let of = |(name, order): &(PluginName, _)| {
            let entry = self.roster.get(name).filter(|entry| entry.retired.is_none());
            at_most(order, entry.map(|entry| &*entry.view), &self.policy)
        };
        MessageResult(orders.iter().map(of).collect())
    }
}

impl Handler<CountInbox> for ManagerActor {
    type Result = usize;

    fn handle(&mut self, _: CountInbox, _: &mut Self::Context) -> Self::Result {
        self.open.values().map(BTreeMap::len).sum()
    }
}

impl Handler<ListPlugins> for ManagerActor {
    type Result = ResponseFuture<Vec<Listed>>;

    fn handle(&mut self, _: ListPlugins, _: &mut Self::Context) -> Self::Result {
        match &mut self.lists {
            Lists::Answered => {
                let list = self.list();
                Box::pin(async move { list })
            }
            Lists::Held { lists, .. } | Lists::Reconciling { lists } => {
                let (answer, answered) = oneshot::channel();
                lists.push(answer);
                // Dropped only with this actor, and then no caller waits any more.
                Box::pin(async move { answered.await.unwrap_or_default() })
            }
        }
    }
}

impl Handler<ListViews> for ManagerActor {
    type Result = MessageResult<ListViews>;

    fn handle(&mut self, _: ListViews, _: &mut Self::Context) -> Self::Result {
        let is_known = !matches!(self.lists, Lists::Held { .. });
        let present = self.roster.values().filter(|entry| entry.retired.is_none());
        MessageResult(is_known.then(|| present.map(|entry| entry.view.clone()).collect()))
    }
}

impl Handler<ListUsage> for ManagerActor {
    type Result = MessageResult<ListUsage>;

    fn handle(&mut self, _: ListUsage, _: &mut Self::Context) -> Self::Result {
        MessageResult(self.history.all())
    }
}

impl Handler<ListReferences> for ManagerActor {
    type Result = MessageResult<ListReferences>;

    fn handle(&mut self, _: ListReferences, _: &mut Self::Context) -> Self::Result {
        if matches!(self.lists, Lists::Held { .. }) {
            return MessageResult(None);
        }
        // A plugin shows a revision before it begins to install it, so what is not shown is not
        // being installed either.
        let plugins = self.roster.iter();
        let plugins = plugins.map(|(name, entry)| (name.clone(), entry.view.needed.clone()));
        let (lost, known) = (self.lost.clone(), self.known);
        MessageResult(Some(References { plugins: plugins.collect(), lost, known }))
    }
}

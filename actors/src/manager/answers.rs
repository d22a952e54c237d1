//! What the manager answers from its roster: lists of plugins, explanations, what plugins use and
//! need.

use std::collections::BTreeMap;

use actix::prelude::*;
use tokio::sync::oneshot;

use super::{Entry, Lists, ManagerActor};
use crate::messages::{
    CountInbox, Explain, ExplainYourself, ListPlugins, ListReferences, ListUsage, Listed,
};
use crate::plugin::explain::Explanation;
use crate::ports::References;

// === impl ManagerActor: answers ===

impl ManagerActor {
    pub(super) fn list(&self) -> Vec<Listed> {
        let listed = |entry: &Entry| Listed {
            view: entry.view.clone(),
            points: entry.points.iter().copied().collect(),
            newest: entry.newest,
        };
        self.roster.values().filter(|entry| entry.retired.is_none()).map(listed).collect()
    }
}

impl Handler<Explain> for ManagerActor {
    type Result = ResponseFuture<Option<Explanation>>;

    fn handle(&mut self, Explain(name): Explain, _: &mut Self::Context) -> Self::Result {
        let entry = self.roster.get(&name).filter(|entry| entry.retired.is_none());
        let asked = entry.map(|entry| entry.address.send(ExplainYourself));
        Box::pin(async move { asked?.await.ok() })
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
            Lists::Held { lists, .. } => {
                let (answer, answered) = oneshot::channel();
                lists.push(answer);
                // Dropped only with this actor, and then no caller waits any more.
                Box::pin(async move { answered.await.unwrap_or_default() })
            }
        }
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

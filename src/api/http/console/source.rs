//! Gets what pages show from the layer behind the local socket, as the command line does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::messages::{ListUsage, Listed, Point};
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::spec::Limits;
use guest_agent_console_kit::live::{Changes, Pages, Parts};
use guest_agent_console_kit::pieces::Ages;
use guest_agent_proto::host::{self, registry_server::Registry};
use guest_agent_proto::local::local_agent_server::LocalAgent;
use guest_agent_proto::local::{Event, ExplainRequest, PluginStatus};
use jiff::Timestamp;
use tokio::sync::watch;
use tonic::{Request, Status};
use tracing::debug;

use super::events::{self, Events, Line, fold};
use super::hidden;
use super::log::{self, Part, Wanted};
use super::overview::{self, Overview};
use super::plugin::{self, Plugin};
use super::row::Row;
use super::timeline::{self, Timeline};
use super::view::View;
use crate::api::http::session::Sight;
use crate::api::local::LocalApi;
use crate::link::LinkState;

/// How many events are on the first page, and on that of a plugin.
const EVENTS: usize = 25;

/// How many entries of the audit record are on the page of a plugin.
const AUDITED: usize = 10;

/// Longest that a page waits for a plugin to explain itself.
const EXPLAIN_WAIT: Duration = Duration::from_secs(2);

/// Where pages come from. Cheap to clone.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) api: LocalApi,
    pub(super) timeline: Arc<Timeline>,
}

// === impl Source ===

impl Source {
    /// The first page, with the plugins that are looked for.
    pub(super) async fn overview(&self, view: &View, sight: Sight) -> Result<Overview, Status> {
        let plugins = self.api.list().await?;
        let mut usage = self.usage().await?;
        let mut shown: Vec<_> = plugins.iter().map(|listed| self.shown(listed, sight)).collect();
        shown.extend(self.api.refused(&plugins).await);
        let counts = overview::counts(shown.iter());
        let wanted = shown.into_iter().filter(|plugin| view.has(plugin));
        let rows: Vec<Row> = wanted.map(|plugin| row(plugin, &mut usage)).collect();
        let matching = rows.len();
        let (attention, rest) = overview::split(rows, view);
        Ok(Overview {
            agent: self.api.agent().await,
            readiness: self.api.readiness.borrow().clone(),
            view: view.clone(),
            attention,
            rest,
            matching,
            counts,
            events: self.lately(None, sight),
        })
    }

    /// The newest events of a plugin or of all, with loops folded: of so many that a loop is seen whole.
    fn lately(&self, of: Option<&str>, sight: Sight) -> Vec<Line> {
        let wanted = |event: &Event| of.is_none_or(|name| event.plugin == name);
        let mut lines = fold(self.timeline.newest(timeline::KEPT_MAX, sight, wanted));
        lines.truncate(EVENTS);
        lines
    }

    /// A page of events.
    pub(super) async fn events(
        &self,
        wanted: &events::Wanted,
        sight: Sight,
    ) -> Result<Events, Status> {
        let now = Timestamp::now();
        let has = |event: &Event| wanted.has(event, now);
        let (events, older) = if let Some(before) = wanted.before {
            let reading = self.api.older_events(before, events::PAGE, has);
            let late = |_| Status::deadline_exceeded("the store does not answer in time");
            let read = tokio::time::timeout(events::READ_MAX, reading).await.map_err(late)??;
            let mut events = read.events;
            for event in &mut events {
                timeline::shorten(event);
                if sight == Sight::WithoutOutput {
                    hidden::of_event(event);
                }
            }
            (events, read.before)
        } else {
            let events = self.timeline.newest(events::PAGE, sight, has);
            let last = events.last().filter(|_| events.len() >= events::PAGE);
            let older = last.map(|event| event.seq).or_else(|| self.timeline.before());
            (events, older)
        };
        Ok(Events { wanted: wanted.clone(), events, older })
    }

    /// What a plugin looks like, if there is one of this name.
    pub(super) async fn status(&self, name: &PluginName) -> Result<Option<PluginStatus>, Status> {
        Ok(self.find(name).await?.map(|listed| self.shown(&listed, Sight::All)))
    }

    /// The page of a plugin; `None` where there is no such plugin.
    pub(super) async fn plugin(
        &self,
        name: &PluginName,
        sight: Sight,
    ) -> Result<Option<Plugin>, Status> {
        let Some(listed) = self.find(name).await? else {
            return Ok(self.refused(name, sight).await);
        };
        let mut usage = self.usage().await?;
        let request =
            Request::new(ExplainRequest { name: name.to_string(), config: sight == Sight::All });
        // One that is busy has a page all the same.
        let why = tokio::time::timeout(EXPLAIN_WAIT, self.api.explain(request)).await;
        let request = host::ListRequest { all_instances: true, ..host::ListRequest::default() };
        let mut offers = self.api.registry.list(Request::new(request)).await?.into_inner().entries;
        offers.retain(|entry| entry.plugin == name.as_str());
        let mut why = why.ok().and_then(Result::ok).map(tonic::Response::into_inner);
        let log = match sight {
            Sight::All => Some(self.log(name, Wanted::Last(log::TAIL)).await),
            Sight::WithoutOutput => None,
        };
        let audit = match sight {
            // A page without it is worth more than none.
            Sight::All => Some(self.api.audit(name.as_str(), AUDITED).await.unwrap_or_default()),
            Sight::WithoutOutput => None,
        };
        if let (Sight::WithoutOutput, Some(why)) = (sight, &mut why) {
            hidden::of_answer(why);
        }
        Ok(Some(Plugin {
            row: row(self.shown(&listed, sight), &mut usage),
            why,
            limits: listed.view.limits,
            offers,
            events: self.lately(Some(name.as_str()), sight),
            log,
            audit,
            now: Timestamp::now(),
        }))
    }

    /// The page of a folder whose manifest is refused, so that there is no plugin.
    async fn refused(&self, name: &PluginName, sight: Sight) -> Option<Plugin> {
        let why = self.api.why_refused(name.as_str()).await?;
        Some(Plugin {
            row: Row { plugin: why.status.clone()?, points: Vec::new() },
            why: Some(why),
            limits: Limits::default(),
            offers: Vec::new(),
            events: self.lately(Some(name.as_str()), sight),
            log: None,
            audit: None,
            now: Timestamp::now(),
        })
    }

    /// Whether there is a plugin of this name, and what it looks like.
    pub(super) async fn find(&self, name: &PluginName) -> Result<Option<Listed>, Status> {
        Ok(self.api.list().await?.into_iter().find(|listed| listed.view.name == *name))
    }

    /// A part of a plugin's log; an empty one where it cannot be read.
    pub(super) async fn log(&self, name: &PluginName, wanted: Wanted) -> Part {
        let read = Part::read(self.api.logs.clone(), name.clone(), wanted).await;
        read.unwrap_or_else(|error| {
            debug!(plugin = %name, %error, "its log cannot be shown");
            Part::default()
        })
    }

    fn shown(&self, listed: &Listed, sight: Sight) -> PluginStatus {
        let mut plugin = self.api.shown(listed, 0);
        if sight == Sight::WithoutOutput {
            hidden::of_status(&mut plugin);
        }
        plugin
    }

    async fn usage(&self) -> Result<BTreeMap<PluginName, Vec<Point>>, Status> {
        let asked = self.api.manager.send(ListUsage).await;
        asked.map_err(|_| Status::unavailable("the agent is stopping"))
    }
}

fn row(plugin: PluginStatus, usage: &mut BTreeMap<PluginName, Vec<Point>>) -> Row {
    let name = plugin.name.parse::<PluginName>().ok();
    let points = name.and_then(|name| usage.remove(&name)).unwrap_or_default();
    Row { plugin, points }
}

/// A page that changes, for those who are shown the same of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    /// The first page, with what is looked for on it.
    Overview(View, Sight),
    /// The page of a plugin.
    Plugin(PluginName, Sight),
    /// The newest events.
    Events(events::Wanted, Sight),
}

impl Pages for Source {
    type Topic = Topic;
    type Changes = Wakes;

    async fn parts(&self, topic: &Topic) -> Parts {
        match topic {
            Topic::Overview(view, sight) => {
                let overview = self.overview(view, *sight).await;
                overview.map(|overview| overview.parts(Ages::Left)).unwrap_or_default()
            }
            Topic::Plugin(name, sight) => match self.plugin(name, *sight).await {
                Ok(Some(plugin)) => plugin.parts(Ages::Left),
                Ok(None) => plugin::gone(name),
                Err(_) => Parts::new(),
            },
            Topic::Events(wanted, sight) => {
                let events = self.events(wanted, *sight).await;
                events.map(|events| events.parts(Ages::Left)).unwrap_or_default()
            }
        }
    }

    fn changes(&self) -> Wakes {
        Wakes {
            source: self.clone(),
            roster: self.api.changes.clone(),
            link: self.api.link.clone(),
            depth: self.api.outbox.depth.clone(),
            events: self.timeline.watch(),
        }
    }
}

/// Everything that may change a page.
pub(super) struct Wakes {
    source: Source,
    roster: watch::Receiver<u64>,
    link: watch::Receiver<LinkState>,
    depth: watch::Receiver<usize>,
    events: watch::Receiver<()>,
}

impl Changes for Wakes {
    /// Whatever ended changes no more, which the beat of the hub makes up for.
    async fn next(&mut self) {
        let logs = self.source.api.logs.clone();
        tokio::select! {
            Ok(()) = self.roster.changed() => {}
            Ok(()) = self.link.changed() => {}
            Ok(()) = self.depth.changed() => {}
            Ok(()) = self.events.changed() => {}
            () = logs.written() => {}
            else => std::future::pending().await,
        }
    }
}

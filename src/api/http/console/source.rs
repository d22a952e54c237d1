//! Gets what pages show from the layer behind the local socket, as the command line does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::messages::{ListUsage, Listed, Point};
use guest_agent_actors::model::id::PluginName;
use guest_agent_actors::model::spec::Limits;
use guest_agent_proto::host::{self, registry_server::Registry};
use guest_agent_proto::local::local_agent_server::LocalAgent;
use guest_agent_proto::local::{ExplainRequest, PluginStatus};
use jiff::Timestamp;
use tonic::{Request, Status};
use tracing::debug;

use super::hidden;
use super::log::{self, Part, Wanted};
use super::overview::{Overview, Row, SHOWN_MAX, States};
use super::plugin::Plugin;
use super::timeline::Timeline;
use crate::api::http::session::Sight;
use crate::api::local::LocalApi;
use crate::display::{needs_attention, state_tone, urgency, values};

/// How many events are on the first page, and on that of a plugin.
const EVENTS: usize = 25;

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
    /// The first page, with the plugins that have `filter` in their names.
    pub(super) async fn overview(&self, filter: &str, sight: Sight) -> Result<Overview, Status> {
        let plugins = self.api.list().await?;
        let mut usage = self.usage().await?;
        let mut states = States::new();
        let mut shown: Vec<_> = plugins.iter().map(|listed| self.shown(listed, sight)).collect();
        shown.extend(self.api.refused(&plugins).await);
        shown.sort_by(|one, other| (urgency(one), &one.name).cmp(&(urgency(other), &other.name)));
        let attention = shown.iter().filter(|plugin| needs_attention(plugin)).count();
        let (mut rows, mut matching) = (Vec::new(), 0);
        for plugin in shown {
            let tone = state_tone(values::state(&plugin));
            states.entry(plugin.state.clone()).or_insert((tone, 0)).1 += 1;
            if !filter.is_empty() && !plugin.name.contains(filter) {
                continue;
            }
            matching += 1;
            if rows.len() < SHOWN_MAX {
                rows.push(row(plugin, &mut usage));
            }
        }
        Ok(Overview {
            agent: self.api.agent().await,
            readiness: self.api.readiness.borrow().clone(),
            rows,
            matching,
            states,
            attention,
            filter: filter.to_owned(),
            events: self.timeline.newest(EVENTS, None, sight),
        })
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
        let request = Request::new(ExplainRequest { name: name.to_string(), config: false });
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
        if let (Sight::WithoutOutput, Some(why)) = (sight, &mut why) {
            hidden::of_answer(why);
        }
        Ok(Some(Plugin {
            row: row(self.shown(&listed, sight), &mut usage),
            why,
            limits: listed.view.spec.limits,
            offers,
            events: self.timeline.newest(EVENTS, Some(name.as_str()), sight),
            log,
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
            events: self.timeline.newest(EVENTS, Some(name.as_str()), sight),
            log: None,
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

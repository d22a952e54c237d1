//! The outcome of an order: follows the status until every awaited plugin has settled.
//!
//! [`judge`] is the whole decision and is pure; [`follow`] is the loop around it. Every verb with
//! `--wait` uses it.
//!
//! The agent may be restarted or upgraded meanwhile: the order is durable, so the wait goes on with
//! the agent that comes back. The recorded events ([`super::ends`]) have the end of an order of which a
//! status says nothing any more by then, because a newer order changed the plugin or it is gone.

use std::collections::BTreeSet;
use std::time::Duration;

use guest_agent_proto::local::{GetStatusRequest, PluginStatus};

pub(super) use super::awaited::{Awaited, FollowedOrder, Goal, REMOVED};
use super::client::Client;
use super::comeback::Comeback;
use super::ends;
use super::failure::{Exit, Failure};
use super::judge::{Connected, Seen, because, confirmed, judge, reason};
use super::progress::Progress;
use super::waiting::Patience;

const KEPT: &str = "the order is kept; `guest-agent status` shows its result";

/// The failure of a verb that waited for an order which a hold makes wait.
pub(super) fn held(name: &str, by: &str) -> Failure {
    Failure::new(Exit::TimedOut, format_args!("{name} is held by {by}, so the order waits"))
        .hint(format!("it is carried out after `guest-agent release {name}`"))
}

/// Follows the status until every order has settled or the time is up, over restarts of the agent.
/// The verdicts are in the order of `awaited`; an order that has none when the time is up is
/// [`FollowedOrder::Late`].
///
/// # Errors
/// The agent refused to say, or was away when the time was up.
pub(super) async fn follow(
    client: &mut Client,
    awaited: &[Awaited],
    patience: Patience,
    progress: &mut Progress,
) -> Result<Vec<FollowedOrder>, Failure> {
    let mut watch = Watch {
        awaited,
        verdicts: vec![FollowedOrder::Waiting; awaited.len()],
        last: vec![String::new(); awaited.len()],
        seen: BTreeSet::new(),
        confirmed: BTreeSet::new(),
        comeback: Comeback::new(patience.away),
    };
    let waited = tokio::time::timeout(patience.whole, watch.until_settled(client, progress)).await;
    match waited {
        Ok(result) => result?,
        Err(_elapsed) => {
            if let Some(away) = watch.comeback.away_after(patience.whole) {
                return Err(away.hint(KEPT));
            }
            for (verdict, last) in watch.verdicts.iter_mut().zip(&watch.last) {
                if *verdict == FollowedOrder::Waiting {
                    let state = Some(last.as_str()).filter(|text| !text.is_empty());
                    let state = state.unwrap_or("the agent does not list it").to_owned();
                    *verdict = FollowedOrder::Late(state);
                }
            }
        }
    }
    Ok(watch.verdicts)
}

/// The failure of a wait whose time was up.
pub(super) fn late(timeout: Duration) -> Failure {
    let waited = crate::config::format_duration(timeout);
    Failure::new(Exit::TimedOut, format_args!("not done after {waited}"))
        .hint("the order is kept; see `guest-agent status`, or wait longer with --timeout")
}

/// The state of a wait for orders.
struct Watch<'a> {
    awaited: &'a [Awaited],
    verdicts: Vec<FollowedOrder>,
    /// The last state of each plugin, in words.
    last: Vec<String>,
    /// The orders whose plugins the agent has listed.
    seen: BTreeSet<usize>,
    /// The orders whose verdicts were compared with the recorded events.
    confirmed: BTreeSet<usize>,
    comeback: Comeback,
}

// === impl Watch ===

impl Watch<'_> {
    async fn until_settled(
        &mut self,
        client: &mut Client,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let mut is_first = true;
        loop {
            match self.connected(client, progress, is_first).await {
                Ok(()) => return Ok(()),
                Err(failure) => {
                    let waited = self.comeback.pause(failure, progress).await;
                    waited.map_err(|failure| match failure.exit {
                        Exit::Unreachable => failure.hint(KEPT),
                        _ => failure,
                    })?;
                }
            }
            is_first = false;
        }
    }

    /// Watches while one agent answers.
    async fn connected(
        &mut self,
        client: &mut Client,
        progress: &mut Progress,
        is_first: bool,
    ) -> Result<(), Failure> {
        let mut changes = client.watch_status(GetStatusRequest::default()).await?.into_inner();
        let mut was = if is_first { Connected::Yes } else { Connected::No };
        while let Some(status) = changes.message().await? {
            self.comeback.is_here();
            self.judge(&status.plugins, progress);
            self.ask_for_ends(client, &status.plugins, was).await?;
            was = Connected::Yes;
            if !self.verdicts.contains(&FollowedOrder::Waiting) {
                return Ok(());
            }
        }
        Err(Failure::new(Exit::Unreachable, "the agent ended while it was waited for"))
    }

    fn judge(&mut self, plugins: &[PluginStatus], progress: &mut Progress) {
        for (index, order) in self.awaited.iter().enumerate() {
            let plugin = of(plugins, order);
            if let Some(plugin) = plugin {
                progress.show(plugin);
                let why = reason(&order.goal, plugin);
                self.last[index] = because(&format!("it is {}", plugin.state), why);
            }
            let before = if self.seen.contains(&index) { Seen::Before } else { Seen::Never };
            if self.verdicts[index] == FollowedOrder::Waiting {
                self.verdicts[index] = judge(order, plugin, before, None);
            }
            if plugin.is_some() {
                self.seen.insert(index);
            }
        }
    }

    /// Asks the recorded events for the end of each order of which the status does not say all: one
    /// that seems done or failed, and, after nobody was connected, one whose plugin says nothing of it
    /// any more.
    async fn ask_for_ends(
        &mut self,
        client: &mut Client,
        plugins: &[PluginStatus],
        was: Connected,
    ) -> Result<(), Failure> {
        for (index, order) in self.awaited.iter().enumerate() {
            let plugin = of(plugins, order);
            let says_nothing = || plugin.is_none_or(|it| it.generation > order.generation);
            let asks = match &self.verdicts[index] {
                FollowedOrder::Waiting => was == Connected::No && says_nothing(),
                // An order can be refused and leave everything as it is ordered; not a REMOVE.
                FollowedOrder::Done(_) => {
                    matches!(order.goal, Goal::Installed { .. } | Goal::Configured { .. })
                }
                FollowedOrder::Failed(_) | FollowedOrder::Held(_) => order.goal.ends_in_events(),
                FollowedOrder::Returned { .. } | FollowedOrder::Late(_) => false,
            };
            if !asks || self.confirmed.contains(&index) {
                continue;
            }
            let events = ends::events_of(client, &order.name).await?;
            if let Some(end) = ends::end_of(order, &events, plugin) {
                let judged = self.verdicts[index].clone();
                self.verdicts[index] = confirmed(order, plugin, judged, end, was);
            }
            if self.verdicts[index] != FollowedOrder::Waiting {
                self.confirmed.insert(index);
            }
        }
        Ok(())
    }
}

fn of<'a>(plugins: &'a [PluginStatus], order: &Awaited) -> Option<&'a PluginStatus> {
    plugins.iter().find(|plugin| plugin.name == order.name)
}

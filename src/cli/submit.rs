//! Sends orders to the agent for `install`, `remove` and `apply`; with `--wait`, waits for them;
//! prints how each ended.

use std::path::Path;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_agent_proto::local::{ConfigureRequest, ConfigureResult};
use schemars::JsonSchema;
use serde::Serialize;

use super::client::{self, Client};
use super::console::Console;
use super::failure::{Exit, Failure};
use super::follow::{Awaited, FollowedOrder, Goal, REMOVED, follow, held, late};
use super::format::one_line;
use super::order::{self, OrderError};
use super::progress::Progress;
use super::waiting::{Timeout, Until};
use crate::config::Environment;

/// The words for a removed plugin of which another version came with the machine.
const STAYS: &str = ", as the version that came with the machine; it is deleted with its files";

/// The outcome of one order, as JSON.
#[derive(Serialize, JsonSchema)]
pub(super) struct Outcome<'a> {
    /// The plugin.
    name: &'a str,
    /// The number of the order; null where the agent refused it.
    generation: Option<u64>,
    /// With `--wait`: the state the plugin is in now, or `REMOVED`.
    state: Option<&'a str>,
    /// Why the order failed; null where it did not.
    error: Option<String>,
    /// With `--wait`: who holds the plugin, where the order waits for the end of a hold.
    held: Option<&'a str>,
}

/// An order, the agent's answer to it, and its verdict.
struct Ended<'a> {
    order: &'a ConfigurePlugin,
    result: ConfigureResult,
    verdict: FollowedOrder,
}

/// Hands orders over, waits for them when there is a timeout, and prints how they ended.
pub(super) async fn order_and_report(
    client: &mut Client,
    orders: Vec<ConfigurePlugin>,
    (timeout, until): (Option<Timeout>, Until),
    json: bool,
    (console, environment): (&mut Console<'_>, &dyn Environment),
) -> Result<(), Failure> {
    let results = hand_over(client, &orders, environment).await?;
    let taken = results.iter().filter(|result| result.error.is_empty());
    let patience = timeout.map(|timeout| timeout.of(taken.map(|result| result.at_most)));
    let verdicts = match patience {
        None => Vec::new(),
        Some(patience) => {
            let mut progress = Progress::new(console);
            let awaited = accepted(&orders, &results, until);
            follow(client, &awaited, patience, &mut progress).await?
        }
    };
    let ended = ended(&orders, results, verdicts);
    if json {
        let outcomes: Vec<_> = ended.iter().map(Outcome::from).collect();
        console.document(&outcomes)?;
    } else {
        for text in ended.iter().filter_map(Ended::text) {
            console.line(&text)?;
        }
    }
    failure(&ended, patience.map(|patience| patience.whole).unwrap_or_default())
}

/// Sends orders to the agent. Its results are in the order of `orders`, one for each.
async fn hand_over(
    client: &mut Client,
    orders: &[ConfigurePlugin],
    environment: &dyn Environment,
) -> Result<Vec<ConfigureResult>, Failure> {
    let orders = ConfigurePluginStates { configure_plugins: orders.to_vec() };
    let expected = orders.configure_plugins.len();
    let request = client::traced(ConfigureRequest { orders: Some(orders) }, environment);
    let results = client.configure(request).await?.into_inner().results;
    if results.len() != expected {
        return Err(Failure::failed("the agent did not answer every order")
            .hint("it may be of another version; restart the service after an update"));
    }
    Ok(results)
}

/// The orders that the agent accepted.
fn accepted(orders: &[ConfigurePlugin], results: &[ConfigureResult], until: Until) -> Vec<Awaited> {
    let pairs = orders.iter().zip(results).filter(|(_, result)| result.error.is_empty());
    pairs
        .map(|(order, result)| Awaited {
            name: name_of(order).to_owned(),
            goal: goal_of(order, until),
            generation: result.generation,
            after: result.last_event,
        })
        .collect()
}

/// Each order with its verdict. `verdicts` are those of the accepted orders; an accepted order that
/// nobody waited for has none.
fn ended(
    orders: &[ConfigurePlugin],
    results: Vec<ConfigureResult>,
    verdicts: Vec<FollowedOrder>,
) -> Vec<Ended<'_>> {
    let mut verdicts = verdicts.into_iter();
    let pairs = orders.iter().zip(results);
    pairs
        .map(|(order, result)| {
            let verdict = if result.error.is_empty() {
                verdicts.next().unwrap_or(FollowedOrder::Waiting)
            } else {
                let why = one_line(&result.error);
                FollowedOrder::Failed(format!("the agent refused the order: {why}"))
            };
            Ended { order, result, verdict }
        })
        .collect()
}

/// The failure of the verb, when an order failed or took too long. Of several, one that failed
/// decides the exit code: a later look may show the others done, and never that one.
fn failure(ended: &[Ended<'_>], timeout: Duration) -> Result<(), Failure> {
    let failed: Vec<_> = ended.iter().filter_map(Ended::failure).collect();
    let held: Vec<_> = ended.iter().filter_map(Ended::held).collect();
    if failed.len() == held.len() {
        return all_held(&held, ended.len());
    }
    let is_any_failed = ended.iter().any(|ended| matches!(ended.verdict, FollowedOrder::Failed(_)));
    match failed.as_slice() {
        [] => Ok(()),
        all if !is_any_failed => Err(all.iter().fold(late(timeout), Failure::cause)),
        [one] => Err(Failure::failed(one)),
        many => {
            let count = format!("{} of {} orders failed", many.len(), ended.len());
            Err(many.iter().fold(Failure::failed(count), Failure::cause))
        }
    }
}

/// The failure of a verb all of whose orders are done, or wait for the end of a hold.
fn all_held(held: &[Failure], orders: usize) -> Result<(), Failure> {
    match held {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => {
            let count = format!("{} of {orders} orders wait for the end of a hold", many.len());
            let failure = Failure::new(Exit::TimedOut, count);
            let failure = many.iter().map(|held| &held.reason).fold(failure, Failure::cause);
            Err(failure.hint("they are carried out after `guest-agent release NAME`"))
        }
    }
}

/// The orders in a file.
pub(super) fn orders_in(file: &Path) -> Result<Vec<ConfigurePlugin>, Failure> {
    order::read(file).map_err(|error| {
        let failure = Failure::of(&error);
        match error {
            OrderError::Folder { .. } | OrderError::NoOrder { .. } => {
                failure.hint("make one with `guest-agent pack DIR -o FILE.tar.gz`")
            }
            OrderError::Read { .. }
            | OrderError::TooLarge { .. }
            | OrderError::Json { .. }
            | OrderError::Text { .. }
            | OrderError::Shape { .. }
            | OrderError::Bundle { .. } => failure,
        }
    })
}

fn name_of(order: &ConfigurePlugin) -> &str {
    order.plugin.as_ref().map_or("", |plugin| &plugin.name)
}

fn goal_of(order: &ConfigurePlugin, until: Until) -> Goal {
    let revision = order.plugin.as_ref().map_or("", |plugin| &plugin.revision_id).to_owned();
    let config_hash = || order::config_hash(order);
    match order.action() {
        Action::Remove => Goal::Removed,
        Action::Apply => Goal::Configured { config_hash: config_hash() },
        Action::Install | Action::Unspecified => {
            Goal::Installed { revision, config_hash: config_hash(), until }
        }
    }
}

// === impl Ended ===

impl Ended<'_> {
    /// The line for people; a failed order has none, it is in the failure of the verb.
    fn text(&self) -> Option<String> {
        let name = name_of(self.order);
        match &self.verdict {
            FollowedOrder::Failed(_) | FollowedOrder::Late(_) | FollowedOrder::Held(_) => None,
            FollowedOrder::Waiting => {
                Some(format!("{name}: accepted as order {}", self.result.generation))
            }
            FollowedOrder::Done(state) | FollowedOrder::Returned { state, .. } => {
                let is_local = self.order.action() == Action::Remove && state != REMOVED;
                let stays = if is_local { STAYS } else { "" };
                Some(format!("{name}: {state}{stays}"))
            }
        }
    }

    fn held(&self) -> Option<Failure> {
        match &self.verdict {
            FollowedOrder::Held(by) => Some(held(name_of(self.order), by)),
            FollowedOrder::Failed(_)
            | FollowedOrder::Late(_)
            | FollowedOrder::Waiting
            | FollowedOrder::Done(_)
            | FollowedOrder::Returned { .. } => None,
        }
    }

    fn failure(&self) -> Option<String> {
        match &self.verdict {
            FollowedOrder::Failed(why) | FollowedOrder::Late(why) => {
                Some(format!("{}: {why}", name_of(self.order)))
            }
            FollowedOrder::Held(_) => self.held().map(|held| held.reason),
            FollowedOrder::Waiting | FollowedOrder::Done(_) | FollowedOrder::Returned { .. } => {
                None
            }
        }
    }
}

// === impl Outcome ===

impl<'a> From<&'a Ended<'a>> for Outcome<'a> {
    fn from(Ended { result, verdict, .. }: &'a Ended<'a>) -> Self {
        Self {
            name: &result.name,
            generation: Some(result.generation).filter(|_| result.error.is_empty()),
            state: if let FollowedOrder::Done(state) = verdict { Some(state) } else { None },
            held: if let FollowedOrder::Held(by) = verdict { Some(by) } else { None },
            error: match verdict {
                FollowedOrder::Failed(why) => Some(why.clone()),
                FollowedOrder::Late(last) => Some(format!("not done in time: {last}")),
                FollowedOrder::Done(_)
                | FollowedOrder::Returned { .. }
                | FollowedOrder::Held(_)
                | FollowedOrder::Waiting => None,
            },
        }
    }
}

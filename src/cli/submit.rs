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
use super::failure::Failure;
use super::follow::{Awaited, FollowedOrder, Goal, HeldBy, REMOVED, follow, held, late};
use super::format::one_line;
use super::order::{self, OrderError};
use super::progress::Progress;
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
    /// With `--wait`: who holds the plugin, or when its next maintenance window opens, where the order waits
    /// for that.
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
    timeout: Option<Duration>,
    json: bool,
    (console, environment): (&mut Console<'_>, &dyn Environment),
) -> Result<(), Failure> {
    let results = hand_over(client, &orders, environment).await?;
    let verdicts = match timeout {
        None => Vec::new(),
        Some(timeout) => {
            let mut progress = Progress::new(console);
            let awaited = accepted(&orders, &results);
            follow(client, &awaited, timeout, &mut progress).await?
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
    failure(&ended, timeout.unwrap_or_default())
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
fn accepted(orders: &[ConfigurePlugin], results: &[ConfigureResult]) -> Vec<Awaited> {
    let pairs = orders.iter().zip(results).filter(|(_, result)| result.error.is_empty());
    pairs
        .map(|(order, result)| Awaited {
            name: name_of(order).to_owned(),
            goal: goal_of(order),
            generation: result.generation,
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
    if let [Ended { order, verdict: FollowedOrder::Held(by), .. }] = ended {
        return Err(held(name_of(order), by));
    }
    let failed: Vec<_> = ended.iter().filter_map(Ended::failure).collect();
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

fn goal_of(order: &ConfigurePlugin) -> Goal {
    let revision = order.plugin.as_ref().map_or("", |plugin| &plugin.revision_id).to_owned();
    match order.action() {
        Action::Remove => Goal::Removed,
        Action::Apply => Goal::Configured { config_hash: order::config_hash(order) },
        Action::Install | Action::Unspecified => Goal::Installed { revision },
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
                let is_local = goal_of(self.order) == Goal::Removed && state != REMOVED;
                let stays = if is_local { STAYS } else { "" };
                Some(format!("{name}: {state}{stays}"))
            }
        }
    }

    fn failure(&self) -> Option<String> {
        match &self.verdict {
            FollowedOrder::Failed(why) | FollowedOrder::Late(why) => {
                Some(format!("{}: {why}", name_of(self.order)))
            }
            FollowedOrder::Held(by) => Some(held(name_of(self.order), by).reason),
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
            held: match verdict {
                FollowedOrder::Held(HeldBy::Person(by) | HeldBy::Window(by)) => Some(by),
                _ => None,
            },
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

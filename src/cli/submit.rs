//! Orders on their way to the agent: `install`, `remove` and `apply` submit them, wait for them if
//! asked to, and print how each ended.

use std::path::Path;
use std::time::Duration;

use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_agent_proto::local::ConfigureRequest;
use serde::Serialize;

use super::client::{self, Client};
use super::console::Console;
use super::failure::Failure;
use super::follow::{Awaited, Goal, REMOVED, Verdict, follow};
use super::format::one_line;
use super::order::{self, OrderError};
use super::progress::Progress;
use crate::config::Environment;

/// The words for a removed plugin of which another version came with the machine.
const STAYS: &str = ", as the version that came with the machine; it goes with its files";

/// The outcome of one order, as JSON.
#[derive(Serialize)]
struct Outcome<'a> {
    name: &'a str,
    generation: Option<u64>,
    /// With `--wait`: the state the plugin is in now, or `REMOVED`.
    state: Option<&'a str>,
    error: Option<&'a str>,
}

/// Hands orders over, waits for them when there is a timeout, and prints how they ended.
pub(super) async fn order_and_report(
    client: &mut Client,
    orders: Vec<ConfigurePlugin>,
    timeout: Option<Duration>,
    json: bool,
    (console, environment): (&mut Console<'_>, &dyn Environment),
) -> Result<(), Failure> {
    let request = ConfigureRequest {
        orders: Some(ConfigurePluginStates { configure_plugins: orders.clone() }),
    };
    let results =
        client.configure(client::traced(request, environment)).await?.into_inner().results;
    if results.len() != orders.len() {
        return Err(Failure::failed("the agent did not answer every order")
            .hint("it may be of another version; restart the service after an update"));
    }
    let accepted = |generation, order: &ConfigurePlugin| Awaited {
        name: name_of(order).to_owned(),
        goal: goal_of(order),
        generation,
    };
    let awaited: Vec<Awaited> = orders
        .iter()
        .zip(&results)
        .filter(|(_, result)| result.error.is_empty())
        .map(|(order, result)| accepted(result.generation, order))
        .collect();
    let mut verdicts = match timeout {
        None => Vec::new(),
        Some(timeout) => {
            let mut progress = Progress::new(console);
            follow(client, &awaited, timeout, &mut |status| progress.show(status)).await?
        }
    }
    .into_iter();

    let mut outcomes = Vec::new();
    for result in results {
        let verdict = if result.error.is_empty() {
            verdicts.next().unwrap_or(Verdict::Waiting)
        } else {
            Verdict::Failed(format!("the agent refused the order: {}", one_line(&result.error)))
        };
        outcomes.push((result, verdict));
    }
    if json {
        let outcomes: Vec<Outcome<'_>> = outcomes
            .iter()
            .map(|(result, verdict)| Outcome {
                name: &result.name,
                generation: Some(result.generation).filter(|_| result.error.is_empty()),
                state: if let Verdict::Done(state) = verdict { Some(state) } else { None },
                error: if let Verdict::Failed(why) = verdict { Some(why) } else { None },
            })
            .collect();
        console.document(&outcomes)?;
    }
    let mut failed = Vec::new();
    for ((result, verdict), order) in outcomes.iter().zip(&orders) {
        match verdict {
            Verdict::Failed(why) => failed.push(format!("{}: {why}", name_of(order))),
            Verdict::Waiting | Verdict::Done(_) if json => {}
            Verdict::Waiting => {
                let name = name_of(order);
                console.line(&format!("{name}: accepted as order {}", result.generation))?;
            }
            Verdict::Done(state) => {
                let is_local = goal_of(order) == Goal::Removed && state != REMOVED;
                let stays = if is_local { STAYS } else { "" };
                console.line(&format!("{}: {state}{stays}", name_of(order)))?;
            }
        }
    }
    match failed.as_slice() {
        [] => Ok(()),
        [one] => Err(Failure::failed(one)),
        many => {
            let count = format!("{} of {} orders failed", many.len(), orders.len());
            Err(many.iter().fold(Failure::failed(count), Failure::cause))
        }
    }
}

/// The orders that a file stands for.
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

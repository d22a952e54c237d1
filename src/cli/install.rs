//! `install`: hands orders to the agent, and waits for what becomes of them if asked to.

use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_actors::model::id::{PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::EntryPoint;
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{Action, ConfigurePlugin};
use guest_agent_proto::local::ConfigureRequest;
use serde::Serialize;
use serde_json::{Value, json};

use super::client::{self, Client};
use super::console::Console;
use super::follow::{Awaited, Goal, REMOVED, Verdict, follow};
use super::format::one_line;
use super::order::{self, OrderError};
use super::progress::Progress;
use super::{Context, Failure};
use crate::cli::upload;
use crate::config::{Environment, parse_duration};

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "name"]))]
#[command(after_help = "\
Examples:
  guest-agent install -f metrics.tar.gz --wait
  guest-agent install -f order.json
  guest-agent install metrics --revision 1.4 --url https://host/metrics.tar.gz \\
    --sha256 HEX --entry-point bin/metrics --arg=--verbose --wait")]
pub(super) struct Flags {
    /// A ConfigurePlugin or ConfigurePluginStates as JSON, or an archive, bundle or directory made by `pack`
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Name of the plugin
    #[arg(requires_all = ["revision", "url", "sha256", "entry_point"])]
    name: Option<PluginName>,
    /// Revision of the plugin
    #[arg(long, requires = "name", value_name = "R")]
    revision: Option<RevisionId>,
    /// Where its archive is: https://, http:// or file:///
    #[arg(long, requires = "name")]
    url: Option<String>,
    /// SHA-256 of the archive, in hexadecimal
    #[arg(long, requires = "name", value_name = "HEX")]
    sha256: Option<Sha256Digest>,
    /// Path of the executable inside the archive
    #[arg(long, requires = "name", value_name = "PATH", value_parser = EntryPoint::parse)]
    entry_point: Option<EntryPoint>,
    /// An argument of the executable; may be repeated
    #[arg(long = "arg", requires = "name", value_name = "ARG", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Configuration of the plugin, as text
    #[arg(long, requires = "name", value_name = "TEXT", conflicts_with = "config_json")]
    config_string: Option<String>,
    /// Configuration of the plugin, as a JSON object
    #[arg(long, requires = "name", value_name = "JSON")]
    config_json: Option<String>,
    /// Wait until it runs, or is known not to
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, requires = "wait", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
}

/// Said of a plugin that was to be removed, and of which there is another version.
const STAYS: &str = ", as the version that came with the machine; it goes with its files";

/// What became of one order, as JSON.
#[derive(Serialize)]
struct Outcome<'a> {
    name: &'a str,
    generation: Option<u64>,
    /// With `--wait`: the state the plugin is in now, or `REMOVED`.
    state: Option<&'a str>,
    error: Option<&'a str>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let given = match &flags.file {
        Some(file) => upload::open(file)?,
        None => None,
    };
    let orders = if given.is_some() { Vec::new() } else { flags.orders()? };
    let mut client = context.connect().await?;
    let orders = match given {
        Some(given) => vec![upload::hand_over(&mut client, given).await?],
        None => orders,
    };
    let timeout = flags.wait.then_some(flags.timeout);
    let spoken = (context.console, context.environment);
    order_and_report(&mut client, orders, timeout, context.global.json, spoken).await
}

/// Hands orders over, waits for them when there is a timeout, and prints how they ended. Shared with
/// `remove`.
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

/// The orders that a file stands for. Shared with `plan`.
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

// === impl Flags ===

impl Flags {
    fn orders(&self) -> Result<Vec<ConfigurePlugin>, Failure> {
        if let Some(file) = &self.file {
            return orders_in(file);
        }
        let (Some(name), Some(revision), Some(url), Some(sha256), Some(entry_point)) =
            (&self.name, &self.revision, &self.url, &self.sha256, &self.entry_point)
        else {
            return Err(Failure::usage("a name, or a file with -f, is expected"));
        };
        let mut value = order::install_json(
            name.as_str(),
            revision.as_str(),
            url,
            &sha256.to_string(),
            entry_point.as_str(),
            &self.arguments,
        );
        if let Some(text) = &self.config_string {
            value["manifest"] = json!({ "stringConfig": text });
        }
        if let Some(text) = &self.config_json {
            let config: Value = serde_json::from_str(text)
                .map_err(|error| Failure::usage("--config-json is not JSON").because(&error))?;
            if !config.is_object() {
                return Err(Failure::usage("--config-json is not a JSON object"));
            }
            value["manifest"] = json!({ "structConfig": config });
        }
        let order = order::decode(&value)
            .map_err(|error| Failure::usage("the flags do not make an order").because(&error))?;
        Ok(vec![order])
    }
}

//! `install`: sends orders to the agent and, with `--wait`, waits for their outcome.

use std::path::PathBuf;
use std::time::Duration;

use guest_agent_actors::model::id::{PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::EntryPoint;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use serde_json::{Value, json};

use super::context::Context;
use super::failure::Failure;
use super::submit::{order_and_report, orders_in};
use super::waiting::{Timeout, Until};
use super::{order, upload};
use crate::config::parse_duration;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "name"]))]
#[command(after_help = "\
Examples:
  guest-agent install -f metrics.tar.gz --wait
  guest-agent install -f base.json -f metrics.json --wait
  generate-order | guest-agent install -f -
  guest-agent install metrics --revision 1.4 --url https://host/metrics.tar.gz \\
    --sha256 HEX --entry-point bin/metrics --arg=--verbose --wait")]
pub(super) struct Flags {
    /// A ConfigurePlugin or ConfigurePluginStates as JSON (- reads it from standard input), or an
    /// archive, bundle or directory made by `pack`; may be repeated
    #[arg(short, long = "file", id = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
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
    /// Wait until it has passed its trial, or has failed
    #[arg(long)]
    wait: bool,
    /// The event to wait for: running or proven [default: proven]
    #[arg(long, requires = "wait", value_name = "WHAT", value_enum, hide_possible_values = true)]
    until: Option<Until>,
    /// How long to wait [default: as long as the order may take]
    #[arg(long, requires = "wait", value_parser = parse_duration)]
    timeout: Option<Duration>,
}

/// How long an installation is waited for where the agent does not say how long it takes.
const USUAL: Duration = Duration::from_secs(300);

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let given = flags.given()?;
    let mut client = context.connect().await?;
    let mut orders = Vec::new();
    for given in given {
        match given {
            Given::Orders(given) => orders.extend(given),
            Given::Bundle(bundle) => orders.push(upload::hand_over(&mut client, *bundle).await?),
        }
    }
    let timeout = flags.wait.then_some(Timeout::new(flags.timeout).usually(USUAL));
    let until = flags.until.unwrap_or_default();
    let spoken = (context.console, context.environment);
    order_and_report(&mut client, orders, (timeout, until), context.global.json(), spoken).await
}

/// The orders in one file.
enum Given {
    Orders(Vec<ConfigurePlugin>),
    /// An order whose archive has to be uploaded first.
    Bundle(Box<upload::Given>),
}

// === impl Flags ===

impl Flags {
    /// The orders of all files, in the order of the files. A file that is wrong is known before anything is
    /// ordered.
    fn given(&self) -> Result<Vec<Given>, Failure> {
        if self.files.is_empty() {
            return Ok(vec![Given::Orders(vec![self.order()?])]);
        }
        if self.files.iter().filter(|file| order::is_standard_input(file)).count() > 1 {
            return Err(Failure::usage("standard input can be read once: give `-f -` once"));
        }
        let given = self.files.iter().map(|file| {
            Ok(match upload::open(file)? {
                Some(bundle) => Given::Bundle(Box::new(bundle)),
                None => Given::Orders(orders_in(file)?),
            })
        });
        given.collect()
    }

    fn order(&self) -> Result<ConfigurePlugin, Failure> {
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
        order::decode(&value)
            .map_err(|error| Failure::usage("the flags do not make an order").because(&error))
    }
}

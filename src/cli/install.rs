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
use super::{order, upload};
use crate::config::parse_duration;

#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("what").required(true).args(["file", "name"]))]
#[command(after_help = "\
Examples:
  guest-agent install -f metrics.tar.gz --wait
  guest-agent install -f order.json
  guest-agent install metrics --revision 1.4 --url https://host/metrics.tar.gz \\
    --sha256 HEX --entry-point bin/metrics --arg=--verbose --wait")]
pub(super) struct Flags {
    /// A ConfigurePlugin or ConfigurePluginStates as JSON, or an archive, bundle or directory made
    /// by `pack`
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
    /// Wait until it runs, or has failed
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, requires = "wait", default_value = "5m", value_parser = parse_duration)]
    timeout: Duration,
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
    order_and_report(&mut client, orders, timeout, context.global.json(), spoken).await
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

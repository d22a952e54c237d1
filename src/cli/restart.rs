//! `restart`: stops a plugin and starts it again.

use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{PluginStatus, RestartRequest};
use serde_json::json;

use super::act::confirm;
use super::client;
use super::context::Context;
use super::failure::Failure;
use super::follow::{Awaited, FollowedOrder, Goal, follow};
use super::progress::Progress;
use crate::config::parse_duration;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent restart metrics --wait")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    /// Do not ask before the plugin is stopped
    #[arg(long, short)]
    yes: bool,
    /// Wait until it runs again
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, requires = "wait", default_value = "1m", value_parser = parse_duration)]
    timeout: Duration,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let name = flags.name.as_str().to_owned();
    if !flags.yes {
        confirm(&mut client, &name, "It is stopped and started again.", context.console).await?;
    }
    let request = RestartRequest { name: name.clone() };
    let answer = client.restart(client::traced(request, context.environment)).await;
    let generation = match answer {
        Ok(answer) => answer.into_inner().generation,
        Err(error) => return Err(client::about(&mut client, &name, error).await),
    };
    let mut state = None;
    if flags.wait {
        let awaited = [Awaited { name: name.clone(), goal: Goal::Working, generation }];
        let mut progress = Progress::new(context.console);
        let mut show = |status: &PluginStatus| progress.show(status);
        let verdicts = follow(&mut client, &awaited, flags.timeout, &mut show).await?;
        match verdicts.into_iter().next() {
            Some(FollowedOrder::Failed(why)) => {
                return Err(Failure::failed(format!("{name}: {why}")));
            }
            Some(FollowedOrder::Done(reached)) => state = Some(reached),
            Some(FollowedOrder::Waiting) | None => {}
        }
    }
    let console = context.console;
    if context.global.json() {
        console.document(&json!({ "name": name, "generation": generation, "state": state }))?;
    } else {
        let said = state.unwrap_or_else(|| format!("restart accepted as order {generation}"));
        console.line(&format!("{name}: {said}"))?;
    }
    Ok(())
}

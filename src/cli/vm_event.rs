//! `vm-event`: sends a VM event to all plugins, and prints the answer of each.

use clap::ValueEnum;
use guest_agent_actors::model::vm_event::VmEvent;
use guest_agent_proto::local::{NotifiedPlugin, NotifyVmEventRequest};
use schemars::JsonSchema;
use serde::Serialize;

use super::console::{Console, Tone};
use super::context::Context;
use super::failure::Failure;
use super::format::one_line;
use crate::api::outcome::{FAILED, NOT_RUNNING};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent vm-event shutdown
  guest-agent vm-event startup --json

Status of a plugin, with --json and on the command socket:
    0  it got the event, or is not interested in it
  501  it does not run, so the event was not sent; no failure
  502  the event was sent, and the call failed or was not answered in time
The exit code is 1 when a plugin has another status than 0 or 501.")]
pub(super) struct Flags {
    /// What happens
    #[arg(value_enum)]
    event: Word,
}

/// The events under their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Word {
    /// The machine was started
    Startup,
    /// The machine is about to go down
    Shutdown,
    /// The machine was made into an instance of its own
    Specialize,
}

/// The answer of one plugin, as scripts see it; field names never change.
#[derive(Serialize, JsonSchema)]
pub(super) struct ResultJson<'a> {
    /// The plugin.
    plugin: &'a str,
    /// 0 where it took the event or passes it over; 501 where it does not run, 502 where it failed.
    status: i32,
    /// What it answered, or why it got no event; may be empty.
    message: &'a str,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let request = NotifyVmEventRequest { event: flags.event.event().name().to_owned() };
    let results = client.notify_vm_event(request).await?.into_inner().results;
    let console = context.console;
    if context.global.json() {
        let results: Vec<_> = results.iter().map(ResultJson::from).collect();
        console.document(&results)?;
    } else {
        print(&results, console)?;
    }
    let failed: Vec<_> = results.iter().filter(|result| went_wrong(result)).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let count = format!("{} of {} plugins did not get the event", failed.len(), results.len());
    Err(failed.into_iter().fold(Failure::failed(count), |failure, result| {
        failure.cause(format_args!("{}: {}", result.plugin, result.message))
    }))
}

/// Whether a plugin should have received the event and did not. A plugin that does not run should
/// not receive it.
fn went_wrong(result: &NotifiedPlugin) -> bool {
    !matches!(result.status, 0 | NOT_RUNNING)
}

fn print(results: &[NotifiedPlugin], console: &mut Console<'_>) -> Result<(), Failure> {
    if results.is_empty() {
        return Ok(console.line("the agent has no plugins")?);
    }
    let widest = results.iter().map(|result| result.plugin.chars().count()).max().unwrap_or(0);
    for result in results {
        let (tone, word) = match result.status {
            0 if result.message.is_empty() => (Tone::Good, "sent"),
            0 => (Tone::Quiet, "passed"),
            NOT_RUNNING => (Tone::Quiet, "not sent"),
            FAILED => (Tone::Bad, "failed"),
            _ => (Tone::Bad, "unknown"),
        };
        let word = console.paint(tone, &format!("{word:<8}"));
        let text =
            format!("{:<widest$}  {word}  {}", one_line(&result.plugin), one_line(&result.message));
        console.line(text.trim_end())?;
    }
    Ok(())
}

// === impl Word ===

impl Word {
    fn event(self) -> VmEvent {
        match self {
            Self::Startup => VmEvent::Startup,
            Self::Shutdown => VmEvent::Shutdown,
            Self::Specialize => VmEvent::Specialize,
        }
    }
}

// === impl ResultJson ===

impl<'a> From<&'a NotifiedPlugin> for ResultJson<'a> {
    fn from(result: &'a NotifiedPlugin) -> Self {
        Self { plugin: &result.plugin, status: result.status, message: &result.message }
    }
}

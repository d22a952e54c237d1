//! `logs`: what a plugin printed, byte for byte.

use guest_agent_actors::id::PluginName;
use guest_agent_proto::local::StreamLogsRequest;
use serde_json::json;

use super::client::{self, Patience};
use super::{Context, Failure};

#[derive(Debug, clap::Args)]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
    /// Go on with what it prints from now on
    #[arg(long)]
    follow: bool,
    /// How many of the last lines to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    lines: u32,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let patience = if flags.follow { Patience::Forever } else { Patience::Soon };
    let mut client = context.connect().await?;
    let name = flags.name.as_str();
    let request =
        StreamLogsRequest { name: name.to_owned(), follow: flags.follow, lines: flags.lines };
    let mut chunks = match client.stream_logs(request).await {
        Ok(answer) => answer.into_inner(),
        Err(error) => return Err(client::about(&mut client, name, error).await),
    };
    let console = context.console;
    while let Some(chunk) = client::next(&mut chunks, patience).await? {
        if context.global.json {
            console.object(&json!({ "data": String::from_utf8_lossy(&chunk.data) }))?;
        } else {
            console.out.write_all(&chunk.data)?;
            console.out.flush()?;
        }
    }
    Ok(())
}

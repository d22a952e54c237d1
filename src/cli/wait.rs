//! `wait`: waits until a plugin is in a state, or answers a question with a code, over restarts of
//! the agent.

use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{AskRequest, GetStatusRequest};
use schemars::JsonSchema;
use serde::Serialize;

use super::client::{Client, unknown_plugin};
use super::comeback::Comeback;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::format::one_line;
use super::json::NameOf;
use super::progress::Progress;
use crate::config::{format_duration, parse_duration};
use crate::display::values;

/// Time between two questions to a plugin.
const ASK_INTERVAL: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent wait metrics
  guest-agent wait metrics --state STOPPED --timeout 1m
  guest-agent wait metrics --status-code 0 --request ready")]
pub(super) struct Flags {
    /// Name of the plugin; it need not be there yet
    name: PluginName,
    /// The state to wait for [default: RUNNING, unless --status-code is given]
    #[arg(long, value_parser = state, ignore_case = true)]
    state: Option<StatusValue>,
    /// The code that the plugin must answer with
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    status_code: Option<i32>,
    /// The question to ask the plugin; without it, its health is asked for
    #[arg(long, value_name = "TEXT", requires = "status_code", allow_hyphen_values = true)]
    request: Option<String>,
    /// How long to wait
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,
}

/// What was waited for, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Reached<'a> {
    /// The plugin.
    name: &'a str,
    /// The state that it is in; null where only a code was waited for.
    #[schemars(with = "Option<NameOf<StatusValue>>")]
    state: Option<&'a str>,
    /// The code that it answered with; null where only a state was waited for.
    status_code: Option<i32>,
    /// The lines of that answer; null where only a state was waited for.
    results: Option<&'a [String]>,
}

/// Reads the wire name of a state, in any case.
fn state(text: &str) -> Result<StatusValue, String> {
    let found = StatusValue::from_str_name(&text.to_uppercase());
    found.filter(|state| *state != StatusValue::StateValueUnspecified).ok_or_else(|| {
        let names: Vec<_> = (1..=9)
            .filter_map(|number| StatusValue::try_from(number).ok())
            .map(|state| state.as_str_name())
            .collect();
        format!("the states are {}", names.join(", "))
    })
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let console = context.console;
    let name = flags.name.as_str();
    let wanted =
        flags.state.or_else(|| flags.status_code.is_none().then_some(StatusValue::Running));
    let mut last = Last { words: None, known: Vec::new(), comeback: Comeback::new(flags.timeout) };
    let mut progress = Progress::new(console);
    let waiting = async {
        loop {
            let seen = async {
                if let Some(wanted) = wanted {
                    for_state(&mut client, name, wanted, &mut progress, &mut last).await?;
                }
                let Some(code) = flags.status_code else { return Ok(None) };
                let question = flags.request.as_deref();
                for_code(&mut client, name, question, code, &mut last).await.map(Some)
            };
            match seen.await {
                Ok(answer) => return Ok::<_, Failure>(answer),
                Err(failure) => last.comeback.pause(failure, &mut progress).await?,
            }
        }
    };
    let waited = tokio::time::timeout(flags.timeout, waiting).await;
    drop(progress);
    match waited {
        Ok(Err(failure)) => Err(failure),
        Ok(Ok(answer)) => {
            let state = wanted.map(|wanted| wanted.as_str_name());
            let code = flags.status_code;
            if context.global.json() {
                let results = answer.as_deref();
                console.document(&Reached { name, state, status_code: code, results })?;
            } else {
                let state = state.unwrap_or_default();
                let code = code.map_or_else(String::new, |code| format!(" answers {code}"));
                console.line(&format!("{name}: {}", [state, &code].concat().trim_start()))?;
                // The answer is to a question of the caller; one about health was not asked for.
                let asked = answer.filter(|_| flags.request.is_some());
                for result in asked.into_iter().flatten() {
                    console.line(&one_line(&result))?;
                }
            }
            Ok(())
        }
        Err(_elapsed) => {
            if let Some(away) = last.comeback.away_after(flags.timeout) {
                return Err(away);
            }
            let waited = format_duration(flags.timeout);
            let reason = format!("{name} did not reach the state within {waited}");
            let failure = Failure::new(Exit::TimedOut, reason);
            Err(match last.words {
                Some(words) => failure.cause(words),
                None => {
                    let unknown = unknown_plugin(name, last.known.iter().map(String::as_str));
                    Failure { hint: unknown.hint, ..failure.cause(unknown.reason) }
                }
            })
        }
    }
}

/// What is known, for the message after a timeout.
struct Last {
    /// The last status.
    words: Option<String>,
    known: Vec<String>,
    comeback: Comeback,
}

async fn for_state(
    client: &mut Client,
    name: &str,
    wanted: StatusValue,
    progress: &mut Progress,
    last: &mut Last,
) -> Result<(), Failure> {
    let mut changes = client.watch_status(GetStatusRequest::default()).await?.into_inner();
    while let Some(status) = changes.message().await? {
        last.comeback.is_here();
        let plugin = status.plugins.iter().find(|plugin| plugin.name == name);
        if plugin.is_some_and(|plugin| values::state(plugin) == wanted) {
            return Ok(());
        }
        if let Some(plugin) = plugin {
            progress.show(plugin);
        }
        last.words = plugin.map(|plugin| {
            let colon = if plugin.reason.is_empty() { "" } else { ": " };
            format!("it is {}{colon}{}", plugin.state, plugin.reason)
        });
        last.known = status.plugins.into_iter().map(|plugin| plugin.name).collect();
    }
    Err(Failure::new(Exit::Unreachable, "the agent ended while it was watched"))
}

/// Asks until the answer has the wanted code; returns the lines of that answer.
async fn for_code(
    client: &mut Client,
    name: &str,
    question: Option<&str>,
    wanted: i32,
    last: &mut Last,
) -> Result<Vec<String>, Failure> {
    loop {
        let request = AskRequest { name: name.to_owned(), data: question.map(str::to_owned) };
        match client.ask(request).await {
            Ok(answer) => {
                last.comeback.is_here();
                let answer = answer.into_inner();
                if answer.code == wanted {
                    return Ok(answer.results);
                }
                let results = answer.results.join("; ");
                last.words = Some(format!("it answered with code {}: {results}", answer.code));
            }
            Err(error) if goes_by(&error) => last.words = Some(error.message().to_owned()),
            Err(error) => return Err(error.into()),
        }
        tokio::time::sleep(ASK_INTERVAL).await;
    }
}

/// Whether a later question may get an answer: the plugin does not exist yet, does not run, or was
/// busy.
fn goes_by(error: &tonic::Status) -> bool {
    use tonic::Code;
    matches!(
        error.code(),
        Code::NotFound | Code::FailedPrecondition | Code::DeadlineExceeded | Code::Aborted
    )
}

//! `explain`: why a plugin is in the state it is in.

use guest_agent_proto::local::{ExplainRequest, ExplainResponse};
use jiff::Timestamp;

use super::client;
use super::console::{Console, Tone};
use super::context::Context;
use super::failure::Failure;
use super::format::{one_line, timestamp};
use crate::display;
use crate::display::values::Named;

pub(super) mod document;

use document::Explanation;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent explain metrics
  guest-agent explain metrics --json")]
pub(super) struct Flags {
    /// Name of the plugin, or of a folder of a local plugin that is refused
    name: String,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let name = flags.name;
    let answer = match client.explain(ExplainRequest { name: name.clone(), config: false }).await {
        Ok(answer) => answer.into_inner(),
        Err(error) if error.code() == tonic::Code::InvalidArgument => {
            return Err(Failure::usage(error.message()));
        }
        Err(error) => return Err(client::about(&mut client, &name, error).await),
    };
    let console = context.console;
    if context.global.json() {
        console.document(&Explanation::of(&name, &answer))?;
    } else {
        print(&name, &answer, console)?;
    }
    Ok(())
}

/// The text output for people, without colour.
pub(super) fn lines(name: &str, answer: &ExplainResponse, now: fn() -> Timestamp) -> Vec<String> {
    let (mut out, mut err) = (Vec::new(), std::io::sink());
    let mut console = Console {
        out: &mut out,
        err: &mut err,
        width: None,
        err_is_terminal: false,
        colour: false,
        reply: None,
        now,
    };
    match print(name, answer, &mut console) {
        Ok(()) => String::from_utf8_lossy(&out).lines().map(str::to_owned).collect(),
        Err(failure) => vec![failure.reason],
    }
}

fn print(name: &str, answer: &ExplainResponse, console: &mut Console<'_>) -> Result<(), Failure> {
    let now = (console.now)();
    let (state, tone) = answer
        .status
        .as_ref()
        .map_or(("", Tone::Plain), |status| (&status.state, display::plugin_tone(status)));
    let painted = console.paint(tone, &one_line(state));
    console.line(&format!("{name} is {painted}: {}", display::doing(answer, now)))?;
    if let Some(status) = &answer.status {
        let sentence = display::sentence(status, now);
        if !sentence.is_empty() {
            let level = display::level(status).name();
            let level = console.paint(display::plugin_tone(status), level);
            console.line(&format!("  {level}: {sentence}"))?;
        }
        let help = status.verdict.as_ref().map(|verdict| one_line(&verdict.help));
        if let Some(help) = help.filter(|help| !help.is_empty()) {
            console.line(&format!("  see: {help}"))?;
        }
    }
    for reason in display::reasons(answer, now) {
        let colon = if reason.label.is_empty() { "" } else { ": " };
        let label = console.paint(reason.tone, reason.label);
        console.line(&format!("  {label}{colon}{}", reason.text))?;
    }
    if let Some(rules) = &answer.rules {
        let (verdict, policy) = display::rules_heads(rules);
        let label = console.paint(verdict.tone, verdict.label);
        console.line(&format!("rules: {label}, {}", verdict.text))?;
        console.line(&format!("  {policy}"))?;
        for rule in &rules.rules {
            console.line(&format!("  {}", display::rule_line(rule)))?;
        }
    }
    if !answer.triggers.is_empty() {
        console.line("triggers:")?;
    }
    for plan in &answer.triggers {
        console.line(&format!("  {}", display::trigger_line(plan, now)))?;
    }
    if !answer.moves.is_empty() {
        console.line("recent events:")?;
    }
    for step in &answer.moves {
        let at = timestamp(step.at.as_ref()).map(|at| format!("{at:.0}")).unwrap_or_default();
        let at = console.paint(Tone::Quiet, &at);
        console.line(&format!("  {at}  {} ({})", one_line(&step.state), one_line(&step.why)))?;
    }
    if !answer.last_output.is_empty() {
        console.line("its last run wrote:")?;
        for line in answer.last_output.lines() {
            console.line(&format!("  {}", one_line(line)))?;
        }
    }
    Ok(())
}

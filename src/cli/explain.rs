//! `explain`: why a plugin is in the state it is in.

use guest_agent_proto::local::{ExplainRequest, ExplainResponse};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::client;
use super::console::{Console, Tone};
use super::context::Context;
use super::failure::Failure;
use super::format::{one_line, rfc3339, timestamp};
use crate::display;
use crate::display::values::Named;

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
        console.document(&document(&name, &answer))?;
    } else {
        print(&name, &answer, console)?;
    }
    Ok(())
}

/// The JSON output for scripts; field names never change.
fn document(name: &str, answer: &ExplainResponse) -> Value {
    let status = answer.status.clone().unwrap_or_default();
    let moves = answer.moves.iter().map(
        |step| json!({ "at": rfc3339(step.at.as_ref()), "state": step.state, "why": step.why }),
    );
    let waits = answer
        .waits
        .iter()
        .map(|wait| json!({ "what": wait.what, "until": rfc3339(wait.until.as_ref()) }));
    let triggers = answer.triggers.iter().map(|plan| {
        json!({ "trigger": plan.trigger, "last": plan.last, "next": rfc3339(plan.next.as_ref()) })
    });
    let trouble = answer.trouble.as_ref().map(|trouble| {
        json!({ "at": rfc3339(trouble.at.as_ref()), "type": trouble.r#type, "why": trouble.why })
    });
    let last_exit = status.last_exit.as_ref().map(|exit| {
        let at = rfc3339(exit.at.as_ref());
        json!({
            "kind": exit.kind,
            "code": exit.code,
            "signal": exit.signal,
            "at": at,
            "detail": exit.detail,
        })
    });
    let held_up = status.progress.as_ref().map(|progress| progress.held_up.as_str());
    let held_up = held_up.filter(|why| !why.is_empty());
    let not_enforced = status
        .not_enforced
        .iter()
        .map(|it| json!({ "what": it.what, "why": it.why, "fix": it.fix }));
    let rules = answer.rules.as_ref().map(|rules| {
        let each = rules.rules.iter().map(|rule| {
            json!({
                "scope": rule.scope,
                "attribute": rule.attribute,
                "operator": rule.operator,
                "value": rule.value,
                "found": rule.found,
                "holds": rule.holds,
                "why": rule.why,
            })
        });
        json!({
            "verdict": rules.verdict,
            "because": rules.because,
            "match_policy": rules.match_policy,
            "on_match": rules.on_match,
            "on_default": rules.on_default,
            "rules": each.collect::<Vec<_>>(),
        })
    });
    json!({
        "name": name,
        "revision": status.revision,
        "kind": status.kind,
        "state": status.state,
        "verdict": Some(display::level(&status).name()).filter(|level| !level.is_empty()),
        "verdict_reason": status.verdict.as_ref().map(|verdict| &verdict.reason),
        "verdict_since": rfc3339(status.verdict.as_ref().and_then(|it| it.since.as_ref())),
        "help": status.verdict.as_ref().map(|it| &it.help).filter(|help| !help.is_empty()),
        "reason": status.reason,
        "doing": answer.doing,
        "since": rfc3339(answer.since.as_ref()),
        "restarts": status.restarts,
        "last_exit": last_exit,
        "trouble": trouble,
        "waits": waits.collect::<Vec<_>>(),
        "trigger": Some(&status.trigger).filter(|trigger| !trigger.is_empty()),
        "triggers": triggers.collect::<Vec<_>>(),
        "rules": rules,
        "moves": moves.collect::<Vec<_>>(),
        "last_output": answer.last_output,
        "held_up": held_up,
        "not_enforced": not_enforced.collect::<Vec<_>>(),
    })
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

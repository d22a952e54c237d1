//! `explain`: why a plugin is in the state it is in.

use guest_agent_actors::id::PluginName;
use guest_agent_proto::local::{ExplainRequest, ExplainResponse, RuleVerdict};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::console::{Console, Tone};
use super::format::{age, not_enforced, one_line, rfc3339, timestamp};
use super::{Context, Failure, client};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent explain metrics
  guest-agent explain metrics --json")]
pub(super) struct Flags {
    /// Name of the plugin
    name: PluginName,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let name = flags.name.as_str().to_owned();
    let answer = match client.explain(ExplainRequest { name: name.clone() }).await {
        Ok(answer) => answer.into_inner(),
        Err(error) => return Err(client::about(&mut client, &name, error).await),
    };
    let console = context.console;
    if context.global.json {
        console.document(&document(&name, &answer))?;
    } else {
        print(&name, &answer, console)?;
    }
    Ok(())
}

/// What scripts see; the names are a promise.
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
        "reason": status.reason,
        "doing": answer.doing,
        "since": rfc3339(answer.since.as_ref()),
        "restarts": status.restarts,
        "last_exit": last_exit,
        "trouble": trouble,
        "waits": waits.collect::<Vec<_>>(),
        "triggers": triggers.collect::<Vec<_>>(),
        "rules": rules,
        "moves": moves.collect::<Vec<_>>(),
        "last_output": answer.last_output,
        "held_up": held_up,
        "not_enforced": not_enforced.collect::<Vec<_>>(),
    })
}

/// What a person reads, without colour.
pub(super) fn lines(name: &str, answer: &ExplainResponse, now: fn() -> Timestamp) -> Vec<String> {
    let (mut out, mut err) = (Vec::new(), std::io::sink());
    let mut console = Console {
        out: &mut out,
        err: &mut err,
        width: None,
        err_is_terminal: false,
        colour: false,
        now,
    };
    match print(name, answer, &mut console) {
        Ok(()) => String::from_utf8_lossy(&out).lines().map(str::to_owned).collect(),
        Err(failure) => vec![failure.reason],
    }
}

fn print(name: &str, answer: &ExplainResponse, console: &mut Console<'_>) -> Result<(), Failure> {
    let now = (console.now)();
    let status = answer.status.clone().unwrap_or_default();
    let ago = |at: Option<&prost_types::Timestamp>| ago(at, now);
    let since = timestamp(answer.since.as_ref()).map(|since| format!(" for {}", age(since, now)));
    let state = console.paint(tone(&status.state), &one_line(&status.state));
    let doing = one_line(&answer.doing);
    console.line(&format!("{name} is {state}: {doing}{}", since.unwrap_or_default()))?;
    if !status.reason.is_empty() {
        console.line(&format!("  because {}", one_line(&status.reason)))?;
    }
    if let Some(progress) = status.progress.as_ref().filter(|it| !it.held_up.is_empty()) {
        console.line(&format!("  held up: {}", one_line(&progress.held_up)))?;
    }
    for wait in &answer.waits {
        let until = timestamp(wait.until.as_ref()).map(|until| age(now, until));
        let until = until.unwrap_or_else(|| "an unknown time".to_owned());
        console.line(&format!("  waits for {}, {until} at most", one_line(&wait.what)))?;
    }
    if let Some(exit) = &status.last_exit {
        let how = match (exit.code, exit.signal) {
            (Some(code), _) => format!("exited with code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) if exit.kind == "oom" && !exit.detail.is_empty() => {
                format!("was {}", one_line(&exit.detail))
            }
            (None, None) if exit.kind == "oom" => "was ended because memory ran out".to_owned(),
            (None, None) => "ended, how is unknown".to_owned(),
        };
        console.line(&format!("  its last process {how}{}", ago(exit.at.as_ref())))?;
    }
    if let Some(trouble) = &answer.trouble {
        let when = ago(trouble.at.as_ref());
        let (kind, why) = (one_line(&trouble.r#type), one_line(&trouble.why));
        console.line(&format!("  last trouble{when}: {kind}: {why}"))?;
    }
    for shortfall in &status.not_enforced {
        let shortfall = one_line(&not_enforced(shortfall));
        console.line(&format!("  {}: {shortfall}", console.paint(Tone::Bad, "not enforced")))?;
    }
    print_rules(answer, console)?;
    if !answer.triggers.is_empty() {
        console.line("triggers:")?;
    }
    for plan in &answer.triggers {
        let next =
            timestamp(plan.next.as_ref()).map(|next| format!(", next in {}", age(now, next)));
        let (trigger, last) = (one_line(&plan.trigger), one_line(&plan.last));
        console.line(&format!("  {trigger}: {last}{}", next.unwrap_or_default()))?;
    }
    if !answer.moves.is_empty() {
        console.line("what happened lately:")?;
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

fn print_rules(answer: &ExplainResponse, console: &mut Console<'_>) -> Result<(), Failure> {
    let Some(rules) = &answer.rules else { return Ok(()) };
    let verdict = match rules.verdict.as_str() {
        "enabled" => console.paint(Tone::Good, "enabled"),
        "disabled" => console.paint(Tone::Bad, "disabled"),
        _ => console.paint(Tone::Busy, "not decided"),
    };
    console.line(&format!("rules: {verdict}, {}", one_line(&rules.because)))?;
    console.line(&format!(
        "  {} where {} of them hold, else {}",
        one_line(&rules.on_match),
        one_line(&rules.match_policy),
        one_line(&rules.on_default)
    ))?;
    for rule in &rules.rules {
        console.line(&format!("  {}", rule_line(rule)))?;
    }
    Ok(())
}

fn rule_line(rule: &RuleVerdict) -> String {
    let found = match (&rule.found, rule.holds.as_str()) {
        (Some(found), _) => format!("found {}", one_line(found)),
        (None, "unknown") => one_line(&rule.why),
        (None, _) => "found nothing".to_owned(),
    };
    let mark = match rule.holds.as_str() {
        "yes" => "holds",
        "no" => "does not hold",
        _ => "cannot be decided",
    };
    let (scope, attribute) = (one_line(&rule.scope), one_line(&rule.attribute));
    let (operator, value) = (one_line(&rule.operator), one_line(&rule.value));
    format!("{scope} {attribute} {operator} {value}: {mark}, {found}")
}

fn ago(at: Option<&prost_types::Timestamp>, now: Timestamp) -> String {
    timestamp(at).map(|at| format!(" {} ago", age(at, now))).unwrap_or_default()
}

fn tone(state: &str) -> Tone {
    match state {
        "RUNNING" | "EXECUTION_COMPLETED" => Tone::Good,
        "CRASHED" | "INSTALL_FAILED" | "EXECUTION_FAILED" => Tone::Bad,
        _ => Tone::Busy,
    }
}

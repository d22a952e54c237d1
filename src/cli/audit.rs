//! `audit`: what people asked of this agent, oldest first.

use guest_agent_actors::model::audit::AUDIT_MAX;
use guest_agent_actors::model::id::PluginName;
use guest_agent_proto::local::{AuditAct, AuditEntry, AuditVia, ListAuditRequest};
use schemars::JsonSchema;
use serde::Serialize;

use super::client::Client;
use super::console::{Console, Tone};
use super::context::Context;
use super::failure::Failure;
use super::format::{one_line, rfc3339, when};
use super::json::{NameOf, Time};
use super::moment::{Moment, moment};
use crate::display::values::Named;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent audit
  guest-agent audit metrics -n 200
  guest-agent audit --since 1d --json")]
pub(super) struct Flags {
    /// Only what was asked of this plugin, or of all
    name: Option<PluginName>,
    /// How many entries, the newest
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    lines: usize,
    /// Only entries since then: how long ago (10m), or a time (2030-01-31T12:00:00Z)
    #[arg(long, value_name = "WHEN", value_parser = moment)]
    since: Option<Moment>,
}

/// What a person asked, as scripts see it; field names never change.
#[derive(Serialize, JsonSchema)]
pub(super) struct EntryJson<'a> {
    /// Its number on this machine, which grows.
    number: u64,
    /// When.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
    /// Who: a user such as `alice as root (uid 0)`, or `token NAME`.
    who: &'a str,
    /// The way that the request came.
    #[schemars(with = "NameOf<AuditVia>")]
    via: &'static str,
    /// What was asked.
    #[schemars(with = "NameOf<AuditAct>")]
    what: &'static str,
    /// The plugin that it was asked of; null where it was asked of all plugins or of the agent.
    plugin: Option<&'a str>,
    /// Whether it was asked of all plugins.
    all: bool,
    /// A reason, a revision or another word about it; may be empty.
    detail: &'a str,
    /// Whether it was accepted.
    accepted: bool,
    /// Why it was refused; null where it was accepted.
    refused: Option<&'a str>,
    /// The number of the order that it became; null where it became no order.
    generation: Option<u64>,
}

/// Which entries a caller wants.
pub(super) struct Wanted<'a> {
    name: &'a str,
    lines: usize,
    since: Option<prost_types::Timestamp>,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let console = context.console;
    let wanted = Wanted {
        name: flags.name.as_ref().map_or("", PluginName::as_str),
        lines: flags.lines,
        since: flags.since.map(|since| since.before((console.now)())),
    };
    let entries = newest(&mut client, wanted).await?;
    for entry in &entries {
        if context.global.json() {
            console.object(&EntryJson::from(entry))?;
        } else {
            let line = line(entry, console);
            console.line(&line)?;
        }
    }
    if entries.is_empty() && !context.global.json() {
        console.line("nothing was asked")?;
    }
    Ok(())
}

/// The newest entries that are wanted, oldest first.
pub(super) async fn newest(
    client: &mut Client,
    Wanted { name, lines, since }: Wanted<'_>,
) -> Result<Vec<AuditEntry>, Failure> {
    let mut left = lines.min(AUDIT_MAX);
    let (mut pages, mut before) = (Vec::new(), 0);
    while left > 0 {
        let limit = u32::try_from(left).unwrap_or(u32::MAX);
        let request = ListAuditRequest { name: name.to_owned(), limit, since, before };
        let page = client.list_audit(request).await?.into_inner();
        let Some(oldest) = page.entries.first() else { break };
        before = oldest.number;
        left = left.saturating_sub(page.entries.len());
        pages.push(page.entries);
        if !page.more {
            break;
        }
    }
    Ok(pages.into_iter().rev().flatten().collect())
}

/// An entry as the line that scripts get.
pub(super) fn as_json(entry: &AuditEntry) -> String {
    let line = serde_json::to_string(&EntryJson::from(entry)).unwrap_or_default();
    line + "\n"
}

/// `time  what  plugin by who via which way: detail`, and why it was refused.
fn line(entry: &AuditEntry, console: &Console<'_>) -> String {
    let at = when(entry.at.as_ref());
    let target = match (entry.all, entry.plugin.as_str()) {
        (true, _) => "all plugins",
        (false, "") => "the agent",
        (false, name) => name,
    };
    let colon = if entry.detail.is_empty() { "" } else { ": " };
    let who =
        format!("{target} by {} via {}{colon}{}", entry.who, entry.via().name(), entry.detail);
    let what = format!("{:<16}", entry.what().name());
    let line = format!("{}  {what}  {}", console.paint(Tone::Quiet, &at), one_line(&who));
    if entry.refused.is_empty() {
        return line;
    }
    let why = format!("REFUSED: {}", one_line(&entry.refused));
    format!("{line}  {}", console.paint(Tone::Bad, &why))
}

// === impl Wanted ===

impl Wanted<'_> {
    /// All that there is.
    pub(super) const fn everything() -> Self {
        Self { name: "", lines: usize::MAX, since: None }
    }
}

// === impl EntryJson ===

impl<'a> From<&'a AuditEntry> for EntryJson<'a> {
    fn from(entry: &'a AuditEntry) -> Self {
        let AuditEntry { plugin, refused, generation, .. } = entry;
        Self {
            number: entry.number,
            at: rfc3339(entry.at.as_ref()),
            who: &entry.who,
            via: entry.via().name(),
            what: entry.what().name(),
            plugin: Some(plugin.as_str()).filter(|name| !name.is_empty()),
            all: entry.all,
            detail: &entry.detail,
            accepted: refused.is_empty(),
            refused: Some(refused.as_str()).filter(|why| !why.is_empty()),
            generation: Some(*generation).filter(|number| *number != 0),
        }
    }
}

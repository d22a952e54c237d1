//! Which agents `agents` lists, and how one looks.

use std::collections::BTreeMap;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use guest_fleet_core::fold::Word;
use guest_fleet_core::listed::Named;
use guest_fleet_core::presence::Presence;
use guest_fleet_core::selector::Selector;
use guest_fleet_core::time::Seconds;
use schemars::JsonSchema;
use serde::Serialize;

use super::by_name::ByName;
use super::document::Time;
use super::health::{self, FaultJson};
use super::lists::selector;
use super::presence::ConnectionJson;
use super::standing;

/// The options of `agents`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Only these, such as `env = prod`; `self.` labels count here.
    #[arg(value_name = "SELECTOR", value_parser = selector)]
    pub selector: Option<Selector>,
    /// The same as SELECTOR.
    #[arg(long, value_name = "SELECTOR", value_parser = selector, conflicts_with = "selector")]
    pub select: Option<Selector>,
    /// With agents that were silent for so long that no count includes them.
    #[arg(long)]
    pub archived: bool,
    /// Only agents that have, should have or were ordered this plugin.
    #[arg(long, value_name = "NAME", conflicts_with = "scan")]
    pub plugin: Option<String>,
    /// Only agents that stand so with a plugin, or with that of --plugin.
    #[arg(long, value_name = "STATE", conflicts_with = "scan", value_parser = states())]
    pub state: Option<Word>,
    /// Only agents on which a plugin does not do its work, or an order for it failed or was taken back.
    #[arg(long, conflicts_with = "scan")]
    pub unhealthy: bool,
    /// Only agents that have had no stream for longer than `serve --offline-after` says.
    #[arg(long)]
    pub offline: bool,
    /// Begin after this id: the `next` of the page before.
    #[arg(long, value_name = "ID", conflicts_with = "scan")]
    pub after: Option<String>,
    /// Read every agent's own record, not the index.
    #[arg(long)]
    pub scan: bool,
    /// At most so many.
    #[arg(long, value_name = "NUMBER", default_value_t = 1000,
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub limit: u32,
}

/// An agent in a list.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentRowJson {
    /// Who it is.
    #[serde(flatten)]
    pub agent: AgentJson,
    /// Where it stands with its plugins; null where the agents' own records were read.
    pub plugins: Option<Vec<PluginJson>>,
}

/// Where an agent in a list stands with a plugin.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PluginJson {
    /// The fault of the plugin; null where it has none.
    pub fault: Option<FaultJson>,
    /// The revision that it reported as what it has.
    pub has: Option<String>,
    /// Whether a person on the machine holds the plugin as it is.
    pub held_by_owner: bool,
    /// Name of the plugin.
    pub plugin: String,
    /// Why the newest order failed or was taken back.
    pub reason: Option<String>,
    /// The revision that it should have; null where it should have none, or nothing is assigned.
    pub revision: Option<String>,
    /// When the newest order came into its state; null where nothing was ordered.
    #[schemars(with = "Option<Time>")]
    pub since: Option<String>,
    /// Where it stands.
    pub state: ByName<Word>,
    /// Whether an order came to nothing, or the plugin does not do its work.
    #[serde(skip)]
    pub(super) is_unhealthy: bool,
}

/// Reads where an agent stands by the name that the command line has for it.
fn states() -> impl TypedValueParser<Value = Word> {
    let value = |word: Word| {
        let name = word.name().replace('_', "-");
        PossibleValue::new(name).help(word.about().trim_end_matches('.'))
    };
    PossibleValuesParser::new(Word::ALL.map(value))
        .try_map(|name| Word::of_name(&name.replace('-', "_")).ok_or(name))
}

// === impl PluginJson ===

impl PluginJson {
    /// The fault, or the failure of the order: `crash loop for 10 minutes: exit code 3`.
    pub(super) fn trouble(&self, now: Seconds) -> String {
        let is_of_order = matches!(self.state.0, Word::Failed | Word::TakenBack);
        let reason = self.reason.as_ref().filter(|_| is_of_order);
        match (reason, &self.fault) {
            (Some(reason), _) => format!("{}: {reason}", standing::text(self.state.0)),
            (None, Some(fault)) if !is_of_order => health::sentence(&fault.of, now),
            (None, _) => standing::text(self.state.0).to_owned(),
        }
    }
}

/// An agent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AgentJson {
    /// Version of the agent; null before its first report.
    pub agent_version: Option<String>,
    /// Architecture in Go style; null before its first report.
    pub architecture: Option<String>,
    /// When it was archived: it was silent for so long that no count includes it.
    #[schemars(with = "Option<Time>")]
    pub archived: Option<String>,
    /// Its stream; null where it has none.
    pub connection: Option<ConnectionJson>,
    /// Host name of the machine; null before its first report.
    pub hostname: Option<String>,
    /// Its id.
    pub id: String,
    /// Labels that an operator gave it, and those of its join token.
    pub labels: BTreeMap<String, String>,
    /// The operating system; null before its first report.
    pub os: Option<String>,
    /// Labels that it claims itself; selectors name them with `self.`.
    pub own_labels: BTreeMap<String, String>,
    /// How present it is.
    pub presence: ByName<Presence>,
    /// Why it gets no orders; null where it does.
    pub quarantine: Option<String>,
    /// When it was revoked: no gateway admits it; null where it was not.
    #[schemars(with = "Option<Time>")]
    pub revoked: Option<String>,
    /// When it was seen last: the end of its last stream, or the last heartbeat of the gateway that has it.
    #[schemars(with = "Option<Time>")]
    pub seen: Option<String>,
    /// When it was enrolled or seen first.
    #[schemars(with = "Option<Time>")]
    pub since: Option<String>,
}

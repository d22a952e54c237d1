//! Which agents `agents` lists, and how one looks.

use std::collections::BTreeMap;

use clap::Args;
use guest_fleet_core::selector::Selector;
use schemars::JsonSchema;
use serde::Serialize;

use super::document::Time;
use super::lists::selector;
use super::standing::State;

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
    #[arg(long, value_name = "STATE", conflicts_with = "scan")]
    pub state: Option<State>,
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
    /// The revision that it reported as what it has.
    pub has: Option<String>,
    /// Name of the plugin.
    pub plugin: String,
    /// Why the newest order failed or was taken back.
    pub reason: Option<String>,
    /// The revision that it should have; null where it should have none, or nothing is assigned.
    pub revision: Option<String>,
    /// Where it stands.
    pub state: State,
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
    /// Why it gets no orders; null where it does.
    pub quarantine: Option<String>,
    /// When it was revoked: no gateway admits it; null where it was not.
    #[schemars(with = "Option<Time>")]
    pub revoked: Option<String>,
    /// When it was seen last.
    #[schemars(with = "Option<Time>")]
    pub seen: Option<String>,
    /// When it was enrolled or seen first.
    #[schemars(with = "Option<Time>")]
    pub since: Option<String>,
}

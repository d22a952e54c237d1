//! `stop`, `start`, `rollback`, `hold`, `release` and `run`: what a person asks of one plugin, or of
//! all.

use guest_agent_actors::model::id::{PluginName, RevisionId};
use guest_agent_proto::local::{Act, ActRequest, ActResponse};
use schemars::JsonSchema;
use serde::Serialize;

use super::client::{self, Client};
use super::console::Console;
use super::context::Context;
use super::failure::Failure;
use super::follow::{Awaited, FollowedOrder, Goal, follow, held, late};
use super::format::one_line;
use super::moment::{Moment, moment};
use super::progress::Progress;
use super::waiting::{ByDefault, OnRequest, Timeout};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent start metrics
  guest-agent start metrics --no-wait")]
pub(super) struct Start {
    /// Name of the plugin
    name: PluginName,
    #[command(flatten)]
    waiting: ByDefault,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent release metrics
  guest-agent release --all")]
pub(super) struct Release {
    #[command(flatten)]
    whom: Whom,
    #[command(flatten)]
    waiting: OnRequest,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent hold metrics --reason freeze
  guest-agent hold --all --reason freeze --until 12h
  guest-agent release --all")]
pub(super) struct Hold {
    #[command(flatten)]
    whom: Whom,
    /// Why, for those who look later
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// When it ends by itself: after so long, or at a time [default: at `release`]
    #[arg(long, value_name = "T", value_parser = moment)]
    until: Option<Moment>,
}

/// One plugin, or all.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Whom {
    /// Name of the plugin
    name: Option<PluginName>,
    /// All plugins, those that come later included
    #[arg(long)]
    all: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent stop metrics --reason maintenance
  guest-agent start metrics")]
pub(super) struct Stop {
    /// Name of the plugin
    name: PluginName,
    /// Why, for those who look later
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
    /// Do not ask before the plugin is stopped
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    waiting: ByDefault,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent rollback metrics --reason leaks --wait
  guest-agent release metrics")]
pub(super) struct Rollback {
    /// Name of the plugin
    name: PluginName,
    /// The revision to return to [default: the one that is on disk]
    #[arg(long, value_name = "REVISION")]
    to: Option<RevisionId>,
    /// Why, for those who look later
    #[arg(long, default_value = "", value_name = "TEXT")]
    reason: String,
    /// Do not ask before the plugin is stopped
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    waiting: OnRequest,
}

pub(super) async fn stop(flags: Stop, context: Context<'_, '_>) -> Result<(), Failure> {
    let Stop { name, reason, yes, waiting } = flags;
    let request = request(&name, Act::Stop, reason);
    let asked = (!yes).then_some("It stays stopped, over reboots, until `guest-agent start`.");
    perform(request, asked, waiting.timeout(), Goal::Stopped, context).await
}

pub(super) async fn start(flags: Start, context: Context<'_, '_>) -> Result<(), Failure> {
    let Start { name, waiting } = flags;
    let request = request(&name, Act::Start, String::new());
    perform(request, None, waiting.timeout(), Goal::Started, context).await
}

pub(super) async fn rollback(flags: Rollback, context: Context<'_, '_>) -> Result<(), Failure> {
    let Rollback { name, to, reason, yes, waiting } = flags;
    let revision = to.map(|to| to.to_string()).unwrap_or_default();
    let request = ActRequest { revision, ..request(&name, Act::Rollback, reason) };
    let asked = "The revision before runs again; the current one stays away until another is \
                 ordered or `guest-agent release`.";
    perform(request, (!yes).then_some(asked), waiting.timeout(), Goal::RolledBack, context).await
}

pub(super) async fn hold(flags: Hold, context: Context<'_, '_>) -> Result<(), Failure> {
    let Hold { whom, reason, until } = flags;
    let until = until.map(|until| until.after((context.console.now)()));
    let request = ActRequest { until, reason, ..whom.request(Act::Hold) };
    perform(request, None, None, Goal::Settled, context).await
}

pub(super) async fn release(flags: Release, context: Context<'_, '_>) -> Result<(), Failure> {
    let Release { whom, waiting } = flags;
    let timeout = waiting.timeout();
    if whom.all && timeout.is_some() {
        return Err(Failure::usage("--wait is for one plugin, not for --all")
            .hint("see `guest-agent status` for what becomes of the orders that waited"));
    }
    perform(whom.request(Act::Release), None, timeout, Goal::Settled, context).await
}

pub(super) async fn run(
    name: PluginName,
    waiting: OnRequest,
    context: Context<'_, '_>,
) -> Result<(), Failure> {
    let request = request(&name, Act::Run, String::new());
    perform(request, None, waiting.timeout(), Goal::Working, context).await
}

fn request(name: &PluginName, act: Act, reason: String) -> ActRequest {
    ActRequest { name: name.to_string(), act: act.into(), reason, ..ActRequest::default() }
}

/// Asks on a terminal where there is a question, hands the request over, and waits where that is
/// wanted.
pub(super) async fn perform(
    request: ActRequest,
    question: Option<&str>,
    timeout: Option<Timeout>,
    goal: Goal,
    context: Context<'_, '_>,
) -> Result<(), Failure> {
    let mut client = context.connect().await?;
    let name = if request.all { "all plugins".to_owned() } else { request.name.clone() };
    if let Some(consequence) = question {
        confirm(&mut client, &name, consequence, context.console).await?;
    }
    let answer = client.act(client::traced(request, context.environment)).await;
    let ActResponse { generation, at_most } = match answer {
        Ok(answer) => answer.into_inner(),
        Err(error) => return Err(client::about(&mut client, &name, error).await),
    };
    let order = Accepted { name, generation, at_most, goal, said: "accepted" };
    order.report(&mut client, timeout, context).await
}

// === impl Whom ===

impl Whom {
    fn request(self, act: Act) -> ActRequest {
        let name = self.name.map(|name| name.to_string()).unwrap_or_default();
        ActRequest { name, act: act.into(), all: self.all, ..ActRequest::default() }
    }
}

/// The outcome of an order, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct AcceptedJson<'a> {
    /// The number of the order.
    generation: u64,
    /// The plugin.
    name: &'a str,
    /// With `rollback --wait`: the revision that runs again.
    revision: Option<&'a str>,
    /// The state that the order led to, where it was waited for.
    state: Option<&'a str>,
}

/// An order for one plugin that the agent has accepted.
pub(super) struct Accepted<'a> {
    pub(super) name: String,
    pub(super) generation: u64,
    /// How long it takes at most; `None` from an agent of an older version.
    pub(super) at_most: Option<prost_types::Duration>,
    pub(super) goal: Goal,
    /// The words for an accepted order that nobody waits for.
    pub(super) said: &'a str,
}

impl Accepted<'_> {
    /// Prints what became of the order: the state that it led to where `timeout` gives it time, and
    /// otherwise its number.
    ///
    /// # Errors
    ///
    /// The order failed, `timeout` has passed, or the agent cannot be asked.
    pub(super) async fn report(
        self,
        client: &mut Client,
        timeout: Option<Timeout>,
        context: Context<'_, '_>,
    ) -> Result<(), Failure> {
        let Self { name, generation, at_most, goal, said } = self;
        let (mut state, mut revision) = (None, None);
        if let Some(patience) = timeout.map(|timeout| timeout.of([at_most])) {
            let awaited = [Awaited { name: name.clone(), goal, generation, after: None }];
            let mut progress = Progress::new(context.console);
            let verdicts = follow(client, &awaited, patience, &mut progress).await?;
            match verdicts.into_iter().next() {
                Some(FollowedOrder::Failed(why)) => {
                    return Err(Failure::failed(format!("{name}: {why}")));
                }
                Some(FollowedOrder::Held(by)) => return Err(held(&name, &by)),
                Some(FollowedOrder::Late(last)) => {
                    return Err(late(patience.whole).cause(format_args!("{name}: {last}")));
                }
                Some(FollowedOrder::Done(reached)) => state = Some(reached),
                Some(FollowedOrder::Returned { state: reached, revision: before }) => {
                    (state, revision) = (Some(reached), Some(before));
                }
                Some(FollowedOrder::Waiting) | None => {}
            }
        }
        let console = context.console;
        if context.global.json() {
            let (state, revision) = (state.as_deref(), revision.as_deref());
            console.document(&AcceptedJson { generation, name: &name, revision, state })?;
        } else {
            let said = match (state, revision) {
                (Some(state), Some(revision)) => format!("{state} with revision {revision}"),
                (Some(state), None) => state,
                (None, _) => format!("{said} as order {generation}"),
            };
            console.line(&format!("{name}: {said}"))?;
        }
        Ok(())
    }
}

/// Says what would be interrupted, and asks whether it may be. Only a terminal can answer: a script
/// means what it says.
pub(super) async fn confirm(
    client: &mut Client,
    name: &str,
    consequence: &str,
    console: &mut Console<'_>,
) -> Result<(), Failure> {
    if !console.can_ask() {
        return Ok(());
    }
    let plugins = client::status(client).await?.plugins;
    let Some(plugin) = plugins.iter().find(|plugin| plugin.name == name) else { return Ok(()) };
    let pid = plugin.pid.map(|pid| format!(", process {pid}")).unwrap_or_default();
    let what = format!(
        "{name} is {} with revision {}{pid}. {consequence}",
        one_line(&plugin.state),
        one_line(&plugin.revision)
    );
    if console.ask(&what)? { Ok(()) } else { Err(Failure::failed("nothing was done")) }
}

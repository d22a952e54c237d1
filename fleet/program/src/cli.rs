//! The command line of `guest-fleet`, as functions over a ledger: a verb is a file.
//!
//! ```text
//!   arguments ─► Verb ─► run ─► apply, diff, export · lists · hold, retry · agents, label, archive · gateways · explain · events · audit
//!                                 │ Context: ledger, where to print, who asks, when
//!                                 └─► Exit or Failure (one line, causes, what to try)
//! ```
//!
//! No verb opens a ledger or touches the process, so tests run them on a ledger in memory.

use std::time::Duration;

use clap::{Args, Subcommand};

pub mod agents;
pub mod apply;
pub mod archive;
pub mod artifact;
pub mod audit;
mod by_name;
pub mod ca;
pub mod context;
pub mod diff;
pub mod document;
pub mod drift;
pub mod events;
mod examples;
pub mod explain;
pub mod export;
pub mod facts;
pub mod failure;
pub mod gateways;
pub mod health;
pub mod hold;
pub mod identity;
pub mod index;
pub mod label;
pub mod lists;
mod pages;
pub mod presence;
pub mod resume;
pub mod retry;
pub mod rollout;
mod rows;
pub mod schemas;
pub mod secret;
pub mod secrets;
mod sources;
pub mod standing;
pub mod status;
mod text;
pub mod token;

#[cfg(test)]
mod tests;

use context::Context;
use failure::{Exit, Failure};

/// How long a verb may take. The ledger's engines have shorter deadlines of their own.
const DEADLINE: Duration = Duration::from_secs(120);

/// What people and scripts ask of a fleet.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Make the ledger say what files declare; deletes nothing without --prune.
    #[command(after_help = examples::APPLY)]
    Apply(apply::Options),
    /// Show what `apply` would change; exit code 1 when something differs.
    #[command(after_help = examples::DIFF)]
    Diff(diff::Options),
    /// Write the ledger as declarations; applying them changes nothing.
    #[command(after_help = examples::EXPORT)]
    Export(export::Options),
    /// List what can be installed.
    #[command(after_help = examples::RELEASES)]
    Releases,
    /// List which agents should run what.
    #[command(after_help = examples::ASSIGNMENTS)]
    Assignments,
    /// List where changes wait, and why.
    #[command(after_help = examples::HOLDS)]
    Holds,
    /// List when changes may happen.
    #[command(after_help = examples::WINDOWS)]
    Windows,
    /// Make changes wait.
    #[command(after_help = examples::HOLD)]
    Hold(hold::HoldOptions),
    /// End a hold.
    #[command(after_help = examples::RELEASE)]
    Release(hold::ReleaseOptions),
    /// Have an assignment's orders given again that failed, were taken back, drifted, or were changed on the machine.
    #[command(after_help = examples::RETRY)]
    Retry(retry::Options),
    /// Let orders of an assignment go on that stopped by themselves: many of its agents drifted, or the ledger went
    /// back.
    #[command(after_help = examples::RESUME)]
    Resume(resume::Options),
    /// Take an assignment from one release to another, wave by wave.
    #[command(subcommand, after_help = examples::ROLLOUT)]
    Rollout(rollout::Verb),
    /// Count the agents by where they stand.
    #[command(after_help = examples::STATUS)]
    Status,
    /// List the agents.
    #[command(after_help = examples::AGENTS)]
    Agents(agents::Options),
    /// Show one agent, or change its labels, its identity or whether it counts.
    #[command(after_help = examples::AGENT)]
    Agent(AgentOptions),
    /// List the gateways, which agents are connected to.
    #[command(after_help = examples::GATEWAYS)]
    Gateways,
    /// Show which version of a secret is where.
    #[command(subcommand, after_help = examples::SECRET)]
    Secret(secret::Verb),
    /// Make, list and revoke the tokens by which machines become agents.
    #[command(subcommand, after_help = examples::TOKEN)]
    Token(token::Verb),
    /// Say what an agent should have of a plugin, why, and where that stands.
    #[command(after_help = examples::EXPLAIN)]
    Explain(explain::Options),
    /// Show what happened: events of plugins, and of the fleet itself, oldest first.
    #[command(after_help = examples::EVENTS)]
    Events(events::Options),
    /// Show who changed what, or check that the record is whole.
    #[command(after_help = examples::AUDIT)]
    Audit(audit::Options),
}

/// The options of `agent`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AgentOptions {
    /// What to do; without it, show.
    #[command(subcommand)]
    pub verb: Option<AgentVerb>,
    /// Id of the agent.
    #[arg(required = true)]
    pub id: Option<String>,
}

/// What to do with an agent.
#[derive(Clone, Debug, Subcommand)]
pub enum AgentVerb {
    /// Set labels, or take them away.
    Label(label::Options),
    /// Revoke an agent and every certificate it has; its streams end within seconds.
    Revoke(identity::Options),
    /// Give an agent in quarantine its orders again, once a single machine has its identity.
    Release(identity::Options),
    /// Leave an agent out of every count until it connects again.
    Archive(identity::Options),
    /// Count an archived agent again, though it has not connected.
    Unarchive(identity::Options),
}

/// Runs a verb.
///
/// # Errors
/// Says the reason, and what to try.
pub async fn run(verb: &Verb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let is_endless = match verb {
        Verb::Rollout(verb) => verb.is_endless(),
        // A page at a time is shown, and each has a deadline of its own.
        Verb::Events(_) => true,
        _ => false,
    };
    if is_endless {
        return dispatch(verb, context).await;
    }
    tokio::time::timeout(DEADLINE, dispatch(verb, context)).await.unwrap_or_else(|_| {
        let seconds = DEADLINE.as_secs();
        Err(Failure::new(
            Exit::TimedOut,
            format_args!("the ledger did not answer within {seconds} seconds"),
        )
        .hint("a change may have happened: see `guest-fleet audit`"))
    })
}

async fn dispatch(verb: &Verb, context: &mut Context<'_>) -> Result<Exit, Failure> {
    match verb {
        Verb::Apply(options) => apply::run(options, context).await,
        Verb::Diff(options) => diff::run(options, context).await,
        Verb::Export(options) => export::run(options, context).await,
        Verb::Releases => lists::releases(context).await,
        Verb::Assignments => lists::assignments(context).await,
        Verb::Holds => lists::holds(context).await,
        Verb::Windows => lists::windows(context).await,
        Verb::Hold(options) => hold::hold(options, context).await,
        Verb::Release(options) => hold::release(options, context).await,
        Verb::Retry(options) => retry::run(options, context).await,
        Verb::Resume(options) => resume::run(options, context).await,
        Verb::Rollout(verb) => rollout::run(verb, context).await,
        Verb::Status => status::run(context).await,
        Verb::Agents(options) => agents::list(options, context).await,
        Verb::Agent(AgentOptions { verb: Some(AgentVerb::Label(options)), .. }) => {
            label::run(options, context).await
        }
        Verb::Agent(AgentOptions { verb: Some(AgentVerb::Revoke(options)), .. }) => {
            identity::revoke(options, context).await
        }
        Verb::Agent(AgentOptions { verb: Some(AgentVerb::Release(options)), .. }) => {
            identity::release(options, context).await
        }
        Verb::Agent(AgentOptions { verb: Some(AgentVerb::Archive(options)), .. }) => {
            archive::archive(options, context).await
        }
        Verb::Agent(AgentOptions { verb: Some(AgentVerb::Unarchive(options)), .. }) => {
            archive::unarchive(options, context).await
        }
        Verb::Gateways => gateways::list(context).await,
        Verb::Secret(verb) => secret::run(verb, context).await,
        Verb::Token(verb) => token::run(verb, context).await,
        Verb::Agent(AgentOptions { verb: None, id }) => {
            agents::show(id.as_deref().unwrap_or_default(), context).await
        }
        Verb::Explain(options) => explain::run(options, context).await,
        Verb::Events(options) => events::run(options, context).await,
        Verb::Audit(options) => audit::run(options, context).await,
    }
}

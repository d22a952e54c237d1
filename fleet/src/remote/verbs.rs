//! Which call a verb is, and how its answer is printed.

use std::time::Duration;

use guest_agent_proto::fleet_api as pb;

use super::link::Link;
use super::problem::refused;
use super::{agents, audit, files, requests, rollouts};
use crate::api::calls::Rpc;
use crate::cli::agents as shown_agents;
use crate::cli::context::Context;
use crate::cli::document::ChangeJson;
use crate::cli::failure::{Exit, Failure};
use crate::cli::hold::ReleaseOptions;
use crate::cli::index::{self, IndexJson};
use crate::cli::lists::{self, AssignmentsJson, HoldsJson, ReleasesJson, WindowsJson};
use crate::cli::status::{self, StatusJson};
use crate::cli::{AgentOptions, AgentVerb, Verb, archive, explain, gateways, token};

/// How long a verb may take, with all its calls.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs a verb. The ledger of the context is not looked at.
///
/// # Errors
/// The server cannot be reached or refuses, or the API has no call for the verb.
pub async fn run(verb: &Verb, link: &mut Link, context: &mut Context<'_>) -> Result<Exit, Failure> {
    if matches!(verb, Verb::Rollout(verb) if verb.is_endless()) {
        return dispatch(verb, link, context).await;
    }
    tokio::time::timeout(DEADLINE, dispatch(verb, link, context)).await.unwrap_or_else(|_| {
        let seconds = DEADLINE.as_secs();
        Err(Failure::new(
            Exit::TimedOut,
            format_args!("the server did not answer within {seconds} seconds"),
        )
        .hint("a change may have happened: see `guest-fleet audit`"))
    })
}

async fn dispatch(
    verb: &Verb,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    match verb {
        Verb::Apply(options) => files::apply(options, link, context).await,
        Verb::Diff(options) => files::diff(options, link, context).await,
        Verb::Export(_) => {
            Err(refused("export", "releases are not shown with their URLs, which may be signed"))
        }
        Verb::Releases => releases(link, context).await,
        Verb::Assignments => assignments(link, context).await,
        Verb::Holds => holds(link, context).await,
        Verb::Windows => windows(link, context).await,
        Verb::Hold(options) => {
            change(Rpc::SetHold, &requests::hold(options, context.now)?, link, context).await
        }
        Verb::Release(options) => end_hold(options, link, context).await,
        Verb::Retry(options) => {
            let request = pb::RetryAssignmentRequest {
                name: options.assignment.clone(),
                reason: options.reason.clone(),
                idempotency_key: requests::key(),
            };
            change(Rpc::RetryAssignment, &request, link, context).await
        }
        Verb::Rollout(verb) => rollouts::run(verb, link, context).await,
        Verb::Status => {
            let found: StatusJson = link.ask(Rpc::GetStatus, &pb::GetStatusRequest {}).await?;
            age(found.index.as_ref(), context)?;
            status::tell(&found, context)
        }
        Verb::Agents(options) => agents::list(options, link, context).await,
        Verb::Agent(options) => agent(options, link, context).await,
        Verb::Gateways => {
            let request = pb::ListGatewaysRequest {};
            gateways::tell(&link.ask(Rpc::ListGateways, &request).await?, context)
        }
        Verb::Token(verb) => tokens(verb, link, context).await,
        Verb::Access(_) => Err(refused("access", "nobody changes over the API who may use it")),
        Verb::Explain(options) => {
            let request =
                pb::ExplainRequest { agent: options.agent.clone(), plugin: options.plugin.clone() };
            explain::tell(&link.ask(Rpc::Explain, &request).await?, context)
        }
        Verb::Audit(options) => audit::run(options, link, context).await,
    }
}

async fn releases(link: &mut Link, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let found: ReleasesJson = link.ask(Rpc::ListReleases, &pb::ListReleasesRequest {}).await?;
    age(found.index.as_ref(), context)?;
    lists::tell_releases(&found, context)
}

async fn assignments(link: &mut Link, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let request = pb::ListAssignmentsRequest {};
    let found: AssignmentsJson = link.ask(Rpc::ListAssignments, &request).await?;
    age(found.index.as_ref(), context)?;
    lists::tell_assignments(&found, context)
}

async fn holds(link: &mut Link, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut found: HoldsJson = link.ask(Rpc::ListHolds, &pb::ListHoldsRequest {}).await?;
    for hold in &mut found.holds {
        hold.plugins = all_or_some(hold.plugins.take());
    }
    lists::tell_holds(&found, context)
}

async fn windows(link: &mut Link, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let mut found: WindowsJson = link.ask(Rpc::ListWindows, &pb::ListWindowsRequest {}).await?;
    for window in &mut found.windows {
        window.plugins = all_or_some(window.plugins.take());
    }
    lists::tell_windows(&found, context)
}

/// A message has no list that is absent; one without plugins is about all.
fn all_or_some(plugins: Option<Vec<String>>) -> Option<Vec<String>> {
    plugins.filter(|plugins| !plugins.is_empty())
}

async fn end_hold(
    options: &ReleaseOptions,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let request = pb::EndHoldRequest {
        name: options.name.clone(),
        reason: options.reason.clone(),
        idempotency_key: requests::key(),
    };
    let mut changed: ChangeJson = link.ask(Rpc::EndHold, &request).await?;
    changed.remark(context)?;
    changed.print(context)?;
    Ok(Exit::Done)
}

async fn agent(
    options: &AgentOptions,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let (rpc, options) = match &options.verb {
        None => {
            let id = options.id.clone().unwrap_or_default();
            let found = link.ask(Rpc::GetAgent, &pb::GetAgentRequest { id }).await?;
            return shown_agents::tell_one(&found, context);
        }
        Some(AgentVerb::Label(options)) => {
            return change(Rpc::LabelAgent, &requests::label(options), link, context).await;
        }
        Some(AgentVerb::Archive(options)) => {
            let changed = link.ask(Rpc::ArchiveAgent, &requests::agent(options)).await?;
            return archive::tell_archived(&changed, context);
        }
        Some(AgentVerb::Unarchive(options)) => (Rpc::UnarchiveAgent, options),
        Some(AgentVerb::Revoke(options)) => (Rpc::RevokeAgent, options),
        Some(AgentVerb::Release(options)) => (Rpc::ReleaseAgent, options),
    };
    change(rpc, &requests::agent(options), link, context).await
}

async fn tokens(
    verb: &token::Verb,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    match verb {
        token::Verb::Create(options) => {
            let made = link.ask(Rpc::CreateToken, &requests::token(options)?).await?;
            token::tell_new(&made, context)
        }
        token::Verb::List => {
            token::tell(link.ask(Rpc::ListTokens, &pb::ListTokensRequest {}).await?, context)
        }
        token::Verb::Revoke(options) => {
            let request = pb::RevokeTokenRequest {
                name: options.name.clone(),
                reason: options.reason.clone(),
                idempotency_key: requests::key(),
            };
            change(Rpc::RevokeToken, &request, link, context).await
        }
    }
}

/// A change that is printed as all are.
async fn change(
    rpc: Rpc,
    request: &impl prost::Message,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let changed: ChangeJson = link.ask(rpc, request).await?;
    changed.print(context)?;
    Ok(Exit::Done)
}

/// Remarks that counts are old, where they are.
fn age(index: Option<&IndexJson>, context: &mut Context<'_>) -> Result<(), Failure> {
    index.map_or(Ok(()), |age| index::tell_age(age, context))
}

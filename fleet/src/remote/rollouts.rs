//! Rollouts of a server.

use std::time::Duration;

use guest_agent_proto::fleet_api as pb;

use super::link::Link;
use super::requests;
use crate::api::calls::Rpc;
use crate::cli::context::Context;
use crate::cli::document::ChangeJson;
use crate::cli::failure::{Exit, Failure};
use crate::cli::rollout::watch::{Looks, Next};
use crate::cli::rollout::{
    CreateOptions, PreviewJson, RolloutJson, RolloutsJson, SteerOptions, Verb, WatchOptions,
    preview, show,
};

/// Runs the verb.
///
/// # Errors
/// The server cannot be asked, or refuses.
pub(super) async fn run(
    verb: &Verb,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    match verb {
        Verb::Create(options) => create(options, link, context).await,
        Verb::Preview(options) => {
            let request = requests::rollout(options)?;
            let found: PreviewJson = link.ask(Rpc::PreviewRollout, &request).await?;
            preview::tell(&found, context)
        }
        Verb::List => {
            let request = pb::ListRolloutsRequest {};
            let found: RolloutsJson = link.ask(Rpc::ListRollouts, &request).await?;
            show::tell_all(&found, context)
        }
        Verb::Show(options) => {
            let found = one(&options.name, link).await?;
            show::tell(&found, context)
        }
        Verb::Watch(options) => watch(options, link, context).await,
        Verb::History(options) => {
            let (name, limit) = (options.name.clone(), options.limit);
            let request = pb::ListRolloutHistoryRequest { name, limit };
            show::tell_moves(&link.ask(Rpc::ListRolloutHistory, &request).await?, context)
        }
        Verb::Start(options) => steer(Rpc::StartRollout, options, link, context).await,
        Verb::Pause(options) => steer(Rpc::PauseRollout, options, link, context).await,
        Verb::Resume(options) => steer(Rpc::ResumeRollout, options, link, context).await,
        Verb::Halt(options) => steer(Rpc::HaltRollout, options, link, context).await,
        Verb::Rollback(options) => steer(Rpc::RollBackRollout, options, link, context).await,
        Verb::Approve(options) => steer(Rpc::ApproveRollout, options, link, context).await,
        Verb::Abort(options) => steer(Rpc::AbortRollout, options, link, context).await,
    }
}

async fn one(name: &str, link: &mut Link) -> Result<RolloutJson, Failure> {
    link.ask(Rpc::GetRollout, &pb::GetRolloutRequest { name: name.to_owned() }).await
}

async fn create(
    options: &CreateOptions,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let mut changed: ChangeJson =
        link.ask(Rpc::CreateRollout, &requests::rollout(options)?).await?;
    let notes = std::mem::take(&mut changed.notes);
    changed.print(context)?;
    ChangeJson { notes, ..changed }.remark(context)?;
    Ok(Exit::Done)
}

async fn steer(
    rpc: Rpc,
    options: &SteerOptions,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let changed: ChangeJson = link.ask(rpc, &requests::steer(options)).await?;
    changed.print(context)?;
    Ok(Exit::Done)
}

/// Shows a rollout until it ends.
async fn watch(
    options: &WatchOptions,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let mut looks = Looks::default();
    loop {
        let rollout = one(&options.name, link).await?;
        if looks.tell(&rollout, options, context)? == Next::End {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(Duration::from_secs(options.every)).await;
    }
}

//! `WatchStatus` and `Explain`.

use guest_agent_actors::messages::{Explain, PlanOf};
use guest_agent_proto::local;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::explain;
use super::reach::{LocalApi, parse_name, unknown};

/// Longest wait for a plugin's actor to explain itself.
const EXPLAIN_WAIT: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) async fn watch(
    api: &LocalApi,
    request: local::GetStatusRequest,
) -> Result<ReceiverStream<Result<local::GetStatusResponse, Status>>, Status> {
    let local::GetStatusRequest { name, usage_points } = request;
    let points = usize::try_from(usage_points).unwrap_or(usize::MAX);
    let (sender, receiver) = mpsc::channel(1);
    let mut api = api.clone();
    tokio::spawn(async move {
        loop {
            api.changes.mark_unchanged();
            // A plugin that is not there (yet, or any more) is an empty list to a watcher.
            let status = match api.status("", points).await {
                Ok(mut status) => {
                    status.plugins.retain(|plugin| name.is_empty() || plugin.name == name);
                    Ok(status)
                }
                Err(error) => Err(error),
            };
            let is_last = status.is_err();
            if sender.send(status).await.is_err() || is_last {
                return;
            }
            tokio::select! {
                changed = api.changes.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
        }
    });
    Ok(ReceiverStream::new(receiver))
}

pub(super) async fn explain(
    api: &LocalApi,
    request: &local::ExplainRequest,
) -> Result<local::ExplainResponse, Status> {
    let refused = async |or| api.why_refused(&request.name).await.ok_or(or);
    let name = match parse_name(&request.name) {
        Ok(name) => name,
        // A folder may have a name that no plugin can have.
        Err(error) => return refused(error).await,
    };
    // A plugin that saves to a slow disk answers when that is done.
    let asked = api.manager.send(Explain(name.clone()));
    let explained = tokio::time::timeout(EXPLAIN_WAIT, asked)
        .await
        .map_err(|_| Status::deadline_exceeded(format!("{name} is busy and does not answer")))?
        .map_err(|_| Status::unavailable("the agent is stopping"))?;
    let Some(explained) = explained else { return refused(unknown(name.as_str())).await };
    let plan = api.scheduler.send(PlanOf(name)).await.unwrap_or_default();
    Ok(explain::explanation(explained, plan, (&api.plugins_dir, request.config)))
}

//! `Configure`, `AskAdmission` and `PlaceArchive`.

use guest_agent_actors::control_plane::TRACEPARENT;
use guest_agent_actors::error::Chain;
use guest_agent_actors::messages::{HowLong, OrderOutcome, Submission, Submit, SubmitError};
use guest_agent_actors::model::audit::Asker;
use guest_agent_actors::model::id::{Generation, PluginName};
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::wire;
use guest_agent_proto::agent_controlplane::configure_plugin_states::{
    Action, ConfigurePlugin, Plugin,
};
use guest_agent_proto::local;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Status, Streaming};

use super::reach::LocalApi;
use super::{admission, archives};
use crate::api::principal::Principal;

/// The order to remove a plugin.
pub(crate) fn remove_order(name: &str) -> ConfigurePlugin {
    let plugin = Plugin { name: name.to_owned(), ..Plugin::default() };
    let mut order = ConfigurePlugin { plugin: Some(plugin), ..ConfigurePlugin::default() };
    order.set_action(Action::Remove);
    order
}

pub(super) async fn configure(
    api: &LocalApi,
    request: Request<local::ConfigureRequest>,
) -> Result<local::ConfigureResponse, Status> {
    let (metadata, extensions, request) = request.into_parts();
    let asker = Principal::of(&extensions).await.asker("");
    let orders = request.orders.unwrap_or_default().encode_to_vec();
    let results = submit(api, Submission::Configure(orders), asker, &metadata).await?;
    Ok(local::ConfigureResponse { results })
}

pub(super) async fn ask_admission(
    api: &LocalApi,
    request: local::AskAdmissionRequest,
) -> Result<ReceiverStream<Result<local::AskAdmissionResponse, Status>>, Status> {
    let order = request.order.unwrap_or_default();
    let (sender, receiver) = mpsc::channel(1);
    let gate = api.gate.clone();
    tokio::spawn(async move {
        // A caller that has disconnected cancels its question.
        tokio::select! {
            answer = admission::ask(&gate, order) => drop(sender.send(answer).await),
            () = sender.closed() => {}
        }
    });
    Ok(ReceiverStream::new(receiver))
}

pub(super) async fn place_archive(
    api: &LocalApi,
    request: Streaming<local::PlaceArchiveRequest>,
) -> Result<ReceiverStream<Result<local::PlaceArchiveResponse, Status>>, Status> {
    let (sender, receiver) = mpsc::channel(1);
    let spool = api.spool.clone();
    tokio::spawn(async move {
        let placed = archives::place(spool, request).await;
        let answer = placed
            .map(|path| local::PlaceArchiveResponse { path: path.to_string_lossy().into_owned() });
        // A caller that has disconnected needs no answer.
        drop(sender.send(answer).await);
    });
    Ok(ReceiverStream::new(receiver))
}

/// Hands orders over. What becomes of them is in the audit record when this answers.
pub(super) async fn submit(
    api: &LocalApi,
    submission: Submission,
    asker: Asker,
    metadata: &MetadataMap,
) -> Result<Vec<local::ConfigureResult>, Status> {
    let at_most = at_most(api, &submission).await;
    let traceparent = metadata.get(TRACEPARENT).and_then(|text| Some(text.to_str().ok()?.into()));
    let submitted = api
        .control_plane
        .send(Submit { submission, asker: Some(asker), traceparent })
        .await
        .map_err(|_| Status::unavailable("the agent is stopping"))?
        .map_err(|error| not_taken(&error))?;
    let at_most = at_most.into_iter().chain(std::iter::repeat(None));
    let last_event = Some(submitted.last_event.0);
    let result = |(outcome, at_most): (OrderOutcome, _)| {
        let name = outcome.name;
        match outcome.result {
            Ok(Generation(generation)) => local::ConfigureResult {
                name,
                generation,
                at_most,
                last_event,
                ..Default::default()
            },
            Err(error) => local::ConfigureResult { name, error, ..Default::default() },
        }
    };
    Ok(submitted.outcomes.into_iter().zip(at_most).map(result).collect())
}

/// How long each order takes at most; `None` for one that cannot be understood.
async fn at_most(api: &LocalApi, submission: &Submission) -> Vec<Option<prost_types::Duration>> {
    let orders = orders_in(submission);
    let understood = orders.iter().flatten().cloned().collect();
    let answer = api.manager.send(HowLong(understood)).await.unwrap_or_default();
    let mut answer = answer.into_iter();
    let of = |order: &Option<_>| {
        let longest = order.as_ref().and_then(|_| answer.next())?;
        prost_types::Duration::try_from(longest).ok()
    };
    orders.iter().map(of).collect()
}

/// Each order of a submission that is for one plugin; `None` in the place of one that cannot be
/// understood.
fn orders_in(submission: &Submission) -> Vec<Option<(PluginName, Order)>> {
    match submission {
        Submission::Configure(bytes) => {
            let decoded = wire::decode_orders(bytes, Origin::Local).unwrap_or_default();
            let named = decoded.into_iter().map(Result::ok);
            named.map(|order| order.map(|order| (order.name, order.order))).collect()
        }
        Submission::Restart(name) | Submission::Run(name) => {
            vec![Some((name.clone(), Order::Restart))]
        }
        Submission::Asked(name, act) => vec![Some((name.clone(), Order::Asked(act.clone())))],
        Submission::AskedOfAll(_) => Vec::new(),
    }
}

fn not_taken(error: &SubmitError) -> Status {
    match error {
        SubmitError::Malformed(_) => Status::invalid_argument(error.to_string()),
        SubmitError::NotSaved(error) => Status::internal(Chain(error).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_actors::messages::SaveFailed;
    use tonic::Code;

    use super::*;

    #[test]
    fn orders_that_cannot_be_decoded_are_an_invalid_argument_with_the_reason() {
        let status = not_taken(&SubmitError::Malformed("the message has 5000 orders".into()));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("5000 orders"), "{status:?}");
        let status = not_taken(&SubmitError::NotSaved(SaveFailed("the disk is full".into())));
        assert_eq!(status.code(), Code::Internal);
    }
}

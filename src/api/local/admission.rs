//! Whether the admission plugin would admit an order.

use actix::Recipient;
use guest_agent_actors::admission::{self, Ask, Question};
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::wire::{self, NamedOrder};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local::{AdmissionVerdict, AskAdmissionResponse};
use prost::Message;
use tonic::Status;

use super::values;
use crate::display::values::Named;

/// Asks the question that the installation of this order would ask. The admission queue always
/// answers.
pub(super) async fn ask(
    gate: &Recipient<Ask>,
    order: ConfigurePlugin,
) -> Result<AskAdmissionResponse, Status> {
    let said = |verdict: AdmissionVerdict, reason: &str| AskAdmissionResponse {
        verdict: verdict.name().to_owned(),
        reason: reason.to_owned(),
        verdict_value: verdict.into(),
    };
    let bytes = ConfigurePluginStates { configure_plugins: vec![order] }.encode_to_vec();
    let decoded = wire::decode_orders(&bytes, Origin::Local)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let spec = match decoded.into_iter().next() {
        Some(Ok(NamedOrder { order: Order::Install(spec), .. })) => spec,
        Some(Err(refusal)) => return Err(Status::invalid_argument(refusal.reason)),
        Some(Ok(_)) | None => return Err(Status::invalid_argument("nothing is to be installed")),
    };
    if admission::is_open(gate).await {
        return Ok(said(AdmissionVerdict::Open, ""));
    }
    let verdict = admission::ask(gate, Question::of(&spec)).await;
    let reason = match &verdict {
        admission::AdmissionVerdict::Admitted => "",
        admission::AdmissionVerdict::Denied(reason) => reason,
        admission::AdmissionVerdict::Closing => "the agent is stopping",
    };
    Ok(said(values::admission(&verdict), reason))
}

//! What is not on pages for visitors without a token: what plugins print, and how they are run.

use guest_agent_proto::local::{Event, ExplainResponse, PluginStatus};

use crate::api::last_output;

/// Replaces the last output.
const LEFT_OUT: &str = "its last output is shown with a token only";

/// Removes the last output from the status of a plugin.
pub(super) fn of_status(status: &mut PluginStatus) {
    last_output::leave_out_of_status(status, LEFT_OUT);
}

/// Removes the last output, what a run wrote, and the order with its arguments from the explanation
/// of a plugin.
pub(super) fn of_answer(answer: &mut ExplainResponse) {
    last_output::leave_out_of_answer(answer, LEFT_OUT);
}

/// Removes the last output from an event.
pub(super) fn of_event(event: &mut Event) {
    last_output::leave_out_of_event(event, LEFT_OUT);
}

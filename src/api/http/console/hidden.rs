//! Removes what plugins print from pages for visitors without a token, and how they are run.
//!
//! The last output of a plugin is in its log, and also in the texts that describe how it ended: in
//! events, reasons and errors. These texts end with it, after the marker [`LAST_OUTPUT`].

use guest_agent_actors::ports::LAST_OUTPUT;
use guest_agent_proto::local::{Event, ExplainResponse, PluginStatus};

/// Replaces the last output.
const LEFT_OUT: &str = "its last output is shown with a token only";

/// Removes the last output from the status of a plugin.
pub(super) fn of_status(status: &mut PluginStatus) {
    leave_out(&mut status.reason);
    if let Some(verdict) = &mut status.verdict {
        leave_out(&mut verdict.reason);
    }
    if let Some(pending) = &mut status.pending {
        leave_out(&mut pending.state);
        leave_out(&mut pending.error);
    }
    if let Some(exit) = &mut status.last_exit {
        leave_out(&mut exit.detail);
    }
    if let Some(progress) = &mut status.progress {
        leave_out(&mut progress.held_up);
    }
}

/// Removes the last output, what a run wrote, and the order with its arguments from the explanation
/// of a plugin.
pub(super) fn of_answer(answer: &mut ExplainResponse) {
    answer.last_output.clear();
    answer.order = None;
    if let Some(status) = &mut answer.status {
        of_status(status);
    }
    if let Some(trouble) = &mut answer.trouble {
        leave_out(&mut trouble.why);
    }
    for step in &mut answer.moves {
        leave_out(&mut step.why);
    }
    for plan in &mut answer.triggers {
        leave_out(&mut plan.last);
    }
}

/// Leaves last words out of an event.
pub(super) fn of_event(event: &mut Event) {
    leave_out(&mut event.details);
}

fn leave_out(text: &mut String) {
    if let Some(at) = text.find(LAST_OUTPUT) {
        text.truncate(at);
        text.push_str(LEFT_OUT);
    }
}

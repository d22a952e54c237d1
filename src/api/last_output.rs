//! Removes what plugins print, and how they are run, from what is shown to those who may not see it:
//! visitors of the console without a token, and members of `agent.socket_group`.
//!
//! The last output of a plugin is in its log, and also in the texts that describe how it ended: in
//! events, reasons and errors. These texts end with it; [`before_output`] is the part that stays.

use guest_agent_actors::ports::before_output;
use guest_agent_proto::local::{Event, ExplainResponse, PluginStatus};

/// Removes the last output from the status of a plugin.
pub(super) fn leave_out_of_status(status: &mut PluginStatus, instead: &str) {
    leave_out(&mut status.reason, instead);
    if let Some(verdict) = &mut status.verdict {
        leave_out(&mut verdict.reason, instead);
    }
    if let Some(pending) = &mut status.pending {
        leave_out(&mut pending.state, instead);
        leave_out(&mut pending.error, instead);
    }
    if let Some(exit) = &mut status.last_exit {
        leave_out(&mut exit.detail, instead);
    }
    if let Some(progress) = &mut status.progress {
        leave_out(&mut progress.held_up, instead);
    }
}

/// Removes the last output, what a run wrote, and the order with its arguments from the explanation
/// of a plugin.
pub(super) fn leave_out_of_answer(answer: &mut ExplainResponse, instead: &str) {
    answer.last_output.clear();
    answer.order = None;
    if let Some(status) = &mut answer.status {
        leave_out_of_status(status, instead);
    }
    if let Some(trouble) = &mut answer.trouble {
        leave_out(&mut trouble.why, instead);
    }
    for step in &mut answer.moves {
        leave_out(&mut step.why, instead);
    }
    for plan in &mut answer.triggers {
        leave_out(&mut plan.last, instead);
    }
}

/// Removes the last output from an event.
pub(super) fn leave_out_of_event(event: &mut Event, instead: &str) {
    leave_out(&mut event.details, instead);
}

fn leave_out(text: &mut String, instead: &str) {
    let before = before_output(text).len();
    if before < text.len() {
        text.truncate(before);
        text.push_str(instead);
    }
}

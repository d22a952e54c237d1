//! The outcome of a VM event for one plugin, as a number and a sentence. The numbers are those of
//! the JSON protocol; the local API has the same.

use guest_agent_actors::model::vm_event::Notification;

/// The request was carried out.
pub(crate) const SUCCESS: i32 = 0;

/// The plugin does not run, so it was not notified.
pub const NOT_RUNNING: i32 = 501;

/// The call that notifies the plugin failed.
pub const FAILED: i32 = 502;

/// The status of a notification, and the sentence that explains it.
#[must_use]
pub fn plugin_status(outcome: &Notification) -> (i32, String) {
    match outcome {
        Notification::Delivered => (SUCCESS, String::new()),
        Notification::NotInterested => {
            (SUCCESS, "the plugin does not implement the call for VM events".to_owned())
        }
        Notification::NotRunning => {
            (NOT_RUNNING, "the plugin is not running, so it did not get the event".to_owned())
        }
        Notification::Failed(error) => (FAILED, error.to_string()),
    }
}

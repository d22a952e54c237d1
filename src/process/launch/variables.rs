//! Environment variables that name a plugin to its own processes, and by which the agent finds
//! those processes again.

/// Names the plugin in the environment of its processes.
pub(crate) const PLUGIN_VARIABLE: &str = "GUEST_AGENT_PLUGIN";

/// Names the plugin's state directory, which no other agent on the machine uses.
pub(crate) const STATE_DIR_VARIABLE: &str = "GUEST_AGENT_STATE_DIR";

/// Names the revision in the environment of a plugin.
pub(crate) const REVISION_VARIABLE: &str = "GUEST_AGENT_REVISION";

/// Says to a one-shot plugin why this run of it began.
pub(crate) const TRIGGER_VARIABLE: &str = "GUEST_AGENT_TRIGGER";

/// Carries the ticket in the environment of a plugin.
pub(crate) const TICKET_VARIABLE: &str = "GUEST_AGENT_TICKET";

/// Names the socket on which the agent serves plugins.
pub(crate) const HOST_SOCKET_VARIABLE: &str = "GUEST_AGENT_HOST_SOCKET";

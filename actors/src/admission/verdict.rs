//! What an admission plugin decided.

use std::sync::Arc;

use crate::text::shortened;

/// Most bytes that are kept of what a plugin gives as its reason.
const REASON_MAX: usize = 1024;

/// What became of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionVerdict {
    /// It may be deployed.
    Admitted,
    /// It may not, for this reason.
    Denied(Arc<str>),
    /// There is no decision, because the agent is shutting down. An installation that begins again
    /// after the restart asks again.
    Closing,
}

// === impl AdmissionVerdict ===

impl AdmissionVerdict {
    /// What the status of a ResolveAdmission says: no status at all denies. `code` is a gRPC code
    /// with its name, the message is the plugin's own.
    #[must_use]
    pub fn of_status(status: Option<(i32, &str, &str)>) -> Self {
        match status {
            Some((0, _, _)) => Self::Admitted,
            Some((_, code, "")) => {
                Self::Denied(format!("denied by the admission plugin ({code})").into())
            }
            Some((_, code, message)) => {
                let message = presentable(message);
                Self::Denied(format!("denied by the admission plugin: {message} ({code})").into())
            }
            None => Self::Denied(
                "denied by the admission plugin, which answered without a status".into(),
            ),
        }
    }
}

/// Foreign text, made safe for a line of the agent's log.
pub(super) fn presentable(text: &str) -> String {
    let line = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    let line: String = line.take(REASON_MAX).collect();
    shortened(&line, REASON_MAX).to_owned()
}

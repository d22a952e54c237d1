//! The decision of an admission plugin.

use std::sync::Arc;

use crate::text::shortened;

/// Most bytes that are kept of a plugin's reason.
const REASON_MAX: usize = 1024;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionVerdict {
    /// It may be deployed.
    Admitted,
    /// It may not be deployed, for this reason.
    Denied(Arc<str>),
    /// There is no decision, because the agent is shutting down. An installation that begins again
    /// after the restart asks again.
    Closing,
}

// === impl AdmissionVerdict ===

impl AdmissionVerdict {
    /// What the status of a ResolveAdmission says: gRPC code with its name, and the plugin's own
    /// message. No status is OK: grpc-go turns the absence of an error into no status, so plugins
    /// that are made with CIPD's Go library send none with every approval.
    #[must_use]
    pub fn of_status(status: Option<(i32, &str, &str)>) -> Self {
        match status {
            None | Some((0, _, _)) => Self::Admitted,
            Some((_, code, "")) => {
                Self::Denied(format!("denied by the admission plugin ({code})").into())
            }
            Some((_, code, message)) => {
                let message = presentable(message);
                Self::Denied(format!("denied by the admission plugin: {message} ({code})").into())
            }
        }
    }
}

/// Foreign text, made safe for a line of the agent's log.
pub(super) fn presentable(text: &str) -> String {
    let line = text.trim().chars().map(|c| if c.is_control() { ' ' } else { c });
    let line: String = line.take(REASON_MAX).collect();
    shortened(&line, REASON_MAX).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_code_that_is_not_ok_denies() {
        for admits in [None, Some((0, "OK", "")), Some((0, "OK", "fine"))] {
            let verdict = AdmissionVerdict::of_status(admits);
            assert_eq!(verdict, AdmissionVerdict::Admitted, "{admits:?}");
        }
        for (status, reason) in [
            ((7, "PERMISSION_DENIED", "not\nthis"), ": not this (PERMISSION_DENIED)"),
            ((-1, "UNKNOWN", ""), " (UNKNOWN)"),
        ] {
            let AdmissionVerdict::Denied(said) = AdmissionVerdict::of_status(Some(status)) else {
                panic!("{status:?} admits");
            };
            assert_eq!(&*said, format!("denied by the admission plugin{reason}"));
        }
    }
}

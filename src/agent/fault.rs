//! The faults that end the service.

/// Why the service ended although no signal asked it to. After the next start the agent finds its
/// plugins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("the {0} actor panicked; its panic is in the log")]
    Actor(&'static str),
    #[error("the local socket is not served any more")]
    LocalSocket,
    #[error("the link to the control plane ended unexpectedly")]
    Link,
    #[error(
        "the metadata server gives another instance id than the one that this agent started with"
    )]
    AnotherMachine,
    #[error("the state directory can be used again")]
    StateDirectoryIsBack,
}

//! The kinds of plugin events, and their properties for the rest of the agent. Pure.
//!
//! Every property of a kind is a match without a wildcard here: a new kind does not compile before
//! each of them is stated for it.

use crate::ports::OrderKind;

/// Declares the enum and the list of its kinds at once, so that no kind can be missing in the list.
macro_rules! event_kinds {
    ($($(#[$doc:meta])* $kind:ident,)*) => {
        /// Kinds of plugin events, named after the wire's event types. The last two are not of the public
        /// protocol ([`PluginEventKind::is_public`]).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum PluginEventKind {
            $($(#[$doc])* $kind,)*
        }

        impl PluginEventKind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$kind,)*];
        }
    };
}

event_kinds! {
    /// PLUGIN_CONFIG_INSTALL.
    InstallRequested,
    /// PLUGIN_CONFIG_REMOVE.
    RemoveRequested,
    /// PLUGIN_INSTALLED.
    Installed,
    /// PLUGIN_STARTED.
    Started,
    /// PLUGIN_REMOVED.
    Removed,
    /// PLUGIN_STOPPED.
    Stopped,
    /// PLUGIN_CRASHED.
    Crashed,
    /// PLUGIN_INSTALL_FAILED.
    InstallFailed,
    /// PLUGIN_START_FAILED.
    StartFailed,
    /// PLUGIN_REMOVE_FAILED.
    RemoveFailed,
    /// PLUGIN_CONFIG_APPLY.
    ApplyRequested,
    /// PLUGIN_CONFIG_APPLIED.
    Applied,
    /// PLUGIN_CONFIG_APPLY_FAILED.
    ApplyFailed,
    /// PLUGIN_EXECUTION_COMPLETED.
    ExecutionCompleted,
    /// PLUGIN_EXECUTION_FAILED.
    ExecutionFailed,
    /// PLUGIN_UNHEALTHY.
    Unhealthy,
    /// PLUGIN_HEALTHY.
    Healthy,
}

/// What an event of a kind means for the operation that the plugin is busy with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventClass {
    /// An order was taken.
    Requested,
    /// Something succeeded.
    Succeeded,
    /// Something failed; the operation fails with it.
    Failed,
    /// A process was stopped, as it was meant to be.
    Stopped,
    /// A process ended without a stop. The plugin is started again.
    Crashed,
    /// The answer of a running process to its health checks changed. No operation ends with it.
    Health,
}

// === impl PluginEventKind ===

impl PluginEventKind {
    /// What an event of this kind means for the operation that the plugin is busy with.
    #[must_use]
    pub const fn class(self) -> EventClass {
        match self {
            Self::InstallRequested | Self::RemoveRequested | Self::ApplyRequested => {
                EventClass::Requested
            }
            Self::Installed
            | Self::Started
            | Self::Removed
            | Self::Applied
            | Self::ExecutionCompleted => EventClass::Succeeded,
            Self::InstallFailed
            | Self::StartFailed
            | Self::RemoveFailed
            | Self::ApplyFailed
            | Self::ExecutionFailed => EventClass::Failed,
            Self::Stopped => EventClass::Stopped,
            Self::Crashed => EventClass::Crashed,
            Self::Unhealthy | Self::Healthy => EventClass::Health,
        }
    }

    /// Whether the public protocol has a type for the event. Only a fleet is sent the others.
    #[must_use]
    pub const fn is_public(self) -> bool {
        match self.class() {
            EventClass::Health => false,
            EventClass::Requested
            | EventClass::Succeeded
            | EventClass::Failed
            | EventClass::Stopped
            | EventClass::Crashed => true,
        }
    }

    /// The kind of order that the event reports or answers. `None` for events that repeat without
    /// an order.
    #[must_use]
    pub const fn order(self) -> Option<OrderKind> {
        match self {
            Self::InstallRequested | Self::Installed | Self::InstallFailed => {
                Some(OrderKind::Install)
            }
            Self::RemoveRequested | Self::Removed | Self::RemoveFailed => Some(OrderKind::Remove),
            Self::ApplyRequested | Self::Applied | Self::ApplyFailed => Some(OrderKind::Apply),
            Self::Started
            | Self::Stopped
            | Self::Crashed
            | Self::StartFailed
            | Self::ExecutionCompleted
            | Self::ExecutionFailed
            | Self::Unhealthy
            | Self::Healthy => None,
        }
    }

    /// What happened, for the log: the plugin is the subject.
    #[must_use]
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::InstallRequested => "the plugin is being installed",
            Self::RemoveRequested => "the plugin is being removed",
            Self::Installed => "the plugin is installed",
            Self::Started => "the plugin was started",
            Self::Removed => "the plugin is removed",
            Self::Stopped => "the plugin was stopped",
            Self::Crashed => "the plugin crashed",
            Self::InstallFailed => "the revision of the plugin failed",
            Self::StartFailed => "the plugin did not start",
            Self::RemoveFailed => "the plugin could not be removed",
            Self::ApplyRequested => "the plugin gets a configuration",
            Self::Applied => "the plugin took its configuration",
            Self::ApplyFailed => "the plugin did not take its configuration",
            Self::ExecutionCompleted => "the plugin completed its run",
            Self::ExecutionFailed => "the run of the plugin failed",
            Self::Unhealthy => "the plugin is unhealthy",
            Self::Healthy => "the plugin is healthy again",
        }
    }

    /// Whether the event says how a run of a one-shot plugin ended.
    #[must_use]
    pub const fn ends_run(self) -> bool {
        match self {
            Self::ExecutionCompleted | Self::ExecutionFailed => true,
            Self::InstallRequested
            | Self::RemoveRequested
            | Self::ApplyRequested
            | Self::Installed
            | Self::Started
            | Self::Removed
            | Self::Applied
            | Self::Stopped
            | Self::Crashed
            | Self::InstallFailed
            | Self::StartFailed
            | Self::RemoveFailed
            | Self::ApplyFailed
            | Self::Unhealthy
            | Self::Healthy => false,
        }
    }

    /// Whether the details of the event end with the last lines that the process wrote.
    #[must_use]
    pub const fn quotes_output(self) -> bool {
        match self.class() {
            EventClass::Crashed => true,
            EventClass::Requested
            | EventClass::Succeeded
            | EventClass::Failed
            | EventClass::Stopped
            | EventClass::Health => self.ends_run(),
        }
    }

    /// Whether the event is kept for people who later look for the cause of a failure.
    #[must_use]
    pub const fn is_trouble(self) -> bool {
        match self.class() {
            EventClass::Failed | EventClass::Crashed => true,
            EventClass::Requested | EventClass::Succeeded | EventClass::Stopped => false,
            EventClass::Health => matches!(self, Self::Unhealthy),
        }
    }
}

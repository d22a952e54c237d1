//! The trials, with what they are called and why they matter.

/// Something that is tried with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Trial {
    /// It starts.
    Start,
    /// It answers health checks.
    Health,
    /// It answers questions.
    Question,
    /// It takes or refuses a text.
    ApplyText,
    /// It takes or refuses a structure.
    ApplyStructure,
    /// It takes or refuses the end of its configuration.
    ApplyNothing,
    /// It survives a configuration without sense.
    ApplyGarbage,
    /// It survives news of the machine.
    VmEvent,
    /// It stops when it is asked to.
    Stop,
    /// It survives a restart of the agent.
    Adoption,
    /// It comes back after it was killed.
    Kill,
    /// It survives a pause.
    Pause,
    /// It leaks nothing over restarts.
    Restarts,
    /// It runs with little memory.
    Memory,
    /// It runs with little CPU time.
    Cpu,
    /// It survives a full state directory.
    FullDisk,
    /// It does not write where it is installed.
    ReadOnly,
    /// It needs no environment.
    Environment,
    /// It needs no host socket.
    HostSocket,
    /// It runs without privileges.
    Unprivileged,
    /// The strictest policy that it runs with.
    Policy,
    /// It goes without a trace.
    Removal,
}

// === impl Trial ===

impl Trial {
    /// All of them, in the order in which they are run.
    pub const ALL: [Self; 22] = [
        Self::Start,
        Self::Health,
        Self::Question,
        Self::ApplyText,
        Self::ApplyStructure,
        Self::ApplyNothing,
        Self::ApplyGarbage,
        Self::VmEvent,
        Self::Stop,
        Self::Adoption,
        Self::Kill,
        Self::Pause,
        Self::Restarts,
        Self::Memory,
        Self::Cpu,
        Self::FullDisk,
        Self::ReadOnly,
        Self::Environment,
        Self::HostSocket,
        Self::Unprivileged,
        Self::Policy,
        Self::Removal,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Health => "health",
            Self::Question => "question",
            Self::ApplyText => "apply-text",
            Self::ApplyStructure => "apply-structure",
            Self::ApplyNothing => "apply-nothing",
            Self::ApplyGarbage => "apply-garbage",
            Self::VmEvent => "vm-event",
            Self::Stop => "stop",
            Self::Adoption => "adoption",
            Self::Kill => "kill",
            Self::Pause => "pause",
            Self::Restarts => "restarts",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::FullDisk => "full-disk",
            Self::ReadOnly => "read-only",
            Self::Environment => "environment",
            Self::HostSocket => "host-socket",
            Self::Unprivileged => "unprivileged",
            Self::Policy => "policy",
            Self::Removal => "removal",
        }
    }

    /// Why it matters.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Start => {
                "a plugin that does not answer Start in time is killed and started again"
            }
            Self::Health => {
                "three checks without an answer count as a hung plugin, which is killed"
            }
            Self::Question => "operators and rollouts wait for what only the plugin knows",
            Self::ApplyText | Self::ApplyStructure | Self::ApplyNothing => {
                "a configuration is refused with a reason or taken; a crash is an outage"
            }
            Self::ApplyGarbage => "a mistake in a configuration reaches every machine at once",
            Self::VmEvent => "news of the machine come through Apply to every plugin",
            Self::Stop => {
                "an upgrade waits for the stop, and a process that stays is killed amid its work"
            }
            Self::Adoption => "plugins live on while the agent is upgraded",
            Self::Kill => "the kernel kills when memory is short, and the machine may lose power",
            Self::Pause => "machines are paused to be moved and saved",
            Self::Restarts => "what each restart leaves behind fills the machine in the end",
            Self::Memory => "beyond its limit a plugin is killed, so the limit has to fit",
            Self::Cpu => "a busy machine gives a plugin a small share of its time",
            Self::FullDisk => "disks fill up, and a plugin that crashes then does not come back",
            Self::ReadOnly => {
                "files of an installation are checked and deleted; what is written there is lost"
            }
            Self::Environment => "the agent of a service manager has no HOME, no LANG and no TZ",
            Self::HostSocket => "the host socket may be away while the agent restarts",
            Self::Unprivileged => "a plugin that needs no privileges cannot lose them to anybody",
            Self::Policy => "the machine's policy limits what a bug in the plugin can reach",
            Self::Removal => "a removed plugin must not hold processes, ports or files",
        }
    }

    /// Whether a plugin has to pass it.
    #[must_use]
    pub const fn is_required(self) -> bool {
        !matches!(self, Self::Memory | Self::Unprivileged | Self::Policy)
    }

    /// Whether it makes sense for a plugin that runs to completion.
    pub(super) const fn is_for_one_shots(self) -> bool {
        matches!(self, Self::Start | Self::Environment | Self::ReadOnly | Self::Removal)
    }
}

//! Every metric: its name, its meaning, and what to do when its value looks bad.
//!
//! The page, `docs/reference/metrics.md`, the dashboard and the alerts in `config/` go by this
//! table; tests hold them to it.

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only goes up, and starts again with the agent or the plugin.
    Counter,
    /// How many durations were in each range.
    Histogram,
    /// Always 1; its labels have the information.
    Info,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds; for a point in time, since 1970.
    Seconds,
    /// Bytes.
    Bytes,
    /// A plain number.
    Number,
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the unit and without what its kind appends.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// The labels that it has.
    pub labels: &'static [&'static str],
    /// Its meaning, as a sentence.
    pub help: &'static str,
    /// What to do when its value looks bad.
    pub then: &'static str,
}

// === impl Unit ===

impl Unit {
    /// The unit as names contain it.
    #[must_use]
    pub const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Seconds => Some("seconds"),
            Self::Bytes => Some("bytes"),
            Self::Number => None,
        }
    }
}

// === impl Metric ===

impl Metric {
    /// The name of its family in OpenMetrics.
    #[must_use]
    pub fn family(&self) -> String {
        match self.unit.as_str() {
            Some(unit) => format!("{}_{unit}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// The suffix that its kind appends to the name of its family, for kinds with one sample.
    #[must_use]
    pub const fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Gauge | Kind::Histogram => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        }
    }

    /// The names under which it can be queried.
    #[must_use]
    pub fn samples(&self) -> Vec<String> {
        let family = self.family();
        match self.kind {
            Kind::Gauge | Kind::Counter | Kind::Info => vec![family + self.suffix()],
            Kind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|suffix| format!("{family}{suffix}")).into()
            }
        }
    }
}

macro_rules! catalogue {
    ($($id:ident = $name:literal $kind:ident $unit:ident [$($label:literal)*]
        $help:literal $then:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                unit: Unit::$unit,
                labels: &[$($label),*],
                help: $help,
                then: $then,
            };
        )*

        /// All metrics, in the order in which they are shown.
        pub const METRICS: &[&Metric] = &[$(&$id),*];
    };
}

catalogue! {
    BUILD = "guest_agent_build" Info Number ["version"]
        "The agent that answers."
        "Machines of a fleet with another version than the rest were not upgraded.";
    READY = "guest_agent_ready" Gauge Number []
        "1 when the boot-critical plugins are up or had their chance, else 0."
        "Ask `/readyz` or `guest-agent status` which plugin is waited for, and `guest-agent explain` why.";
    LINK_UP = "guest_agent_link_up" Gauge Number []
        "1 while there is a stream to the control plane, else 0; absent where none is configured."
        "`guest-agent doctor` says why there is no stream. Plugins keep running; orders and events wait.";
    LINK_CONNECTIONS = "guest_agent_link_connections" Counter Number []
        "How often the control plane was connected after it was not."
        "A link that comes and goes: look at proxies between, and at the control plane's own log.";
    OUTBOX_EVENTS = "guest_agent_outbox_events" Gauge Number []
        "Events that the control plane has not acknowledged."
        "Beyond 100,000 events or 64 MiB the least important are dropped: see why the link is down, or why the control plane does not acknowledge.";
    OUTBOX_BYTES = "guest_agent_outbox" Gauge Bytes []
        "Bytes of the events that the control plane has not acknowledged."
        "As for guest_agent_outbox_events.";
    OUTBOX_LAG = "guest_agent_outbox_lag" Gauge Seconds []
        "Age of the oldest event that the control plane has not acknowledged; 0 when it has acknowledged every event."
        "What the control plane knows of this machine is that old: see guest_agent_link_up.";
    INBOX_ORDERS = "guest_agent_inbox_orders" Gauge Number []
        "Orders that are kept because their plugins have not taken them up."
        "It rises for a moment with every order. If it stays, plugins cannot save their states: see guest_agent_store_up.";
    ORDERS = "guest_agent_orders" Counter Number ["kind" "outcome"]
        "Orders by their kind and by whether they were accepted."
        "Orders with the outcome refused are not valid; each has an event with the reason.";
    STORE_UP = "guest_agent_store_up" Gauge Number []
        "1 while the store works, else 0."
        "Nothing new is durable: make room on the disk of agent.state_dir, or replace it. The agent still supervises its plugins.";
    SAVES = "guest_agent_saves" Counter Number ["outcome"]
        "Commits of the store that a caller waited for."
        "Failed ones are tried again: see guest_agent_store_up.";
    SAVE_DURATION = "guest_agent_save_duration" Histogram Seconds []
        "How long a commit of the store takes until it is on the disk itself."
        "Above some 100 ms the disk is slow or busy; orders are acknowledged that much later.";
    ADMISSIONS = "guest_agent_admissions" Counter Number ["outcome"]
        "Deployments that were admitted or denied; without an admission plugin all are admitted."
        "Each denial has an event with the reason. If all are denied, the admission plugin may not run: see the log.";
    INSTALLS = "guest_agent_installs" Counter Number ["outcome"]
        "Installations that ended; one that is tried again counts once."
        "Each that failed has an event with the reason: `guest-agent events`.";
    INSTALL_DURATION = "guest_agent_install_duration" Histogram Seconds []
        "How long installations take that succeed, from their admission on."
        "Slow downloads, or memory pressure that installations wait for: `guest-agent explain`.";
    REGISTRY_ENTRIES = "guest_agent_registry_entries" Gauge Number []
        "Entries in the registry."
        "Entries end with the processes that registered them: a drop means that a plugin ended.";
    SWEEPS = "guest_agent_sweeps" Counter Number []
        "Sweeps that deleted leftovers."
        "There is one within minutes of a start and then about one a day.";
    SWEPT = "guest_agent_swept" Counter Number ["outcome"]
        "Leftovers that were deleted, and that could not be."
        "Those with the outcome failed are named in the log with the reason.";
    CONNECTIONS = "guest_agent_connections" Gauge Number ["listener" "places"]
        "Connections that are open: of agent.sock, command.sock, host.sock, the port of admission plugins, HTTP and its socket; the places are the usual ones, those of others than the agent's user and root, or the spare ones, over which HTTP only tells health."
        "Near guest_agent_connections_limit clients keep connections that they do not use, or there are too many of them.";
    CONNECTIONS_LIMIT = "guest_agent_connections_limit" Gauge Number ["listener" "places"]
        "Most connections that may be open."
        "It is fixed; see guest_agent_connections.";
    CONNECTIONS_REFUSED = "guest_agent_connections_refused" Counter Number ["listener" "places"]
        "Connections that got no place, because all were in use or the share of their user was; one of HTTP may have got a spare place then."
        "The log names the user or the address that has too many: end what opens them.";
    CONNECTIONS_SHED = "guest_agent_connections_shed" Counter Number ["listener" "places"]
        "Idle connections that had to leave for another one."
        "A client opens connections and sends nothing over them; it harms nobody but itself.";
    CERTIFICATE_EXPIRY = "guest_agent_tls_certificate_expiry_timestamp" Gauge Seconds ["use"]
        "When a certificate that the agent shows ends: that of HTTP, or the client certificate for the control plane."
        "Renew it; the agent reads the new files by itself. `guest-agent doctor` names the files.";
    PLUGINS = "guest_agent_plugins" Gauge Number ["state"]
        "Plugins by their state."
        "`guest-agent status` names those in CRASHED or INSTALL_FAILED, `guest-agent explain NAME` says why.";
    PLUGINS_NOT_SHOWN = "guest_agent_plugins_not_shown" Gauge Number []
        "Plugins of which this page shows nothing, because it would become too long."
        "Nothing is wrong with them; `guest-agent status` shows all.";
    PLUGIN = "guest_agent_plugin" Info Number ["plugin" "revision" "kind" "installation"]
        "A plugin, with the revision that runs or is meant to."
        "A revision that differs from the fleet's was not rolled out here: see guest_agent_plugin_pending.";
    PLUGIN_STATE = "guest_agent_plugin_state" Gauge Number ["plugin" "state"]
        "1 for the state that a plugin is in; absent for all others."
        "`guest-agent explain NAME` says why it is in it, and what happens next.";
    PLUGIN_VERDICT = "guest_agent_plugin_verdict" Gauge Number ["plugin" "verdict"]
        "1 for the verdict about a plugin: failing, degraded, held, busy or ok; absent for all others."
        "`guest-agent doctor` names each plugin that is failing or degraded, with the reason and the command that helps.";
    PLUGIN_PENDING = "guest_agent_plugin_pending" Gauge Number ["plugin" "revision" "state"]
        "1 for a revision that is being prepared, or that failed last while another one runs."
        "In INSTALL_FAILED or CRASHED the new revision was given up: `guest-agent status NAME` says why.";
    PLUGIN_RESTARTS = "guest_agent_plugin_restarts" Counter Number ["plugin"]
        "Crashes of a plugin since its revision was installed."
        "`guest-agent explain NAME` shows the last exits with their causes, `guest-agent logs NAME` what it printed.";
    PLUGIN_START_TIME = "guest_agent_plugin_start_time" Gauge Seconds ["plugin"]
        "When the process of a plugin was started."
        "A time that keeps moving is a plugin that does not stay up.";
    PLUGIN_LAST_EXIT = "guest_agent_plugin_last_exit_timestamp" Gauge Seconds ["plugin" "cause" "detail"]
        "When the last process of a plugin ended, by its cause: exited with a code, signaled with a number, oom, or unknown."
        "oom: raise its memory limit or find its leak. signaled 9 without a known sender: the machine ran out of memory.";
    PLUGIN_CPU = "guest_agent_plugin_cpu" Counter Seconds ["plugin"]
        "CPU time of a plugin's process tree since it was started, as it was last sampled."
        "Its rate is in cores. Limit it with max_cpu_usage_percentage in its order.";
    PLUGIN_MEMORY_LIMIT = "guest_agent_plugin_memory_limit" Gauge Bytes ["plugin"]
        "Most memory that a plugin's processes may use together, as ordered; absent without a limit."
        "Compare it with guest_agent_plugin_memory_bytes; raise it with max_memory_usage_bytes in the order, which takes effect while the plugin runs.";
    PLUGIN_MEMORY = "guest_agent_plugin_memory" Gauge Bytes ["plugin"]
        "Memory of a plugin as it was last sampled: the working set of its control group, that is without file cache that was not used lately; without a control group the resident memory of its process tree."
        "Limit it with max_memory_usage_bytes in its order; over the limit it is ended and started again.";
    PLUGIN_RESIDENT = "guest_agent_plugin_resident_memory" Gauge Bytes ["plugin"]
        "Resident memory of a plugin as it was last sampled: what its processes have mapped and is in memory."
        "Compare guest_agent_plugin_memory_bytes with the limit and not this: the limit counts memory that no process has mapped, too.";
    PLUGIN_HEALTH_CODE = "guest_agent_plugin_health_code" Gauge Number ["plugin"]
        "Health code that a plugin last reported; 0 is healthy."
        "`guest-agent status NAME` shows the plugin's text beside the code; the plugin defines the meaning of its codes.";
    PLUGIN_HEALTH_TIME = "guest_agent_plugin_health_timestamp" Gauge Seconds ["plugin"]
        "When a plugin last reported its health."
        "An old answer is a plugin that hangs: it is started again after plugins.health_failures.";
    PLUGIN_LAST_INSTALL = "guest_agent_plugin_last_install" Gauge Seconds ["plugin"]
        "How long the last installation of a plugin took; absent when there was none since the agent started."
        "As for guest_agent_install_duration_seconds.";
    PROCESS_CPU = "process_cpu" Counter Seconds []
        "CPU time of the agent itself."
        "An idle agent uses next to none: see with `guest-agent events --follow` what keeps it busy.";
    PROCESS_MEMORY = "process_resident_memory" Gauge Bytes []
        "Resident memory of the agent itself."
        "It is about 10 MiB without plugins; events that wait, and installations, add to it.";
    PROCESS_FDS = "process_open_fds" Gauge Number []
        "Descriptors that the agent has open."
        "Near process_max_fds plugins cannot be started: raise LimitNOFILE of the service, and report it.";
    PROCESS_MAX_FDS = "process_max_fds" Gauge Number []
        "Descriptors that the agent may have open."
        "See process_open_fds.";
    PROCESS_START_TIME = "process_start_time" Gauge Seconds []
        "When the agent was started."
        "A time that keeps moving is an agent that does not stay up: see the service manager's log.";
    MACHINE_MEMORY = "guest_agent_machine_memory_size" Gauge Bytes []
        "Memory of the machine."
        "See guest_agent_machine_memory_available_bytes.";
    MACHINE_MEMORY_AVAILABLE = "guest_agent_machine_memory_available" Gauge Bytes []
        "Memory of the machine that is still available."
        "Installations wait while memory is short; plugins without limits are ended by the kernel when it is gone.";
    MACHINE_LOAD = "guest_agent_machine_load1" Gauge Number []
        "Runnable tasks of the machine, on average over a minute."
        "Compare it with the number of processors.";
}

//! Every metric: its name, its meaning, and what to do when its value looks bad.
//!
//! The page, `docs/reference/metrics.md`, the dashboard and the alerts in `config/` go by this
//! table; tests hold them to it.

pub use guest_agent_observe_kit::metric::{Kind, Metric, Unit};

guest_agent_observe_kit::catalogue! {
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
    TOKEN_EXPIRY = "guest_agent_http_token_expiry_timestamp" Gauge Seconds ["name"]
        "When a token of api.http_tokens_file ends; absent for tokens that do not."
        "Before that time make another one with `guest-agent http-token new`, and revoke this one: its clients are refused from then on.";
    ORDERS = "guest_agent_orders" Counter Number ["kind" "outcome"]
        "Orders by their kind and by whether they were accepted."
        "Orders with the outcome refused are not valid; each has an event with the reason.";
    OUTDATED_ORDERS = "guest_agent_outdated_orders" Counter Number []
        "Orders of a fleet that came after a newer one for their plugin; nothing was done with them."
        "A few are usual when a stream ends or a gateway does. If there are many, two control planes may give orders: `guest-agent audit`.";
    STORE_UP = "guest_agent_store_up" Gauge Number []
        "1 while the store works, else 0."
        "Nothing new is durable: make room on the disk of agent.state_dir, or replace it. The agent still supervises its plugins.";
    STORE_SET_ASIDE = "guest_agent_store_set_aside" Gauge Number ["what"]
        "What the agent could not use of its store and set aside: a store that was damaged or lost, or a record."
        "`guest-agent doctor` names each, what was lost, and how to clear it.";
    SAVES = "guest_agent_saves" Counter Number ["outcome"]
        "Commits of the store that a caller waited for."
        "Failed ones are tried again: see guest_agent_store_up.";
    SAVE_DURATION = "guest_agent_save_duration" Histogram Seconds []
        "How long a commit of the store takes until it is on the disk itself."
        "Above some 100 ms the disk is slow or busy; orders are acknowledged that much later.";
    AUDIT_FAILURES = "guest_agent_audit_failures" Counter Number []
        "Entries of the audit record that could not be written when they were made."
        "What people asked is written when the store works again, and is lost if the agent ends before: see guest_agent_store_up.";
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
    LOG_LINES = "guest_agent_plugin_log_forwarded_lines" Counter Number ["to"]
        "Lines of plugins' logs that a destination of plugins.log_to took."
        "If it stands still while guest_agent_plugin_log_forward_lag_bytes rises, the destination takes nothing: `guest-agent doctor` says why.";
    LOG_BYTES = "guest_agent_plugin_log_forwarded" Counter Bytes ["to"]
        "Bytes of those lines."
        "As for guest_agent_plugin_log_forwarded_lines_total.";
    LOG_MISSING = "guest_agent_plugin_log_forward_missing" Counter Bytes ["to"]
        "Bytes that were gone from a plugin's log before a destination took them; the destination gets a record with each number."
        "A plugin logs faster than the destination takes it, or the destination was away for long: raise plugins.log_max_bytes, or log less.";
    LOG_REFUSED = "guest_agent_plugin_log_forward_refused_lines" Counter Number ["to"]
        "Lines that a destination refused for good."
        "The agent's log has the reason in the destination's words. The lines are in the plugin's log as long as that is not cut.";
    LOG_FAILURES = "guest_agent_plugin_log_forward_failures" Counter Number ["to"]
        "Messages with lines that failed; each is tried again."
        "`guest-agent doctor` says why the destination does not take them. The lines wait in the plugins' logs.";
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
    PLUGIN_VERDICT = "guest_agent_plugin_verdict" Gauge Number ["plugin" "verdict" "cause"]
        "1 for the verdict about a plugin: failing, degraded, held, busy or ok, with what it is about as in `guest-agent status --json`; absent for all others."
        "`guest-agent doctor` names each plugin that is failing or degraded, with the reason and the command that helps.";
    PLUGIN_HELD = "guest_agent_plugin_held" Gauge Number ["plugin" "how"]
        "1 for each way in which a person keeps a plugin as it is: stopped, held (its orders wait) or rolled_back, whatever its verdict is; absent for all others."
        "`guest-agent status NAME` says who and why. `guest-agent start NAME` ends a stop, `guest-agent release NAME` the others.";
    PLUGIN_RECOVERED = "guest_agent_plugin_recovered" Gauge Number ["plugin"]
        "1 for a plugin that crashed, once none of its crashes counts any more."
        "It has been well since, an order changed it, or half an hour has passed: the alert about the memory that it ran out of ends then.";
    PLUGIN_PENDING = "guest_agent_plugin_pending" Gauge Number ["plugin" "revision" "state"]
        "1 for a revision that is being prepared, or that failed last while another one runs. One that failed is not among them where a person dismissed that or rolled a revision back."
        "INSTALL_FAILED: it could not be installed. CRASHED: it failed while on probation, and the one before it came back. `guest-agent status NAME` says why.";
    PLUGIN_RESTARTS = "guest_agent_plugin_restarts" Counter Number ["plugin"]
        "Crashes of a plugin since its revision was installed."
        "`guest-agent explain NAME` shows the last exits with their causes, `guest-agent logs NAME` what it printed.";
    PLUGIN_CRASHES = "guest_agent_plugin_crashes" Counter Number ["plugin" "cause"]
        "Crashes and failed runs of a plugin since the agent was started, by how its process ended: exited, signaled, oom, or unknown where it hung or nobody saw it."
        "oom: raise its memory limit or find its leak. For all others `guest-agent logs NAME` shows what it printed last.";
    PLUGIN_START_TIME = "guest_agent_plugin_start_time" Gauge Seconds ["plugin"]
        "When the process of a plugin was started."
        "A time that keeps moving is a plugin that does not stay up.";
    PLUGIN_LAST_EXIT = "guest_agent_plugin_last_exit_timestamp" Gauge Seconds ["plugin" "cause" "detail"]
        "When the last process of a plugin ended, by its cause: exited with a code, signaled with a number, oom, or unknown."
        "oom: raise its memory limit or find its leak. signaled 9 without a known sender: the machine ran out of memory.";
    PLUGIN_CPU = "guest_agent_plugin_cpu" Counter Seconds ["plugin"]
        "CPU time of a plugin's process tree since it was started, as it was last sampled."
        "Its rate is in cores. Limit it with max_cpu_usage_percentage in its order.";
    PLUGIN_CPU_LIMIT = "guest_agent_plugin_cpu_limit_cores" Gauge Number ["plugin"]
        "Most CPU time that a plugin's processes may use together, in cores, as ordered; absent without a limit."
        "Compare it with the rate of guest_agent_plugin_cpu_seconds_total; a plugin at its limit is slowed down and not ended.";
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
    PLUGIN_LOG_LAG = "guest_agent_plugin_log_forward_lag" Gauge Bytes ["plugin" "to"]
        "Bytes in the log of a plugin that a destination of plugins.log_to has not taken."
        "Near plugins.log_max_bytes the oldest lines are cut before they are forwarded: see guest_agent_plugin_log_forward_failures_total.";
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

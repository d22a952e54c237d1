//! Every metric: its name, its meaning, and what to do when its value looks bad.
//!
//! The page and `docs/reference/fleet-metrics.md` go by this table; tests hold them to it.

pub use guest_agent_observe_kit::metric::{Kind, Metric, Unit};

guest_agent_observe_kit::catalogue! {
    BUILD = "guest_fleet_build" Info Number ["version"]
        "The program that answers."
        "Gateways with another version than the rest were not upgraded.";
    READY = "guest_fleet_ready" Gauge Number ["check"]
        "1 for each check of `/readyz` that is passed, else 0."
        "`/readyz` says why a check fails.";
    STREAMS = "guest_fleet_streams" Gauge Number []
        "Streams of agents that are open."
        "A drop without a drain is a network or a listener that went: see the log, and guest_fleet_refused_total.";
    STREAMS_OPENED = "guest_fleet_streams_opened" Counter Number []
        "Streams of agents that were opened."
        "If it rises much faster than guest_fleet_streams, agents reconnect all the time: see guest_fleet_refused_total and proxies between.";
    REFUSED = "guest_fleet_refused" Counter Number ["status"]
        "Streams and unary calls that were refused, by the status of gRPC."
        "unauthenticated and permission_denied: agents that are not enrolled, were revoked, or show the wrong certificate; the log names one of them in 10 s, and why. unavailable: the ledger does not answer.";
    SESSIONS_REPLACED = "guest_fleet_sessions_replaced" Counter Number []
        "Sessions that ended because another session of their agent took over."
        "Some are usual when agents reconnect. Many of one agent are two machines with one identity: `guest-fleet agents` shows those in quarantine.";
    VIEW_AGE = "guest_fleet_view_age" Gauge Seconds []
        "Age of what this gateway knows of the configuration; absent before it has read any."
        "Above 5 s it orders nothing, because a halt may be missing: see guest_fleet_ledger_failures_total.";
    AGENTS = "guest_fleet_agents" Gauge Number ["presence"]
        "Agents of the whole fleet, by presence: connected, disconnected, offline, never_seen, quarantined, archived. Every gateway shows the same; absent where nobody counted yet, or the ledger does not answer."
        "offline: `guest-fleet agents --offline` lists them. quarantined: two machines use one identity, `guest-fleet events --kind AGENT_QUARANTINED` names it.";
    STANDINGS = "guest_fleet_standings" Gauge Number ["state"]
        "Agents times plugins that assignments give them, by where they stand, as `guest-fleet agents --state` names it, with underscores. Of the whole fleet, like guest_fleet_agents."
        "`guest-fleet agents --state STATE` lists them, `guest-fleet explain ID PLUGIN` says why.";
    INDEX_AGE = "guest_fleet_index_age" Gauge Seconds []
        "Age of the index from which agents are counted."
        "Above a minute nobody keeps it up to date, and counts and lists are old: see `guest-fleet gateways` and guest_fleet_ledger_duration_seconds.";
    GATEWAYS = "guest_fleet_gateways" Gauge Number ["state"]
        "Gateways of the fleet by what they do: serving, draining, silent."
        "`guest-fleet gateways` names them. A silent one died or does not reach the ledger; its record is forgotten after two minutes.";
    STOPS = "guest_fleet_stops" Gauge Number ["cause"]
        "Assignments whose orders stopped by themselves: many_drifted, ledger_went_back, unreadable."
        "`guest-fleet status` names the assignments and says how they go on.";
    ROLLOUTS = "guest_fleet_rollouts" Gauge Number ["state"]
        "The newest rollouts of assignments, by state, as `guest-fleet rollout list` names it, with underscores."
        "halted, paused and waiting_for_approval wait for a person: `guest-fleet rollout list`.";
    ROLLOUT_STATE = "guest_fleet_rollout_state" Gauge Number ["assignment" "state"]
        "1 for the state of each rollout that has not ended. Labels name at most 100 assignments, here and in the metrics below: halted rollouts first, then by name."
        "`guest-fleet rollout show ASSIGNMENT` says why it is in this state.";
    ROLLOUT_WAVE = "guest_fleet_rollout_wave" Gauge Number ["assignment"]
        "The wave in which a rollout is that has not ended, from 1."
        "A wave that does not end: `guest-fleet rollout show ASSIGNMENT` says what it waits for.";
    ROLLOUT_WAVES = "guest_fleet_rollout_waves" Gauge Number ["assignment"]
        "How many waves the rollout has."
        "See guest_fleet_rollout_wave.";
    ROLLOUT_TARGETS = "guest_fleet_rollout_targets" Gauge Number ["assignment"]
        "How many agents the rollout is about; absent where nobody counted yet, like the metrics below."
        "Fewer than expected: `guest-fleet rollout show ASSIGNMENT` counts the agents that are kept back or out of reach.";
    ROLLOUT_GIVEN = "guest_fleet_rollout_given" Gauge Number ["assignment"]
        "How many of them were given the new target."
        "If it stands still while the rollout runs: `guest-fleet rollout show ASSIGNMENT` says what it waits for.";
    ROLLOUT_FAILED = "guest_fleet_rollout_failed" Gauge Number ["assignment"]
        "Agents that could not do what the rollout ordered, went back, or whose plugin crashed since."
        "`guest-fleet rollout show ASSIGNMENT` has the causes, and in what the failed differ from the others.";
    ROLLOUT_SILENT = "guest_fleet_rollout_silent" Gauge Number ["assignment"]
        "Agents that have not said in time what became of the rollout's order."
        "`guest-fleet agents --state silent` lists them.";
    ORDERS = "guest_fleet_orders" Counter Number ["state"]
        "Orders of this gateway's agents that came into a state, as the journals record it."
        "failed and taken_back: `guest-fleet agent ID` shows the reasons. given without acknowledged: agents do not answer.";
    ORDER_DURATION = "guest_fleet_order_duration" Histogram Seconds ["outcome"]
        "How long orders took from their making until they were settled, in whole seconds."
        "Slow downloads or long probations; the spans of an order show which part it is: see docs/tracing.md.";
    SPANS_DROPPED = "guest_fleet_spans_dropped" Counter Number []
        "Spans of orders that no collector gets: they did not fit into the queue, or the collector refused them."
        "The collector of --otlp-endpoint is away, or takes less than orders end: the log has the reason. Orders wait for neither.";
    ORDER_FRAMES = "guest_fleet_order_frames" Counter Number []
        "Frames with an order that were handed to streams, repetitions too."
        "Much more than guest_fleet_orders_total{state=\"given\"}: orders are sent again because agents do not acknowledge them.";
    JOURNAL_CONFLICTS = "guest_fleet_journal_conflicts" Counter Number []
        "Writes of journals that another write was in the way of."
        "A few are usual when agents change gateways. If it keeps rising, two gateways have streams of the same agents.";
    EVENTS = "guest_fleet_events" Counter Number ["kind"]
        "Events of plugins that came: stored, or known because an agent sent them again."
        "Many that are known: acknowledgements are lost, or the ledger is slow: see guest_fleet_ledger_duration_seconds.";
    LEDGER_DURATION = "guest_fleet_ledger_duration" Histogram Seconds ["engine" "verb"]
        "How long operations of the ledger take, as this process sees them, failures too."
        "Above some 100 ms the disk or the cluster is slow or busy; orders and acknowledgements are that much later.";
    LEDGER_FAILURES = "guest_fleet_ledger_failures" Counter Number ["engine" "verb" "failure"]
        "Operations of the ledger that did not succeed. conflict is usual where several write."
        "unavailable and ambiguous: the engine is away or its disk is full. damaged: restore a backup, and see docs/fleet-observability.md.";
    ARTIFACT_READ = "guest_fleet_artifact_read" Counter Bytes []
        "Bytes of artifacts that this process read from the store for agents; downloads from a bucket itself are not among them."
        "Agents that fetch the same archive again and again: `guest-fleet agent ID` says why they do.";
    ARTIFACT_WRITTEN = "guest_fleet_artifact_written" Counter Bytes []
        "Bytes of artifacts that came for the store."
        "It rises with pushes. If it rises without any, see who has the upload token.";
    CERTIFICATES = "guest_fleet_certificates" Counter Number ["asked"]
        "Certificates that machines got: by an enrolment, or by a renewal."
        "Enrolments that nobody expects: `guest-fleet token list` shows which token is used, `guest-fleet token revoke` ends it.";
    CERTIFICATES_REFUSED = "guest_fleet_certificates_refused" Counter Number ["asked" "code"]
        "Requests for certificates that were refused, by the code of the answer."
        "The answer tells the machine what helps, and the log names it. unavailable: the ledger or the authority does not work.";
    CONNECTIONS_CLOSED = "guest_fleet_connections_closed" Counter Number ["listener"]
        "Connections that were closed before TLS, because too many came at once."
        "The log names the last address. After an outage of the network it is usual; agents come back with growing pauses.";
    WEBHOOK_DELIVERED = "guest_fleet_webhook_delivered" Counter Number ["webhook"]
        "Entries that the receiver of a webhook took from this process, by its name in the file of webhooks."
        "If it stands still while guest_fleet_webhook_lag_seconds rises, the receiver takes nothing: see the log.";
    WEBHOOK_FAILURES = "guest_fleet_webhook_failures" Counter Number ["webhook"]
        "Requests of a webhook that failed; each is made again."
        "The log has the reason of the first one.";
    WEBHOOK_LOST = "guest_fleet_webhook_lost" Counter Number ["webhook"]
        "Entries that the receiver refused again and again, or that the ledger no longer kept when they were to be delivered; the receiver gets an entry for each gap."
        "The log names refusals. Else the receiver was away for longer than events are kept, or takes less than agents send. `guest-agent events` on the machines has them for longer.";
    WEBHOOK_LAG = "guest_fleet_webhook_lag" Gauge Seconds ["webhook"]
        "Age of the oldest entry that a webhook has not delivered; 0 when all are delivered, absent where another process delivers."
        "What the receiver knows is that old: see guest_fleet_webhook_failures_total.";
    CERTIFICATE_EXPIRY = "guest_fleet_certificate_expiry_timestamp" Gauge Seconds ["use"]
        "When the certificate of the authority ends, and the certificates that listeners have from files. Listeners that the authority certifies are renewed by themselves."
        "authority: rotate it long before (`guest-fleet ca rotate`). All others: put a new certificate in place of the file.";
    CERTIFICATE_STUCK = "guest_fleet_certificate_stuck" Gauge Number ["use"]
        "1 where a certificate that was put into the files of a listener cannot be used, and the former one is still served, else 0."
        "The log says what is wrong with the files; they are read again by themselves.";
    PROCESS_CPU = "process_cpu" Counter Seconds []
        "CPU time of this process."
        "Compare it with guest_fleet_streams and guest_fleet_orders_total; a gateway at one core wants another one beside it.";
    PROCESS_MEMORY = "process_resident_memory" Gauge Bytes []
        "Resident memory of this process."
        "It grows with the streams, by about 60 kB each.";
    PROCESS_FDS = "process_open_fds" Gauge Number []
        "Descriptors that this process has open."
        "Near process_max_fds agents cannot connect: raise LimitNOFILE of the service.";
    PROCESS_MAX_FDS = "process_max_fds" Gauge Number []
        "Descriptors that this process may have open."
        "See process_open_fds.";
    PROCESS_START_TIME = "process_start_time" Gauge Seconds []
        "When this process was started."
        "A time that keeps moving is a process that does not stay up: see the service manager's log.";
}

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
        "unauthenticated and permission_denied: agents that are not enrolled, were revoked, or show the wrong certificate; the log names them. unavailable: the ledger does not answer.";
    SESSIONS_REPLACED = "guest_fleet_sessions_replaced" Counter Number []
        "Sessions that ended because another session of their agent took over."
        "Some are usual when agents reconnect. Many of one agent are two machines with one identity: `guest-fleet agents` shows those in quarantine.";
    VIEW_AGE = "guest_fleet_view_age" Gauge Seconds []
        "Age of what this gateway knows of the configuration; absent before it has read any."
        "Above 5 s it orders nothing, because a halt may be missing: see guest_fleet_ledger_failures_total.";
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
        "How long operations of the ledger take, as this process sees them; those that fail are counted too."
        "Above some 100 ms the disk or the cluster is slow or busy; orders and acknowledgements are that much later.";
    LEDGER_FAILURES = "guest_fleet_ledger_failures" Counter Number ["engine" "verb" "failure"]
        "Operations of the ledger that did not succeed. conflict is usual where several write."
        "unavailable and ambiguous: the engine is away or its disk is full. damaged: restore a backup, and see docs/fleet-observability.md.";
    ARTIFACT_READ = "guest_fleet_artifact_read" Counter Bytes []
        "Bytes of artifacts that were read from the store for agents. What a bucket gives out itself is not among them."
        "Agents that fetch the same archive again and again: `guest-fleet agent ID` says why they do.";
    ARTIFACT_WRITTEN = "guest_fleet_artifact_written" Counter Bytes []
        "Bytes of artifacts that came for the store."
        "It rises with pushes. If it rises without any, see who has the upload token.";
    ARTIFACT_SENT = "guest_fleet_artifact_sent" Counter Bytes ["coding"]
        "Bytes of artifacts that the listener sent to agents: identity as they are, zstd compressed, dcz as what changed since an artifact that the agent has. What a bucket gives out is not among them."
        "If dcz stays 0 while plugins are upgraded: archives have to be plain tar, and agents need a cache; see docs/fleet-operations.md.";
    ENCODINGS_MADE = "guest_fleet_artifact_encodings" Counter Number ["coding"]
        "Forms of artifacts that were made: zstd and dcz."
        "None after a release: see guest_fleet_artifact_encoding_failures_total and the log.";
    ENCODING_FAILURES = "guest_fleet_artifact_encoding_failures" Counter Number []
        "Forms of artifacts that could not be made; agents get the artifact itself."
        "The log has the reason: no room on the disk, an artifact with other bytes than its name says, or one that takes too long.";
    ENCODED = "guest_fleet_artifact_encoded" Gauge Bytes []
        "Bytes of the forms of artifacts that are kept beside them."
        "They may be deleted at any time; those that no release needs are deleted by themselves.";
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
        "Entries that the ledger no longer kept when they were to be delivered; the receiver gets an entry for each gap."
        "The receiver was away for longer than events are kept, or takes less than agents send. `guest-agent events` on the machines has them for longer.";
    WEBHOOK_LAG = "guest_fleet_webhook_lag" Gauge Seconds ["webhook"]
        "Age of the oldest entry that a webhook has not delivered; 0 when all are delivered, absent where another process delivers."
        "What the receiver knows is that old: see guest_fleet_webhook_failures_total.";
    CERTIFICATE_EXPIRY = "guest_fleet_certificate_expiry_timestamp" Gauge Seconds ["use"]
        "When the certificate of the authority ends, and those that listeners were given as files. Listeners that the authority certifies are renewed by themselves."
        "authority: rotate it long before (`guest-fleet ca rotate`). All others: put a new certificate in place of the file.";
    CERTIFICATE_STUCK = "guest_fleet_certificate_stuck" Gauge Number ["use"]
        "1 where a certificate that was put into the files of a listener cannot be used, and the former one is still served, else 0."
        "The log says what is wrong with the files; they are read again by themselves.";
    AGENTS = "guest_fleet_agents" Gauge Number ["presence"]
        "Agents of the whole fleet by how present they are, as the index counts them. Every gateway says the same, so take the maximum."
        "away: machines or their network are down, or agents do not run. quarantined: two machines use one identity: see `guest-fleet agents --state quarantined`.";
    STANDINGS = "guest_fleet_standings" Gauge Number ["state"]
        "How many agents stand so with an assignment, over all assignments of the whole fleet: the states that `guest-fleet explain` names."
        "failed, taken_back, silent: machines where something is wrong. conflict, no_release, no_archive: what is declared cannot be. `guest-fleet agents --state STATE` lists them.";
    INDEX_AGE = "guest_fleet_index_age" Gauge Seconds []
        "Age of the index of agents that folds maintain: lists, counts and rollouts know everything until then. Absent before it was whole for the first time."
        "Above a minute nobody folds: pages show how it was, and rollouts do not move. See `guest-fleet gateways` and guest_fleet_ledger_failures_total.";
    GATEWAYS = "guest_fleet_gateways" Gauge Number ["state"]
        "Gateways of the whole fleet by what they do, as their records say."
        "silent: a gateway died or does not reach the ledger; two minutes later it is forgotten.";
    ROLLOUTS = "guest_fleet_rollouts" Gauge Number ["state"]
        "Rollouts of the whole fleet by their state."
        "halted: a person has to say how it goes on: `guest-fleet rollout list`. paused and waiting_for_approval wait for a person as well.";
    ROLLOUT_FAILURES = "guest_fleet_rollout_failures" Gauge Number []
        "Agents on which rollouts failed that have not ended, in the whole fleet."
        "If it rises while guest_fleet_rollouts{state=\"running\"} is not 0, a bad release spreads: `guest-fleet rollout show NAME`, `guest-fleet rollout halt NAME`.";
    API_CALLS = "guest_fleet_api_calls" Counter Number ["call" "code"]
        "Calls of the API by their name and the code of the answer, of gRPC, HTTP and the console together; `Watch` counts when it begins."
        "unavailable, deadline_exceeded: the ledger is away or slow. internal: a mistake of the program, which the log describes. permission_denied: somebody has too small a role.";
    API_DURATION = "guest_fleet_api_call_duration" Histogram Seconds ["kind"]
        "How long calls of the API took: those that look, and those that change something."
        "See guest_fleet_ledger_duration_seconds; a selector over a whole fleet takes longer than one agent.";
    API_REFUSED = "guest_fleet_api_refused" Counter Number ["code"]
        "Requests to the API that came to no call, because it is not known whose the token is: it is missing, unknown, ended or revoked, or the ledger cannot say."
        "unauthenticated: a program has an old token, or somebody tries tokens out. unavailable: the ledger was not read for 30 seconds.";
    AUDIT_HEAD_FAILURES = "guest_fleet_audit_head_failures" Counter Number []
        "How often no head of the audit record was signed although it was time for one."
        "The log has the reason: the directory cannot be written, or the record does not go on from the last head: `guest-fleet audit verify`.";
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

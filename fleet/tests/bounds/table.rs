//! The table.

/// A bound.
pub(crate) struct Bound {
    /// What is bounded, for people.
    pub(crate) what: &'static str,
    /// The source, from the folder of the whole project.
    pub(crate) file: &'static str,
    /// The constant, or the field of a default, that has the value.
    pub(crate) name: &'static str,
    /// What happens beyond it.
    pub(crate) beyond: &'static str,
    /// The source and the name of the test that goes beyond it.
    pub(crate) test: (&'static str, &'static str),
}

const fn bound(
    what: &'static str,
    file: &'static str,
    name: &'static str,
    beyond: &'static str,
    test: (&'static str, &'static str),
) -> Bound {
    Bound { what, file, name, beyond, test }
}

const LAWS: &str = "fleet/ledger/src/laws/bounds.rs";
const LEDGER: &str = "fleet/ledger/src/lib.rs";
const SETTINGS: &str = "fleet/sessions/src/settings.rs";
const REGISTRATION: &str = "lab/tests/lab/registration.rs";
const HOSTILE: &str = "fleet/program/tests/gateway/hostile.rs";
const OBSERVED: &str = "fleet/src/orders/observed.rs";
const RECORDED: &str = "fleet/src/orders/agent/recorded.rs";
const LISTENER: &str = "fleet/sessions/src/gateway/listener.rs";
const GATEWAY: &str = "fleet/sessions/src/gateway.rs";
const ADMISSION: &str = "fleet/src/admission/tests.rs";
const ENROLMENT: &str = "fleet/src/enroll/server.rs";
const ENROLMENT_TESTS: &str = "fleet/src/enroll/server/tests.rs";
const TOKEN: &str = "fleet/src/enroll/token.rs";
const TOKEN_TESTS: &str = "fleet/src/enroll/token/tests.rs";
const VERIFY: &str = "fleet/src/admission/jwt/verify.rs";
const VERIFY_TESTS: &str = "fleet/src/admission/jwt/verify/tests.rs";
const KEYS: &str = "fleet/src/admission/jwt/keys.rs";
const ARTIFACTS: &str = "fleet/src/artifacts/listener/options.rs";
const ARTIFACTS_HOSTILE: &str = "fleet/program/tests/artifacts/hostile.rs";
const UPLOAD: &str = "fleet/program/tests/artifacts/upload.rs";
const FILES: &str = "fleet/src/declarations/files.rs";
const VALUES: &str = "fleet/src/declarations/values.rs";
const RELEASE: &str = "fleet/src/declarations/release.rs";
const DECLARATIONS: &str = "fleet/src/declarations/tests.rs";
const DECLARED: &str = "fleet/src/declarations/tests/bounds.rs";
const SECRETS: &str = "fleet/src/secrets/directory/tests.rs";
const BUCKETS: &str = "kits/serve/src/front/buckets.rs";

const BEYOND: (&str, &str) = (LAWS, "what_is_beyond_a_bound_is_refused_and_changes_nothing");
const FOE: (&str, &str) =
    (HOSTILE, "a_hostile_agent_is_told_what_is_wrong_and_its_neighbour_gets_its_order");
const OF_A_RELEASE: (&str, &str) = (DECLARED, "every_bound_of_a_release_is_kept");
const OTHER: (&str, &str) = (DECLARED, "every_bound_of_an_assignment_and_a_hold_is_kept");
const OF_FILES: (&str, &str) = (DECLARATIONS, "every_bound_of_files_is_kept");
const OF_A_REPORT: (&str, &str) =
    (OBSERVED, "of_a_report_no_more_is_kept_than_an_agent_has_to_tell");
const NO_TOKEN: (&str, &str) = (TOKEN_TESTS, "a_token_that_none_can_be_is_refused");
const SLOW: (&str, &str) = (ENROLMENT_TESTS, "slow_and_large_requests_are_ended");

/// All bounds, by what they are of. A row stays a line.
#[rustfmt::skip]
pub(crate) const AREAS: &[(&str, &[Bound])] = &[
    (
        "The ledger",
        &[
            bound("A key, a subject, an id of an entry", LEDGER, "KEY_BYTES", "the write is refused whole", BEYOND),
            bound("The value of a record or of an entry", LEDGER, "VALUE_BYTES", "the write is refused whole", BEYOND),
            bound("Writes of one batch", LEDGER, "BATCH", "the batch is refused whole", BEYOND),
            bound("Bytes of one batch", LEDGER, "BATCH_BYTES", "the batch is refused whole", BEYOND),
            bound("Records of one page", LEDGER, "PAGE", "the rest is in the next page", (LAWS, "pages_have_a_bound")),
            bound("Bytes of one page", LEDGER, "PAGE_BYTES", "the rest is in the next page", (LAWS, "pages_have_a_bound")),
            bound("Entries of one subject", LEDGER, "ENTRIES", "the oldest go", ("fleet/ledger/src/laws/logs.rs", "a_subject_keeps_its_newest_entries")),
            bound("Age of an entry", LEDGER, "ENTRY_AGE", "it goes", ("fleet/ledger/src/sqlite/tests.rs", "entries_go_with_their_age_and_a_subject_begins_again")),
            bound("Deleted keys that are remembered", LEDGER, "TOMBSTONES", "the oldest are forgotten, and readers from before begin again", ("fleet/ledger/src/laws/changes.rs", "old_deletions_are_forgotten_and_said_to_be")),
            bound("Bytes that wait to be written, in one engine", "fleet/ledger/src/room.rs", "BYTES", "after a wait the write is refused as unavailable", ("fleet/ledger/src/sqlite/tests.rs", "a_write_that_finds_no_room_in_the_queue_is_refused")),
            bound("Rollouts of an assignment that have ended", "fleet/ledger/src/records/rollout.rs", "ENDED_EACH", "the controller deletes the oldest, every ten minutes", ("fleet/src/configuration/ended.rs", "the_newest_of_each_assignment_stay_for_a_year")),
            bound("Rollouts that have ended, in all", "fleet/ledger/src/records/rollout.rs", "ENDED_ALL", "the controller deletes the oldest, every ten minutes", ("fleet/src/configuration/ended.rs", "the_newest_of_all_assignments_stay")),
            bound("Age of a rollout that has ended", "fleet/ledger/src/records/rollout.rs", "ENDED_AGE", "the controller deletes it", ("fleet/src/rollouts/controller/tests.rs", "rollouts_that_ended_long_ago_go")),
            bound("Decisions that a rollout keeps", "fleet/core/src/account.rs", "DECISIONS", "the first and the newest stay", ("fleet/core/src/account.rs", "an_account_keeps_its_first_decision_and_the_newest")),
            bound("Entries of the audit record", "fleet/ledger/src/records/audit.rs", "KEPT", "the oldest go; the chain stays whole", ("fleet/src/configuration/tests.rs", "the_newest_entries_are_kept_and_older_ones_go_with_the_batch")),
        ],
    ),
    (
        "Connections of agents",
        &[
            bound("Connections over TLS, of all clients", GATEWAY, "rate", "closed before TLS", (ADMISSION, "a_flood_of_connections_is_closed_before_tls_and_who_is_inside_stays")),
            bound("Connections over TLS, of one address", GATEWAY, "rate_per_address", "closed before TLS; other addresses come in", (BUCKETS, "a_flood_from_one_address_keeps_nobody_else_out")),
            bound("Connections at one time", GATEWAY, "connections", "closed at once", (ENROLMENT_TESTS, "connections_that_say_nothing_have_a_bound_and_an_end")),
            bound("A TLS handshake", GATEWAY, "handshake", "the connection is closed", (ENROLMENT_TESTS, "connections_that_say_nothing_have_a_bound_and_an_end")),
            bound("Addresses that are counted", BUCKETS, "ADDRESSES", "further ones share the room of one", (BUCKETS, "addresses_without_number_are_counted_in_bounded_memory")),
            bound("Streams of one connection", LISTENER, "STREAMS_PER_CONNECTION", "further ones wait until one ends", (REGISTRATION, "streams_of_one_connection_beyond_the_bound_wait_until_one_ends")),
            bound("The headers of a request", LISTENER, "HEADER_BYTES", "the request or the connection ends", FOE),
            bound("An id of an agent, or a channel", "fleet/sessions/src/session/registration.rs", "MAX_ID_BYTES", "INVALID_ARGUMENT", FOE),
            bound("Agents of one gateway", SETTINGS, "agents", "RESOURCE_EXHAUSTED; those inside stay", (REGISTRATION, "agents_and_channels_beyond_the_bound_are_refused_and_those_inside_stay")),
            bound("Channels of one agent", SETTINGS, "channels", "RESOURCE_EXHAUSTED; those inside stay", (REGISTRATION, "agents_and_channels_beyond_the_bound_are_refused_and_those_inside_stay")),
            bound("Registrations of one agent in a minute", SETTINGS, "registrations_per_minute", "RESOURCE_EXHAUSTED; the stream that is there stays", (REGISTRATION, "two_clients_of_one_identity_are_slowed_down")),
            bound("The registration of a stream", SETTINGS, "registration", "the stream ends with DEADLINE_EXCEEDED", (REGISTRATION, "a_stream_that_never_registers_is_ended")),
        ],
    ),
    (
        "Messages of agents",
        &[
            bound("A message", SETTINGS, "message_bytes", "the stream ends with OUT_OF_RANGE", FOE),
            bound("A frame that waits for an agent that does not read", SETTINGS, "send", "the stream ends", ("lab/tests/lab/delivery.rs", "an_agent_that_does_not_read_loses_its_stream")),
            bound("Frames that wait for one session", "fleet/sessions/src/core/session_handle.rs", "QUEUE", "the order is handed over later", ("fleet/sessions/src/core/session_handle.rs", "frames_that_find_no_room_in_the_queue_are_refused")),
            bound("Details of an event that are kept", RECORDED, "DETAIL_BYTES", "the rest is cut off", (RECORDED, "details_are_cut_where_a_character_begins")),
            bound("Plugins of one agent whose events have a place of their own", OBSERVED, "PLUGINS", "the others share one place of 200 entries", FOE),
            bound("Plugins of a list", OBSERVED, "PLUGINS", "the others are left out", (OBSERVED, "of_a_list_no_more_is_kept_than_an_agent_has")),
            bound("Reasons of faulty plugins that are kept of a list", "fleet/src/orders/health.rs", "REASONS", "the others are known as faulty, without a reason", ("fleet/src/orders/health.rs", "of_a_list_no_more_reasons_are_kept_than_there_is_room_for")),
            bound("Gateways that ended and are remembered", "fleet/src/gateways/ends.rs", "ENDS", "the oldest are forgotten", ("fleet/src/gateways/ends.rs", "ends_that_nobody_needs_are_deleted_and_no_more_than_the_bound_are_kept")),
            bound("Plugins of a report, with those that are gone", OBSERVED, "REPORTED", "the others are left out", OF_A_REPORT),
            bound("A name or a revision in a report or a list", OBSERVED, "TEXT_BYTES", "the plugin is left out", OF_A_REPORT),
            bound("Capabilities in a report", OBSERVED, "CAPABILITIES", "the others are left out", OF_A_REPORT),
            bound("Labels that an agent claims", OBSERVED, "LABELS", "the others are left out", OF_A_REPORT),
            bound("A key or a value of such a label", "fleet/src/orders/agent/reported.rs", "LABEL_BYTES", "the label is left out", ("fleet/src/orders/agent/reported.rs", "labels_that_no_selector_needs_are_not_kept")),
            bound("Boots of one agent that are remembered", "fleet/src/enroll/clones.rs", "BOOTS", "the oldest are forgotten", ("fleet/src/enroll/clones.rs", "what_is_remembered_is_bounded")),
        ],
    ),
    (
        "Orders",
        &[
            bound("The body of an order", "fleet/src/orders/compose.rs", "BODY_BYTES", "it is not ordered, and the log says why", ("fleet/src/orders/compose.rs", "what_cannot_be_ordered_says_why")),
            bound("Bodies of orders that are kept for other agents, in bytes", "fleet/src/orders/composer.rs", "KEPT_BYTES", "all are composed anew", ("fleet/src/orders/composer.rs", "bodies_are_kept_up_to_a_bound")),
            bound("Age of the view on which an order leaves", "fleet/src/orders/view.rs", "AGE_MAX", "nothing leaves until the view is renewed", ("fleet/src/orders/simulation/guards.rs", "an_order_that_leaves_on_an_old_view_is_noticed")),
            bound("Repetitions of an order to an agent that forgets", "fleet/core/src/journal.rs", "REPEATS", "it waits for a person", ("fleet/program/tests/gateway/public.rs", "agents_that_forget_converge_and_are_never_ordered_what_they_have")),
            bound("A reason of a failure that is kept", "fleet/ledger/src/records/journal.rs", "REASON_BYTES", "the rest is cut off", ("fleet/ledger/src/records/journal.rs", "a_long_reason_is_cut_where_a_character_begins")),
            bound("Age of what is known of revocations", "fleet/src/enroll/revocations.rs", "STALE", "nobody is admitted until they are known", ("fleet/src/enroll/revocations/tests.rs", "a_view_that_is_too_old_says_nothing_until_the_ledger_is_back")),
        ],
    ),
    (
        "Enrolment and identity",
        &[
            bound("Connections, of all clients", ENROLMENT, "rate", "closed before TLS", (BUCKETS, "a_burst_comes_in_and_then_so_many_per_second")),
            bound("Connections of one address", ENROLMENT, "rate_per_address", "closed before TLS", (ENROLMENT_TESTS, "a_flood_is_closed_before_tls_and_ends_with_the_flood")),
            bound("Connections at one time", ENROLMENT, "connections", "closed at once", (ENROLMENT_TESTS, "connections_that_say_nothing_have_a_bound_and_an_end")),
            bound("The head of a request, in bytes", ENROLMENT, "HEAD_BYTES", "431", SLOW),
            bound("The head of a request, in time", ENROLMENT, "head", "408, or closed", SLOW),
            bound("The body of a request, in bytes", "fleet/src/enroll/server/routes.rs", "BODY_BYTES", "413", SLOW),
            bound("The body of a request, in time", ENROLMENT, "body", "408", SLOW),
            bound("A request for a certificate", "fleet/src/enroll/csr.rs", "MAX_BYTES", "refused with its size", ("fleet/src/enroll/csr.rs", "garbage_is_refused")),
            bound("An id of an agent", "fleet/src/enroll/id.rs", "MAX_BYTES", "refused with its size", ("fleet/src/enroll/id.rs", "what_could_be_read_in_two_ways_is_no_id")),
            bound("Certificates of one agent", "fleet/src/enroll/agents.rs", "CERTIFICATES", "the oldest are forgotten", ("fleet/src/enroll/agents/tests.rs", "the_list_of_certificates_is_bounded")),
            bound("Tokens of a fleet", TOKEN, "TOKENS", "no further one is made", (TOKEN_TESTS, "a_fleet_has_so_many_tokens_and_one_that_ended_long_ago_makes_room")),
            bound("Uses of a token", TOKEN, "USES", "refused", NO_TOKEN),
            bound("Life of a token", TOKEN, "LIFE", "refused", NO_TOKEN),
            bound("Labels of a token", TOKEN, "LABELS", "refused", NO_TOKEN),
            bound("A key or a value of such a label", TOKEN, "LABEL_BYTES", "refused", NO_TOKEN),
            bound("The name of a token", TOKEN, "NAME_BYTES", "refused", NO_TOKEN),
            bound("Uses that a token remembers, for machines that repeat their request", TOKEN, "RECENT", "the oldest are forgotten", (TOKEN_TESTS, "of_many_uses_the_newest_are_remembered")),
        ],
    ),
    (
        "Signed tokens (JWT)",
        &[
            bound("A token", VERIFY, "TOKEN_BYTES", "UNAUTHENTICATED with its size", (VERIFY_TESTS, "garbage_is_no_token")),
            bound("Time by which clocks may differ", VERIFY, "LEEWAY", "UNAUTHENTICATED", (VERIFY_TESTS, "times_count_with_a_minute_of_leeway")),
            bound("A set of keys", KEYS, "SET_BYTES", "the former keys stay in use", ("fleet/src/admission/jwt/source/tests.rs", "what_an_issuer_answers_badly_is_an_error_and_former_keys_stay")),
            bound("Keys of a set", KEYS, "KEYS", "the former keys stay in use", (VERIFY_TESTS, "a_set_without_a_key_that_signs_is_refused")),
        ],
    ),
    (
        "Artifacts",
        &[
            bound("Connections at one time", ARTIFACTS, "connections", "an idle one makes room, or the new one is closed", ("kits/serve/src/shares.rs", "where_nobody_is_idle_the_new_one_is_closed_and_a_place_that_is_left_is_taken")),
            bound("Connections of one peer", ARTIFACTS, "per_peer", "an idle one makes room, or the new one is closed", (ARTIFACTS_HOSTILE, "connections_beyond_the_bound_are_closed_unless_an_idle_one_makes_room")),
            bound("Uploads at one time", ARTIFACTS, "uploads", "503, to come again", (UPLOAD, "more_uploads_than_there_are_places_are_told_to_come_again")),
            bound("A TLS handshake", ARTIFACTS, "handshake", "closed", ("fleet/program/tests/artifacts/certificates.rs", "clients_that_do_not_agree_on_tls_are_not_waited_for")),
            bound("The head of a request, in time", ARTIFACTS, "head", "closed", (ARTIFACTS_HOSTILE, "a_head_that_does_not_come_is_not_waited_for")),
            bound("The head of a request, in bytes", "fleet/src/artifacts/listener/connection.rs", "HEAD_BYTES", "431", (ARTIFACTS_HOSTILE, "odd_requests_are_refused_and_end_their_connection")),
            bound("Time in which nothing is read or sent", ARTIFACTS, "stall", "cut", (ARTIFACTS_HOSTILE, "a_client_that_reads_nothing_is_cut")),
            bound("The name of a plugin in a path", "fleet/src/artifacts/listener/route.rs", "MAX_NAME_BYTES", "404", ("fleet/src/artifacts/listener/route.rs", "hostile_paths_name_nothing")),
            bound("An artifact", "fleet/src/artifacts/store.rs", "ARTIFACT_BYTES", "413, and nothing of it stays", (UPLOAD, "an_upload_that_is_too_large_is_refused")),
            bound("Room that uploads leave free", "fleet/src/artifacts/store.rs", "RESERVE_BYTES", "507, and nothing of it stays", ("fleet/program/tests/artifacts/full_disk.rs", "uploads_leave_the_reserve_free")),
        ],
    ),
    (
        "Declarations",
        &[
            bound("Files of a directory", FILES, "FILES", "refused by name", OF_FILES),
            bound("A file", FILES, "FILE_BYTES", "refused by name", OF_FILES),
            bound("Directories in each other", FILES, "DIRECTORIES_DEEP", "refused by name", OF_FILES),
            bound("Declarations", "fleet/src/declarations/set.rs", "OBJECTS", "refused", (DECLARATIONS, "more_declarations_than_the_bound_are_refused")),
            bound("Values of a YAML file, with what aliases repeat", "fleet/src/declarations/from_yaml.rs", "NODES", "refused with the place", (DECLARATIONS, "aliases_of_aliases_end_at_a_bound")),
            bound("Levels of a file", "fleet/src/declarations/tree.rs", "DEPTH", "refused with the place", (DECLARATIONS, "aliases_of_aliases_end_at_a_bound")),
            bound("Problems that are listed", "fleet/src/declarations/problem.rs", "PROBLEMS", "the others are left out", (DECLARED, "of_problems_without_number_a_thousand_are_told")),
            bound("The name of a plugin", VALUES, "PLUGIN_BYTES", "refused with the place", OF_A_RELEASE),
            bound("A revision", VALUES, "REVISION_BYTES", "refused with the place", OF_A_RELEASE),
            bound("Another name", VALUES, "NAME_BYTES", "refused with the place", OTHER),
            bound("A reason", VALUES, "REASON_BYTES", "refused with the place", OTHER),
            bound("The path of the program", RELEASE, "ENTRY_POINT_BYTES", "refused with the place", OF_A_RELEASE),
            bound("Arguments", RELEASE, "ARGUMENTS", "refused with the place", OF_A_RELEASE),
            bound("One argument", RELEASE, "ARGUMENT_BYTES", "refused with the place", OF_A_RELEASE),
            bound("A URL", RELEASE, "URL_BYTES", "refused with the place", OF_A_RELEASE),
            bound("A configuration", "fleet/src/declarations/config.rs", "CONFIG_BYTES", "refused with the place", OF_A_RELEASE),
            bound("References to secrets in a configuration", "fleet/src/secrets/reference.rs", "REFERENCES", "refused with the place", OF_A_RELEASE),
            bound("The name of a secret", "fleet/src/secrets/reference.rs", "NAME_BYTES", "refused with the place", OF_A_RELEASE),
            bound("A secret", "fleet/src/secrets/file.rs", "SECRET_BYTES", "it is missing, and the log says why", (SECRETS, "what_is_no_secret_says_what_to_do")),
            bound("Secrets of a gateway", "fleet/src/secrets/directory.rs", "SECRETS", "all are missing, and the gateway does not start", (SECRETS, "a_directory_that_cannot_be_used_is_refused")),
            bound("Entries of the directory with secrets", "fleet/src/secrets/directory.rs", "ENTRIES", "all are missing, and the gateway does not start", (SECRETS, "a_directory_that_cannot_be_used_is_refused")),
            bound("Keys by which a secret is known", "fleet/src/secrets/recorded.rs", "KEYS", "the oldest is forgotten", ("fleet/src/secrets/recorded.rs", "a_secret_is_known_by_a_bounded_number_of_keys_and_the_oldest_is_forgotten")),
            bound("Missing secrets that a gateway tells", "fleet/src/secrets/directory.rs", "MISSING", "further ones are in its log alone", (SECRETS, "what_is_asked_for_and_not_there_is_told_for_a_while")),
            bound("Levels of a configuration", "fleet/src/declarations/config.rs", "DEPTH", "refused with the place", OF_A_RELEASE),
            bound("A selector", "fleet/core/src/selector/expression.rs", "TEXT_BYTES", "refused with the place", OTHER),
            bound("Levels of a selector", "fleet/core/src/selector/expression.rs", "DEPTH", "refused with the place", ("fleet/core/src/selector/tests.rs", "what_does_not_parse_is_named_with_its_place")),
            bound("A key or a value of an operator's label", "fleet/program/src/cli/label.rs", "BYTES", "a usage error", ("fleet/program/src/cli/tests/agents.rs", "labels_that_no_selector_can_name_are_usage")),
        ],
    ),
    (
        "Traces",
        &[
            bound("Spans that wait for the collector", "kits/observe/src/otlp/queue.rs", "WAITING_MAX", "dropped and counted", ("fleet/src/telemetry/traces/tests.rs", "while_the_collector_is_away_nobody_waits_and_what_does_not_fit_is_counted")),
        ],
    ),
];

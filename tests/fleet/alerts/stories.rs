//! The troubles, each with the series that fire its alert and with such that just do not.

/// What happens to an alert.
#[derive(Clone, Copy, Debug)]
pub(super) struct Story {
    pub(super) alert: &'static str,
    /// Its labels when it fires, without how bad it is.
    pub(super) labels: &'static [(&'static str, &'static str)],
    /// When it fires, in minutes.
    pub(super) at: u32,
    /// Series, without job and instance, and their values: `AxN` is N + 1 times A, `A+B` goes up by B each minute, and the
    /// last one goes on to the end.
    pub(super) fires: &'static [(&'static str, &'static str)],
    /// With these no alert fires.
    pub(super) calm: &'static [(&'static str, &'static str)],
}

// === impl Story ===

impl Story {
    /// Nothing happens.
    pub(super) const NONE: Self = Self { alert: "", labels: &[], at: 60, fires: &[], calm: &[] };
}

/// Labels of a process, and of the whole fleet.
const JOB: (&str, &str) = ("job", "guest-fleet");
const INSTANCE: (&str, &str) = ("instance", "control-1");

pub(super) const STORIES: &[Story] = &[
    Story {
        alert: "GuestFleetDown",
        labels: &[JOB, INSTANCE],
        at: 60,
        fires: &[("up", "1x20 0")],
        calm: &[("up", "1x57 0")],
    },
    Story {
        alert: "GuestFleetNotReady",
        labels: &[JOB, INSTANCE, ("check", "view")],
        at: 60,
        fires: &[("guest_fleet_ready{check=\"view\"}", "1x20 0")],
        calm: &[("guest_fleet_ready{check=\"view\"}", "1x20 0x3 1")],
    },
    Story {
        alert: "GuestFleetRestarting",
        labels: &[JOB, INSTANCE],
        at: 60,
        fires: &[("process_start_time_seconds", "100x35 200x5 300x5 400x5 500")],
        calm: &[("process_start_time_seconds", "100x35 200x5 300x5 400")],
    },
    Story {
        alert: "GuestFleetDescriptors",
        labels: &[JOB, INSTANCE],
        at: 60,
        fires: &[("process_open_fds", "19000"), ("process_max_fds", "20000")],
        calm: &[("process_open_fds", "17000"), ("process_max_fds", "20000")],
    },
    Story {
        alert: "GuestFleetCertificateExpires",
        labels: &[JOB, INSTANCE, ("use", "api")],
        at: 120,
        fires: &[("guest_fleet_certificate_expiry_timestamp_seconds{use=\"api\"}", "1123200")],
        calm: &[("guest_fleet_certificate_expiry_timestamp_seconds{use=\"api\"}", "1296000")],
    },
    Story {
        alert: "GuestFleetCertificateStuck",
        labels: &[JOB, INSTANCE, ("use", "api")],
        at: 60,
        fires: &[("guest_fleet_certificate_stuck{use=\"api\"}", "0x10 1")],
        calm: &[("guest_fleet_certificate_stuck{use=\"api\"}", "0x50 1")],
    },
    Story {
        alert: "GuestFleetLedgerFailing",
        labels: &[JOB, INSTANCE, ("engine", "sqlite"), ("failure", "unavailable")],
        at: 60,
        fires: &[(
            "guest_fleet_ledger_failures_total{engine=\"sqlite\",verb=\"write\",failure=\"unavailable\"}",
            "0x20 0+60",
        )],
        calm: &[
            (
                "guest_fleet_ledger_failures_total{engine=\"sqlite\",verb=\"write\",failure=\"unavailable\"}",
                "0+3",
            ),
            (
                "guest_fleet_ledger_failures_total{engine=\"sqlite\",verb=\"write\",failure=\"conflict\"}",
                "0+600",
            ),
        ],
    },
    Story {
        alert: "GuestFleetLedgerDamaged",
        labels: &[JOB, INSTANCE, ("engine", "sqlite")],
        at: 60,
        fires: &[(
            "guest_fleet_ledger_failures_total{engine=\"sqlite\",verb=\"write\",failure=\"damaged\"}",
            "1",
        )],
        calm: &[(
            "guest_fleet_ledger_failures_total{engine=\"sqlite\",verb=\"write\",failure=\"conflict\"}",
            "1",
        )],
    },
    Story {
        alert: "GuestFleetLedgerSlow",
        labels: &[JOB, INSTANCE, ("engine", "sqlite"), ("verb", "scan")],
        at: 60,
        fires: &[
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"0.5\",engine=\"sqlite\",verb=\"scan\"}",
                "0+50",
            ),
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"1.0\",engine=\"sqlite\",verb=\"scan\"}",
                "0+60",
            ),
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"+Inf\",engine=\"sqlite\",verb=\"scan\"}",
                "0+60",
            ),
        ],
        calm: &[
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"0.25\",engine=\"sqlite\",verb=\"scan\"}",
                "0+60",
            ),
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"0.5\",engine=\"sqlite\",verb=\"scan\"}",
                "0+60",
            ),
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"1.0\",engine=\"sqlite\",verb=\"scan\"}",
                "0+60",
            ),
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"+Inf\",engine=\"sqlite\",verb=\"scan\"}",
                "0+60",
            ),
        ],
    },
    Story {
        alert: "GuestFleetViewOld",
        labels: &[JOB, INSTANCE],
        at: 60,
        fires: &[("guest_fleet_view_age_seconds", "1x20 2+60")],
        calm: &[("guest_fleet_view_age_seconds", "4")],
    },
    Story {
        alert: "GuestFleetIndexOld",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_index_age_seconds", "3x20 3+60")],
        calm: &[("guest_fleet_index_age_seconds", "55")],
    },
    Story {
        alert: "GuestFleetNoGateway",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_gateways{state=\"serving\"}", "1x20 0")],
        calm: &[("guest_fleet_gateways{state=\"serving\"}", "1x57 0")],
    },
    Story {
        alert: "GuestFleetGatewaySilent",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_gateways{state=\"silent\"}", "0x20 1")],
        calm: &[("guest_fleet_gateways{state=\"draining\"}", "1")],
    },
    Story {
        alert: "GuestFleetStreamsLost",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_streams", "98x50 60")],
        calm: &[("guest_fleet_streams", "98x50 75")],
    },
    Story {
        alert: "GuestFleetAgentsRefused",
        labels: &[JOB, INSTANCE, ("status", "unauthenticated")],
        at: 60,
        fires: &[("guest_fleet_refused_total{status=\"unauthenticated\"}", "0+60")],
        calm: &[
            ("guest_fleet_refused_total{status=\"unauthenticated\"}", "0+5"),
            ("guest_fleet_refused_total{status=\"unavailable\"}", "0+600"),
        ],
    },
    Story {
        alert: "GuestFleetAgentsAway",
        labels: &[JOB],
        at: 60,
        fires: &[
            ("guest_fleet_agents{presence=\"away\"}", "2x20 10"),
            ("guest_fleet_agents{presence=\"present\"}", "98x20 90"),
        ],
        calm: &[
            ("guest_fleet_agents{presence=\"away\"}", "5"),
            ("guest_fleet_agents{presence=\"present\"}", "95"),
        ],
    },
    Story {
        alert: "GuestFleetAgentQuarantined",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_agents{presence=\"quarantined\"}", "1")],
        calm: &[("guest_fleet_agents{presence=\"archived\"}", "7")],
    },
    Story {
        alert: "GuestFleetOrdersFail",
        labels: &[JOB],
        at: 60,
        fires: &[
            ("guest_fleet_standings{state=\"failed\"}", "0x20 2"),
            ("guest_fleet_standings{state=\"taken_back\"}", "0x20 1"),
        ],
        calm: &[("guest_fleet_standings{state=\"failed\"}", "0x20 2x10 0")],
    },
    Story {
        alert: "GuestFleetOrdersSilent",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_standings{state=\"silent\"}", "0x20 1")],
        calm: &[("guest_fleet_standings{state=\"silent\"}", "0x40 1")],
    },
    Story {
        alert: "GuestFleetDeclaredInVain",
        labels: &[JOB, ("state", "no_archive")],
        at: 60,
        fires: &[("guest_fleet_standings{state=\"no_archive\"}", "3")],
        calm: &[
            ("guest_fleet_standings{state=\"waits_for_wave\"}", "3"),
            ("guest_fleet_standings{state=\"held\"}", "4"),
        ],
    },
    Story {
        alert: "GuestFleetEnrolmentRefused",
        labels: &[JOB, INSTANCE, ("asked", "enrolment"), ("code", "token_ended")],
        at: 60,
        fires: &[(
            "guest_fleet_certificates_refused_total{asked=\"enrolment\",code=\"token_ended\"}",
            "0x30 0+1",
        )],
        calm: &[(
            "guest_fleet_certificates_refused_total{asked=\"enrolment\",code=\"token_ended\"}",
            "0x50 1x2 2x2 3",
        )],
    },
    Story {
        alert: "GuestFleetRolloutHalted",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_rollouts{state=\"halted\"}", "0x50 1")],
        calm: &[
            ("guest_fleet_rollouts{state=\"rolled_back\"}", "1"),
            ("guest_fleet_rollouts{state=\"paused\"}", "1"),
        ],
    },
    Story {
        alert: "GuestFleetFailuresSpread",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_rollout_failures", "2x50 3+1")],
        calm: &[("guest_fleet_rollout_failures", "2x40 9")],
    },
    Story {
        alert: "GuestFleetRolloutWaits",
        labels: &[JOB, ("state", "waiting_for_approval")],
        at: 1500,
        fires: &[("guest_fleet_rollouts{state=\"waiting_for_approval\"}", "0x20 1")],
        calm: &[("guest_fleet_rollouts{state=\"waiting_for_approval\"}", "0x200 1")],
    },
    Story {
        alert: "GuestFleetApiFailing",
        labels: &[JOB, INSTANCE],
        at: 60,
        fires: &[(
            "guest_fleet_api_calls_total{call=\"ListAgents\",code=\"unavailable\"}",
            "0x20 0+6",
        )],
        calm: &[
            ("guest_fleet_api_calls_total{call=\"ListAgents\",code=\"unavailable\"}", "0x20 0+2"),
            ("guest_fleet_api_calls_total{call=\"ListAgents\",code=\"not_found\"}", "0+60"),
            ("guest_fleet_api_calls_total{call=\"ListAgents\",code=\"permission_denied\"}", "0+60"),
        ],
    },
    Story {
        alert: "GuestFleetApiSlow",
        labels: &[JOB, INSTANCE, ("kind", "look")],
        at: 60,
        fires: &[
            ("guest_fleet_api_call_duration_seconds_bucket{le=\"2.5\",kind=\"look\"}", "0+50"),
            ("guest_fleet_api_call_duration_seconds_bucket{le=\"5.0\",kind=\"look\"}", "0+60"),
            ("guest_fleet_api_call_duration_seconds_bucket{le=\"+Inf\",kind=\"look\"}", "0+60"),
        ],
        calm: &[
            ("guest_fleet_api_call_duration_seconds_bucket{le=\"1.0\",kind=\"look\"}", "0+60"),
            ("guest_fleet_api_call_duration_seconds_bucket{le=\"2.5\",kind=\"look\"}", "0+60"),
            ("guest_fleet_api_call_duration_seconds_bucket{le=\"5.0\",kind=\"look\"}", "0+60"),
            ("guest_fleet_api_call_duration_seconds_bucket{le=\"+Inf\",kind=\"look\"}", "0+60"),
        ],
    },
    Story {
        alert: "GuestFleetApiRefused",
        labels: &[JOB, INSTANCE, ("code", "unauthenticated")],
        at: 60,
        fires: &[("guest_fleet_api_refused_total{code=\"unauthenticated\"}", "0+30")],
        calm: &[("guest_fleet_api_refused_total{code=\"unauthenticated\"}", "0+6")],
    },
    Story {
        alert: "GuestFleetAuditHeadFailed",
        labels: &[JOB, INSTANCE],
        at: 60,
        fires: &[("guest_fleet_audit_head_failures_total", "0x30 1")],
        calm: &[("guest_fleet_audit_head_failures_total", "1")],
    },
    Story {
        alert: "GuestFleetWebhookBehind",
        labels: &[JOB, INSTANCE, ("webhook", "pager")],
        at: 60,
        fires: &[("guest_fleet_webhook_lag_seconds{webhook=\"pager\"}", "0+60")],
        calm: &[("guest_fleet_webhook_lag_seconds{webhook=\"pager\"}", "800")],
    },
    Story {
        alert: "GuestFleetWebhookLost",
        labels: &[JOB, INSTANCE, ("webhook", "pager")],
        at: 60,
        fires: &[("guest_fleet_webhook_lost_total{webhook=\"pager\"}", "0x30 5")],
        calm: &[("guest_fleet_webhook_lost_total{webhook=\"pager\"}", "5")],
    },
];

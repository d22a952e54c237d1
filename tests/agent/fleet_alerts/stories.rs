//! The troubles, each with the series that fire its alert and with others that just do not.

use super::proof::Labels;

/// An alert, the series that fire it, and others that do not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Story {
    pub(super) alert: &'static str,
    /// Its labels when it fires, without its severity.
    pub(super) labels: Labels,
    /// When it fires, in minutes.
    pub(super) at: u32,
    /// Series, without job and instance, and their values: `AxN` is N + 1 times A, `A+B` goes up by B each minute, and the
    /// last one goes on to the end.
    pub(super) fires: &'static [(&'static str, &'static str)],
    /// With these no alert fires: values just below the limit, then beyond it for just less than the alert waits.
    pub(super) calm: &'static [(&'static str, &'static str)],
}

/// Labels of a process, and of the whole fleet.
const JOB: (&str, &str) = ("job", super::JOB);
const INSTANCE: (&str, &str) = ("instance", super::INSTANCE);

/// Counts of a fleet of a hundred agents and a rollout under way, in the place of those of a small one.
pub(super) const WELL: &[(&str, &str)] = &[
    ("guest_fleet_streams", "98"),
    ("guest_fleet_agents{presence=\"connected\"}", "98"),
    ("guest_fleet_agents{presence=\"offline\"}", "2"),
    ("guest_fleet_rollouts{state=\"running\"}", "1"),
    ("guest_fleet_rollout_state{assignment=\"web\",state=\"running\"}", "1"),
    ("guest_fleet_rollout_failed{assignment=\"web\"}", "2"),
    ("guest_fleet_rollout_silent{assignment=\"web\"}", "0"),
    ("guest_fleet_refused_total{status=\"unavailable\"}", "3"),
    ("guest_fleet_standings{state=\"done\"}", "190"),
];

pub(super) const STORIES: &[Story] = &[
    Story {
        alert: "GuestFleetDown",
        labels: &[JOB, INSTANCE],
        at: 60,
        fires: &[("up", "1x20 0")],
        calm: &[("up", "1x55 0")],
    },
    Story {
        alert: "GuestFleetNotReady",
        labels: &[JOB, INSTANCE, ("check", "view")],
        at: 60,
        fires: &[("guest_fleet_ready{check=\"view\"}", "1x20 0")],
        calm: &[("guest_fleet_ready{check=\"view\"}", "1x55 0")],
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
        calm: &[("process_open_fds", "17900x50 19000"), ("process_max_fds", "20000")],
    },
    Story {
        alert: "GuestFleetCertificateExpires",
        labels: &[JOB, INSTANCE, ("use", "gateway")],
        at: 120,
        fires: &[("guest_fleet_certificate_expiry_timestamp_seconds{use=\"gateway\"}", "1123200")],
        calm: &[("guest_fleet_certificate_expiry_timestamp_seconds{use=\"gateway\"}", "1213259")],
    },
    Story {
        alert: "GuestFleetCertificateStuck",
        labels: &[JOB, INSTANCE, ("use", "gateway")],
        at: 60,
        fires: &[("guest_fleet_certificate_stuck{use=\"gateway\"}", "0x10 1")],
        calm: &[("guest_fleet_certificate_stuck{use=\"gateway\"}", "0x45 1")],
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
                "0+5x55 335+60",
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
                "0",
            ),
            (
                "guest_fleet_ledger_duration_seconds_bucket{le=\"0.5\",engine=\"sqlite\",verb=\"scan\"}",
                "0+60x45 2750+50",
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
        calm: &[("guest_fleet_view_age_seconds", "4.9x58 60")],
    },
    Story {
        alert: "GuestFleetIndexOld",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_index_age_seconds", "3x20 3+60")],
        calm: &[("guest_fleet_index_age_seconds", "59x55 80")],
    },
    Story {
        alert: "GuestFleetNoGateway",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_gateways{state=\"serving\"}", "1x20 0")],
        calm: &[("guest_fleet_gateways{state=\"serving\"}", "1x55 0")],
    },
    Story {
        alert: "GuestFleetGatewaySilent",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_gateways{state=\"silent\"}", "0x20 1")],
        calm: &[
            ("guest_fleet_gateways{state=\"silent\"}", "0x59 1"),
            ("guest_fleet_gateways{state=\"draining\"}", "1"),
        ],
    },
    Story {
        alert: "GuestFleetStreamsLost",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_streams", "98x50 60")],
        calm: &[("guest_fleet_streams", "98x45 69x9 60")],
    },
    Story {
        alert: "GuestFleetAgentsRefused",
        labels: &[JOB, INSTANCE, ("status", "unauthenticated")],
        at: 60,
        fires: &[("guest_fleet_refused_total{status=\"unauthenticated\"}", "0+60")],
        calm: &[
            ("guest_fleet_refused_total{status=\"unauthenticated\"}", "0+5x45 285+60"),
            ("guest_fleet_refused_total{status=\"unavailable\"}", "0+600"),
        ],
    },
    Story {
        alert: "GuestFleetAgentsOffline",
        labels: &[JOB],
        at: 60,
        fires: &[
            ("guest_fleet_agents{presence=\"offline\"}", "2x20 10"),
            ("guest_fleet_agents{presence=\"connected\"}", "98x20 90"),
        ],
        calm: &[
            ("guest_fleet_agents{presence=\"offline\"}", "5x45 10"),
            ("guest_fleet_agents{presence=\"connected\"}", "95x45 90"),
            ("guest_fleet_agents{presence=\"never_seen\"}", "50"),
        ],
    },
    Story {
        alert: "GuestFleetAgentQuarantined",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_agents{presence=\"quarantined\"}", "1")],
        calm: &[
            ("guest_fleet_agents{presence=\"quarantined\"}", "0x55 1"),
            ("guest_fleet_agents{presence=\"archived\"}", "7"),
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
            "0x49 4x5 20",
        )],
    },
    Story {
        alert: "GuestFleetOrdersFail",
        labels: &[JOB],
        at: 60,
        fires: &[
            ("guest_fleet_standings{state=\"failed\"}", "0x20 2"),
            ("guest_fleet_standings{state=\"taken_back\"}", "0x20 1"),
        ],
        calm: &[("guest_fleet_standings{state=\"failed\"}", "0x45 2")],
    },
    Story {
        alert: "GuestFleetOrdersSilent",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_standings{state=\"silent\"}", "0x20 1")],
        calm: &[("guest_fleet_standings{state=\"silent\"}", "0x30 1")],
    },
    Story {
        alert: "GuestFleetPluginsFail",
        labels: &[JOB, ("state", "out_of_memory")],
        at: 60,
        fires: &[("guest_fleet_standings{state=\"out_of_memory\"}", "0x20 3")],
        calm: &[
            ("guest_fleet_standings{state=\"crash_loop\"}", "0x45 1"),
            ("guest_fleet_standings{state=\"changed_by_owner\"}", "4"),
        ],
    },
    Story {
        alert: "GuestFleetDrifted",
        labels: &[JOB],
        at: 180,
        fires: &[("guest_fleet_standings{state=\"drifted\"}", "0x30 2")],
        calm: &[("guest_fleet_standings{state=\"drifted\"}", "0x60 2")],
    },
    Story {
        alert: "GuestFleetRepairStopped",
        labels: &[JOB],
        at: 60,
        fires: &[("guest_fleet_stops{cause=\"many_drifted\"}", "0x20 1")],
        calm: &[("guest_fleet_stops{cause=\"many_drifted\"}", "0x59 1")],
    },
    Story {
        alert: "GuestFleetOrdersPaused",
        labels: &[JOB, ("cause", "ledger_went_back")],
        at: 60,
        fires: &[("guest_fleet_stops{cause=\"ledger_went_back\"}", "0x20 1")],
        calm: &[("guest_fleet_stops{cause=\"unreadable\"}", "0x59 1")],
    },
    Story {
        alert: "GuestFleetDeclaredInVain",
        labels: &[JOB, ("state", "no_archive")],
        at: 60,
        fires: &[("guest_fleet_standings{state=\"no_archive\"}", "3")],
        calm: &[
            ("guest_fleet_standings{state=\"no_archive\"}", "0x45 3"),
            ("guest_fleet_standings{state=\"waits_for_wave\"}", "3"),
            ("guest_fleet_standings{state=\"held\"}", "4"),
        ],
    },
    Story {
        alert: "GuestFleetRolloutHalted",
        labels: &[JOB, ("assignment", "web")],
        at: 60,
        fires: &[
            ("guest_fleet_rollout_state{assignment=\"web\",state=\"running\"}", "1x20 _"),
            ("guest_fleet_rollout_state{assignment=\"web\",state=\"halted\"}", "_x21 1"),
            ("guest_fleet_rollouts{state=\"halted\"}", "0x20 1"),
        ],
        calm: &[
            ("guest_fleet_rollout_state{assignment=\"web\",state=\"running\"}", "1x20 _"),
            ("guest_fleet_rollout_state{assignment=\"web\",state=\"rolling_back\"}", "_x21 1"),
            ("guest_fleet_rollout_state{assignment=\"db\",state=\"halted\"}", "_x60 1"),
        ],
    },
    Story {
        alert: "GuestFleetFailuresSpread",
        labels: &[JOB, ("assignment", "web")],
        at: 60,
        fires: &[("guest_fleet_rollout_failed{assignment=\"web\"}", "2x50 3+1")],
        calm: &[
            ("guest_fleet_rollout_failed{assignment=\"web\"}", "2x58 3"),
            ("guest_fleet_rollout_failed{assignment=\"db\"}", "2x50 3+1"),
            ("guest_fleet_rollout_state{assignment=\"db\",state=\"paused\"}", "1"),
        ],
    },
    Story {
        alert: "GuestFleetRolloutWaits",
        labels: &[JOB, ("assignment", "db"), ("state", "waiting_for_approval")],
        at: 1500,
        fires: &[(
            "guest_fleet_rollout_state{assignment=\"db\",state=\"waiting_for_approval\"}",
            "_x20 1",
        )],
        calm: &[
            (
                "guest_fleet_rollout_state{assignment=\"db\",state=\"waiting_for_approval\"}",
                "_x61 1",
            ),
            ("guest_fleet_rollout_state{assignment=\"cache\",state=\"soaking\"}", "1"),
        ],
    },
    Story {
        alert: "GuestFleetRolloutSilent",
        labels: &[JOB, ("assignment", "web")],
        at: 60,
        fires: &[("guest_fleet_rollout_silent{assignment=\"web\"}", "0x20 3")],
        calm: &[
            ("guest_fleet_rollout_silent{assignment=\"web\"}", "0x45 3"),
            ("guest_fleet_rollout_silent{assignment=\"db\"}", "3"),
            ("guest_fleet_rollout_state{assignment=\"db\",state=\"rolling_back\"}", "1"),
        ],
    },
    Story {
        alert: "GuestFleetWebhookBehind",
        labels: &[JOB, ("webhook", "pager")],
        at: 60,
        fires: &[("guest_fleet_webhook_lag_seconds{webhook=\"pager\"}", "0+60")],
        calm: &[("guest_fleet_webhook_lag_seconds{webhook=\"pager\"}", "895x50 1000")],
    },
    Story {
        alert: "GuestFleetWebhookLost",
        labels: &[JOB, ("webhook", "pager")],
        at: 60,
        fires: &[("guest_fleet_webhook_lost_total{webhook=\"pager\"}", "0x30 5")],
        calm: &[("guest_fleet_webhook_lost_total{webhook=\"pager\"}", "5")],
    },
];

//! The examples that the help of each verb ends with.

pub(super) const APPLY: &str = "Examples:\n\
    \x20 guest-fleet apply -f fleet/\n\
    \x20 guest-fleet apply -f fleet/ --dry-run\n\
    \x20 guest-fleet apply -f fleet/ --prune --yes --reason TICKET-12\n\
    \x20 guest-fleet apply -f fleet/ --at-once --reason TICKET-13";

pub(super) const DIFF: &str = "Examples:\n\
    \x20 guest-fleet diff -f fleet/";

pub(super) const EXPORT: &str = "Examples:\n\
    \x20 guest-fleet export -o fleet/\n\
    \x20 guest-fleet export >fleet.toml";

pub(super) const RELEASES: &str = "Examples:\n\
    \x20 guest-fleet releases";

pub(super) const ASSIGNMENTS: &str = "Examples:\n\
    \x20 guest-fleet assignments --json";

pub(super) const HOLDS: &str = "Examples:\n\
    \x20 guest-fleet holds";

pub(super) const WINDOWS: &str = "Examples:\n\
    \x20 guest-fleet windows";

pub(super) const HOLD: &str = "Examples:\n\
    \x20 guest-fleet hold incident-7 --select all --reason TICKET-7 --for 4h\n\
    \x20 guest-fleet hold db --select role=db --plugin monitor --reason migration";

pub(super) const RELEASE: &str = "Examples:\n\
    \x20 guest-fleet release incident-7";

pub(super) const RETRY: &str = "Examples:\n\
    \x20 guest-fleet retry monitor-prod --reason TICKET-9";

pub(super) const RESUME: &str = "Examples:\n\
    \x20 guest-fleet resume monitor-prod --reason TICKET-9\n\
    \x20 guest-fleet resume --all --reason restored";

pub(super) const ROLLOUT: &str = "Examples:\n\
    \x20 guest-fleet rollout preview spring --assignment web --to 1.5\n\
    \x20 guest-fleet rollout create spring --assignment web --to 1.5 --wave ring=canary,approve --wave 10% --wave 100%\n\
    \x20 guest-fleet rollout watch spring\n\
    \x20 guest-fleet rollout halt spring --reason TICKET-4\n\
    \x20 guest-fleet rollout rollback spring";

pub(super) const AGENTS: &str = "Examples:\n\
    \x20 guest-fleet agents\n\
    \x20 guest-fleet agents env=prod --json\n\
    \x20 guest-fleet agents --archived\n\
    \x20 guest-fleet agents --plugin monitor --state failed\n\
    \x20 guest-fleet agents --scan";

pub(super) const STATUS: &str = "Examples:\n\
    \x20 guest-fleet status\n\
    \x20 guest-fleet status --json";

pub(super) const AGENT: &str = "Examples:\n\
    \x20 guest-fleet agent a-1\n\
    \x20 guest-fleet agent label a-1 env=prod rack-\n\
    \x20 guest-fleet agent revoke a-1 --reason sold\n\
    \x20 guest-fleet agent release a-1\n\
    \x20 guest-fleet agent archive a-1 --reason scrapped";

pub(super) const GATEWAYS: &str = "Examples:\n\
    \x20 guest-fleet gateways\n\
    \x20 guest-fleet gateways --json";

pub(super) const SECRET: &str = "Examples:\n\
    \x20 guest-fleet secret status\n\
    \x20 guest-fleet secret status db-password\n\
    \x20 guest-fleet secret status db-password@2 --json";

pub(super) const EXPLAIN: &str = "Examples:\n\
    \x20 guest-fleet explain a-1 monitor";

pub(super) const TOKEN: &str = "Examples:\n\
    \x20 guest-fleet token create web --uses 20 --expires 7d --label env=prod\n\
    \x20 guest-fleet token create vm-7 --agent vm-7 --reason TICKET-3\n\
    \x20 guest-fleet token list\n\
    \x20 guest-fleet token revoke web";

pub(super) const EVENTS: &str = "Examples:\n\
    \x20 guest-fleet events --since 1h\n\
    \x20 guest-fleet events web-01 --plugin monitor\n\
    \x20 guest-fleet events --kind ROLLOUT_HALTED --kind AGENT_OFFLINE --follow\n\
    \x20 guest-fleet events --limit 20 --json";

pub(super) const AUDIT: &str = "Examples:\n\
    \x20 guest-fleet audit --limit 100\n\
    \x20 guest-fleet audit verify";

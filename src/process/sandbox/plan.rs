//! Translates a policy for a machine. Pure.

use std::path::{Path, PathBuf};

use guest_agent_actors::ports::Shortfall;
use rustix::process::{Resource, Rlimit};

use super::account::Identity;
use super::child::{Kept, Orders};
use super::host::{Host, SETGID, SETPCAP, SETUID, SYS_RESOURCE};
use super::ownership::Owner;
use super::seccomp::{self, Profile};
use crate::config::Policy;
use crate::config::policy::{
    Account, Capabilities, Limit, LimitName, Seccomp, Umask, capability_names,
};

/// The least version of Landlock's interface that keeps a plugin from changing files elsewhere in
/// every way: older ones do not govern truncation.
pub const LANDLOCK_WHOLE: u32 = 3;

/// What is named as not enforced where a confined plugin may call the agent.
const AGENT_SOCKETS: &str = "keeping it from the agent's own sockets";

/// Capabilities with which a process can do to the agent, its files or its sockets what root can, or
/// become root: `CHOWN`, `DAC_OVERRIDE`, `DAC_READ_SEARCH`, `FOWNER`, `KILL`, `SETGID`, `SETUID`,
/// `SYS_MODULE`, `SYS_RAWIO`, `SYS_PTRACE`, `SYS_ADMIN`, `SYS_RESOURCE`, `MKNOD`, `SETFCAP`,
/// `MAC_OVERRIDE` and `BPF`, as the kernel numbers them.
const STRONG: [u32; 16] = [0, 1, 2, 3, 5, 6, 7, 16, 17, 19, 21, 24, 27, 31, 32, 39];

/// The least version of Landlock's interface that keeps signals, and connections to abstract
/// sockets, inside.
const LANDLOCK_SCOPES: u32 = 6;

/// A confinement that is ready, but for what needs the plugin's files.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The steps that the child carries out.
    pub(crate) orders: Orders,
    /// The owner that the plugin's files get.
    pub(crate) owner: Owner,
    /// The home directory of its user; `None` for the agent's own user.
    pub(crate) home: Option<PathBuf>,
    /// Which system calls are refused.
    pub(crate) filter: Option<Profile>,
    /// What this machine cannot enforce.
    pub(crate) missing: Vec<Shortfall>,
}

/// Whether a policy keeps a plugin to some files.
#[must_use]
pub fn wants_landlock(policy: &Policy) -> bool {
    let named = policy.read_only_paths.is_some() || policy.read_write_paths.is_some();
    // This is how a plugin's own policy undoes the paths of the defaults.
    let all = policy.read_write_paths.iter().flatten().any(|path| path.parent().is_none());
    policy.private_tmp == Some(true) || (named && !all)
}

/// Whether a policy takes rights away from a plugin. Its limits do not: `umask`, `rlimits`,
/// `oom_score_adj` and `stop_grace`.
fn confines(policy: &Policy) -> bool {
    let is_other = |account: &Option<Account>| {
        account.as_ref().is_some_and(|account| match account {
            Account::Id(id) => *id != 0,
            Account::Name(name) => name != "root",
        })
    };
    is_other(&policy.user)
        || is_other(&policy.group)
        || matches!(policy.capabilities, Some(Capabilities::Only(_)))
        || policy.no_new_privileges == Some(true)
        || wants_landlock(policy)
        || wants_seccomp(policy)
}

/// Whether a policy keeps a plugin from the agent's own sockets: over them it would get back what
/// the policy takes away.
pub(crate) fn closes_agent_sockets(policy: &Policy) -> bool {
    confines(policy) && policy.agent_socket != Some(true)
}

/// Whether a policy refuses system calls.
pub(super) fn wants_seccomp(policy: &Policy) -> bool {
    policy.seccomp == Some(Seccomp::Default)
}

/// Decides what the child does, and names what this machine cannot do.
pub(super) fn plan(policy: &Policy, host: &Host, identity: Option<Identity>) -> Planned {
    let mut missing = Vec::new();
    let home = identity.as_ref().and_then(|it| it.home.clone());
    let identity = identity.and_then(|wanted| change_of_user(wanted, host, &mut missing));
    let home = if identity.is_some() { home } else { None };
    let owner = match &identity {
        Some(identity) => Owner { user: identity.user, group: identity.group, named: true },
        None => Owner { user: host.user, group: host.group, named: false },
    };
    let landlock = wants_landlock(policy);
    let filtered = wants_seccomp(policy);
    let can_filter = host.seccomp && seccomp::is_supported();
    let mut filter = (filtered && can_filter).then_some(Profile::Default);
    if landlock {
        look_at_landlock(host, &mut missing);
    }
    if filtered && !can_filter {
        missing.push(Shortfall::new(
            "seccomp",
            "this kernel does not filter system calls, or this processor has no profile",
            "use a kernel built with CONFIG_SECCOMP_FILTER",
        ));
    }
    if closes_agent_sockets(policy) && acts_as_root(policy, host, &owner) {
        let walled = landlock && host.landlock > 0;
        if filter.is_none() && can_filter && walled {
            filter = Some(Profile::Inside);
        }
        look_at_groups(policy, host, filter, &mut missing);
        look_at_neighbours(policy, host, filter, &mut missing);
    }
    // Landlock and seccomp could be used against programs that gain privileges, so the kernel
    // requires it first.
    let no_new_privileges =
        policy.no_new_privileges == Some(true) || (landlock && host.landlock > 0) || filtered;
    let kept = kept(policy, host, &owner, no_new_privileges, &mut missing);
    let orders = Orders {
        umask: policy.umask.unwrap_or(Umask::USUAL).bits(),
        oom_score_adj: oom_score(policy, host, &mut missing),
        limits: limits(policy, host, &mut missing),
        identity: identity.map(|it| (it.user, it.group)),
        kept,
        no_new_privileges,
        landlock: None,
        filters: Vec::new(),
    };
    Planned { orders, owner, home, filter, missing }
}

/// The identity, unless the agent lacks the rights to take it.
fn change_of_user(wanted: Identity, host: &Host, missing: &mut Vec<Shortfall>) -> Option<Identity> {
    if host.may_change_user() {
        return Some(wanted);
    }
    if (wanted.user, wanted.group) != (host.user, host.group) {
        let lacks = [SETUID, SETGID].into_iter().filter(|one| !host.has(*one));
        let lacks = capability_names(lacks.fold(0, |bits, one| bits | 1 << one)).join(" and ");
        missing.push(Shortfall::new(
            &format!("user {} and group {}", wanted.user, wanted.group),
            &format!("the agent runs as user {} and lacks {lacks}", host.user),
            "run the agent as root",
        ));
    }
    None
}

fn look_at_landlock(host: &Host, missing: &mut Vec<Shortfall>) {
    if host.landlock == 0 {
        missing.push(Shortfall::new(
            "the restriction to read_only_paths, read_write_paths and private_tmp",
            "this kernel has no Landlock",
            "use one from 5.13 on, with landlock in its lsm= parameter",
        ));
    } else if host.landlock < LANDLOCK_WHOLE {
        missing.push(Shortfall::new(
            "the protection of files outside of read_write_paths against truncation",
            &format!("Landlock of this kernel has version {}, not {LANDLOCK_WHOLE}", host.landlock),
            "use a kernel from 6.2 on",
        ));
    }
}

/// Says that a plugin which runs outside of its group is not kept from the agent's sockets.
pub(crate) fn open_agent_sockets(why: &str) -> Shortfall {
    Shortfall::new(AGENT_SOCKETS, why, "correct that, then restart the plugin")
}

/// Whether a plugin could do to the agent what root can: the modes of files and sockets do not keep
/// it out.
fn acts_as_root(policy: &Policy, host: &Host, owner: &Owner) -> bool {
    let kept = match policy.capabilities {
        Some(Capabilities::Only(bits)) => bits & host.capabilities,
        _ => 0,
    };
    let strong = STRONG.iter().fold(0, |bits, one| bits | 1 << one);
    owner.user == host.user || owner.user == 0 || kept & strong != 0
}

/// The agent knows a plugin that calls by its control group. A plugin that acts as root must not be
/// able to leave that.
fn look_at_groups(
    policy: &Policy,
    host: &Host,
    filter: Option<Profile>,
    missing: &mut Vec<Shortfall>,
) {
    let mut lacks = |why: &str, fix: &str| {
        missing.push(Shortfall::new(AGENT_SOCKETS, why, fix));
    };
    if !host.groups {
        lacks(
            "there are no control groups, and a plugin can take off every other mark by which the \
             agent would know it",
            "give it a user of its own, or run the agent where control groups can be made",
        );
    } else if !(wants_landlock(policy) && host.landlock > 0) || may_write_groups(policy) {
        lacks(
            "it has the agent's user, root's, or capabilities of root, and may write to \
             /sys/fs/cgroup, so that it can leave its control group",
            "give it a user of its own without such capabilities, or read_only_paths and no \
             read_write_paths above /sys/fs/cgroup",
        );
    } else if filter.is_none() {
        lacks(
            "this kernel does not filter system calls, or this processor has no profile, so that \
             clone3(2) starts a process in another control group",
            "give it a user of its own, or use a kernel built with CONFIG_SECCOMP_FILTER",
        );
    }
}

/// What a plugin that acts as root can do to other processes, whether or not it stays in its group.
fn look_at_neighbours(
    policy: &Policy,
    host: &Host,
    filter: Option<Profile>,
    missing: &mut Vec<Shortfall>,
) {
    let mut lacks = |what: &str, why: &str, fix: &str| {
        missing.push(Shortfall::new(what, why, fix));
    };
    lacks(
        "keeping it from the sockets of other programs of its user, such as D-Bus and other plugins",
        "a policy has no rules for connections to unix sockets",
        "give it a user of its own without capabilities of root",
    );
    if !wants_landlock(policy) {
        lacks(
            "keeping its signals from the agent and other plugins",
            "Landlock keeps signals inside, and the policy has no paths",
            "give it a user of its own, or read_only_paths",
        );
    } else if host.landlock < LANDLOCK_SCOPES {
        let has = host.landlock;
        lacks(
            "keeping its signals from the agent and other plugins",
            &format!("Landlock of this kernel has version {has}, not {LANDLOCK_SCOPES}"),
            "give it a user of its own, or use a kernel from 6.12 on",
        );
    }
    let what = match filter {
        Some(Profile::Default) => return,
        Some(Profile::Inside) => "keeping it from the keys that the kernel has for its user",
        None => {
            "keeping it from the keys that the kernel has for its user, and from the limits of the \
             agent and other processes of its user"
        }
    };
    lacks(
        what,
        "the policy refuses no system calls for them",
        "give it a user of its own, or seccomp = \"default\"",
    );
}

fn may_write_groups(policy: &Policy) -> bool {
    let groups = Path::new("/sys/fs/cgroup");
    let paths = policy.read_write_paths.iter().flatten();
    paths.into_iter().any(|path| groups.starts_with(path) || path.starts_with(groups))
}

fn kept(
    policy: &Policy,
    host: &Host,
    owner: &Owner,
    no_new_privileges: bool,
    missing: &mut Vec<Shortfall>,
) -> Option<Kept> {
    let Some(Capabilities::Only(wanted)) = policy.capabilities else { return None };
    let beyond = wanted & !host.capabilities;
    if beyond != 0 {
        missing.push(Shortfall::new(
            &format!("keeping {}", capability_names(beyond).join(" ")),
            "the agent itself does not have it",
            "run the agent as root, and check CapabilityBoundingSet= of its service",
        ));
    }
    let may_bound = host.has(SETPCAP);
    if !may_bound && !no_new_privileges {
        missing.push(Shortfall::new(
            "dropping capabilities permanently",
            "the agent lacks CAP_SETPCAP, so programs with file capabilities regain them",
            "set no_new_privileges = true, or run the agent as root",
        ));
    }
    Some(Kept {
        bits: wanted & host.capabilities,
        bound: may_bound.then_some(host.last_capability),
        // Programs of root get their capabilities from the kernel; those of other users only from
        // this set.
        ambient: owner.user != 0,
    })
}

fn oom_score(policy: &Policy, host: &Host, missing: &mut Vec<Shortfall>) -> Option<Vec<u8>> {
    let wanted = policy.oom_score_adj?;
    if wanted < host.oom_score_adj && !host.has(SYS_RESOURCE) {
        missing.push(Shortfall::new(
            &format!("oom_score_adj {wanted}"),
            &format!("the agent has {} and may not lower it", host.oom_score_adj),
            "run the agent as root",
        ));
        return None;
    }
    Some(wanted.to_string().into_bytes())
}

fn limits(policy: &Policy, host: &Host, missing: &mut Vec<Shortfall>) -> Vec<(Resource, Rlimit)> {
    let mut limits = Vec::new();
    for (name, limit) in &policy.rlimits {
        let most = host.limits.get(name).copied().filter(|_| !host.has(SYS_RESOURCE));
        let wanted = match limit {
            Limit::At(number) => Some(*number),
            Limit::Unlimited => None,
        };
        let given = match (wanted, most) {
            (Some(wanted), Some(most)) if wanted > most => Some(most),
            (None, Some(most)) => Some(most),
            (wanted, _) => wanted,
        };
        if given != wanted {
            missing.push(beyond(*name, *limit, most.unwrap_or_default()));
        }
        limits.push((name.resource(), Rlimit { current: given, maximum: given }));
    }
    limits
}

fn beyond(name: LimitName, limit: Limit, most: u64) -> Shortfall {
    let wanted = match limit {
        Limit::At(number) => number.to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
    };
    Shortfall::new(
        &format!("rlimits.{} {wanted}", name.name()),
        &format!("it is {most}, because the agent has no more and lacks CAP_SYS_RESOURCE"),
        "run the agent as root, or raise its own limit",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `CAP_NET_BIND_SERVICE`, which is no way to become root.
    const BIND: u64 = 1 << 10;

    /// A machine that can do everything, and its agent is root.
    fn strong() -> Host {
        Host {
            landlock: 7,
            seccomp: true,
            user: 0,
            group: 0,
            capabilities: u64::MAX >> 23,
            last_capability: 40,
            limits: LimitName::parse("nofile").map(|name| (name, 100)).into_iter().collect(),
            oom_score_adj: 0,
            groups: true,
        }
    }

    fn ordinary() -> Host {
        Host { user: 1000, group: 1000, capabilities: 0, ..strong() }
    }

    fn text(planned: &Planned) -> String {
        planned.missing.iter().map(|one| format!("{one}\n")).collect()
    }

    fn identity() -> Option<Identity> {
        Some(Identity { user: 1, group: 2, home: Some("/home".into()) })
    }

    fn everything() -> Policy {
        Policy {
            user: Some(Account::Id(1)),
            capabilities: Some(Capabilities::Only(BIND)),
            read_only_paths: Some(Vec::new()),
            seccomp: Some(Seccomp::Default),
            rlimits: LimitName::parse("nofile")
                .map(|it| (it, Limit::At(200)))
                .into_iter()
                .collect(),
            oom_score_adj: Some(-1),
            ..Policy::default()
        }
    }

    #[test]
    fn nothing_is_done_to_a_plugin_without_a_policy() {
        let planned = plan(&Policy::default(), &strong(), None);
        assert_eq!(planned.missing, []);
        let orders = planned.orders;
        assert_eq!(orders.umask, 0o022);
        assert!(orders.identity.is_none() && orders.kept.is_none() && orders.limits.is_empty());
        assert!(!orders.no_new_privileges && orders.oom_score_adj.is_none());
        assert!(!planned.owner.named);
    }

    #[test]
    fn a_machine_that_can_do_everything_does_everything() {
        let planned = plan(&everything(), &strong(), identity());
        assert_eq!(planned.missing, []);
        let orders = planned.orders;
        assert_eq!(orders.identity, Some((1, 2)));
        assert_eq!(orders.kept, Some(Kept { bits: BIND, bound: Some(40), ambient: true }));
        assert!(orders.no_new_privileges, "both kinds of walls need it");
        assert_eq!(orders.limits.len(), 1);
        assert_eq!(orders.limits[0].1.maximum, Some(200));
        assert_eq!(planned.home, Some("/home".into()));
    }

    #[test]
    fn an_agent_that_is_not_root_names_each_thing_that_it_cannot_do() {
        let planned = plan(&everything(), &ordinary(), identity());
        let all = text(&planned);
        for part in [
            "user 1 and group 2",
            "keeping CAP_NET_BIND_SERVICE",
            "oom_score_adj -1",
            "it is 100",
            "the sockets of other programs of its user",
        ] {
            assert!(all.contains(part), "no {part:?} in {all}");
        }
        assert_eq!(planned.missing.len(), 5, "walls and filters need no root: {all}");
        assert_eq!(planned.orders.identity, None);
        assert_eq!((planned.owner.user, planned.home), (1000, None));
        assert_eq!(planned.orders.limits[0].1.maximum, Some(100), "as low as can be");
    }

    #[test]
    fn capabilities_that_can_come_back_are_named_unless_nothing_can_bring_them() {
        let dropped = Policy { capabilities: Some(Capabilities::Only(0)), ..Policy::default() };
        let planned = plan(&dropped, &ordinary(), None);
        assert!(text(&planned).contains("no_new_privileges = true"), "{:?}", planned.missing);
        let sealed = Policy { no_new_privileges: Some(true), agent_socket: Some(true), ..dropped };
        assert_eq!(plan(&sealed, &ordinary(), None).missing, []);
    }

    #[test]
    fn what_a_kernel_lacks_is_named() {
        let bare = Host { landlock: 0, seccomp: false, ..strong() };
        let all = text(&plan(&everything(), &bare, identity()));
        assert!(all.contains("no Landlock") && all.contains("CONFIG_SECCOMP_FILTER"), "{all}");
        let old = Host { landlock: LANDLOCK_WHOLE - 1, ..strong() };
        let all = text(&plan(&everything(), &old, identity()));
        assert!(all.contains("against truncation") && all.contains("version 2, not 3"), "{all}");
    }

    #[test]
    fn the_agents_own_user_is_no_change() {
        let own = Some(Identity { user: 1000, group: 1000, home: None });
        assert_eq!(plan(&Policy::default(), &ordinary(), own).missing, []);
    }

    #[test]
    fn a_plugin_that_may_write_everywhere_has_no_walls() {
        let read = Policy { read_only_paths: Some(vec!["/".into()]), ..Policy::default() };
        assert!(wants_landlock(&read));
        let all = Policy { read_write_paths: Some(vec!["/".into()]), ..read };
        assert!(!wants_landlock(&all));
        assert!(wants_landlock(&Policy { private_tmp: Some(true), ..all }));
    }

    /// What a policy that drops all capabilities lacks on a machine, with other keys changed.
    fn lacks(host: &Host, change: impl FnOnce(&mut Policy)) -> String {
        let mut policy = Policy { capabilities: Some(Capabilities::Only(0)), ..Policy::default() };
        change(&mut policy);
        let identity = policy.user.is_some().then(identity).flatten();
        text(&plan(&policy, host, identity))
    }

    #[test]
    fn a_confined_plugin_that_could_leave_its_group_is_not_kept_from_the_agents_sockets() {
        let open = "keeping it from the agent's own sockets";
        let others = "the sockets of other programs of its user";
        let all = lacks(&strong(), |_| ());
        assert!(all.contains(open) && all.contains(others), "{all}");
        for change in [
            |it: &mut Policy| it.read_only_paths = Some(Vec::new()),
            |it: &mut Policy| it.private_tmp = Some(true),
        ] {
            let lacks = lacks(&strong(), change);
            assert!(lacks.contains(others) && !lacks.contains(open), "{lacks}");
        }
        for path in ["/sys", "/sys/fs/cgroup/unified", "/sys/fs"] {
            let writes = |it: &mut Policy| it.read_write_paths = Some(vec![path.into()]);
            assert!(lacks(&strong(), writes).contains(open), "{path}");
        }
        assert!(lacks(&strong(), |it| it.user = Some(Account::Id(1))).is_empty());
        assert!(lacks(&strong(), |it| it.agent_socket = Some(true)).is_empty());
        let without = Host { groups: false, ..strong() };
        assert!(lacks(&without, paths).contains("no control groups"));
        let unfiltered = Host { seccomp: false, ..strong() };
        let all = lacks(&unfiltered, paths);
        assert!(all.contains(open) && all.contains("clone3(2)"), "{all}");
    }

    fn paths(policy: &mut Policy) {
        policy.read_only_paths = Some(Vec::new());
    }

    #[test]
    fn a_plugin_that_acts_as_root_cannot_leave_its_group_by_a_system_call() {
        let filter = |policy: &Policy| plan(policy, &strong(), None).filter;
        let confined = Policy { no_new_privileges: Some(true), ..Policy::default() };
        assert_eq!(filter(&confined), None, "without paths it writes to the groups");
        let walled = Policy { read_only_paths: Some(Vec::new()), ..confined };
        assert_eq!(filter(&walled), Some(Profile::Inside));
        let whole = Policy { seccomp: Some(Seccomp::Default), ..walled.clone() };
        assert_eq!(filter(&whole), Some(Profile::Default));
        let allowed = Policy { agent_socket: Some(true), ..walled.clone() };
        assert_eq!(filter(&allowed), None);
        let own = Policy { user: Some(Account::Id(1)), ..walled };
        assert_eq!(plan(&own, &strong(), identity()).filter, None);
    }

    #[test]
    fn what_a_plugin_that_acts_as_root_can_do_to_other_processes_is_named() {
        let (keys, limits, signals) = ("the keys", "from the limits", "its signals");
        let all = lacks(&strong(), |_| ());
        assert!(all.contains(keys) && all.contains(limits) && all.contains(signals), "{all}");
        let all = lacks(&strong(), paths);
        assert!(all.contains(keys) && !all.contains(limits) && !all.contains(signals), "{all}");
        let older = Host { landlock: 5, ..strong() };
        assert!(lacks(&older, paths).contains("version 5, not 6"));
        let all = lacks(&strong(), |it| it.seccomp = Some(Seccomp::Default));
        assert!(!all.contains(keys) && all.contains(signals), "{all}");
        let strongly = |bits| {
            lacks(&strong(), |it| {
                it.user = Some(Account::Id(1));
                it.capabilities = Some(Capabilities::Only(bits));
            })
        };
        assert!(strongly(BIND).is_empty());
        for bit in STRONG {
            assert!(strongly(1 << bit).contains("the agent's own sockets"), "{bit}");
        }
    }

    #[test]
    fn limits_confine_nobody() {
        let limits = Policy {
            umask: Some(Umask::USUAL),
            oom_score_adj: Some(1),
            stop_grace: Some(std::time::Duration::ZERO),
            user: Some(Account::Name("root".to_owned())),
            capabilities: Some(Capabilities::All),
            read_write_paths: Some(vec!["/".into()]),
            ..Policy::default()
        };
        assert!(!closes_agent_sockets(&limits));
        assert!(closes_agent_sockets(&everything()));
        let allowed = Policy { agent_socket: Some(true), ..everything() };
        assert!(!closes_agent_sockets(&allowed));
    }
}

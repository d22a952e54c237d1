//! What a user of this machine may do over the agent's own socket: look, or act as well.
//!
//! ```text
//!   agent.socket_group ─┐
//!   agent.admin_group  ─┴─► gids, once, at the start ─► Levels ─┬─► the mode of the socket: who can connect
//!                             the kernel's word about a peer ─►─┴─► the level of each caller: what it may do
//! ```
//!
//! The kernel's word about the peer decides the level, never the mode of the socket's file: that is made
//! wide enough for both groups, and a peer that connects without a level is refused. A group that does
//! not exist lets nobody in.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::socket::Access;
use super::vetted::Caller;
use crate::os::users;

/// Longest that the database of groups may take; it may be on a network.
const LOOKUP_WAIT: Duration = Duration::from_secs(10);

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// See what runs and what happened.
    Look,
    /// Change it, and see everything.
    Act,
}

/// Which users have which level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Levels {
    /// The user that the agent runs as.
    own_uid: u32,
    looks: Group,
    acts: Group,
}

/// A group that has a level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Group {
    /// As it is configured; empty where none is.
    name: Arc<str>,
    /// Its number; `None` where there is no such group.
    gid: Option<u32>,
}

// === impl Levels ===

impl Levels {
    /// Looks both groups up. One that cannot be found is logged, and lets nobody in.
    pub async fn find(looks: &str, acts: &str) -> Self {
        let looks = Group::find("agent.socket_group", looks).await;
        let acts = Group::find("agent.admin_group", acts).await;
        Self { own_uid: rustix::process::geteuid().as_raw(), looks, acts }
    }

    /// The permissions of a socket that lets in who has a level.
    #[must_use]
    pub fn access(&self) -> Access {
        match (self.looks.gid, self.acts.gid) {
            (None, None) => Access::owner_only(),
            (Some(one), Some(other)) if one != other => {
                // A file has one group.
                Access { mode: 0o666, group: String::new() }
            }
            (Some(one), _) | (None, Some(one)) => Access { mode: 0o660, group: one.to_string() },
        }
    }

    /// What a caller may do; `None` for nothing.
    pub(crate) fn of(&self, caller: &Caller) -> Option<Level> {
        if caller.uid == 0 || caller.uid == self.own_uid || self.acts.has(caller) {
            return Some(Level::Act);
        }
        self.looks.has(caller).then_some(Level::Look)
    }

    /// Why a caller may not do something, and what it would take: a sentence.
    pub(crate) fn refusal(&self, caller: &Caller, needed: Level) -> String {
        let uid = caller.uid;
        let may = match self.of(caller) {
            Some(Level::Look) => format!("uid {uid} may look here and not act"),
            Some(Level::Act) | None => format!("uid {uid} may not use this socket"),
        };
        let way = match (needed, &*self.looks.name, &*self.acts.name) {
            (_, "", "") => "set agent.socket_group or agent.admin_group to a group of this user",
            (Level::Act, _, "") => "set agent.admin_group to a group of this user",
            (Level::Act, _, acts) => {
                return format!("{may}; {}, or run as root", joining("agent.admin_group", acts));
            }
            (Level::Look, "", acts) => {
                return format!("{may}; {}, or run as root", joining("agent.admin_group", acts));
            }
            (Level::Look, looks, _) => {
                return format!("{may}; {}, or run as root", joining("agent.socket_group", looks));
            }
        };
        format!("{may}; {way} and restart the service, or run as root")
    }
}

/// How to become a member of a group.
fn joining(key: &str, group: &str) -> String {
    format!("add the user to the group {group:?} ({key}) and log in again")
}

// === impl Group ===

impl Group {
    async fn find(key: &'static str, name: &str) -> Self {
        let named = Self { name: name.into(), gid: None };
        if name.is_empty() {
            return named;
        }
        let wanted = name.to_owned();
        let looking = tokio::task::spawn_blocking(move || users::group(&wanted));
        match tokio::time::timeout(LOOKUP_WAIT, looking).await {
            Ok(Ok(Some(gid))) => Self { gid: Some(gid), ..named },
            Ok(Ok(None) | Err(_)) | Err(_) => {
                warn!(
                    key,
                    group = name,
                    "the group does not exist or cannot be looked up; nobody is let in for it"
                );
                named
            }
        }
    }

    fn has(&self, caller: &Caller) -> bool {
        self.gid.is_some_and(|gid| caller.gid == gid || caller.groups.contains(&gid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(name: &str, gid: Option<u32>) -> Group {
        Group { name: name.into(), gid }
    }

    fn levels(looks: Option<u32>, acts: Option<u32>) -> Levels {
        Levels { own_uid: 7, looks: group("viewers", looks), acts: group("operators", acts) }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.into(), login: None }
    }

    #[test]
    fn the_owner_and_root_act_whatever_is_configured() {
        for levels in [levels(None, None), levels(Some(20), Some(30))] {
            assert_eq!(levels.of(&caller(0, 0, &[])), Some(Level::Act));
            assert_eq!(levels.of(&caller(7, 7, &[])), Some(Level::Act));
            assert_eq!(levels.of(&caller(8, 8, &[0, 7])), None, "a uid is no group");
        }
    }

    #[test]
    fn members_have_the_level_of_their_group_by_either_kind_of_membership() {
        let levels = levels(Some(20), Some(30));
        assert_eq!(levels.of(&caller(8, 20, &[])), Some(Level::Look));
        assert_eq!(levels.of(&caller(8, 8, &[9, 20])), Some(Level::Look));
        assert_eq!(levels.of(&caller(8, 30, &[])), Some(Level::Act));
        assert_eq!(levels.of(&caller(8, 20, &[30])), Some(Level::Act), "the higher one counts");
        assert_eq!(levels.of(&caller(8, 8, &[9])), None);
    }

    #[test]
    fn a_group_that_does_not_exist_lets_nobody_in() {
        let levels = levels(None, None);
        assert_eq!(levels.of(&caller(8, 20, &[30])), None);
        assert_eq!(levels.access(), Access::owner_only());
    }

    #[test]
    fn the_socket_admits_those_who_have_a_level() {
        let access = |looks, acts| {
            let Access { mode, group } = levels(looks, acts).access();
            (mode, group)
        };
        assert_eq!(access(Some(20), None), (0o660, "20".to_owned()));
        assert_eq!(access(None, Some(30)), (0o660, "30".to_owned()));
        assert_eq!(access(Some(20), Some(20)), (0o660, "20".to_owned()));
        assert_eq!(access(Some(20), Some(30)), (0o666, String::new()));
    }

    #[test]
    fn a_refusal_names_the_group_and_the_fix() {
        let both = levels(Some(20), Some(30));
        let looker = caller(8, 20, &[]);
        let why = both.refusal(&looker, Level::Act);
        assert!(why.starts_with("uid 8 may look here and not act"), "{why}");
        assert!(why.contains("\"operators\" (agent.admin_group) and log in again"), "{why}");
        let why = both.refusal(&caller(9, 9, &[]), Level::Look);
        assert!(why.starts_with("uid 9 may not use this socket"), "{why}");
        assert!(why.contains("\"viewers\" (agent.socket_group)"), "{why}");
        let looks = Levels { acts: group("", None), ..both.clone() };
        let why = looks.refusal(&looker, Level::Act);
        assert!(why.contains("set agent.admin_group"), "{why}");
        let none = Levels { looks: group("", None), acts: group("", None), ..both };
        let why = none.refusal(&looker, Level::Look);
        assert!(why.contains("agent.socket_group or agent.admin_group"), "{why}");
    }

    #[tokio::test]
    async fn groups_are_found_by_name_and_by_number() {
        let levels = Levels::find("root", "31000").await;
        assert_eq!((levels.looks.gid, levels.acts.gid), (Some(0), Some(31_000)));
        assert_eq!(Levels::find("", "no-such-group").await.access(), Access::owner_only());
    }
}

//! What the user at the other end of the unix socket may do, as the kernel names that user.
//!
//! ```text
//!   api.http_socket_mode, _group ─► may read ─┐
//!   agent.socket_group           ─► may read ─┼─► SocketPeer, in every request of the connection
//!   agent.admin_group, root      ─► may act  ─┘
//! ```
//!
//! The configured permissions count and not those of the file, which a careless `chmod` changes.

use std::sync::Arc;

use crate::api::http::access::Access;
use crate::net::levels::{Level, Levels};
use crate::net::vetted::{Caller, Vetted};

/// What the peer of a connection may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketPeer {
    /// This, whatever tokens its requests bring.
    Allowed(Access),
    /// Nothing, for this reason.
    Refused(Arc<str>),
}

/// Who may use the socket.
#[derive(Clone, Debug)]
pub(super) struct SocketUsers {
    /// Who has which level over `agent.sock`.
    pub(super) levels: Arc<Levels>,
    /// The configured permissions of the socket.
    pub(super) mode: u32,
    /// The group that owns it.
    pub(super) gid: u32,
}

// === impl SocketPeer ===

impl SocketPeer {
    /// Whether the peer may act without a token.
    pub(crate) fn acts(&self) -> bool {
        *self == Self::Allowed(Access::Act)
    }
}

// === impl SocketUsers ===

impl SocketUsers {
    /// What the peer of an accepted connection may do.
    pub(super) fn judge(&self, stream: &Vetted) -> SocketPeer {
        match (stream.result(), stream.caller()) {
            (Err(why), _) => SocketPeer::Refused(why.clone()),
            (Ok(()), None) => {
                SocketPeer::Refused("the kernel does not say who calls; try again".into())
            }
            (Ok(()), Some(caller)) => self.of(caller),
        }
    }

    fn of(&self, caller: &Caller) -> SocketPeer {
        let level = self.levels.of(caller);
        let is_member = caller.gid == self.gid || caller.groups.contains(&self.gid);
        let may_connect = self.mode & 0o002 != 0 || (self.mode & 0o020 != 0 && is_member);
        match level {
            Some(Level::Act) => SocketPeer::Allowed(Access::Act),
            Some(Level::Look) => SocketPeer::Allowed(Access::Read),
            None if may_connect => SocketPeer::Allowed(Access::Read),
            None => SocketPeer::Refused(
                format!(
                    "uid {} may not use this socket; make it a member of the group of the socket \
                     (api.http_socket_group) or of agent.socket_group, and log in again",
                    caller.uid
                )
                .into(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUP: u32 = 31_000;
    const ACTS: u32 = 31_001;

    async fn users(mode: u32) -> SocketUsers {
        let levels = Arc::new(Levels::find("", &ACTS.to_string()).await);
        SocketUsers { levels, mode, gid: GROUP }
    }

    fn caller(uid: u32, gid: u32, groups: &[u32]) -> Caller {
        Caller { uid, gid, groups: groups.into(), login: None }
    }

    #[tokio::test]
    async fn the_configured_permissions_decide_who_reads_and_the_levels_who_acts() {
        let read = SocketPeer::Allowed(Access::Read);
        let act = SocketPeer::Allowed(Access::Act);
        let users_of = [users(0o660).await, users(0o600).await, users(0o666).await];
        let [group, owner, all] = &users_of;
        for users in &users_of {
            assert_eq!(users.of(&caller(0, 0, &[])), act);
            assert_eq!(users.of(&caller(8, 8, &[ACTS])), act);
        }
        for member in [caller(8, GROUP, &[]), caller(8, 8, &[9, GROUP])] {
            assert_eq!(group.of(&member), read);
            assert_eq!(all.of(&member), read);
            assert!(matches!(owner.of(&member), SocketPeer::Refused(_)));
        }
        let stranger = caller(8, 8, &[9]);
        assert_eq!(all.of(&stranger), read);
        let SocketPeer::Refused(why) = group.of(&stranger) else { panic!("it is no member") };
        assert!(why.contains("uid 8") && why.contains("api.http_socket_group"), "{why}");
    }
}

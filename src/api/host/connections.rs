//! Connections to the host socket, as many as there may be.
//!
//! The agent's own user and root, as which plugins run unless their policy names another user, have
//! a pool of their own; of every other user there may be so many, and so many of all others
//! together. Beyond that a connection is closed at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;

use crate::net::accept::{Acceptor, Bound};
use crate::net::with_permit::WithPermit;

/// Most connections of the agent's own user and root.
const OWN_MAX: usize = 1024;

/// Most of any other user.
const USER_MAX: usize = 64;

/// Most of all other users together.
const OTHERS_MAX: usize = 512;

/// How many connections there are, by user.
#[derive(Clone, Debug)]
struct Counts {
    own: u32,
    by_user: Arc<Mutex<HashMap<u32, usize>>>,
}

/// A connection that counts until it is closed.
pub(super) type Admitted = WithPermit<UnixStream, ConnectionPermit>;

/// The permit for one connection of a user.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    uid: u32,
    counts: Counts,
}

/// The connections to the host socket.
pub(super) fn incoming(listener: UnixListener) -> impl Stream<Item = std::io::Result<Admitted>> {
    let counts = Counts { own: nix::unistd::getuid().as_raw(), by_user: Arc::default() };
    Acceptor::new(listener, counts, |error| {
        tracing::warn!(%error, "a connection to the host socket was not accepted");
    })
    .incoming()
}

// === impl Counts ===

impl Bound<UnixStream> for Counts {
    type Permit = ConnectionPermit;

    async fn room(&self) {}

    fn permit(&self, stream: &UnixStream) -> Option<ConnectionPermit> {
        let uid = stream.peer_cred().ok()?.uid();
        let mut by_user = self.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = |uid: u32| uid == self.own || uid == 0;
        let of_user = by_user.get(&uid).copied().unwrap_or_default();
        let pool: usize = by_user
            .iter()
            .filter(|(other, _)| is_own(**other) == is_own(uid))
            .map(|(_, count)| count)
            .sum();
        let is_full =
            if is_own(uid) { pool >= OWN_MAX } else { of_user >= USER_MAX || pool >= OTHERS_MAX };
        if is_full {
            tracing::warn!(uid, of_user, "too many connections to the host socket; closes one");
            return None;
        }
        by_user.insert(uid, of_user + 1);
        drop(by_user);
        Some(ConnectionPermit { uid, counts: self.clone() })
    }
}

// === impl ConnectionPermit ===

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut by_user = self.counts.by_user.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = by_user.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                by_user.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection() -> UnixStream {
        UnixStream::pair().expect("a pair").0
    }

    #[tokio::test]
    async fn another_user_gets_a_few_connections_and_new_ones_when_it_ends_some() {
        let uid = nix::unistd::getuid().as_raw();
        if uid == 0 {
            // Root's own connections never count as another user's.
            let counts = Counts { own: 1, by_user: Arc::default() };
            let admitted: Vec<_> = (0..100).filter_map(|_| counts.permit(&connection())).collect();
            assert_eq!(admitted.len(), 100);
            return;
        }
        let counts = Counts { own: uid + 1, by_user: Arc::default() };
        let mut admitted: Vec<_> =
            (0..USER_MAX + 3).filter_map(|_| counts.permit(&connection())).collect();
        assert_eq!(admitted.len(), USER_MAX);
        admitted.pop();
        assert!(counts.permit(&connection()).is_some());
    }

    #[tokio::test]
    async fn other_users_together_never_take_the_place_of_our_own() {
        let counts = Counts { own: nix::unistd::getuid().as_raw(), by_user: Arc::default() };
        let others = (0..).map(|n| (40_000 + n, USER_MAX)).take(OTHERS_MAX / USER_MAX);
        counts.by_user.lock().expect("whole").extend(others);
        let own = counts.permit(&connection()).expect("there is room for our own");
        let uid = counts.own;
        assert_eq!(counts.by_user.lock().expect("whole")[&uid], 1);
        drop(own);
        assert!(!counts.by_user.lock().expect("whole").contains_key(&uid));
    }
}

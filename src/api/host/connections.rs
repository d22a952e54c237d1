//! Connections to the host socket, as many as there may be.
//!
//! The agent's own user and root, as which plugins run unless their policy names another user, have
//! places of their own; of every other user there may be so many, and so many of all others
//! together. A connection over which no call with a valid ticket came is idle, and makes room for
//! another one; where none is, the new one is closed.

use tokio::net::{UnixListener, UnixStream};
use tokio_stream::Stream;

use crate::net::accept::{Acceptor, Bound};
use crate::net::placed::Placed;
use crate::net::shares::{HasPeer, Most, Peer, Place, Shares};

/// Most connections of the agent's own user and root.
const OWN: Most = Most { all: 1024, each: 1024 };

/// Most of all other users.
const OTHERS: Most = Most { all: 512, each: 64 };

/// The places of the two kinds of users.
#[derive(Debug)]
struct Pools {
    own_uid: u32,
    own: Shares,
    others: Shares,
}

/// The connections to the host socket.
pub(super) fn incoming(
    listener: UnixListener,
) -> impl Stream<Item = std::io::Result<Placed<UnixStream>>> {
    let pools = Pools::new(nix::unistd::getuid().as_raw());
    Acceptor::new(listener, pools, |error| {
        tracing::warn!(%error, "a connection to the host socket was not accepted");
    })
    .incoming()
}

// === impl Pools ===

impl Pools {
    fn new(own_uid: u32) -> Self {
        let pool = |most| Shares::new("the host socket", most);
        Self { own_uid, own: pool(OWN), others: pool(OTHERS) }
    }

    async fn place_of(&self, peer: Peer) -> Option<Place> {
        let is_own = peer == Peer::User(self.own_uid) || peer == Peer::User(0);
        let pool = if is_own { &self.own } else { &self.others };
        pool.place(peer).await
    }
}

impl Bound<UnixStream> for Pools {
    async fn place(&self, stream: &UnixStream) -> Option<Place> {
        self.place_of(stream.peer()?).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_UID: u32 = 7;

    /// So many connections of a user over which a call came.
    async fn busy(pools: &Pools, uid: u32, count: usize) -> Vec<Place> {
        let mut places = Vec::new();
        for _ in 0..count {
            let Some(place) = pools.place_of(Peer::User(uid)).await else { break };
            place.requested().note();
            places.push(place);
        }
        places
    }

    #[tokio::test]
    async fn another_user_gets_a_few_connections_and_new_ones_when_it_ends_some() {
        let pools = Pools::new(OWN_UID);
        let mut admitted = busy(&pools, 8, OTHERS.each + 3).await;
        assert_eq!(admitted.len(), OTHERS.each);
        admitted.pop();
        assert!(pools.place_of(Peer::User(8)).await.is_some());
    }

    #[tokio::test]
    async fn other_users_together_never_take_the_place_of_our_own() {
        let pools = Pools::new(OWN_UID);
        let mut others = Vec::new();
        for uid in (0..).map(|n| 40_000 + n).take(OTHERS.all / OTHERS.each + 1) {
            others.extend(busy(&pools, uid, OTHERS.each).await);
        }
        assert_eq!(others.len(), OTHERS.all);
        for uid in [OWN_UID, 0] {
            assert_eq!(busy(&pools, uid, 100).await.len(), 100, "there is room for our own");
        }
    }
}

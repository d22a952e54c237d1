//! The places of a listener that users of this machine connect to: the agent's own user and root,
//! as which plugins run unless their policy names another user, have places of their own. So no
//! other user, and not all of them together, can keep these out.

use guest_agent_serve_kit::accept::Bound;
use guest_agent_serve_kit::connection_counters::{ConnectionCounters, Label};
use guest_agent_serve_kit::shares::{HasPeer, Most, Peer, Place, Shares};

/// The places of the two kinds of users.
#[derive(Debug)]
pub(crate) struct Pools {
    own_uid: u32,
    own: Shares,
    others: Shares,
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolSizes {
    /// Of the agent's own user and root.
    pub(crate) own: Most,
    /// Of all other users.
    pub(crate) others: Most,
}

// === impl Pools ===

impl Pools {
    /// Pools of a listener, which is named in the log, for an agent that runs as this user.
    pub(crate) fn new(listener: &'static str, sizes: PoolSizes, own_uid: u32) -> Self {
        let pool = |most| Shares::new(listener, most);
        Self { own_uid, own: pool(sizes.own), others: pool(sizes.others) }
    }

    /// The same, counted for the metrics under this name of the listener. To be called before the
    /// first connection comes.
    #[must_use]
    pub(crate) fn counted(self, counters: &ConnectionCounters, listener: &'static str) -> Self {
        let own = self.own.counted(counters, Label { listener, places: "usual" });
        let others = self.others.counted(counters, Label { listener, places: "others" });
        Self { own, others, ..self }
    }

    /// A place for a connection of this peer, as [`Shares::place`] gives it.
    pub(crate) async fn place_of(&self, peer: Peer) -> Option<Place> {
        let is_own = peer == Peer::User(self.own_uid) || peer == Peer::User(0);
        let pool = if is_own { &self.own } else { &self.others };
        pool.place(peer).await
    }
}

impl<S: HasPeer + Sync> Bound<S> for Pools {
    async fn place(&self, stream: &S) -> Option<Place> {
        self.place_of(stream.peer()?).await
    }

    fn shed(&self) {
        self.others.shed();
        self.own.shed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN_UID: u32 = 7;

    const SIZES: PoolSizes =
        PoolSizes { own: Most { all: 200, each: 200 }, others: Most { all: 64, each: 16 } };

    fn pools() -> Pools {
        Pools::new("the test", SIZES, OWN_UID)
    }

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
        let pools = pools();
        let mut admitted = busy(&pools, 8, SIZES.others.each + 3).await;
        assert_eq!(admitted.len(), SIZES.others.each);
        admitted.pop();
        assert!(pools.place_of(Peer::User(8)).await.is_some());
    }

    #[tokio::test]
    async fn other_users_together_never_take_the_place_of_our_own() {
        let pools = pools();
        let mut others = Vec::new();
        for uid in (0..).map(|n| 40_000 + n).take(SIZES.others.all / SIZES.others.each + 1) {
            others.extend(busy(&pools, uid, SIZES.others.each).await);
        }
        assert_eq!(others.len(), SIZES.others.all);
        for uid in [OWN_UID, 0] {
            assert_eq!(busy(&pools, uid, 100).await.len(), 100, "there is room for our own");
        }
    }
}

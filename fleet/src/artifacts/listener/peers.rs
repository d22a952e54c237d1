//! Places of connections: so many at once, and of one peer so many.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use tokio::net::{TcpStream, UnixStream};

use crate::front::network;
use crate::lock::lock;

/// Somebody who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
}

/// A connection whose other end is known.
pub(super) trait HasPeer {
    fn peer(&self) -> Option<Peer>;
}

#[derive(Debug)]
pub(super) struct Peers {
    most: usize,
    most_each: usize,
    open: Arc<Mutex<HashMap<Peer, usize>>>,
}

/// A place, which is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    peer: Peer,
    open: Arc<Mutex<HashMap<Peer, usize>>>,
}

impl Peers {
    pub(super) fn new(most: usize, most_each: usize) -> Self {
        Self { most, most_each, open: Arc::default() }
    }

    /// A place for one more connection of this peer, if there is one.
    pub(super) fn place(&self, peer: Peer) -> Option<Place> {
        let mut open = lock(&self.open);
        let all: usize = open.values().sum();
        let own = open.get(&peer).copied().unwrap_or_default();
        if all >= self.most || own >= self.most_each {
            return None;
        }
        open.insert(peer, own + 1);
        Some(Place { peer, open: Arc::clone(&self.open) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut open = lock(&self.open);
        if let Some(count) = open.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

impl Peer {
    fn of(address: IpAddr) -> Self {
        Self::Address(network(address))
    }
}

impl HasPeer for TcpStream {
    fn peer(&self) -> Option<Peer> {
        self.peer_addr().ok().map(|peer| Peer::of(peer.ip()))
    }
}

impl HasPeer for UnixStream {
    fn peer(&self) -> Option<Peer> {
        self.peer_cred().ok().map(|credentials| Peer::User(credentials.uid()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_so_many_places_and_so_many_for_one_peer() {
        let peers = Peers::new(3, 2);
        let (one, other) = (Peer::User(1), Peer::User(2));
        let first = peers.place(one).expect("there is room");
        let _second = peers.place(one).expect("there is room");
        assert!(peers.place(one).is_none(), "it has its share");
        let _third = peers.place(other).expect("there is room");
        assert!(peers.place(other).is_none(), "all are taken");
        drop(first);
        assert!(peers.place(other).is_some());
        assert_eq!(lock(&peers.open).len(), 2);
    }

    #[test]
    fn a_host_with_a_network_of_its_own_is_one_peer() {
        let of = |text: &str| Peer::of(text.parse().expect("an address"));
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff::2"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
    }
}

//! Token buckets: how many connections may come, in all and from one address. Pure: the caller says
//! what time it is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use tokio::time::Instant;

use crate::shares::network;

/// Addresses that are counted one by one. All others share one bucket.
const ADDRESSES: usize = 10_000;
/// How often addresses that were quiet are forgotten.
const SWEEP: Duration = Duration::from_secs(10);

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// So often within a second, evenly.
    pub per_second: f64,
    /// So often at once, after a quiet time.
    pub burst: f64,
}

/// What is left of a rate.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Instant,
}

/// The buckets of a listener.
#[derive(Debug)]
pub(super) struct Buckets {
    rate: Rate,
    rate_per_address: Option<Rate>,
    all: Option<Bucket>,
    by_address: HashMap<IpAddr, Bucket>,
    others: Option<Bucket>,
    swept: Option<Instant>,
}

// === impl Rate ===

impl Rate {
    /// As often as one likes.
    pub const ANY: Self = Self { per_second: 1e12, burst: 1e12 };
}

// === impl Bucket ===

impl Bucket {
    fn take(&mut self, rate: Rate, now: Instant) -> bool {
        let returned = now.saturating_duration_since(self.at).as_secs_f64() * rate.per_second;
        self.left = (self.left + returned).min(rate.burst);
        self.at = now;
        let fits = self.left >= 1.0;
        if fits {
            self.left -= 1.0;
        }
        fits
    }
}

// === impl Buckets ===

impl Buckets {
    pub(super) fn new(rate: Rate, rate_per_address: Option<Rate>) -> Self {
        let by_address = HashMap::new();
        Self { rate, rate_per_address, all: None, by_address, others: None, swept: None }
    }

    /// Whether a connection from this address may come in now; it is counted if so. What one
    /// address has too many of is not counted for all.
    pub(super) fn take(&mut self, address: IpAddr, now: Instant) -> bool {
        if let Some(rate) = self.rate_per_address {
            self.sweep(rate, now);
            let full = Bucket { left: rate.burst, at: now };
            let network = network(address);
            let has_room = self.by_address.len() < ADDRESSES;
            let bucket = if has_room || self.by_address.contains_key(&network) {
                self.by_address.entry(network).or_insert(full)
            } else {
                self.others.get_or_insert(full)
            };
            if !bucket.take(rate, now) {
                return false;
            }
        }
        self.all.get_or_insert(Bucket { left: self.rate.burst, at: now }).take(self.rate, now)
    }

    /// Forgets addresses whose buckets are full again.
    fn sweep(&mut self, rate: Rate, now: Instant) {
        if self.swept.is_some_and(|at| now.saturating_duration_since(at) < SWEEP) {
            return;
        }
        self.swept = Some(now);
        self.by_address.retain(|_, bucket| {
            let returned = now.saturating_duration_since(bucket.at).as_secs_f64() * rate.per_second;
            bucket.left + returned < rate.burst
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Rate = Rate { per_second: 10.0, burst: 20.0 };
    const ONE: Rate = Rate { per_second: 1.0, burst: 4.0 };

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from_bits(number).into()
    }

    /// How many of `tries` come in.
    fn come_in(buckets: &mut Buckets, address: IpAddr, now: Instant, tries: usize) -> usize {
        (0..tries).filter(|_| buckets.take(address, now)).count()
    }

    #[test]
    fn a_burst_comes_in_and_then_so_many_per_second() {
        let (mut buckets, start) = (Buckets::new(ALL, None), Instant::now());
        assert_eq!(come_in(&mut buckets, address(1), start, 100), 20);
        assert_eq!(come_in(&mut buckets, address(2), start + Duration::from_secs(1), 100), 10);
        assert_eq!(come_in(&mut buckets, address(2), start + Duration::from_secs(99), 100), 20);
    }

    #[test]
    fn a_flood_from_one_address_keeps_nobody_else_out() {
        let (mut buckets, start) = (Buckets::new(ALL, Some(ONE)), Instant::now());
        assert_eq!(come_in(&mut buckets, address(1), start, 10_000), 4);
        assert_eq!(come_in(&mut buckets, address(2), start, 4), 4);
    }

    #[test]
    fn the_addresses_of_one_network_count_as_one() {
        let (mut buckets, start) = (Buckets::new(ALL, Some(ONE)), Instant::now());
        let inside = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 7, 7, 7, last]);
        let came = (0..100).filter(|last| buckets.take(inside(*last), start)).count();
        assert_eq!(came, 4);
        let mapped = "::ffff:192.0.2.1".parse().expect("an address");
        assert_eq!(come_in(&mut buckets, mapped, start, 9), 4);
        assert_eq!(come_in(&mut buckets, "192.0.2.1".parse().expect("an address"), start, 9), 0);
    }

    #[test]
    fn addresses_without_number_are_counted_in_bounded_memory() {
        let rate = Rate { per_second: 1.0, burst: 1e9 };
        let (mut buckets, start) = (Buckets::new(rate, Some(ONE)), Instant::now());
        let came = (0..30_000).filter(|number| buckets.take(address(*number), start)).count();
        assert_eq!(buckets.by_address.len(), ADDRESSES);
        assert_eq!(came, ADDRESSES + 4);
        assert!(buckets.take(address(1), start + SWEEP));
        assert_eq!(buckets.by_address.len(), 1, "quiet addresses are forgotten");
    }
}

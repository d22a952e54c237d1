//! Hosts that nobody but this machine's own software has a reason to send the agent to: link-local
//! addresses, and the metadata servers of clouds, which give away what a machine may do.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Names of metadata servers. All of them are resolved to an address below by those who run the
/// cloud; a proxy would resolve them out of sight.
const NAMES: [&str; 5] = [
    "instance-data",
    "instance-data.ec2.internal",
    "metadata",
    "metadata.goog",
    "metadata.google.internal",
];

/// Metadata servers outside of the link-local networks: of Azure and of Alibaba Cloud.
const SERVERS: [Ipv4Addr; 2] = [Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(100, 100, 100, 200)];

/// The metadata server of Google's cloud over IPv6.
const GOOGLE: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// What a host is, in a sentence about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OffLimits {
    /// It can only be on this very network link.
    LinkLocal,
    /// It tells this machine's secrets to its own software.
    Metadata,
}

// === impl OffLimits ===

impl OffLimits {
    /// What an address is. The IPv4 address inside an IPv6 address counts, too: the kernel, or a
    /// gateway, connects to that one.
    pub(crate) fn of_address(address: IpAddr) -> Option<Self> {
        match address {
            IpAddr::V4(address) if SERVERS.contains(&address) => Some(Self::Metadata),
            IpAddr::V4(address) if address.is_link_local() => Some(Self::LinkLocal),
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => match address.segments() {
                // What Amazon's machines find their own services at, the metadata server at ::254.
                [0xfd00, 0x0ec2, ..] => Some(Self::Metadata),
                _ if address == GOOGLE => Some(Self::Metadata),
                _ if address.is_unicast_link_local() => Some(Self::LinkLocal),
                // Mapped, the deprecated compatible form, and NAT64 (RFC 6052).
                [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
                    let bits = u32::from(high) << 16 | u32::from(low);
                    Self::of_address(Ipv4Addr::from_bits(bits).into())
                }
                _ => None,
            },
        }
    }

    /// What a name is, in the form of URLs: small letters.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let name = name.strip_suffix('.').unwrap_or(name);
        NAMES.contains(&name).then_some(Self::Metadata)
    }

    /// For errors.
    pub(crate) fn shown(self) -> &'static str {
        match self {
            Self::LinkLocal => "a link-local address",
            Self::Metadata => "a metadata server",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(address: &str, expected: Option<OffLimits>) {
        assert_eq!(
            OffLimits::of_address(address.parse().expect("an address")),
            expected,
            "{address}"
        );
    }

    #[test]
    fn link_local_addresses_are_off_limits_in_every_form() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "169.254.255.255",
            "fe80::1",
            "febf::1",
            "::ffff:169.254.169.254",
            "::169.254.1.1",
            "64:ff9b::169.254.169.254",
        ] {
            check(address, Some(OffLimits::LinkLocal));
        }
    }

    #[test]
    fn metadata_servers_are_off_limits_wherever_they_are() {
        for address in [
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "168.63.129.16",
            "100.100.100.200",
            "::ffff:100.100.100.200",
        ] {
            check(address, Some(OffLimits::Metadata));
        }
        for name in ["metadata.google.internal", "metadata.google.internal.", "metadata"] {
            assert_eq!(OffLimits::of_name(name), Some(OffLimits::Metadata), "{name}");
        }
    }

    #[test]
    fn other_hosts_are_not() {
        for address in [
            "169.253.255.255",
            "127.0.0.1",
            "10.0.0.1",
            "192.0.2.1",
            "::1",
            "::ffff:10.0.0.1",
            "fec0::1",
            "fd00:ec3::254",
            "2001:db8::1",
        ] {
            check(address, None);
        }
        for name in ["metadata.example.com", "example.com", "mymetadata"] {
            assert_eq!(OffLimits::of_name(name), None, "{name}");
        }
    }
}

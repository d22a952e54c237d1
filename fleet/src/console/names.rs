//! Under which names browsers may ask for the console.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::uri::Authority;

/// Only names that no foreign page can have: addresses, and those that the operator gave it.
pub(super) fn is_own_name(host: &Authority, names: &[String]) -> bool {
    let name = host.host();
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_address = match bare {
        Some(bare) => bare.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4()),
    };
    is_address
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

//! Which certificates of this process end, and when.

use guest_agent_serve_kit::certificate::Facts;
use guest_fleet_server::enroll::Authorities;
use guest_fleet_server::enroll::ends::{End, Ends, Renewal};
use guest_fleet_server::net::tls::Pair;
use tokio::sync::watch;

/// Adds the fleet's authority.
pub(super) fn authority(ends: &Ends, authorities: Authorities) {
    ends.add(move || {
        let facts = Facts::read(authorities.current().certificate()).ok()?;
        Some(end("authority", &facts, Renewal::Theirs))
    });
}

/// Adds a certificate that this process makes.
pub(super) fn made(ends: &Ends, of: &'static str, told: watch::Receiver<Facts>) {
    ends.add(move || Some(end(of, &told.borrow(), Renewal::Ours)));
}

/// Adds a certificate that others renew in its files.
pub(super) fn files(ends: &Ends, of: &'static str, pair: &Pair) {
    let pair = pair.clone();
    ends.add(move || {
        let end = end(of, pair.facts.borrow().as_ref()?, Renewal::Theirs);
        Some(End { trouble: pair.trouble.borrow().clone(), ..end })
    });
}

fn end(of: &'static str, facts: &Facts, renewal: Renewal) -> End {
    End { of, begins: facts.begins, ends: facts.ends, renewal, trouble: None }
}

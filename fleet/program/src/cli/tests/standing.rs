//! Every reason for which an order waits has its words.

use std::fmt::Write;

use guest_fleet_core::desired::{Decision, OwnersHold, Permission};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Target, View};
use insta::assert_snapshot;

use super::super::standing::standing;

#[test]
fn every_reason_has_its_words() {
    let text = |text: &str| text.to_owned();
    let soon = Some(Seconds(1_767_225_600));
    let owner = OwnersHold { by: text("root"), reason: text("busy"), until: soon };
    let permissions = [
        Permission::Go,
        Permission::Conflict { with: text("other") },
        Permission::Quarantined(text("two machines use it")),
        Permission::NoRelease,
        Permission::NoArchive { architecture: text("arm64") },
        Permission::NoArchive { architecture: String::new() },
        Permission::Held { hold: text("h"), by: text("alice"), reason: text("why"), until: soon },
        Permission::Held { hold: text("h"), by: text(""), reason: text("why"), until: None },
        Permission::HeldByOwner(owner),
        Permission::OutsideWindow { window: text("w"), next: soon },
        Permission::OutsideWindow { window: text("w"), next: None },
        Permission::WaitsForWave { rollout: text("spring") },
        Permission::Joins { assignment: text("web") },
        Permission::Stopped { rollout: text("spring"), state: "halted" },
    ];
    let mut all = String::new();
    for permission in permissions {
        let decision = Decision {
            target: Target::Absent,
            assignment: text("one"),
            attempt: 0,
            permission,
            turn: None,
        };
        let found = standing(&View::default(), "p", None, Some(&decision), None, Seconds(0));
        let next = found.next.unwrap_or_default();
        write!(all, "{:?}\n  {}\n  {next}\n", found.state, found.sentence).unwrap();
    }
    assert_snapshot!(all);
}

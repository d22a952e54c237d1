//! Where an agent stands with a plugin, as words, in addresses and as colours.

use guest_agent_console_kit::text::Tone;
use guest_agent_proto::fleet_api::Standing;

/// All of them, in the order in which they are shown, with the name for people and the one of the command
/// line.
pub(super) const ALL: [(Standing, &str, &str); 19] = [
    (Standing::Done, "done", "done"),
    (Standing::OnProbation, "on probation", "on-probation"),
    (Standing::Installing, "installing", "installing"),
    (Standing::Acknowledged, "acknowledged", "acknowledged"),
    (Standing::Ordered, "ordered", "ordered"),
    (Standing::Waits, "waits", "waits"),
    (Standing::WaitsForWave, "waits for its wave", "waits-for-wave"),
    (Standing::OutsideWindow, "outside its window", "outside-window"),
    (Standing::Held, "held", "held"),
    (Standing::HeldByOwner, "held by owner", "held-by-owner"),
    (Standing::NotAssigned, "not assigned", "not-assigned"),
    (Standing::Archived, "archived", "archived"),
    (Standing::Conflict, "in conflict", "conflict"),
    (Standing::NoRelease, "without a release", "no-release"),
    (Standing::NoArchive, "without an archive", "no-archive"),
    (Standing::Quarantined, "quarantined", "quarantined"),
    (Standing::Silent, "silent", "silent"),
    (Standing::TakenBack, "taken back", "taken-back"),
    (Standing::Failed, "failed", "failed"),
];

/// The word for people.
pub(super) fn word(standing: Standing) -> &'static str {
    ALL.iter().find(|(it, ..)| *it == standing).map_or("unknown", |(_, word, _)| word)
}

/// The word of the command line and of addresses.
pub(super) fn option(standing: Standing) -> &'static str {
    ALL.iter().find(|(it, ..)| *it == standing).map_or("", |(.., option)| option)
}

/// The standing of a word of an address.
pub(super) fn named(option: &str) -> Option<Standing> {
    ALL.iter().find(|(.., it)| *it == option).map(|(standing, ..)| *standing)
}

/// Its place in a list: what is well comes first.
pub(super) fn rank(standing: Standing) -> usize {
    ALL.iter().position(|(it, ..)| *it == standing).unwrap_or(ALL.len())
}

/// How good or bad it is.
pub(super) fn tone(standing: Standing) -> Tone {
    match standing {
        Standing::Done => Tone::Good,
        Standing::OnProbation
        | Standing::Installing
        | Standing::Acknowledged
        | Standing::Ordered
        | Standing::Silent
        | Standing::Quarantined
        | Standing::Conflict
        | Standing::NoRelease
        | Standing::NoArchive => Tone::Busy,
        Standing::Failed | Standing::TakenBack => Tone::Bad,
        Standing::Waits
        | Standing::WaitsForWave
        | Standing::OutsideWindow
        | Standing::Held
        | Standing::HeldByOwner => Tone::Plain,
        Standing::Unspecified | Standing::NotAssigned | Standing::Archived => Tone::Quiet,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_standing_has_words_of_its_own() {
        for number in 1..=19 {
            let standing = Standing::try_from(number).expect("a standing");
            assert_ne!(word(standing), "unknown", "{standing:?}");
            assert_eq!(named(option(standing)), Some(standing));
        }
        assert!(Standing::try_from(20).is_err(), "a new standing has words here");
        assert_eq!(named(""), None);
    }
}

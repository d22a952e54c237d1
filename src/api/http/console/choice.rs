//! Choices that the query of an address makes.

/// One of a few values, the first of which is what a query without it means.
pub(super) trait Choice: Copy + PartialEq + 'static {
    /// All values, each with its word in addresses and its name on pages.
    const ALL: &'static [(Self, &'static str, &'static str)];

    /// The value of a word; `None` of an unknown word.
    fn of_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, it, _)| *it == word).map(|(value, ..)| *value)
    }

    /// Its word in addresses.
    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(it, ..)| *it == self).map_or("", |(_, word, _)| word)
    }

    /// Its name on pages.
    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(it, ..)| *it == self).map_or("", |(.., name)| name)
    }
}

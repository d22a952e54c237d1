//! How an archive came over the network: which content coding, and how many bytes.
//!
//! An installer tells it with its progress; the plugin's actor counts it and puts it into words for
//! events and for `explain`.

use std::fmt;

/// A form in which a server sends an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContentCoding {
    /// As it is.
    Identity,
    /// Compressed with zstd.
    Zstd,
    /// As what changed since an archive that the agent has.
    Delta,
}

/// Why an archive was downloaded again in a simpler form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unused {
    /// It did not have the form of its coding.
    Damaged,
    /// It was made for another archive than the one that the agent offered.
    OtherDictionary,
    /// It asked for more memory or more room than there may be.
    TooLarge,
    /// The archive that the agent offered was gone from the cache, or damaged.
    NoDictionary,
    /// What came out of it did not have the ordered checksum.
    Checksum,
    /// The server refused a request that offered codings.
    Refused,
}

/// How an archive came over the network, in all attempts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    bytes: [u64; 3],
    /// The coding of the last answer.
    pub coding: Option<ContentCoding>,
    /// A coding that was given up, and the first reason for that.
    pub unused: Option<(ContentCoding, Unused)>,
}

// === impl Arrival ===

impl Arrival {
    /// So many bytes came in an answer with this coding.
    pub fn add(&mut self, coding: ContentCoding, bytes: u64) {
        let count = &mut self.bytes[coding.place()];
        *count = count.saturating_add(bytes);
        self.coding = Some(coding);
    }

    /// A coding was given up.
    pub fn give_up(&mut self, coding: ContentCoding, reason: Unused) {
        self.unused.get_or_insert((coding, reason));
    }

    /// The bytes that came in this coding.
    #[must_use]
    pub const fn bytes(&self, coding: ContentCoding) -> u64 {
        self.bytes[coding.place()]
    }

    /// What people should know of it; `None` where the archive came in the usual way.
    #[must_use]
    pub fn remark(&self) -> Option<String> {
        if let Some((coding, reason)) = self.unused {
            let what = match coding {
                ContentCoding::Delta => "what changed since an archive of the cache",
                ContentCoding::Zstd | ContentCoding::Identity => "the server's compressed form",
            };
            return Some(format!("downloaded again in a simpler form, because {what} {reason}"));
        }
        let bytes = self.bytes(ContentCoding::Delta);
        (self.coding == Some(ContentCoding::Delta)).then(|| {
            format!("downloaded as what changed since an archive of the cache, {bytes} bytes")
        })
    }
}

// === impl ContentCoding ===

impl ContentCoding {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Identity, Self::Zstd, Self::Delta];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Zstd => "zstd",
            Self::Delta => "delta",
        }
    }

    const fn place(self) -> usize {
        match self {
            Self::Identity => 0,
            Self::Zstd => 1,
            Self::Delta => 2,
        }
    }
}

// === impl Unused ===

impl Unused {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Damaged,
        Self::OtherDictionary,
        Self::TooLarge,
        Self::NoDictionary,
        Self::Checksum,
        Self::Refused,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::OtherDictionary => "other_dictionary",
            Self::TooLarge => "too_large",
            Self::NoDictionary => "no_dictionary",
            Self::Checksum => "checksum",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Damaged => "was damaged",
            Self::OtherDictionary => "was made for another archive",
            Self::TooLarge => "needed more memory or room than there may be",
            Self::NoDictionary => "needed an archive that the cache has lost",
            Self::Checksum => "led to another checksum than was ordered",
            Self::Refused => "was refused by the server",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_unusual_is_remarked() {
        let mut arrival = Arrival::default();
        assert_eq!(arrival.remark(), None);
        arrival.add(ContentCoding::Zstd, 5);
        assert_eq!(arrival.remark(), None);
        arrival.add(ContentCoding::Delta, 7);
        arrival.add(ContentCoding::Delta, 3);
        let remark = arrival.remark().expect("a delta is worth a word");
        assert!(remark.contains("10 bytes"), "{remark}");
        arrival.give_up(ContentCoding::Delta, Unused::Damaged);
        arrival.give_up(ContentCoding::Zstd, Unused::Checksum);
        arrival.add(ContentCoding::Identity, 100);
        let remark = arrival.remark().expect("a detour is worth a word");
        assert!(remark.contains("what changed") && remark.contains("was damaged"), "{remark}");
        let bytes = ContentCoding::ALL.map(|coding| arrival.bytes(coding));
        assert_eq!(bytes, [100, 5, 10]);
    }

    #[test]
    fn names_differ() {
        let names: std::collections::BTreeSet<_> =
            Unused::ALL.iter().map(|reason| reason.name()).collect();
        assert_eq!(names.len(), Unused::ALL.len());
    }
}

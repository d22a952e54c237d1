//! The flags of `pack` about compression, and its names.

use crate::install::pack::Compression;
use crate::manifest::Chosen;

/// Where an archive will be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Destination {
    /// By the artifact server of a fleet
    Fleet,
    /// By a server that sends files as they are, a bucket, or from a disk
    Any,
}

// The flags about compression. A doc comment would become the description of the verb.
#[derive(Debug, clap::Args)]
pub(crate) struct CompressionFlags {
    /// Compress with zstd
    #[arg(long, conflicts_with = "destination")]
    zstd: bool,
    /// Where it will be served: fleet, whose server compresses archives itself, or any [default: as
    /// plugin.toml or FILE says, else fleet; bundle: any]
    #[arg(long = "for", value_name = "WHERE", hide_possible_values = true)]
    destination: Option<Destination>,
}

// === impl CompressionFlags ===

impl CompressionFlags {
    /// The compression that they ask for. A bundle travels as it is, whatever its name.
    pub(super) fn asked(&self, is_bundle: bool, is_said: bool) -> Option<Chosen> {
        if self.zstd {
            return Some(Chosen::asked(Compression::Zstd));
        }
        match self.destination {
            Some(Destination::Fleet) => Some(Chosen::for_fleet()),
            Some(Destination::Any) => Some(Chosen::for_any()),
            None => (is_bundle && !is_said).then_some(Chosen::for_bundle()),
        }
    }
}

/// Its name for people.
pub(super) fn name(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "plain tar",
        Compression::Gzip => "compressed with gzip",
        Compression::Zstd => "compressed with zstd",
    }
}

/// Its name for programs.
pub(super) fn word(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "tar",
        Compression::Gzip => "gzip",
        Compression::Zstd => "zstd",
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        output: std::path::PathBuf,
        #[command(flatten)]
        flags: CompressionFlags,
    }

    #[track_caller]
    fn check(is_bundle: bool, words: &[&str], expected: Compression) {
        let words = ["pack"].iter().chain(words);
        let line = Line::try_parse_from(words).expect("flags");
        let asked = line.flags.asked(is_bundle, false);
        let chosen = asked.unwrap_or_else(|| Chosen::by_name(&line.output));
        assert_eq!(chosen.compression, expected, "{line:?}");
    }

    #[test]
    fn an_archive_is_plain_unless_something_says_otherwise() {
        check(false, &["a.tar"], Compression::None);
        check(false, &["a"], Compression::None);
        check(false, &["a.tar.gz"], Compression::Gzip);
        check(false, &["a.TGZ"], Compression::Gzip);
        check(false, &["a.tar.zst"], Compression::Zstd);
        check(false, &["a.tar.gz", "--for", "fleet"], Compression::None);
        check(false, &["a.tar", "--for", "any"], Compression::Gzip);
        check(false, &["a.tar", "--zstd"], Compression::Zstd);
        check(true, &["a.bundle"], Compression::Gzip);
        check(true, &["a.bundle", "--for", "fleet"], Compression::None);
    }
}

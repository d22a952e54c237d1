//! The verbs about a fleet, and whom they ask: a ledger, or the API of a server.

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, Error, FromArgMatches, Subcommand};
use guest_fleet::cli::Verb;
use guest_fleet::remote::ServerOptions;

/// The options that lead to a server.
const SERVER: [&str; 3] = ["server", "token_file", "server_ca"];
/// Where help lists them: below those of any verb, which are fewer, and above those of the program.
const BELOW_OWN: usize = 16;

/// A verb, and the server that it asks, where it asks one.
pub(crate) struct Asked {
    pub(crate) verb: Verb,
    pub(crate) server: ServerOptions,
}

// === impl Asked ===

impl Asked {
    /// Each of the two places may be given on the command line or by the environment; the command line counts more,
    /// and the environment names a server rather than a ledger.
    fn read(verb: Verb, matches: &ArgMatches) -> Result<Self, Error> {
        let Some((_, of_verb)) = matches.subcommand() else {
            return Ok(Self { verb, server: ServerOptions::default() });
        };
        let written = Some(ValueSource::CommandLine);
        let is_ledger_written = matches.value_source("ledger") == written;
        let mut server = ServerOptions::from_arg_matches(of_verb)?;
        if is_ledger_written && of_verb.value_source("server") == written {
            let problem =
                "--ledger and --server cannot be used together: a verb asks one of them\n";
            return Err(Error::raw(ErrorKind::ArgumentConflict, problem));
        }
        if is_ledger_written {
            server.server = None;
        }
        Ok(Self { verb, server })
    }
}

impl Subcommand for Asked {
    fn augment_subcommands(command: Command) -> Command {
        // The other verbs have options of these names that mean something else.
        let verbs = Verb::augment_subcommands(Command::new("verbs"));
        let verbs = verbs.get_subcommands().cloned().collect::<Vec<_>>();
        verbs.into_iter().fold(command, |command, verb| {
            // Options that are added bring a text of their own.
            let about = verb.get_about().cloned().unwrap_or_default();
            let verb = ServerOptions::augment_args(verb).about(about);
            command.subcommand(
                SERVER.into_iter().zip(BELOW_OWN..).fold(verb, |verb, (id, order)| {
                    verb.mut_arg(id, |option| option.display_order(order))
                }),
            )
        })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        Verb::has_subcommand(name)
    }
}

impl FromArgMatches for Asked {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        Self::read(Verb::from_arg_matches(matches)?, matches)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{Cli, Verb};

    /// The server that a command line leads to.
    #[track_caller]
    fn server(words: &[&str]) -> Option<String> {
        let read = Cli::try_parse_from(["guest-fleet"].iter().chain(words));
        let Verb::Fleet(asked) = read.unwrap_or_else(|error| panic!("{error}")).verb else {
            panic!("{words:?} is about no fleet")
        };
        asked.server.server.map(|server| server.to_string())
    }

    #[test]
    fn every_verb_about_a_fleet_takes_a_server_wherever_it_is_written() {
        let some = Some("https://fleet.example:7444/".to_owned());
        let url = "https://fleet.example:7444";
        for words in [
            &["status", "--server", url][..],
            &["agents", "env = prod", "--server", url, "--token-file", "token"],
            &["agent", "a-1", "--server", url, "--server-ca", "ca.pem"],
            &["agent", "label", "a-1", "env=prod", "--server", url],
            &["rollout", "pause", "spring", "--server", url],
            &["rollout", "--server", url, "pause", "spring"],
            &["audit", "verify", "--server", url],
            &["--json", "audit", "--server", url],
            &["access", "token", "list", "--server", url],
        ] {
            assert_eq!(server(words), some, "{words:?}");
        }
        assert_eq!(server(&["status"]), None);
        assert_eq!(server(&["status", "--ledger", "x.db"]), None);
    }

    #[test]
    fn a_verb_asks_one_of_the_two() {
        let words = ["guest-fleet", "status", "--ledger", "x.db", "--server", "https://x"];
        let refused = Cli::try_parse_from(words).err().expect("a conflict");
        assert_eq!(refused.kind(), ErrorKind::ArgumentConflict);
        assert!(refused.to_string().contains("--ledger and --server"), "{refused}");
    }

    #[test]
    fn what_is_no_server_is_refused_with_what_one_looks_like() {
        for bad in ["fleet.example", "ftp://x", "https://user:secret@x", "http://127.0.0.1", ""] {
            let refused = Cli::try_parse_from(["guest-fleet", "status", "--server", bad]).err();
            let text = refused.expect(bad).to_string();
            assert!(text.contains("https://HOST"), "{text}");
        }
    }

    #[test]
    fn other_verbs_keep_their_own_options_of_these_names() {
        let words = ["guest-fleet", "serve", "--listen", "127.0.0.1:0", "--server", "https://x"];
        assert_eq!(
            Cli::try_parse_from(words).err().map(|error| error.kind()),
            Some(ErrorKind::UnknownArgument)
        );
        let words = ["push", "a.tar.gz", "--server", "http://x/", "--token-file", "f"];
        let words = ["guest-fleet", "artifact"].iter().chain(&words);
        assert!(Cli::try_parse_from(words).is_ok());
    }
}

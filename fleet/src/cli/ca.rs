//! `guest-fleet ca`: the fleet's authority, in a directory beside the ledger.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use serde::Serialize;
use thiserror::Error;

use super::context::Output;
use super::{moment, print_json};
use crate::enroll::{Authority, AuthorityError};

/// What is done with the authority.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Make the fleet's authority, if the directory has none yet.
    Init(Options),
    /// Show the authority: the fleet's id, its fingerprint and when it ends.
    Show(Options),
    /// Print the trust bundle, PEM.
    Trust(Options),
    /// Make a new authority that signs from now on; the present one stays trusted.
    Rotate(Options),
    /// Trust former authorities no longer; agents whose certificates they signed are to be enrolled
    /// anew.
    Forget(Forget),
}

/// The options of the verbs.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Directory of the authority; back it up apart from the ledger.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

/// The options of `ca forget`.
#[derive(Clone, Debug, Args)]
pub struct Forget {
    /// Fingerprint of the one to forget; without it all former ones.
    #[arg(long, value_name = "SHA256")]
    fingerprint: Option<String>,
    #[command(flatten)]
    options: Options,
}

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum CaError {
    /// The authority cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// The result cannot be printed.
    #[error("the result cannot be printed")]
    Print(#[from] io::Error),
}

/// The authority as it is shown.
#[derive(Serialize)]
struct Shown {
    fleet_id: String,
    fingerprint: String,
    ends: Option<String>,
    trusted: usize,
}

/// Authorities that were forgotten.
#[derive(Serialize)]
struct Forgotten {
    forgotten: usize,
}

/// Runs a verb. Blocks.
///
/// # Errors
/// See [`CaError`].
pub fn run(verb: Verb, output: Output, out: &mut dyn Write) -> Result<(), CaError> {
    let now = SystemTime::now();
    let authority = match verb {
        Verb::Init(options) => Authority::init(&options.dir, now),
        Verb::Show(options) => Authority::open(&options.dir),
        Verb::Rotate(options) => Authority::rotate(&options.dir, now),
        Verb::Trust(options) => {
            write!(out, "{}", Authority::open(&options.dir)?.trust_pem(now))?;
            return Ok(());
        }
        Verb::Forget(Forget { fingerprint, options }) => {
            let forgotten = Authority::forget(&options.dir, fingerprint.as_deref())?;
            match output {
                Output::Json => print_json(out, &Forgotten { forgotten })?,
                Output::Text => {
                    writeln!(out, "{forgotten} former authorities are trusted no longer")?
                }
            }
            return Ok(());
        }
    };
    let authority = authority?;
    let shown = Shown {
        fleet_id: authority.fleet().to_string(),
        fingerprint: authority.fingerprint(),
        ends: moment(Some(authority.ends().into())),
        trusted: authority.trust(now).len(),
    };
    if output == Output::Json {
        print_json(out, &shown)?;
        return Ok(());
    }
    let Shown { fleet_id, fingerprint, ends, trusted } = shown;
    writeln!(out, "fleet         {fleet_id}")?;
    writeln!(out, "fingerprint   {fingerprint}")?;
    writeln!(out, "ends          {}", ends.unwrap_or_default())?;
    writeln!(out, "trusted       {trusted}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        verb: Verb,
    }

    #[test]
    fn an_authority_is_made_shown_rotated_and_the_former_one_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca");
        let answer = |line: &str, output| {
            let path = path.to_str().expect("text");
            let words = std::iter::once("ca").chain(line.split(' ')).chain(["--dir", path]);
            let mut out = Vec::new();
            run(Line::try_parse_from(words).expect("a line").verb, output, &mut out)?;
            Ok::<_, CaError>(String::from_utf8(out).expect("text"))
        };
        let say = |line: &str| answer(line, Output::Text);
        assert!(say("show").is_err());
        let made = answer("init", Output::Json).expect("made");
        assert_eq!(answer("show", Output::Json).expect("shown"), made);
        assert_eq!(say("trust").expect("said").matches("BEGIN CERTIFICATE").count(), 1);
        assert!(say("rotate").expect("rotated").contains("trusted       2"));
        assert!(say("forget").expect("forgotten").starts_with("1 "));
    }
}

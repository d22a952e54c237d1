//! `ca`: the fleet's authority, in a directory beside the ledger. Needs no ledger.

use std::io::Write;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand};
use guest_fleet_server::enroll::{Authority, AuthorityError};
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Output;
use super::document::Time;
use super::failure::{Exit, Failure};
use super::text::{counted, time};

/// The options of `ca`.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Directory of the authority; back it up apart from the ledger.
    #[arg(
        long,
        global = true,
        env = "GUEST_FLEET_CA",
        default_value = "/var/lib/guest-fleet/ca",
        value_name = "DIR"
    )]
    pub dir: PathBuf,
}

/// What to do with the authority.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Make an authority, if the directory has none yet.
    Init,
    /// Show the fleet's id, the authority's fingerprint and its end.
    Show,
    /// Print the authorities that are trusted, PEM.
    Trust,
    /// Make a new authority that signs from now on; the present one stays trusted.
    Rotate,
    /// Trust former authorities no longer; agents whose certificates they signed enrol anew.
    Forget {
        /// Fingerprint of the one to forget; without it all former ones.
        #[arg(long, value_name = "SHA256")]
        fingerprint: Option<String>,
    },
}

/// The authority.
#[derive(Debug, Serialize, JsonSchema)]
pub struct AuthorityJson {
    /// When its certificate ends.
    #[schemars(with = "Option<Time>")]
    pub ends: Option<String>,
    /// SHA-256 of its certificate: what `guest-agent enroll --ca-sha256` takes.
    pub fingerprint: String,
    /// Id of the fleet.
    pub fleet_id: String,
    /// The authorities that are trusted, this one and former ones, PEM.
    pub trust: String,
}

/// Former authorities that are trusted no longer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct ForgottenJson {
    /// How many.
    pub forgotten: usize,
}

/// Runs the verb. Blocks.
///
/// # Errors
/// The authority cannot be used.
pub fn run(options: &Options, output: Output, out: &mut dyn Write) -> Result<Exit, Failure> {
    let (dir, now) = (&options.dir, SystemTime::now());
    let authority = match &options.verb {
        Verb::Init => Authority::init(dir, now)?,
        Verb::Show | Verb::Trust => Authority::open(dir)?,
        Verb::Rotate => Authority::rotate(dir, now)?,
        Verb::Forget { fingerprint } => {
            let forgotten = Authority::forget(dir, fingerprint.as_deref())?;
            match output {
                Output::Json => print(out, &ForgottenJson { forgotten })?,
                Output::Text => {
                    writeln!(
                        out,
                        "{} trusted no longer",
                        counted(forgotten, "former certificate")
                    )?;
                }
            }
            return Ok(Exit::Done);
        }
    };
    let document = AuthorityJson {
        ends: time(Some(&authority.ends().into())),
        fingerprint: authority.fingerprint(),
        fleet_id: authority.fleet().to_string(),
        trust: authority.trust_pem(now),
    };
    match (output, &options.verb) {
        (Output::Json, _) => print(out, &document)?,
        (Output::Text, Verb::Trust) => write!(out, "{}", document.trust)?,
        (Output::Text, _) => {
            writeln!(out, "fleet        {}", document.fleet_id)?;
            writeln!(out, "fingerprint  {}", document.fingerprint)?;
            writeln!(out, "ends         {}", document.ends.unwrap_or_default())?;
            writeln!(out, "trusted      {}", authority.trust(now).len())?;
        }
    }
    Ok(Exit::Done)
}

fn print(out: &mut dyn Write, document: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(document).expect("plain values");
    Ok(writeln!(out, "{text}")?)
}

impl From<AuthorityError> for Failure {
    fn from(error: AuthorityError) -> Self {
        Self::of(Exit::Failed, &error)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn an_authority_is_made_shown_rotated_and_the_former_one_forgotten() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("ca");
        let answer = |word: &str, output| {
            let words = ["ca", word, "--dir", path.to_str().expect("text")];
            let options = Line::try_parse_from(words).expect("a line").options;
            let mut out = Vec::new();
            run(&options, output, &mut out)?;
            Ok::<_, Failure>(String::from_utf8(out).expect("text"))
        };
        let say = |word: &str| answer(word, Output::Text);
        let missing = say("show").expect_err("nothing is there");
        assert!(missing.reason.contains("guest-fleet ca init"), "{}", missing.reason);
        let made = answer("init", Output::Json).expect("made");
        assert_eq!(answer("show", Output::Json).expect("shown"), made);
        assert_eq!(say("trust").expect("said").matches("BEGIN CERTIFICATE").count(), 1);
        assert!(say("rotate").expect("rotated").contains("trusted      2"));
        assert!(answer("forget", Output::Json).expect("forgotten").contains("\"forgotten\": 1"));
        assert!(say("forget").expect("forgotten").starts_with("0 former certificates"));
    }
}

//! `http-token`: makes, lists and revokes the tokens of `api.http_tokens_file`. Needs no running
//! agent, which reads the file at its start and at SIGHUP.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::Sha256Digest;
use jiff::Timestamp;
use rand::RngCore;
use schemars::JsonSchema;
use serde::Serialize;

use super::console::{Console, Tone};
use super::context::Context;
use super::failure::{Exit, Failure};
use super::format::padded;
use super::json::Time;
use super::moment::{Moment, moment};
use crate::config::http_tokens::edit::{self, NotEdited, Opened};
use crate::config::http_tokens::{HttpToken, HttpTokens, Scopes, check_name};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent http-token new grafana --scope read --expires 90d
  guest-agent http-token new alice --scope act --file /etc/guest-agent/http-tokens
  guest-agent http-token list
  guest-agent http-token revoke grafana")]
pub(super) struct Flags {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// Make a token, print its secret once, and write its line to the file
    New {
        /// Who will act with it; the audit record has this name
        #[arg(value_parser = name)]
        name: String,
        /// What it allows: `act` allows looking as well
        #[arg(long, value_enum)]
        scope: Scope,
        /// When it ends: after so long (90d), or at a time [default: when it is revoked]
        #[arg(long, value_name = "T", value_parser = moment)]
        expires: Option<Moment>,
        #[command(flatten)]
        place: Place,
    },
    /// List the tokens of the file, and the lines that give nobody access
    List {
        #[command(flatten)]
        place: Place,
    },
    /// Delete a token from the file
    Revoke {
        /// Its name
        name: String,
        #[command(flatten)]
        place: Place,
    },
}

/// The file.
#[derive(Debug, clap::Args)]
struct Place {
    /// The file with the tokens [default: api.http_tokens_file]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// What a token is to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Scope {
    /// Look
    Read,
    /// Look and act
    Act,
}

/// A token that was made, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NewJson<'a> {
    /// When it ends; null where it ends when it is revoked.
    #[schemars(with = "Option<Time>")]
    expires: Option<String>,
    /// The file that its line was written to; null where it was written to none.
    file: Option<&'a Path>,
    /// Its line in the file. It has no secret.
    line: &'a str,
    /// Its name.
    name: &'a str,
    /// What it allows: `read` or `act`.
    scopes: &'a str,
    /// The secret, which is stored nowhere.
    token: &'a str,
}

/// The tokens of a file, as scripts see them; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ListJson<'a> {
    /// The file.
    file: &'a Path,
    /// The lines that give nobody access.
    mistakes: Vec<MistakeJson<'a>>,
    /// The tokens, in the order of the file.
    tokens: Vec<TokenJson<'a>>,
}

/// One token of a file.
#[derive(Debug, Serialize, JsonSchema)]
struct TokenJson<'a> {
    /// Whether its time is over, so that the agent refuses it.
    ended: bool,
    /// When it ends; null where it ends when it is revoked.
    #[schemars(with = "Option<Time>")]
    expires: Option<String>,
    /// The number of its line, from 1 on.
    line: usize,
    /// Its name.
    name: &'a str,
    /// What it allows: `read`, `act` or `read,act`.
    scopes: &'a str,
}

/// A line that gives nobody access.
#[derive(Debug, Serialize, JsonSchema)]
struct MistakeJson<'a> {
    /// The number of the line, from 1 on.
    line: usize,
    /// What is wrong with it.
    reason: &'a str,
}

/// A token that was revoked, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct RevokedJson<'a> {
    /// The file that it was deleted from.
    file: &'a Path,
    /// Its name.
    name: &'a str,
    /// Whether no token that is left says `read`, so that everybody on this machine may look now.
    reading_is_open: bool,
}

pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    match flags.action {
        Action::New { name, scope, expires, place } => {
            let expires = expires.map(|expires| expires.after((context.console.now)()));
            let expires = expires.map(|at| Timestamp::new(at.seconds, 0)).transpose();
            let expires = expires.map_err(|_| Failure::usage("--expires is no time"))?;
            new(&name, scope, expires, &place, context)
        }
        Action::List { place } => list(&place, context),
        Action::Revoke { name, place } => revoke(&name, &place, context),
    }
}

fn new(
    name: &str,
    scope: Scope,
    expires: Option<Timestamp>,
    place: &Place,
    context: Context<'_, '_>,
) -> Result<(), Failure> {
    if expires.is_some_and(|expires| expires <= (context.console.now)()) {
        return Err(Failure::usage("the end of the token is in the past"));
    }
    let secret = secret();
    let token = HttpToken {
        name: name.into(),
        scopes: scope.scopes(),
        digest: Sha256Digest::of(secret.as_bytes()),
        expires: expires.map(SystemTime::from),
        line: 0,
    };
    let file = place.named(&context)?;
    if let Some(file) = &file {
        edit::append(file, &token).map_err(|error| failure(&error))?;
    }
    let (console, line) = (context.console, token.to_string());
    if context.global.json() {
        let expires = expires.map(|at| at.to_string());
        let (file, token) = (file.as_deref(), secret.as_str());
        let scopes = scope.scopes().name();
        let document = NewJson { expires, file, line: &line, name, scopes, token };
        return Ok(console.document(&document)?);
    }
    console.line(&format!("the secret of {name}, which is shown once and stored nowhere:"))?;
    console.line(&secret)?;
    match file {
        Some(file) => {
            console.line(&format!("its line was written to {}:", file.display()))?;
            console.line(&line)?;
            console.line("the agent takes it up with `systemctl reload guest-agent`")?;
        }
        None => {
            console.line("its line for the file that api.http_tokens_file names:")?;
            console.line(&line)?;
        }
    }
    Ok(())
}

fn list(place: &Place, context: Context<'_, '_>) -> Result<(), Failure> {
    let file = place.required(&context)?;
    let found = HttpTokens::read_of(&file, |_| true).map_err(|error| failure(&error.into()))?;
    let console = context.console;
    let now = SystemTime::from((console.now)());
    if context.global.json() {
        let tokens = found.tokens.iter().map(|token| TokenJson {
            ended: token.has_ended(now),
            expires: end(token),
            line: token.line,
            name: &token.name,
            scopes: token.scopes.name(),
        });
        let mistakes = found.mistakes.iter();
        let mistakes =
            mistakes.map(|mistake| MistakeJson { line: mistake.line, reason: &mistake.reason });
        let (tokens, mistakes) = (tokens.collect(), mistakes.collect());
        return Ok(console.document(&ListJson { file: &file, mistakes, tokens })?);
    }
    let longest = found.tokens.iter().map(|token| token.name.len()).max().unwrap_or_default();
    for token in &found.tokens {
        let end = match end(token) {
            Some(end) if token.has_ended(now) => console.paint(Tone::Bad, &format!("ended {end}")),
            Some(end) => format!("ends {end}"),
            None => "does not end".to_owned(),
        };
        let scopes = padded(token.scopes.name(), 8);
        console.line(&format!("{}  {scopes}  {end}", padded(&token.name, longest)))?;
    }
    for mistake in &found.mistakes {
        let line = console.paint(Tone::Bad, &mistake.to_string());
        console.line(&line)?;
    }
    if found.tokens.is_empty() && found.mistakes.is_empty() {
        console.line("no tokens")?;
    }
    Ok(())
}

fn revoke(name: &str, place: &Place, context: Context<'_, '_>) -> Result<(), Failure> {
    let file = place.required(&context)?;
    let opened = edit::delete(&file, name).map_err(|error| failure(&error))?;
    let console = context.console;
    let reading_is_open = opened == Opened::Yes;
    if context.global.json() {
        return Ok(console.document(&RevokedJson { file: &file, name, reading_is_open })?);
    }
    console.line(&format!(
        "{name} was deleted from {}; the agent refuses it after `systemctl reload guest-agent`",
        file.display()
    ))?;
    warn_of_open_reading(opened, console)
}

fn warn_of_open_reading(opened: Opened, console: &mut Console<'_>) -> Result<(), Failure> {
    if opened == Opened::Yes {
        let text = "no token that is left says `read`, so everybody on this machine may look then, \
                    unless api.http_token_file is set; make one that does with `guest-agent \
                    http-token new NAME --scope read`";
        let text = console.paint(Tone::Bad, text);
        console.line(&text)?;
    }
    Ok(())
}

/// 256 random bits as text.
fn secret() -> String {
    let mut bytes = [0; 32];
    rand::rng().fill_bytes(&mut bytes);
    URL_SAFE_NO_PAD.encode(bytes)
}

fn name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

fn end(token: &HttpToken) -> Option<String> {
    Some(Timestamp::try_from(token.expires?).ok()?.to_string())
}

fn failure(error: &NotEdited) -> Failure {
    Failure::failed(Chain(error))
}

// === impl Place ===

impl Place {
    /// The file that the flag or the configuration names, if one does.
    fn named(&self, context: &Context<'_, '_>) -> Result<Option<PathBuf>, Failure> {
        if let Some(file) = &self.file {
            return Ok(Some(file.clone()));
        }
        let file = context.load()?.config.api.http_tokens_file;
        Ok(Some(PathBuf::from(file)).filter(|file| !file.as_os_str().is_empty()))
    }

    fn required(&self, context: &Context<'_, '_>) -> Result<PathBuf, Failure> {
        self.named(context)?.ok_or_else(|| {
            Failure::new(Exit::Usage, "api.http_tokens_file names no file")
                .hint("name one with --file, or set the key")
        })
    }
}

// === impl Scope ===

impl Scope {
    /// The scopes of its line.
    const fn scopes(self) -> Scopes {
        match self {
            Self::Read => Scopes::Read,
            Self::Act => Scopes::Act,
        }
    }
}

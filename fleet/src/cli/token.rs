//! `guest-fleet token`: join tokens.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;
use thiserror::Error;

use super::context::Output;
use super::{duration, moment, print_json};
use crate::enroll::AgentId;
use crate::enroll::token::{self, CreateError, ListError, NewToken, RevokeError};
use crate::ledger::Ledger;
use crate::records::token::TokenRecord;

/// What is done with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Make a token, by which machines become agents; its secret is shown once.
    Create(Create),
    /// Show all tokens, without their secrets.
    List,
    /// Revoke a token: it enrols nobody any more, and its agents stay.
    Revoke(Revoke),
}

/// The options of `token create`.
#[derive(Clone, Debug, Args)]
pub struct Create {
    /// Name of the token: small letters, digits and hyphens.
    name: String,
    /// How many machines it may enrol.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    uses: u32,
    /// How long it may be used, such as 30m, 24h or 7d.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = duration::parse)]
    expires: Duration,
    /// Label that its agents get; may be given several times.
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Its agents have a short life: they are archived after an hour of silence.
    #[arg(long)]
    ephemeral: bool,
    /// Enrol this agent and no other, be it known already; what the former machine has is revoked.
    #[arg(long, value_name = "ID")]
    agent: Option<AgentId>,
}

/// The options of `token revoke`.
#[derive(Clone, Debug, Args)]
pub struct Revoke {
    /// Name of the token.
    name: String,
}

/// Why a verb failed.
#[derive(Debug, Error)]
pub enum TokenError {
    /// The token cannot be made.
    #[error("the token was not made")]
    Create(#[from] CreateError),
    /// The tokens cannot be listed.
    #[error("the tokens cannot be listed")]
    List(#[from] ListError),
    /// The token cannot be revoked.
    #[error("the token was not revoked")]
    Revoke(#[from] RevokeError),
    /// The result cannot be printed.
    #[error("the result cannot be printed")]
    Print(#[from] io::Error),
}

/// A token that was made.
#[derive(JsonSchema, Serialize)]
pub(super) struct MadeJson<'a> {
    /// Name of the token.
    name: &'a str,
    /// Its secret, which is shown this once.
    token: &'a str,
}

/// What became of a token.
#[derive(JsonSchema, Serialize)]
pub(super) struct RevokedJson<'a> {
    /// Name of the token.
    name: &'a str,
    /// Whether it enrolled machines until now.
    was_in_force: bool,
}

/// All tokens.
#[derive(JsonSchema, Serialize)]
pub(super) struct TokensJson<'a> {
    /// The tokens, by name.
    tokens: Vec<TokenJson<'a>>,
}

/// A token as it is shown.
#[derive(JsonSchema, Serialize)]
struct TokenJson<'a> {
    /// Name of the token.
    name: &'a str,
    /// `in force`, `used up`, `ended` or `revoked`.
    state: &'static str,
    /// How many machines it may enrol altogether.
    uses: u32,
    /// How many it may still enrol.
    uses_left: u32,
    /// When it ends, RFC 3339.
    ends: Option<String>,
    /// Labels that its agents get.
    labels: &'a BTreeMap<String, String>,
    /// Whether its agents are archived after an hour of silence.
    ephemeral: bool,
    /// The one agent that it enrols; `null` for any.
    agent: Option<&'a str>,
    /// Who made it.
    made_by: &'a str,
    /// When it was made, RFC 3339.
    made: Option<String>,
}

/// Runs a verb.
///
/// # Errors
/// See [`TokenError`].
pub async fn run(
    verb: Verb,
    ledger: &dyn Ledger,
    who: &str,
    output: Output,
    out: &mut dyn Write,
) -> Result<(), TokenError> {
    let now = SystemTime::now();
    match verb {
        Verb::Create(options) => create(options, ledger, now, who, output, out).await,
        Verb::List => list(ledger, now, output, out).await,
        Verb::Revoke(options) => revoke(&options, ledger, now, output, out).await,
    }
}

async fn create(
    options: Create,
    ledger: &dyn Ledger,
    now: SystemTime,
    who: &str,
    output: Output,
    out: &mut dyn Write,
) -> Result<(), TokenError> {
    let Create { name, uses, expires, labels, ephemeral, agent } = options;
    let new = NewToken {
        name: name.clone(),
        uses,
        life: expires,
        labels: labels.into_iter().collect(),
        is_ephemeral: ephemeral,
        agent,
        made_by: who.to_owned(),
    };
    let token = token::create(ledger, new, now).await?;
    match output {
        Output::Json => print_json(out, &MadeJson { name: &name, token: &token })?,
        // Alone on its line, so that a script can take it into a file.
        Output::Text => writeln!(out, "{token}")?,
    }
    Ok(())
}

async fn list(
    ledger: &dyn Ledger,
    now: SystemTime,
    output: Output,
    out: &mut dyn Write,
) -> Result<(), TokenError> {
    let tokens = token::list(ledger).await?;
    let shown: Vec<_> = tokens.iter().map(|token| TokenJson::of(token, now)).collect();
    if output == Output::Json {
        print_json(out, &TokensJson { tokens: shown })?;
        return Ok(());
    }
    if shown.is_empty() {
        writeln!(out, "there is no token: `guest-fleet token create NAME` makes one")?;
    }
    for token in shown {
        let TokenJson { name, state, uses, uses_left, ends, labels, made_by, .. } = token;
        let labels: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let (ends, labels) = (ends.unwrap_or_default(), labels.join(","));
        let used = format!("{}/{uses}", uses - uses_left.min(uses));
        writeln!(out, "{name:<24} {state:<8} used {used:<10} until {ends} by {made_by} {labels}")?;
    }
    Ok(())
}

async fn revoke(
    options: &Revoke,
    ledger: &dyn Ledger,
    now: SystemTime,
    output: Output,
    out: &mut dyn Write,
) -> Result<(), TokenError> {
    let name = &options.name;
    let was_in_force = token::revoke(ledger, name, now).await?;
    match (output, was_in_force) {
        (Output::Json, _) => print_json(out, &RevokedJson { name, was_in_force })?,
        (Output::Text, true) => writeln!(out, "{name} enrols nobody any more; its agents stay")?,
        (Output::Text, false) => writeln!(out, "{name} was revoked already")?,
    }
    Ok(())
}

// === impl TokenJson ===

impl<'a> TokenJson<'a> {
    fn of(token: &'a TokenRecord, now: SystemTime) -> Self {
        let ends = token.ends.and_then(|ends| SystemTime::try_from(ends).ok());
        let state = if token.revoked.is_some() {
            "revoked"
        } else if ends.is_none_or(|ends| ends <= now) {
            "ended"
        } else if token.uses_left == 0 {
            "used up"
        } else {
            "in force"
        };
        Self {
            name: &token.name,
            state,
            uses: token.uses,
            uses_left: token.uses_left,
            ends: moment(token.ends),
            labels: &token.labels,
            ephemeral: token.is_ephemeral,
            agent: Some(token.agent.as_str()).filter(|agent| !agent.is_empty()),
            made_by: &token.made_by,
            made: moment(token.made),
        }
    }
}

fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is no label: write KEY=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::Value;

    use super::*;
    use crate::ledger::MemoryLedger;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        verb: Verb,
    }

    async fn say(ledger: &MemoryLedger, line: &str) -> Result<String, TokenError> {
        let (line, output) = match line.strip_suffix(" --json") {
            Some(line) => (line, Output::Json),
            None => (line, Output::Text),
        };
        let words = std::iter::once("token").chain(line.split(' '));
        let verb = Line::try_parse_from(words).expect("a line").verb;
        let mut out = Vec::new();
        run(verb, ledger, "ann@ops", output, &mut out).await?;
        Ok(String::from_utf8(out).expect("text"))
    }

    #[tokio::test]
    async fn a_token_is_made_listed_and_revoked() {
        let ledger = MemoryLedger::new();
        assert!(say(&ledger, "list").await.expect("said").contains("token create"));
        let made = say(&ledger, "create web --uses 3 --expires 7d --label site=a --label b=").await;
        let made = made.expect("said");
        assert!(made.starts_with("web.") && made.lines().count() == 1, "{made}");
        let listed = say(&ledger, "list --json").await.expect("said");
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        assert_eq!(listed["tokens"][0]["state"], "in force");
        assert_eq!(listed["tokens"][0]["labels"], serde_json::json!({ "site": "a", "b": "" }));
        assert!(!listed.to_string().contains(made.trim()));
        assert!(say(&ledger, "revoke web").await.expect("said").contains("nobody"));
        assert!(say(&ledger, "list").await.expect("said").contains("revoked"));
        let again = say(&ledger, "create web").await.expect_err("it is there");
        assert!(matches!(again, TokenError::Create(CreateError::Exists(_))));
        assert!(say(&ledger, "revoke none").await.is_err());
    }

    #[test]
    fn bad_lines_are_refused_before_anything_happens() {
        for line in
            ["create", "create a --label x", "create a --expires 1", "create a --agent ../x"]
        {
            let words = std::iter::once("token").chain(line.split(' '));
            assert!(Line::try_parse_from(words).is_err(), "{line}");
        }
    }
}

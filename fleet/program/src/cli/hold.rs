//! `hold` and `release`: makes changes wait by hand, and lets them go on.

use std::collections::BTreeSet;

use clap::Args;
use guest_fleet_core::selector::OwnLabels;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Hold, Plugins};
use guest_fleet_ledger::records::configuration::{HOLD, HoldRecord};
use guest_fleet_server::configuration::change::{self, Becomes, Changed, Edit};
use guest_fleet_server::configuration::{Configuration, words};
use guest_fleet_server::declarations::values::{
    NAME_FIX, check_name, check_plugin, check_reason, check_selector,
};
use jiff::{Span, SpanRelativeTo, Timestamp};
use prost::Message;
use thiserror::Error;

use super::context::Context;
use super::document::ChangeJson;
use super::failure::{Exit, Failure};

/// The options of `hold`.
#[derive(Clone, Debug, Args)]
pub struct HoldOptions {
    /// Name of the hold; one that was set by hand before is replaced.
    pub name: String,
    /// Which agents, such as `env = prod`, or `all`.
    #[arg(long, value_name = "SELECTOR")]
    pub select: String,
    /// Let labels that machines claim themselves (`self.`) select.
    #[arg(long)]
    pub own_labels: bool,
    /// Only this plugin; may be given several times.
    #[arg(long = "plugin", value_name = "PLUGIN")]
    pub plugins: Vec<String>,
    /// Why: people who wait read it.
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
    /// When it ends by itself, such as 2030-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "for")]
    pub until: Option<Timestamp>,
    /// For how long, such as 30m, 4h or 7d.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub r#for: Option<Span>,
}

/// The options of `release`.
#[derive(Clone, Debug, Args)]
pub struct ReleaseOptions {
    /// Name of the hold.
    pub name: String,
    /// Why, for the audit record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
}

/// Why a hold is not set or ended.
#[derive(Debug, Error)]
pub enum HoldError {
    /// A value of the command line is not valid.
    #[error("{what}: {reason}")]
    Value {
        /// Which.
        what: &'static str,
        /// Why.
        reason: String,
        /// What puts it right.
        fix: String,
    },
    /// Declarations have a hold of this name.
    #[error("the hold {0} comes from declarations")]
    Declared(String),
    /// There is no such hold.
    #[error("there is no hold {0}")]
    Absent(String),
}

/// Sets a hold.
///
/// # Errors
/// A value is not valid, declarations have a hold of this name, or the ledger did not take it.
pub async fn hold(options: &HoldOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let hold = parse(options, context)?;
    let decision = context.decision("hold", &options.reason);
    let key = format!("{HOLD}{}", options.name);
    let record = HoldRecord { by_hand: true, ..HoldRecord::of(&hold) }.encode_to_vec();
    let changed = change::change(context.ledger, &decision, |ledger| {
        let before = ledger.view().holds.get(&options.name);
        if before.is_some() && !ledger.is_by_hand(&options.name) {
            return Err(HoldError::Declared(options.name.clone()));
        }
        if before == Some(&hold) {
            return Ok((Vec::new(), Vec::new()));
        }
        let edit = Edit {
            key: key.clone(),
            before: before.map(words::hold),
            after: Some(words::hold(&hold)),
            record: Becomes::Bytes(record.clone().into()),
        };
        Ok((vec![edit.clone()], vec![edit]))
    })
    .await?;
    print(context, changed)
}

/// Ends a hold.
///
/// # Errors
/// There is no such hold, or the ledger did not take it.
pub async fn release(options: &ReleaseOptions, context: &mut Context<'_>) -> Result<Exit, Failure> {
    let decision = context.decision("release", &options.reason);
    let key = format!("{HOLD}{}", options.name);
    let changed = change::change(context.ledger, &decision, |ledger: &Configuration| {
        let before = ledger.holds().find(|(name, _)| *name == options.name);
        let before = match (before, ledger.problem(&key)) {
            (Some((_, hold)), _) => words::hold(hold),
            (None, Some(_)) => "a record that cannot be read".to_owned(),
            (None, None) => return Err(HoldError::Absent(options.name.clone())),
        };
        let by_hand = ledger.is_by_hand(&options.name);
        let edit =
            Edit { key: key.clone(), before: Some(before), after: None, record: Becomes::Deleted };
        Ok((vec![edit.clone()], (vec![edit], by_hand)))
    })
    .await?;
    let Changed { entry, revision, answer: (edits, by_hand) } = changed;
    if !by_hand {
        context.remark(format_args!(
            "the hold {} came from declarations: delete it there, or the next `apply` sets it again",
            options.name
        ))?;
    }
    print(context, Changed { entry, revision, answer: edits })
}

fn duration(text: &str) -> Result<Span, String> {
    let span: Span =
        text.parse().map_err(|_| "write a duration such as 30m, 4h or 7d".to_owned())?;
    if span.is_negative() || span.is_zero() {
        return Err("a hold cannot end before it begins".to_owned());
    }
    Ok(span)
}

fn parse(options: &HoldOptions, context: &Context<'_>) -> Result<Hold, Failure> {
    let wrong = |what, reason: String, fix: &str| {
        Failure::from(HoldError::Value { what, reason, fix: fix.to_owned() })
    };
    check_name(&options.name).map_err(|reason| wrong("NAME", reason, NAME_FIX))?;
    let own_labels = if options.own_labels { OwnLabels::Trusted } else { OwnLabels::Ignored };
    let selector = check_selector(&options.select, own_labels).map_err(|(reason, fix)| {
        let fix = fix.replace("`own_labels = true`", "--own-labels");
        wrong("--select", reason, &fix)
    })?;
    for plugin in &options.plugins {
        check_plugin(plugin)
            .map_err(|reason| wrong("--plugin", reason, "name a plugin as releases do"))?;
    }
    check_reason(&options.reason)
        .map_err(|reason| wrong("--reason", reason, "say in one line why changes wait"))?;
    let until = match (options.until, options.r#for) {
        (Some(until), _) => Some(until),
        (None, Some(span)) => {
            let length = span.to_duration(SpanRelativeTo::days_are_24_hours());
            let until = length.and_then(|length| context.now.checked_add(length));
            Some(until.map_err(|error| {
                wrong("--for", error.to_string(), "write a duration such as 30m, 4h or 7d")
            })?)
        }
        (None, None) => None,
    };
    if until.is_some_and(|until| until <= context.now) {
        let fix = "give a time to come, such as --for 4h";
        return Err(wrong("--until", "it has passed already".to_owned(), fix));
    }
    let until = until.map(|until| Seconds(u64::try_from(until.as_second()).unwrap_or(0)));
    let names: BTreeSet<String> = options.plugins.iter().cloned().collect();
    Ok(Hold {
        selector,
        own_labels,
        plugins: if names.is_empty() { Plugins::All } else { Plugins::Named(names) },
        reason: options.reason.clone(),
        by: context.caller.who.clone(),
        until,
    })
}

fn print(context: &mut Context<'_>, changed: Changed<Vec<Edit>>) -> Result<Exit, Failure> {
    ChangeJson::of(changed.entry, &changed.answer).print(context)?;
    Ok(Exit::Done)
}

// === impl HoldError ===

impl From<HoldError> for Failure {
    fn from(error: HoldError) -> Self {
        match &error {
            HoldError::Value { fix, .. } => Self::usage(&error).hint(fix),
            HoldError::Declared(_) => Self::failed(&error)
                .hint("change it in its file and apply that, or set a hold of another name"),
            HoldError::Absent(_) => Self::failed(&error).hint("`guest-fleet holds` lists them"),
        }
    }
}

//! `rollout watch`: a rollout again and again until it ends.

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use guest_fleet_core::rollout::{Stage, State};
use guest_fleet_core::time::Seconds;
use jiff::Timestamp;

use super::super::context::Context;
use super::super::failure::{Exit, Failure};
use super::super::text::one_line;
use super::show::{self, RolloutJson};
use super::steer::find;
use crate::configuration::Configuration;

/// The options of `rollout watch`.
#[derive(Clone, Debug, Args)]
pub struct WatchOptions {
    /// Name of the rollout, or of its assignment.
    pub name: String,
    /// How often it is looked at, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,
    /// End also when a person has to say how it goes on.
    #[arg(long)]
    pub until_person: bool,
}

/// The looks at a rollout that is watched.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// What the newest one showed.
    shown: Vec<String>,
}

/// What comes after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another one.
    Again,
    /// Nothing.
    End,
}

/// Shows a rollout until it ends. On a terminal each look replaces the one before.
///
/// # Errors
/// There is no such rollout, or the ledger cannot be read.
pub(super) async fn watch(
    options: &WatchOptions,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let mut configuration = Configuration::load(context.ledger).await?;
    let mut looks = Looks::default();
    loop {
        let now = u64::try_from(Timestamp::now().as_second()).map_or(Seconds(0), Seconds);
        let (assignment, found) = find(configuration.view(), &options.name, &context.sees)?;
        let rollout = show::read(context, assignment, found, now).await?;
        if looks.tell(&rollout, options, context)? == Next::End {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(Duration::from_secs(options.every)).await;
        let through = configuration.through();
        configuration.catch_up(context.ledger, through).await?;
    }
}

// === impl Looks ===

impl Looks {
    /// Prints a look where it differs from the one before, and says whether there is another one.
    ///
    /// # Errors
    /// It cannot be printed.
    pub(crate) fn tell(
        &mut self,
        rollout: &RolloutJson,
        options: &WatchOptions,
        context: &mut Context<'_>,
    ) -> Result<Next, Failure> {
        let lines = show::lines(rollout);
        if lines != self.shown {
            let clear = if std::io::stdout().is_terminal() { "\u{1b}[H\u{1b}[J" } else { "" };
            let text: Vec<String> = lines.iter().map(|line| one_line(line)).collect();
            context.say(format_args!("{clear}{}", text.join("\n")))?;
            context.line(rollout)?;
            self.shown = lines;
        }
        let is_end = rollout.has_ended() || (options.until_person && rollout.waits_for_a_person());
        Ok(if is_end { Next::End } else { Next::Again })
    }
}

// === impl RolloutJson ===

impl RolloutJson {
    /// Whether nothing changes any more.
    fn has_ended(&self) -> bool {
        [State::RolledBack, State::Done, State::Aborted].iter().any(|it| it.name() == self.state)
    }

    /// Whether a person has to say how it goes on.
    fn waits_for_a_person(&self) -> bool {
        let asks = ["halted", "paused", State::Running(Stage::Approval).name()];
        asks.contains(&self.state.as_str())
    }
}

//! `artifact gc`: deletes what no release names.
//!
//! An artifact is pushed before its release is applied, so young ones are left. What releases name
//! is read again before the first deletion, since a release may have been applied meanwhile.

use std::io::Write;
use std::time::{Duration, SystemTime};

use clap::Args;
use guest_fleet_server::artifacts::named::Named;
use guest_fleet_server::artifacts::place::Place;
use guest_fleet_server::artifacts::store::{ArtifactStore, Bounds, Deletion, Stat};

use super::error::ArtifactError;
use super::list::{Listed, PAGE};

const SECONDS_PER_HOUR: u64 = 3600;

/// The arguments of `artifact gc`.
#[derive(Args, Clone, Debug)]
pub struct GcArgs {
    /// The store: a directory of this machine, or `s3://BUCKET/PREFIX`.
    #[arg(long, value_name = "PLACE")]
    artifacts: Place,
    /// Leave what was pushed in so many hours.
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    grace: u64,
    /// Delete; without it nothing is changed.
    #[arg(long)]
    yes: bool,
    /// Delete also where no release names any artifact of the store.
    #[arg(long)]
    all: bool,
    /// Print a JSON document per artifact and line.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(
    args: GcArgs,
    named: impl AsyncFn() -> Result<Named, ArtifactError>,
    out: &mut dyn Write,
) -> Result<(), ArtifactError> {
    let store = args.artifacts.open(Bounds::default()).await?;
    let grace = Duration::from_secs(args.grace.saturating_mul(SECONDS_PER_HOUR));
    let before = SystemTime::now().checked_sub(grace).unwrap_or(SystemTime::UNIX_EPOCH);
    let found = find(store.as_ref(), &named().await?, before).await?;
    if args.yes && !args.all && found.is_all() {
        return Err(ArtifactError::Usage(format!(
            "no release names any of the {} artifacts in {}: the ledger may be that of another \
             fleet; check --ledger, or give --all to delete them",
            found.unnamed.len(),
            args.artifacts
        )));
    }
    let named = if args.yes { named().await? } else { Named::default() };
    let (mut count, mut bytes) = (0_u64, 0);
    for stat in &found.unnamed {
        if named.releases(&stat.digest).next().is_some() {
            continue;
        }
        if args.yes && store.delete(&stat.digest, before).await? != Deletion::Deleted {
            continue;
        }
        count += 1;
        bytes += stat.length;
        Listed::of(stat, &named).write(args.json, out)?;
    }
    if !args.json {
        match args.yes {
            true => writeln!(out, "deleted {count} artifacts, {bytes} bytes")?,
            false => writeln!(
                out,
                "would delete {count} artifacts, {bytes} bytes; give --yes to delete them"
            )?,
        }
    }
    Ok(())
}

/// What a look at the store found.
#[derive(Debug, Default)]
struct Found {
    unnamed: Vec<Stat>,
    named: usize,
}

impl Found {
    /// Whether there is something, and no release names any of it.
    fn is_all(&self) -> bool {
        self.named == 0 && !self.unnamed.is_empty()
    }
}

async fn find(
    store: &dyn ArtifactStore,
    named: &Named,
    before: SystemTime,
) -> Result<Found, ArtifactError> {
    let mut found = Found::default();
    let mut after = None;
    loop {
        let page = store.list(after.as_ref(), PAGE).await?;
        for stat in &page {
            if named.releases(&stat.digest).next().is_some() {
                found.named += 1;
            } else if stat.modified < before {
                found.unnamed.push(*stat);
            }
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.digest),
            _ => return Ok(found),
        }
    }
}

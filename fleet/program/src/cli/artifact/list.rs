//! `artifact list`: the artifacts of a store, with the releases that name them.

use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use clap::Args;
use guest_fleet_server::artifacts::named::Named;
use guest_fleet_server::artifacts::place::Place;
use guest_fleet_server::artifacts::store::{Bounds, Stat};
use serde::Serialize;

use super::error::ArtifactError;

/// How many artifacts are asked for at once.
pub(super) const PAGE: usize = 1000;

/// The arguments of `artifact list`.
#[derive(Args, Clone, Debug)]
pub struct ListArgs {
    /// The store: a directory of this machine, or `s3://BUCKET/PREFIX`.
    #[arg(long, value_name = "PLACE")]
    artifacts: Place,
    /// Print a JSON document per line.
    #[arg(long)]
    json: bool,
}

/// An artifact. One document of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Listed {
    sha256: String,
    bytes: u64,
    /// Seconds since it was pushed last.
    age_seconds: u64,
    /// The releases that name it, as `plugin/revision`.
    releases: Vec<String>,
}

pub(super) async fn run(
    args: ListArgs,
    named: &Named,
    out: &mut dyn Write,
) -> Result<(), ArtifactError> {
    let store = args.artifacts.open(Bounds::default()).await?;
    let mut after = None;
    loop {
        let page = store.list(after.as_ref(), PAGE).await?;
        for stat in &page {
            Listed::of(stat, named).write(args.json, out)?;
        }
        match page.last() {
            Some(last) if page.len() == PAGE => after = Some(last.digest),
            _ => return Ok(()),
        }
    }
}

impl Listed {
    pub(super) fn of(stat: &Stat, named: &Named) -> Self {
        let releases = named.releases(&stat.digest);
        Self {
            sha256: stat.digest.to_string(),
            bytes: stat.length,
            age_seconds: age(stat.modified).as_secs(),
            releases: releases.map(|name| format!("{}/{}", name.plugin, name.revision)).collect(),
        }
    }

    pub(super) fn write(&self, as_json: bool, out: &mut dyn Write) -> io::Result<()> {
        if as_json {
            return writeln!(out, "{}", serde_json::to_string(self).map_err(io::Error::other)?);
        }
        let Self { sha256, bytes, age_seconds, releases } = self;
        let releases = match releases.as_slice() {
            [] => "no release".to_owned(),
            names => names.join(" ").escape_debug().to_string(),
        };
        writeln!(out, "{sha256}  {bytes:>12} bytes  {:>8}  {releases}", shown(*age_seconds))
    }
}

/// How long ago it was; a time in the future counts as now.
fn age(since: SystemTime) -> Duration {
    since.elapsed().unwrap_or_default()
}

fn shown(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

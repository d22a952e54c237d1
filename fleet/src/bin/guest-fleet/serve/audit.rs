//! Signed heads of the audit record.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use guest_fleet::cli::duration;
use guest_fleet::configuration::audit::head::SigningKey;
use guest_fleet::configuration::audit::heads::Heads;

/// Longest time between two heads.
const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// The options of it.
#[derive(Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Key that signs heads of the audit record, PEM, as `audit create-key` makes it.
    #[arg(long, value_name = "FILE", requires = "audit_heads")]
    audit_key: Option<PathBuf>,
    /// Directory for signed heads, such as one of another machine: head-NUMBER.json, the newest 1000.
    #[arg(long, value_name = "DIR", requires = "audit_key")]
    audit_heads: Option<PathBuf>,
    /// How often a head is signed where the audit record went on; also at the start and at the end.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = every,
          requires = "audit_key")]
    audit_interval: Duration,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = duration::parse(text)?;
    if every.is_zero() || every > LONGEST {
        return Err(format!("`{text}` is not from 1s to {}d", LONGEST.as_secs() / 86_400));
    }
    Ok(every)
}

// === impl Options ===

impl Options {
    /// Reads the key.
    pub(crate) fn read(&self) -> anyhow::Result<Option<Heads>> {
        let (Some(key), Some(directory)) = (&self.audit_key, &self.audit_heads) else {
            return Ok(None);
        };
        let key = SigningKey::read(key).context("heads of the audit record cannot be signed")?;
        Ok(Some(Heads { key, directory: directory.clone(), every: self.audit_interval }))
    }
}

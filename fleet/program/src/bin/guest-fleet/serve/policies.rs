//! The server's own rules about changes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;

use clap::Args;
use guest_fleet::cli::context::Caller;
use guest_fleet_core::view::Policy;
use guest_fleet_ledger::Ledger;
use guest_fleet_server::configuration::Configuration;
use guest_fleet_server::configuration::change::{self, ChangeError, Decision};
use guest_fleet_server::declarations::policies;
use jiff::Timestamp;

/// The options of it.
#[derive(Args)]
#[group(skip)]
pub(crate) struct Options {
    /// File with rules about changes that declarations cannot set aside.
    #[arg(long, value_name = "FILE")]
    policies: Option<PathBuf>,
}

// === impl Options ===

impl Options {
    /// Reads the file; `None` where none is named, so that the ledger's policies stay.
    pub(crate) fn read(&self) -> anyhow::Result<Option<BTreeMap<String, Policy>>> {
        let Some(path) = &self.policies else { return Ok(None) };
        let read = policies::read(path);
        let read = read.map_err(|problems| {
            let lines: Vec<String> = problems.0.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("the policies cannot be used:\n{}", lines.join("\n"))
        })?;
        Ok(Some(read))
    }
}

/// Writes the policies into the ledger, where every program that plans a change reads them.
pub(crate) async fn publish(
    ledger: &dyn Ledger,
    policies: &BTreeMap<String, Policy>,
) -> Result<(), ChangeError<Infallible>> {
    let Caller { who, from } = Caller::of_process(None);
    let decision = Decision {
        who,
        from,
        what: "policies".to_owned(),
        why: "the server started with other policies than the ledger had".to_owned(),
        at: Timestamp::now(),
    };
    let plan = |ledger: &Configuration| {
        Ok::<_, Infallible>((policies::difference(ledger.view(), policies), ()))
    };
    change::change(ledger, &decision, plan).await.map(drop)
}

//! The audit record of a server.

use guest_agent_proto::fleet_api as pb;

use super::link::Link;
use super::problem::refused;
use crate::api::calls::Rpc;
use crate::cli::audit::{
    self, EntriesJson, ListOptions, Options, Verb, VerdictJson, VerifyOptions,
};
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::hex::hex;

/// Most entries of a page.
const PAGE: u32 = 500;

/// Runs the verb.
///
/// # Errors
/// The server cannot be asked, the record is not whole, or the API has no such call.
pub(super) async fn run(
    options: &Options,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    match &options.verb {
        None => list(&options.list, link, context).await,
        Some(Verb::List(options)) => list(options, link, context).await,
        Some(Verb::Verify(of)) if of.export.is_none() => verify(of, link, context).await,
        // Nothing of the fleet is asked for.
        Some(Verb::Verify(_) | Verb::CreateKey(_)) => audit::run(options, context).await,
        Some(Verb::Export) => Err(refused(
            "audit export",
            "entries as the ledger has them leave its machine only as an export that is made there",
        )),
        Some(Verb::SignHead(_)) => {
            Err(refused("audit sign-head", "a head is signed where the record is read"))
        }
    }
}

async fn list(
    options: &ListOptions,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let mut found = EntriesJson { entries: Vec::new() };
    let mut before = 0;
    let mut left = options.limit;
    while left > 0 {
        let request = pb::ListAuditRequest { limit: left.min(PAGE), before };
        let mut page: EntriesJson = link.ask(Rpc::ListAudit, &request).await?;
        page.entries.truncate(usize::try_from(request.limit).unwrap_or(usize::MAX));
        let Some(last) = page.entries.last().map(|last| last.number) else { break };
        left = left.saturating_sub(u32::try_from(page.entries.len()).unwrap_or(u32::MAX));
        found.entries.append(&mut page.entries);
        // Numbers fall to 1, so this ends whatever the server answers.
        if last <= 1 || (before != 0 && last >= before) {
            break;
        }
        before = last;
    }
    audit::tell(&found, context)
}

async fn verify(
    options: &VerifyOptions,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let known = audit::known(options, context)?;
    let heads = known.iter().map(|known| format!("{}:{}", known.number, hex(&known.digest)));
    let heads: Vec<String> = if known.is_empty() { vec![String::new()] } else { heads.collect() };
    let mut found: Option<VerdictJson> = None;
    for against in heads {
        let request = pb::VerifyAuditRequest { against };
        let verdict: VerdictJson = link.ask(Rpc::VerifyAudit, &request).await?;
        found = Some(match found {
            None => verdict,
            Some(mut found) => {
                let new = verdict.problems.into_iter().filter(|it| !found.problems.contains(it));
                let new: Vec<String> = new.collect();
                found.problems.extend(new);
                VerdictJson { checked: verdict.checked, head: verdict.head, ..found }
            }
        });
    }
    let found = found.expect("one head at least was asked about");
    let newest = found.head.split(':').next().and_then(|number| number.parse::<u64>().ok());
    let kept_from = newest.unwrap_or(0).saturating_sub(found.checked);
    let older = known.iter().map(|known| known.number);
    let older: Vec<u64> = older.filter(|number| (1..=kept_from).contains(number)).collect();
    audit::tell_verdict(found, &older, options, context)
}

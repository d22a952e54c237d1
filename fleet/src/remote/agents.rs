//! Lists of agents, page after page.

use super::link::Link;
use super::requests;
use crate::api::calls::Rpc;
use crate::cli::agents::{self, AgentsJson, Options};
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::cli::index;

/// Lists the agents.
///
/// # Errors
/// The server cannot be asked.
pub(super) async fn list(
    options: &Options,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    if options.scan {
        return Err(Failure::failed(
            "--scan: the API reads the index, not every agent's own record",
        )
        .hint("leave --scan out, or use it on the machine of the ledger, with --ledger"));
    }
    let document = all(options, link).await?;
    if let Some(age) = &document.index {
        index::tell_age(age, context)?;
    }
    agents::tell(&document, context)
}

async fn all(options: &Options, link: &mut Link) -> Result<AgentsJson, Failure> {
    let mut found = AgentsJson { agents: Vec::new(), index: None, more: 0, next: None };
    let mut cursor = options.after.clone();
    loop {
        let had = u32::try_from(found.agents.len()).unwrap_or(u32::MAX);
        let request = requests::agents(options, cursor.as_deref(), options.limit - had);
        let mut page: AgentsJson = link.ask(Rpc::ListAgents, &request).await?;
        let is_of_index = page.index.is_some();
        for agent in &mut page.agents {
            // A message has no list that is absent.
            agent.plugins = agent.plugins.take().filter(|_| is_of_index);
        }
        page.agents.truncate(usize::try_from(request.page_size).unwrap_or(usize::MAX));
        found.agents.append(&mut page.agents);
        found.index = found.index.or(page.index);
        found.more = page.more;
        found.next = page.next;
        // Cursors rise, so this ends whatever the server answers.
        let is_end = found.next.is_none() || found.next <= cursor;
        if is_end || u32::try_from(found.agents.len()).unwrap_or(u32::MAX) >= options.limit {
            return Ok(found);
        }
        cursor.clone_from(&found.next);
    }
}

//! Declarations of this machine, applied to the fleet of a server.

use guest_agent_proto::fleet_api as pb;

use super::link::Link;
use super::requests;
use crate::api::calls::Rpc;
use crate::cli::context::Context;
use crate::cli::document::ChangeJson;
use crate::cli::failure::{Exit, Failure};
use crate::cli::{apply, diff, sources};
use crate::declarations::files::{Format, Sources};

/// Most bytes of all files together. A server takes requests of 8 MiB.
const BYTES: usize = 7 << 20;

/// Makes the fleet say what files declare.
///
/// # Errors
/// The declarations have problems, the server refuses, or something would be deleted without `--yes`.
pub(super) async fn apply(
    options: &apply::Options,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    // Problems that can be found here are printed with their places, and nothing is sent.
    let (declared, sources) = sources::read_files(context, &options.file)?;
    apply::check_prune(options, &declared)?;
    let mut request = pb::ApplyDeclarationsRequest {
        files: files(&sources)?,
        prune: options.prune,
        dry_run: true,
        reason: options.reason.clone(),
        idempotency_key: String::new(),
    };
    if options.dry_run || (options.prune && !options.yes) {
        let found: ChangeJson = link.ask(Rpc::ApplyDeclarations, &request).await?;
        let found = noted(found, &sources);
        if options.dry_run {
            return apply::tell(&found, context);
        }
        // Among the changes, nothing says why something would be deleted.
        let request = pb::DiffDeclarationsRequest { files: request.files.clone() };
        let kept: ChangeJson = link.ask(Rpc::DiffDeclarations, &request).await?;
        if !kept.undeclared.is_empty() {
            apply::tell(&found, context)?;
            return Err(apply::unconfirmed(&kept.undeclared));
        }
    }
    request.dry_run = false;
    // Without --yes nothing is deleted, also not what came since that look.
    request.prune = options.prune && options.yes;
    request.idempotency_key = requests::key();
    let changed: ChangeJson = link.ask(Rpc::ApplyDeclarations, &request).await?;
    apply::tell(&noted(changed, &sources), context)
}

/// Shows what files declare beside what the fleet has.
///
/// # Errors
/// The declarations have problems, or the server refuses.
pub(super) async fn diff(
    options: &diff::Options,
    link: &mut Link,
    context: &mut Context<'_>,
) -> Result<Exit, Failure> {
    let (_, sources) = sources::read_files(context, &options.file)?;
    let request = pb::DiffDeclarationsRequest { files: files(&sources)? };
    let found: ChangeJson = link.ask(Rpc::DiffDeclarations, &request).await?;
    diff::tell(&noted(found, &sources), context)
}

/// The files as they are sent.
fn files(sources: &Sources) -> Result<Vec<pb::DeclarationFile>, Failure> {
    let bytes = sources.files.iter().map(|file| file.text.len()).fold(0, usize::saturating_add);
    if bytes > BYTES {
        return Err(Failure::failed(format_args!(
            "the files have {bytes} bytes together, and a server takes {BYTES}"
        ))
        .hint("apply a part of them at a time, without --prune"));
    }
    let sent = sources.files.iter().map(|file| {
        let content = String::from_utf8(file.text.clone()).map_err(|_| {
            Failure::failed(format_args!("`{}` is not UTF-8", file.name)).hint("save it as UTF-8")
        })?;
        // What came by standard input has no ending that says how it is written.
        let (ending, others) = match file.format {
            Format::Toml => (".toml", &[".toml"][..]),
            Format::Yaml => (".yaml", &[".yaml", ".yml"][..]),
        };
        let is_told = others.iter().any(|it| file.name.ends_with(it));
        let name = if is_told { file.name.clone() } else { format!("{}{ending}", file.name) };
        Ok(pb::DeclarationFile { name, content })
    });
    sent.collect()
}

/// With what was passed over on this machine.
fn noted(mut found: ChangeJson, sources: &Sources) -> ChangeJson {
    found.notes.splice(0..0, sources.notes.iter().cloned());
    found
}

//! `-f`: the files of declarations.

use std::io::Read;
use std::path::Path;

use guest_fleet_server::declarations::files::{FILE_BYTES, Sources, SourcesError};
use guest_fleet_server::declarations::set::Declarations;

use super::context::Context;
use super::document::{ProblemJson, ProblemsJson};
use super::failure::{Exit, Failure};

/// Reads and checks what `-f` names; with the remarks on what was passed over.
pub(crate) fn read(
    context: &mut Context<'_>,
    path: &Path,
) -> Result<(Declarations, Vec<String>), Failure> {
    let sources =
        if path == Path::new("-") {
            let mut text = Vec::new();
            context.input.take(FILE_BYTES + 1).read_to_end(&mut text).map_err(|error| {
                Failure::of(Exit::Failed, &error).hint("give a file with -f FILE")
            })?;
            if u64::try_from(text.len()).is_ok_and(|length| length > FILE_BYTES) {
                return Err(Failure::failed(format_args!(
                    "standard input is longer than {FILE_BYTES} bytes"
                ))
                .hint("apply a directory with -f DIR"));
            }
            Sources::text("standard input", text)
        } else {
            Sources::read(path).map_err(|error| unread(&error))?
        };
    for note in &sources.notes {
        context.remark(format_args!("{note}"))?;
    }
    match Declarations::parse(&sources) {
        Ok(declarations) => Ok((declarations, sources.notes)),
        Err(problems) => refused(context, problems),
    }
}

/// The failure for declarations with problems; with `--json` they are printed as well.
pub(crate) fn refused<T>(
    context: &mut Context<'_>,
    problems: guest_fleet_server::declarations::problem::Problems,
) -> Result<T, Failure> {
    let document = ProblemsJson { problems: problems.0.iter().map(ProblemJson::from).collect() };
    context.document(&document)?;
    Err(problems.into())
}

fn unread(error: &SourcesError) -> Failure {
    let failure = Failure::of(Exit::Failed, error);
    match error {
        SourcesError::Read { .. } => {
            failure.hint("name a file or a directory that this user may read")
        }
        _ => failure,
    }
}

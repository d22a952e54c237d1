//! Files of the server's own, which are no declarations: tables of one kind, in TOML.

use std::io::Read;
use std::path::Path;

use super::fields::{Context, Fields};
use super::from_toml;
use super::problem::{Collector, Problem, Problems};
use super::tree::Node;

/// Largest file, in bytes.
const FILE_BYTES: u64 = 256 << 10;

/// The tables of a file.
pub(crate) struct Kind {
    /// The key of its tables, such as `webhook`.
    pub(crate) key: &'static str,
    /// Several of them, such as `webhooks`.
    pub(crate) many: &'static str,
    /// Most tables.
    pub(crate) most: usize,
    /// The way out where there are more.
    pub(crate) fewer: &'static str,
}

/// Reads the tables of a file by name, in their order. Blocks.
///
/// # Errors
/// It cannot be read, or has problems; then nothing of it is used.
pub(crate) fn read<T>(
    path: &Path,
    kind: &Kind,
    one: impl FnMut(&mut Context<'_>, &Node) -> Option<(String, T)>,
) -> Result<Vec<(String, T)>, Problems> {
    let file = path.display().to_string();
    let unreadable = |reason: String, fix: String| {
        let key = String::new();
        Problems(vec![Problem { file: file.clone(), place: None, key, reason, fix }])
    };
    let mut text = String::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| {
        let fix = format!("name a file with `[[{}]]` tables", kind.key);
        unreadable(format!("it cannot be read: {error}"), fix)
    })?;
    if u64::try_from(text.len()).unwrap_or(u64::MAX) > FILE_BYTES {
        let reason = format!("it has more than {FILE_BYTES} bytes");
        return Err(unreadable(reason, format!("leave out what is no {}", kind.key)));
    }
    parse(&file, &text, kind, one)
}

/// Reads the tables of a text by name, in their order.
///
/// # Errors
/// All problems of it.
pub(crate) fn parse<T>(
    file: &str,
    text: &str,
    kind: &Kind,
    mut one: impl FnMut(&mut Context<'_>, &Node) -> Option<(String, T)>,
) -> Result<Vec<(String, T)>, Problems> {
    let Kind { key, many, most, fewer } = *kind;
    let mut problems = Collector::default();
    let mut found: Vec<(String, T)> = Vec::new();
    match from_toml::read(text) {
        Err(error) => problems.add(Problem {
            file: file.to_owned(),
            place: error.place,
            key: String::new(),
            reason: error.reason,
            fix: error.fix,
        }),
        Ok(node) => {
            let mut context = Context { file, problems: &mut problems };
            let hint = format!("write `[[{key}]]`");
            let fields = Fields::new(&mut context, &node, "", &[key], &[(many, &hint)]);
            let list = fields.as_ref().and_then(|fields| fields.get(key));
            let nodes = list.and_then(|list| context.list(list, key)).unwrap_or_default();
            for node in nodes {
                if found.len() >= most {
                    let reason = format!("up to here there are {most} {many}");
                    context.problem(node.place, key, reason, fewer);
                    break;
                }
                let Some((name, value)) = one(&mut context, node) else { continue };
                if found.iter().any(|(other, _)| *other == name) {
                    let reason = format!("another {key} has the same name");
                    let key = format!("{key}.name");
                    context.problem(node.place, &key, reason, "give it another name");
                    continue;
                }
                found.push((name, value));
            }
        }
    }
    problems.finish(found)
}

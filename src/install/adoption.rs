//! The records by which an agent that has lost its store adopts the plugins that it finds.
//!
//! ```text
//! <plugins>/<name>/.adopt-<revision>    SHA-256 of what follows · a snapshot (`plugin::snapshot`)
//!
//! whose file? ─► digest ─► this plugin, this revision? ─► of the installed archive? ─► signed by a
//!                                                          key of today?
//! ```
//!
//! A record is not trusted for being there. The digest finds damage. Against forgery the folder
//! protects, in which only the agent's own user writes, and a file of anybody else, or one that
//! anybody else can write, is refused. Where `[trust]` names keys, the signature that was verified
//! when the archive was unpacked has to be of a key that is trusted now; the archive itself is not
//! there to be read again. Reads only; blocks.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::id::{PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::plugin::snapshot::Snapshot;
use rustix::fs::{Mode, OFlags};

use super::folder::{ADOPTION, CURRENT, PluginFolder, SIGNATURE};
use super::leftovers;
use super::trust::{SIGNATURE_MAX, Signature, Trust};

/// Most bytes of a record: an order may have 4 MiB.
const RECORD_MAX: u64 = 8 << 20;

/// Bytes of the digest at the beginning of a record.
const DIGEST_BYTES: usize = 32;

/// The file that holds a record.
pub(super) fn encode(record: &[u8]) -> Vec<u8> {
    [Sha256Digest::of(record).as_bytes(), record].concat()
}

/// Every plugin that has files or data here.
pub(super) fn names(plugins_dir: &Path, state_root: &Path) -> BTreeSet<PluginName> {
    let all = [plugins_dir, state_root].into_iter().flat_map(listed);
    all.filter_map(|name| name.parse().ok()).collect()
}

/// The names in a folder; none in one that cannot be read.
fn listed(dir: &Path) -> Vec<String> {
    let listed = leftovers::open(dir).ok().and_then(|folder| leftovers::names(&folder, dir).ok());
    listed.map(|(names, _)| names).unwrap_or_default()
}

/// The plugin's record, or the reason why it has none that can be used. It is that of the newest
/// order. After a rollback both revisions have one of the same order, and the link says which of
/// them ran last.
pub(super) fn of_plugin(
    folder: &PluginFolder,
    name: &PluginName,
    trust: &Trust,
) -> Result<Snapshot, String> {
    let of_record = |file: &String| file.strip_prefix(ADOPTION)?.parse::<RevisionId>().ok();
    let revisions: Vec<_> = listed(folder.path()).iter().filter_map(of_record).collect();
    let current = std::fs::read_link(folder.path().join(CURRENT)).ok();
    let mut best: Option<Snapshot> = None;
    let mut refused = None;
    for revision in revisions {
        match of_revision(folder, name, &revision, trust) {
            Ok(record) => {
                let is_current = current.as_deref() == Some(Path::new(revision.as_str()));
                let rank = |record: &Snapshot| record.state.generation;
                if best
                    .as_ref()
                    .is_none_or(|best| (rank(best), false) < (rank(&record), is_current))
                {
                    best = Some(record);
                }
            }
            Err(why) => refused = Some(format!("the record of revision {revision} {why}")),
        }
    }
    let none = || refused.unwrap_or_else(|| "it has no record to be adopted by".to_owned());
    best.ok_or_else(none)
}

fn of_revision(
    folder: &PluginFolder,
    name: &PluginName,
    revision: &RevisionId,
    trust: &Trust,
) -> Result<Snapshot, String> {
    let path = folder.path();
    let file = read_own(&path.join(format!("{ADOPTION}{revision}")), RECORD_MAX)
        .map_err(|error| format!("cannot be used: {error}"))?;
    let Some((digest, record)) = file.split_at_checked(DIGEST_BYTES) else {
        return Err("is damaged: it is too short".to_owned());
    };
    if Sha256Digest::of(record).as_bytes()[..] != *digest {
        return Err("is damaged: its digest does not match".to_owned());
    }
    let record = Snapshot::decode(record)
        .map_err(|error| format!("cannot be decoded: {}", Chain(&error)))?;
    let spec = &record.state.spec;
    if record.state.name != *name || spec.revision != *revision || spec.is_local() {
        return Err(format!("is one of {} {}", record.state.name, spec.revision));
    }
    match folder.installed_now(revision) {
        Ok(Some(installed)) if installed == spec.source.sha256() => {}
        Ok(Some(_)) => return Err("is one of another archive".to_owned()),
        Ok(None) => return Err("has no revision beside it".to_owned()),
        Err(error) => return Err(format!("has no usable revision: {}", Chain(&error))),
    }
    judge(path, name, revision, trust).map_err(|why| format!("is not trusted: {why}"))?;
    Ok(record)
}

fn judge(
    folder: &Path,
    name: &PluginName,
    revision: &RevisionId,
    trust: &Trust,
) -> Result<(), String> {
    let keyring = trust.keyring().map_err(|error| Chain(&error).to_string())?;
    let Some(keyring) = keyring else { return Ok(()) };
    let most = u64::try_from(SIGNATURE_MAX).unwrap_or(u64::MAX);
    let text = read_own(&folder.join(format!("{SIGNATURE}{revision}")), most)
        .map_err(|error| format!("the signature of its archive cannot be read: {error}"))?;
    let signature = Signature::parse(&text)
        .map_err(|what| format!("the signature of its archive is not one: {what}"))?;
    keyring.judge(&signature, name, revision).map(drop).map_err(|error| Chain(&error).to_string())
}

/// Reads a file that only this user can have written.
fn read_own(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if !found.is_file() || found.nlink() != 1 {
        return Err(io::Error::other("it is not a file with a single name"));
    }
    if found.uid() != rustix::process::geteuid().as_raw() || found.mode() & 0o022 != 0 {
        return Err(io::Error::other("another user may have written it"));
    }
    if found.len() > most {
        return Err(io::Error::other(format!("it has more than {most} bytes")));
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

//! The thread that makes forms, one at a time, and deletes those that no release needs any more.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::time::Instant;

use super::make::{self, MakeError, Source};
use super::plan::{self, Present, Work};
use super::shared::Shared;
use crate::artifacts::digest::Digest;
use crate::artifacts::encodings::files::Form;
use crate::artifacts::named::Named;
use crate::chain::Chain;
use crate::lock::lock;

/// How much the kernel prefers every other thread to this one.
const NICE: i32 = 19;

/// A form is kept if it has at most so many percent of the bytes that would be sent without it.
const WORTH_PERCENT: u64 = 95;

/// First bytes of archives that are compressed already: gzip, zstd, a skippable frame, xz, bzip2, zip.
const COMPRESSED: &[&[u8]] =
    &[b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x5e\x2a\x4d\x18", b"\xfd7zXZ", b"BZh", b"PK\x03\x04"];

/// Forms that are not worth it or cannot be made, until the program starts again.
type Hopeless = BTreeSet<Work>;

/// Works until the program ends.
pub(super) fn run(shared: &Shared) {
    // On Linux this is about the thread alone.
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::debug!(%error, "the thread that makes forms of artifacts has full priority");
    }
    let mut hopeless = Hopeless::new();
    let mut done = None;
    while let Some((named, number)) = wait(shared, done) {
        done = Some(number);
        if let Err(error) = round(shared, &named, number, &mut hopeless) {
            tracing::warn!(error = %Chain(&error), "the forms of artifacts cannot be kept");
            shared.figures.encoding_failed();
        }
    }
}

/// Waits for news, or for the time to look again. `None` when the program ends.
fn wait(shared: &Shared, done: Option<u64>) -> Option<(std::sync::Arc<Named>, u64)> {
    let mut wanted = lock(&shared.wanted);
    let until = Instant::now() + shared.limits.look;
    loop {
        if shared.is_ending() {
            return None;
        }
        let left = until.saturating_duration_since(Instant::now());
        if let Some(named) = &wanted.named
            && (done != Some(wanted.number) || left.is_zero())
        {
            return Some((named.clone(), wanted.number));
        }
        let left = if left.is_zero() { shared.limits.look } else { left };
        let waited = shared.changed.wait_timeout(wanted, left);
        wanted = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
    }
}

/// Makes what is missing, until something else is wanted.
fn round(shared: &Shared, named: &Named, number: u64, hopeless: &mut Hopeless) -> io::Result<()> {
    // Another process that works may have made some.
    let turn = shared.files.turn()?;
    publish(shared)?;
    let Some(_turn) = turn else { return Ok(()) };
    let planned = plan::plan(named.lines(), &present(shared, named)?);
    let wanted: BTreeSet<Work> = planned.iter().copied().collect();
    let index = lock(&shared.index).clone();
    shared.files.sweep(&index, |encoded| {
        wanted.contains(&Work { digest: encoded.digest, form: encoded.form })
    })?;
    publish(shared)?;
    hopeless.retain(|work| wanted.contains(work));
    for work in planned {
        let is_there = lock(&shared.index).find(work.digest, work.form).is_some();
        if is_there || hopeless.contains(&work) {
            continue;
        }
        if shared.is_ending() || lock(&shared.wanted).number != number {
            return Ok(());
        }
        one(shared, work, hopeless)?;
    }
    Ok(())
}

/// Makes one form.
fn one(shared: &Shared, work: Work, hopeless: &mut Hopeless) -> io::Result<()> {
    let Work { digest, form } = work;
    let began = Instant::now();
    let is_given_up = || shared.is_ending() || began.elapsed() > shared.limits.time;
    let Some(source) = source(shared, digest)? else { return Ok(()) };
    let dictionary = match form {
        Form::Zstd => None,
        Form::Delta(before) => match self::source(shared, before)? {
            Some(source) => Some(source),
            None => return Ok(()),
        },
    };
    let length = source.length;
    let has_room = lock(&shared.index).bytes().saturating_add(length) <= shared.limits.room
        && shared.files.free()?.saturating_sub(shared.limits.reserve) >= length;
    if !has_room {
        tracing::warn!(%digest, form = form.coding(), "there is no room for a form of an artifact");
        shared.figures.encoding_failed();
        return Ok(());
    }
    let mut into = shared.files.begin()?;
    match make::make(source, dictionary, &mut into, &is_given_up) {
        Ok(()) => {}
        Err(_) if shared.is_ending() => return Ok(()),
        Err(error) => {
            tracing::warn!(
                %digest, form = form.coding(), error = %Chain(&error),
                "a form of an artifact was not made; clients get the artifact itself"
            );
            shared.figures.encoding_failed();
            // A disk that was full may have room later.
            if !matches!(error, MakeError::Io(_)) || began.elapsed() > shared.limits.time {
                hopeless.insert(work);
            }
            return Ok(());
        }
    }
    let (_, made) = into.sum();
    let otherwise = match form {
        Form::Zstd => length,
        Form::Delta(_) => {
            let whole = lock(&shared.index).find(digest, Form::Zstd).map(|it| it.length);
            whole.unwrap_or(length)
        }
    };
    if made > otherwise / 100 * WORTH_PERCENT {
        tracing::info!(%digest, form = form.coding(), made, "a form of an artifact is not worth it");
        hopeless.insert(work);
        return Ok(());
    }
    shared.files.keep(into, digest, form)?;
    let took = began.elapsed();
    tracing::info!(%digest, form = form.coding(), length, made, ?took, "made a form of an artifact");
    shared.figures.encoding_made(form.coding());
    publish(shared)
}

/// Gives out what is there.
fn publish(shared: &Shared) -> io::Result<()> {
    let index = shared.files.index()?;
    shared.figures.encoded(index.bytes());
    *lock(&shared.index) = std::sync::Arc::new(index);
    Ok(())
}

/// The artifacts of releases that are there.
fn present(shared: &Shared, named: &Named) -> io::Result<BTreeMap<Digest, Present>> {
    let mut present = BTreeMap::new();
    for digest in named.lines().flatten() {
        let Some((mut file, stat)) = shared.store.read(*digest)? else { continue };
        let mut first = Vec::new();
        io::Read::by_ref(&mut file).take(8).read_to_end(&mut first)?;
        let is_compressed = COMPRESSED.iter().any(|magic| first.starts_with(magic));
        let Ok(modified) = stat.modified() else { continue };
        present.insert(*digest, Present { length: stat.len(), modified, is_compressed });
    }
    Ok(present)
}

fn source(shared: &Shared, digest: Digest) -> io::Result<Option<Source>> {
    let found = shared.store.read(digest)?;
    Ok(found.map(|(file, stat)| Source { file, digest, length: stat.len() }))
}

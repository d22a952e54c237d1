//! Descriptors that connections leave to the work of the program itself.
//!
//! Connections may use up all descriptors that a program may have. A plugin that crashed then has to
//! be started all the same, its new state has to be written, and the operator has to see it. So the
//! last descriptors are not for connections, and some of those before them only for connections of
//! the program's owner and of root. `open(2)` and `accept(2)` return the lowest number that is free: a
//! connection whose number is near the limit shows, without counting any, that all lower ones are
//! in use.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd};

use rustix::process::{Resource, getrlimit};

/// Who may connect to a listener.
#[derive(Clone, Copy, Debug)]
pub enum Open {
    /// Other users of the machine, plugins, or the network.
    ToAll,
    /// The program's owner and root.
    ToOwner,
}

/// Descriptors that connections leave, where the limit is four times as many or more.
const KEPT_FROM_ALL: u64 = 128;

/// Those of the owner leave half of that: 64. A launch opens about ten, an installation about six,
/// and a write to the store up to eight.
const OWNER_PART: u64 = 2;

/// Checks that a connection that was just accepted leaves enough descriptors.
///
/// # Errors
///
/// It is one of the last descriptors; the connection is to be closed.
pub fn check(connection: impl AsFd, listener: Open) -> Result<()> {
    // Without a limit nothing is short.
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
    let number = u64::try_from(connection.as_fd().as_raw_fd()).unwrap_or_default();
    check_number(number, limit, kept(limit, listener))
}

/// Descriptors that are not for connections of a listener, under a limit of `limit` descriptors.
fn kept(limit: u64, listener: Open) -> u64 {
    let kept = KEPT_FROM_ALL.min(limit / 4);
    match listener {
        Open::ToAll => kept,
        Open::ToOwner => kept / OWNER_PART,
    }
}

fn check_number(number: u64, limit: u64, kept: u64) -> Result<()> {
    if number < limit.saturating_sub(kept) {
        return Ok(());
    }
    let why = format!(
        "only the last {kept} of {limit} file descriptors are left, which are kept for other work than connections; raise LimitNOFILE"
    );
    Err(Error::new(ErrorKind::QuotaExceeded, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn most(limit: u64, listener: Open) -> usize {
        let kept = kept(limit, listener);
        (0..limit).filter(|at| check_number(*at, limit, kept).is_ok()).count()
    }

    #[test]
    fn the_last_descriptors_are_not_for_connections() {
        for (limit, all, owner) in
            [(16_384, 16_256, 16_320), (256, 192, 224), (64, 48, 56), (3, 3, 3), (0, 0, 0)]
        {
            let found = (most(limit, Open::ToAll), most(limit, Open::ToOwner));
            assert_eq!(found, (all, owner), "{limit}");
        }
    }

    #[test]
    fn the_error_names_what_is_short_and_the_mend() {
        let error = check_number(1_000, 1_024, 64).expect_err("near the limit").to_string();
        assert!(error.contains("last 64 of 1024"), "{error}");
        assert!(error.contains("raise LimitNOFILE"), "{error}");
    }

    #[test]
    fn a_descriptor_of_this_process_is_checked() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        check(&file, Open::ToAll).expect("tests have descriptors enough");
    }
}

//! A process, as others on its machine can look for it: so that nobody has to wait for one that was killed.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, io};

use guest_fleet_ledger::records::index::ProcessPart;
use rustix::process::{Pid, test_kill_process};

/// This process; `None` where it cannot be told in a way that others can look for.
pub(super) fn own() -> Option<ProcessPart> {
    let pid = std::process::id();
    // Where `/proc` is that of other process ids, nothing is found there.
    let is_own_proc = fs::read_link("/proc/self").ok()? == Path::new(&pid.to_string());
    if is_own_proc { of(pid).ok() } else { None }
}

/// A process with an id of this namespace.
fn of(pid: u32) -> io::Result<ProcessPart> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned();
    let namespace = fs::metadata("/proc/self/ns/pid")?.ino();
    Ok(ProcessPart { boot_id, namespace, pid, started: started(pid)? })
}

/// When a process started.
fn started(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name before the last parenthesis may have spaces and parentheses itself. The start is field 22.
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields.split_ascii_whitespace());
    let started = fields.and_then(|mut fields| fields.nth(19)?.parse().ok());
    started.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Whether a process of this boot and this namespace of process ids is not there any more. False where that cannot be
/// known.
pub(super) fn is_gone(process: &ProcessPart) -> bool {
    let Some(own) = own() else { return false };
    let is_near = (&own.boot_id, own.namespace) == (&process.boot_id, process.namespace);
    let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
    let Some(pid) = pid.filter(|_| is_near) else { return false };
    // Processes of others may be hidden in `/proc`, so that only a signal finds them.
    match test_kill_process(pid) {
        Err(rustix::io::Errno::SRCH) => true,
        Ok(()) | Err(_) => started(process.pid).is_ok_and(|started| started != process.started),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::sync::Arc;
    use std::time::Duration;

    use guest_fleet_ledger::records::Versioned;
    use guest_fleet_ledger::records::index::LeaseRecord;
    use guest_fleet_ledger::{Bucket, Ledger, MemoryLedger, Revision, Write};
    use prost::Message;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::fold::lease::Lease;

    fn child() -> Child {
        Command::new("sleep").arg("600").spawn().expect("there is a sleep")
    }

    fn kill(child: &mut Child) {
        child.kill().expect("it is killed");
        child.wait().expect("it ended");
    }

    #[test]
    fn a_process_is_gone_when_it_was_killed_or_another_one_has_its_id() {
        let mut child = child();
        let process = of(child.id()).expect("it is there");
        assert!(!is_gone(&process) && !is_gone(&own().expect("it is there")));
        let started = process.started + 1;
        assert!(is_gone(&ProcessPart { started, ..process.clone() }), "another one");
        kill(&mut child);
        assert!(is_gone(&process));
        // Nothing is known of others.
        let boot_id = "another boot".to_owned();
        assert!(!is_gone(&ProcessPart { boot_id, ..process.clone() }));
        let namespace = process.namespace + 1;
        assert!(!is_gone(&ProcessPart { namespace, ..process.clone() }));
        for pid in [0, u32::MAX] {
            assert!(!is_gone(&ProcessPart { pid, ..process.clone() }), "{pid}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_lease_of_a_process_that_was_killed_is_taken_at_once() {
        let ledger = MemoryLedger::new();
        let mut child = child();
        let lease = LeaseRecord {
            version: LeaseRecord::VERSION,
            owner: "killed".to_owned(),
            process: Some(of(child.id()).expect("it is there")),
            ..LeaseRecord::default()
        };
        let value = Some(lease.encode_to_vec().into());
        let write = Write { key: "x".to_owned(), expected: Revision::ABSENT, value };
        ledger.write(Bucket::Index, vec![write]).await.expect("it is written");
        let (jittered, ending) = (Arc::new(|longest| longest) as _, CancellationToken::new());
        let take = || Lease::take(&ledger, (Bucket::Index, "x"), &jittered, "next", &ending);
        let early = tokio::time::timeout(Lease::TTL - Duration::from_secs(1), take()).await;
        assert!(early.is_err(), "it is alive, and may write");
        kill(&mut child);
        let begun = Instant::now();
        take().await.expect("nothing ends");
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}

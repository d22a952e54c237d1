//! Disks that are full, and disks that fail.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::ledger::child::Writing;
use crate::ledger::crash::{Acknowledged, check};
use crate::small_disk::SmallDisk;

/// Reads lines until writes are refused, or until they are acknowledged again.
fn read_until(writing: &mut Writing, acknowledged: &mut Acknowledged, refused: bool) {
    let mut left = 20;
    while left > 0 {
        let line = writing.line().expect("it goes on");
        let before = acknowledged.refused;
        let is_written = acknowledged.take(&line);
        let is_refused = acknowledged.refused > before;
        left -= i32::from(if refused { is_refused } else { is_written });
        assert!(!acknowledged.failed, "it gave up where it could wait");
    }
}

/// Kills the child and takes what it said last.
fn end(mut writing: Writing, acknowledged: &mut Acknowledged) {
    writing.kill();
    while let Some(line) = writing.line() {
        acknowledged.take(&line);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_on_the_size_of_files_refuses_writes_until_it_is_lifted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ledger");
    let mut acknowledged = Acknowledged::default();
    // Blocks of 512 bytes, in any shell; the signal that would end the process is ignored.
    let shell = "trap '' XFSZ; ulimit -S -f 4096;";
    let mut writing = Writing::start(&file, 100_000, shell);
    read_until(&mut writing, &mut acknowledged, true);
    writing.say("lift");
    read_until(&mut writing, &mut acknowledged, false);
    end(writing, &mut acknowledged);
    check(&file, &mut acknowledged).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_writes_until_there_is_room() {
    // The log grows by each write. The room that comes is several times what the awaited writes take: a log
    // that fills it before a checkpoint leaves no room for the checkpoint either.
    let Some(disk) = SmallDisk::mount(19) else { return };
    let file = disk.path().join("ledger");
    let ballast = disk.path().join("ballast");
    std::fs::write(&ballast, vec![7; 16 << 20]).expect("there is room");
    let mut acknowledged = Acknowledged::default();
    let mut writing = Writing::start(&file, 100_000, "");
    read_until(&mut writing, &mut acknowledged, true);
    std::fs::remove_file(&ballast).expect("it goes");
    read_until(&mut writing, &mut acknowledged, false);
    end(writing, &mut acknowledged);
    std::fs::write(disk.path().join("room"), "").expect("the folder is usable");
    check(&file, &mut acknowledged).await;
}

/// A library that lets `fsync` and `fdatasync` fail while a file exists.
fn failing_disk(folder: &Path) -> Option<PathBuf> {
    let source = folder.join("failing.c");
    let library = folder.join("failing.so");
    let code = r#"
        #define _GNU_SOURCE
        #include <errno.h>
        #include <stdlib.h>
        #include <sys/syscall.h>
        #include <unistd.h>
        static int failing(void) {
            const char *flag = getenv("FAILING_DISK");
            return flag && access(flag, F_OK) == 0;
        }
        int fsync(int fd) {
            if (failing()) { errno = EIO; return -1; }
            return (int)syscall(SYS_fsync, fd);
        }
        int fdatasync(int fd) {
            if (failing()) { errno = EIO; return -1; }
            return (int)syscall(SYS_fdatasync, fd);
        }
    "#;
    std::fs::write(&source, code).expect("it is written");
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).output();
    made.is_ok_and(|it| it.status.success()).then_some(library)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_does_not_keep_what_it_took_ends_the_writing() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = failing_disk(folder.path()) else {
        eprintln!("skipped: there is no C compiler to make a disk that fails with");
        return;
    };
    let file = folder.path().join("ledger");
    let flag = folder.path().join("flag");
    let mut acknowledged = Acknowledged::default();
    let shell =
        format!("export FAILING_DISK='{}' LD_PRELOAD='{}';", flag.display(), library.display());
    let mut writing = Writing::start(&file, 50, &shell);
    read_until(&mut writing, &mut acknowledged, false);
    std::fs::write(&flag, "").expect("the disk fails from now on");
    while !acknowledged.failed {
        let line = writing.line().expect("it says that it failed");
        acknowledged.take(&line);
    }
    // The disk works again, and still nothing is taken.
    std::fs::remove_file(&flag).expect("it goes");
    let mut refused = 0;
    while refused < 100 {
        let line = writing.line().expect("it goes on");
        // A writer may have been about to say what it got before.
        assert!(!acknowledged.take(&line) || refused < 20, "{line} after the disk failed");
        refused += i32::from(line == "refused");
    }
    end(writing, &mut acknowledged);
    check(&file, &mut acknowledged).await;
}

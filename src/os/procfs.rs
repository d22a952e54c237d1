//! Reads from `/proc` what identifies processes and relates them to each other.
//!
//! Called by `tree` (who belongs to a plugin), `pidfd` (is this still the same process) and the
//! meter. Everything here blocks for as long as the kernel takes; a sweep over all processes
//! belongs on a blocking thread. Nothing here decides or signals anything.

use std::fs;
use std::io::Read;
use std::os::fd::AsFd;

use rustix::fs::{CWD, Mode, OFlags, openat};

/// Longer than any `/proc/<pid>/stat`: 51 numbers of up to 20 digits.
const STAT_MAX: usize = 2048;

/// Most that is looked at of an environment or of arguments. The agent's own variables sort first
/// in what it hands to a plugin, so they are found in a longer one as well unless the plugin moved
/// them.
const BYTES_MAX: u64 = 1024 * 1024;

/// The flag of a thread of the kernel, which no program runs in and which has no environment
/// (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Most threads of a process that are asked for its memory: the first that lives knows it.
const THREADS_MAX: usize = 64;

/// The flag of a thread that ends (`PF_EXITING`).
const EXITING: u64 = 0x0000_0004;

/// What `/proc/<pid>/stat` says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Process id.
    pub(crate) pid: u32,
    /// Whether it waits for a device or a lock and cannot be interrupted.
    pub(crate) stuck: bool,
    /// Whether it has ended and only waits to be reaped. A process whose main thread has ended is
    /// not, as long as it has others.
    pub(crate) dead: bool,
    /// Whether it is a thread of the kernel.
    pub(crate) of_kernel: bool,
    /// Whether its main thread has begun to end (`PF_EXITING`). Other threads may go on; the kernel
    /// then says neither its control groups of version 1 nor its environment.
    pub(crate) exiting: bool,
    /// Its parent.
    pub(crate) parent: u32,
    /// Its session, named by the pid of the process that made it.
    pub(crate) session: u32,
    /// Clock ticks from boot to its start (field 22).
    pub(crate) start_ticks: u64,
    /// CPU time of the children it has waited for, theirs included, in clock ticks.
    pub(crate) waited_ticks: u64,
    /// CPU time of its own, in clock ticks.
    pub(crate) own_ticks: u64,
    /// Resident memory, in pages.
    pub(crate) resident_pages: u64,
    /// From where to where its environment lies in its memory (fields 50 and 51); zeros where one
    /// may not know.
    pub(crate) environ: (u64, u64),
}

/// Reads one process, also a dead one that was not reaped; `None` when there is no such process.
pub(crate) fn stat(pid: u32) -> Option<Stat> {
    read_stat(CWD, format!("/proc/{pid}/stat"), pid)
}

fn read_stat(dir: impl AsFd, path: impl rustix::path::Arg, pid: u32) -> Option<Stat> {
    let file = openat(dir, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    // Numbers and a name of at most 64 bytes. The kernel writes it in one piece.
    let mut text = [0; STAT_MAX];
    let length = rustix::io::read(&file, &mut text).ok()?;
    let mut stat = parse(pid, &text[..length])?;
    if stat.exiting && !stat.dead {
        // The main thread has given the memory up; the other threads have it.
        stat.resident_pages = resident_pages_of_threads(pid).unwrap_or(stat.resident_pages);
    }
    Some(stat)
}

/// The resident memory of a process, in pages, as one of its threads has it.
fn resident_pages_of_threads(pid: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten().take(THREADS_MAX);
    threads
        .filter_map(|thread| {
            let text = fs::read(thread.path().join("stat")).ok()?;
            parse(pid, &text).map(|thread| thread.resident_pages)
        })
        .find(|pages| *pages > 0)
}

/// Reads all processes. One that vanishes meanwhile is missing in the answer; `None` when even this
/// process is, for such a listing says nothing of the others.
pub(crate) fn all() -> Option<Vec<Stat>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = openat(CWD, c"/proc", flags, Mode::empty()).ok()?;
    let entries = fs::read_dir("/proc").ok()?;
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<Stat> =
        pids.filter_map(|pid: u32| read_stat(&proc, format!("{pid}/stat"), pid)).collect();
    let me = std::process::id();
    all.iter().any(|process| process.pid == me).then_some(all)
}

/// The environment a process was started with: `KEY=value` items, each ended by a NUL. `None` when
/// it may not be read or the process has ended.
pub(crate) fn environ(pid: u32) -> Option<Vec<u8>> {
    read_bytes(&format!("/proc/{pid}/environ"))
}

/// What a process was started with: its arguments, its own name first, each ended by a NUL.
pub(crate) fn arguments(pid: u32) -> Option<Vec<u8>> {
    read_bytes(&format!("/proc/{pid}/cmdline"))
}

/// The users a process runs as: real and effective. A set-uid program that an ordinary user started
/// shows that user as the real one.
pub(crate) fn users(pid: u32) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut users = line.split_ascii_whitespace().map_while(|user| user.parse().ok());
    Some((users.next()?, users.next()?))
}

/// The user who logged in, in whose session a process is, whatever user it runs as now. `None` where
/// nobody did, as for services.
pub(crate) fn login(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/loginuid")).ok()?;
    text.trim().parse().ok().filter(|user| *user != u32::MAX)
}

/// The value of a variable in what `environ` returned.
pub(crate) fn variable<'a>(environ: &'a [u8], key: &str) -> Option<&'a [u8]> {
    environ
        .split(|&byte| byte == 0)
        .find_map(|item| item.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
}

/// Memory of a process in bytes, of what it shares with others only its part. `None` when it may
/// not be read or the process has ended. The kernel looks at all of its pages for this.
pub(crate) fn proportional_memory(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    bytes_of(&rollup, "Pss:")
}

/// Bytes that all programs together have written and no disk has yet. `None` where the kernel does
/// not say.
pub(crate) fn unwritten() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    bytes_of(&text, "Dirty:")?.checked_add(bytes_of(&text, "Writeback:")?)
}

/// The amount after a key, in a text with one `key number kB` in each line.
fn bytes_of(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn read_bytes(path: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path).ok()?.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// A program may put anything into its own name, brackets and spaces too, so the fields are counted
/// from the last bracket.
fn parse(pid: u32, text: &[u8]) -> Option<Stat> {
    let end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&text[end + 1..]).ok()?;
    // The first of these is field 3.
    let mut fields = [""; 49];
    for (field, found) in fields.iter_mut().zip(rest.split_ascii_whitespace()) {
        *field = found;
    }
    let field = |number: usize| fields.get(number - 3).copied().filter(|text| !text.is_empty());
    let ticks = |number: usize| field(number)?.parse::<u64>().ok();
    Some(Stat {
        pid,
        stuck: field(3)? == "D",
        dead: matches!(field(3)?, "Z" | "X") && ticks(20)? < 2,
        of_kernel: ticks(9)? & KERNEL_THREAD != 0,
        exiting: ticks(9)? & EXITING != 0,
        parent: field(4)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        start_ticks: ticks(22)?,
        waited_ticks: ticks(16)?.saturating_add(ticks(17)?),
        own_ticks: ticks(14)?.saturating_add(ticks(15)?),
        resident_pages: ticks(24)?,
        environ: ticks(50).zip(ticks(51)).unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_brackets_does_not_shift_the_fields() {
        let text = "7 (a) R 1 2 (b)) S 41 42 43 0 -1 4194304 0 0 0 0 5 6 70 80 20 0 1 0 990 0 0";
        let stat = parse(7, text.as_bytes()).expect("fields");
        assert_eq!((stat.parent, stat.session), (41, 43));
        assert_eq!((stat.waited_ticks, stat.start_ticks), (150, 990));
        assert_eq!((stat.own_ticks, stat.resident_pages, stat.dead), (11, 0, false));
    }

    #[test]
    fn text_that_is_no_stat_is_no_process() {
        for text in ["", ")", "7 (x) S", "7 (x) S a b c d e f g h i j k l m n o p q r s t u"] {
            assert_eq!(parse(7, text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn threads_of_the_kernel_are_told_from_programs() {
        let kernel = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 5 0 0 20 0 1 0 1 0 0";
        assert!(parse(2, kernel.as_bytes()).expect("fields").of_kernel);
        let me = stat(std::process::id()).expect("this process");
        assert!(!me.of_kernel && !me.exiting);
        let leaving = "2 (x) Z 0 0 0 0 -1 4228364 0 0 0 0 0 5 0 0 20 0 1 0 1 0 0";
        assert!(parse(2, leaving.as_bytes()).expect("fields").exiting);
    }

    #[test]
    fn this_process_has_memory() {
        let me = stat(std::process::id()).expect("this process");
        assert!(me.resident_pages > 0 && !me.dead);
        let memory = proportional_memory(me.pid).expect("one may look at oneself");
        assert!(memory > 0 && memory.is_multiple_of(1024));
        assert_eq!(proportional_memory(0), None);
    }

    #[test]
    fn a_process_whose_main_thread_has_ended_lives_and_has_memory() {
        let zombie = "7 (x) Z 1 7 7 0 -1 4 0 0 0 0 5 6 0 0 20 0 1 0 990 0 0";
        assert!(parse(7, zombie.as_bytes()).expect("fields").dead);
        let script = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(60,)).start()\n\
            ctypes.CDLL(None).syscall(60 if __import__('platform').machine() == 'x86_64' else 93, 0)";
        let spawned = std::process::Command::new("python3").args(["-c", script]).spawn();
        let Ok(mut child) = spawned else {
            eprintln!("skipped: no python3, whose main thread could end before another");
            return;
        };
        let give_up = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let found = loop {
            let found = stat(child.id()).expect("it was not reaped");
            if found.exiting || std::time::Instant::now() > give_up {
                break found;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        child.kill().expect("a signal to our child");
        child.wait().expect("our child");
        assert!(found.exiting && !found.dead, "{found:?}");
        assert!(found.resident_pages > 0, "{found:?}");
    }

    #[test]
    fn the_kernel_says_how_much_is_unwritten() {
        let unwritten = unwritten().expect("Linux says it");
        assert_eq!(unwritten % 1024, 0);
    }

    #[test]
    fn this_process_is_among_all() {
        let me = stat(std::process::id()).expect("this process");
        assert!(
            all()
                .expect("a listing")
                .iter()
                .any(|s| s.pid == me.pid && s.start_ticks == me.start_ticks)
        );
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let environ = b"AB=1\0B=2\0C=\0";
        assert_eq!(variable(environ, "B"), Some(&b"2"[..]));
        assert_eq!(variable(environ, "C"), Some(&b""[..]));
        assert_eq!(variable(environ, "A"), None);
    }
}

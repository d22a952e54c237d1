//! Lets go of the parts of the program that only its start, or a burst of work, has needed.
//!
//! The kernel maps the sixteen pages around each that is touched, and keeps them mapped. After a start most of the
//! code is resident, though an idle agent runs little of it. Nothing is lost by letting go: the pages stay in the
//! cache of the file, where the kernel takes them from when it needs memory, and what is run again is mapped
//! again, at a microsecond for sixteen pages. `agent` runs this.
//!
//! One of the places with `unsafe`.

use std::time::Duration;

use rustix::mm::Advice;

/// The start is over then.
const FIRST: Duration = Duration::from_secs(2);

/// What was needed meanwhile may not be needed now.
const AGAIN: Duration = Duration::from_secs(30);

/// Lets go, now and again, for as long as it is polled.
pub(crate) async fn stay_small() {
    let mut pause = FIRST;
    loop {
        tokio::time::sleep(pause).await;
        let code = own_code();
        let bytes: usize = code.iter().map(|code| code.length).sum();
        code.iter().for_each(Code::let_go);
        tracing::debug!(bytes, "let go of the code that is not being used");
        pause = AGAIN;
    }
}

/// A part of memory that shows the program's own code.
#[derive(Debug, PartialEq, Eq)]
struct Code {
    begin: usize,
    length: usize,
}

impl Code {
    #[expect(unsafe_code, reason = "the compiler cannot know what is behind an address")]
    fn let_go(&self) {
        // SAFETY: `own_code` answers with private mappings of the program's own file that can be executed and not
        // written. What this process never wrote is the content of the file: dropping it has the kernel read the
        // same bytes again at the next access, from an inode that it keeps and whose file cannot be written while it
        // is executed. Nothing of the program is linked in a way that has the loader write into its code. The
        // mapping itself stays, so no address becomes invalid, also if it is in use meanwhile.
        let done = unsafe {
            rustix::mm::madvise(self.begin as *mut _, self.length, Advice::LinuxDontNeed)
        };
        if let Err(error) = done {
            tracing::debug!(%error, "code stays mapped");
        }
    }
}

/// Where this program's code is; nothing where the system does not say.
fn own_code() -> Vec<Code> {
    let (Ok(program), Ok(maps)) =
        (std::fs::read_link("/proc/self/exe"), std::fs::read_to_string("/proc/self/maps"))
    else {
        return Vec::new();
    };
    let Some(program) = program.to_str() else { return Vec::new() };
    maps.lines().filter_map(|line| code_of(line, program)).collect()
}

/// What a line of `/proc/<pid>/maps` says, if it is of a program's code: addresses, rights, offset, device, inode and
/// path.
fn code_of(line: &str, program: &str) -> Option<Code> {
    let (head, path) = line.split_at_checked(line.find('/')?)?;
    let mut fields = head.split_ascii_whitespace();
    let (begin, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp" && path == program;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let begin = address(begin)?;
    let length = address(end)?.checked_sub(begin)?;
    is_code.then_some(Code { begin, length })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_itself_is_let_go() {
        let of = |line| code_of(line, "/usr/bin/guest-agent");
        let line = "7f10-7f30 r-xp 00001000 fe:00 1234      /usr/bin/guest-agent";
        assert_eq!(of(line), Some(Code { begin: 0x7f10, length: 0x20 }));
        for other in [
            "7f10-7f30 r--p 00001000 fe:00 1234      /usr/bin/guest-agent",
            "7f10-7f30 rw-p 00001000 fe:00 1234      /usr/bin/guest-agent",
            "7f10-7f30 r-xs 00001000 fe:00 1234      /usr/bin/guest-agent",
            "7f10-7f30 r-xp 00001000 fe:00 1234      /usr/lib/libc.so.6",
            "7f10-7f30 r-xp 00001000 fe:00 1234      /usr/bin/guest-agent (deleted)",
            "7f10-7f30 rwxp 00000000 00:00 0",
            "7f30-7f10 r-xp 00001000 fe:00 1234      /usr/bin/guest-agent",
            "ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]",
            "x-y r-xp / /usr/bin/guest-agent",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn a_program_runs_on_without_its_code_in_memory() {
        let code = own_code();
        assert!(!code.is_empty(), "this program has code");
        let running = std::thread::spawn(|| (0..1_000_000_u64).map(|it| it % 7).sum::<u64>());
        for _ in 0..100 {
            code.iter().for_each(Code::let_go);
        }
        assert_eq!(running.join().unwrap(), 2_999_997);
        assert_eq!(own_code(), code, "nothing is unmapped");
    }
}

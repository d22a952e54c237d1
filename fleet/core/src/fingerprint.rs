//! What failures of one cause have in common.

/// Longest fingerprint, in bytes.
const BYTES: usize = 120;

/// Fewest digits of a number that differs from machine to machine: a process id, a size, a port. Shorter
/// ones are exit codes and signals, which tell causes apart.
const LONG: usize = 4;

/// The fingerprint of a failure: what happened, and its reason without what differs from machine to
/// machine: long numbers, digests, and the values of quoted paths below the first folder.
#[must_use]
pub fn fingerprint(what: &str, reason: &str) -> String {
    let mut print = format!("{what}: ");
    for (at, word) in reason.split_whitespace().enumerate() {
        if print.len() >= BYTES {
            break;
        }
        if at > 0 {
            print.push(' ');
        }
        plain(word, &mut print);
    }
    print.truncate(print.floor_char_boundary(BYTES));
    print.truncate(print.trim_end_matches([' ', ':']).len());
    print
}

/// The cause of an order's end, and its reason: `what` and the reason that came with the end, or the crash that led to it.
///
/// The event of the crash and the outcome that follows it come one after the other, or no outcome comes, and each agent
/// is seen between the two or after both: the cause is the crash either way. So where the reason begins with that of
/// one of the `crashes` since the order, or is empty, the cause is that crash.
pub fn cause<'a>(
    what: &'a str,
    reason: &'a str,
    crashes: impl IntoIterator<Item = &'a str>,
) -> (&'a str, &'a str) {
    let is_cause = |crash: &&str| reason.is_empty() || begins_with(reason, crash);
    let crash = crashes.into_iter().find(is_cause);
    crash.map_or((what, reason), |crash| ("crashed", crash))
}

/// Whether the reason of an outcome begins with that of a crash, as a whole.
fn begins_with(outcome: &str, crash: &str) -> bool {
    let rest = outcome.strip_prefix(crash).filter(|_| !crash.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ';']))
}

/// Adds a word with `#` for each run of letters and digits that only one machine has.
fn plain(word: &str, print: &mut String) {
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        if !first.is_alphanumeric() {
            print.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
        let (run, after) = rest.split_at(end);
        // `a1b2c3d4-e5f6-…` is one thing.
        let goes_on = print.ends_with("#-") && run.chars().all(|c| c.is_ascii_hexdigit());
        if goes_on {
            print.pop();
        } else if is_of_one_machine(run) {
            print.push('#');
        } else {
            print.push_str(run);
        }
        rest = after;
    }
}

/// Whether a run of letters and digits is a long number, or so many hexadecimal digits with a decimal
/// one among them.
fn is_of_one_machine(run: &str) -> bool {
    let digits = run.chars().filter(char::is_ascii_digit).count();
    let is_hexadecimal = run.len() >= 2 * LONG && run.chars().all(|c| c.is_ascii_hexdigit());
    (digits == run.len() && digits >= LONG) || (is_hexadecimal && digits > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn same(one: &str, other: &str) {
        assert_eq!(fingerprint("failed", one), fingerprint("failed", other));
    }

    #[test]
    fn what_differs_from_machine_to_machine_is_left_out() {
        same("process 12345 ended with exit code 3", "process 67890 ended with exit code 3");
        same("no space on /dev/sda1: 409600 bytes", "no space on /dev/sda1: 8192 bytes");
        same(
            "digest 0a1b2c3d4e5f60718293a4b5c6d7e8f9 was expected",
            "digest 99887766554433221100ffeeddccbbaa was expected",
        );
        same(
            "boot 6fa459ea-ee8a-3ca4-894e-db77e160355e",
            "boot 16fd2706-8baf-433b-82eb-8c7fada847da",
        );
    }

    #[test]
    fn causes_are_told_apart() {
        let print = |reason| fingerprint("failed", reason);
        assert_ne!(print("exit code 3"), print("exit code 4"));
        assert_ne!(print("signal 9"), print("signal 11"));
        assert_ne!(fingerprint("failed", "x"), fingerprint("taken back", "x"));
        assert_eq!(print("exit code 3"), "failed: exit code 3");
        assert_eq!(fingerprint("silent", ""), "silent");
    }

    #[test]
    fn the_cause_of_an_end_is_the_crash_that_its_reason_begins_with() {
        let crashes = ["signal 9", "exit code 3"];
        let of = |reason| cause("failed", reason, crashes);
        assert_eq!(of("exit code 3"), ("crashed", "exit code 3"));
        assert_eq!(of("exit code 3, while on probation"), ("crashed", "exit code 3"));
        assert_eq!(of("signal 9; and more"), ("crashed", "signal 9"));
        assert_eq!(of(""), ("crashed", "signal 9"), "nobody said why");
        assert_eq!(of("exit code 31"), ("failed", "exit code 31"));
        assert_eq!(of("no space left"), ("failed", "no space left"));
        assert_eq!(cause("failed", "x", [""]), ("failed", "x"), "the crash has no reason");
        assert_eq!(cause("silent", "", []), ("silent", ""));
    }

    #[test]
    fn it_is_bounded_whatever_the_reason() {
        for reason in ["ä".repeat(1000), " x".repeat(1000), "9".repeat(5000), "a-".repeat(999)] {
            assert!(fingerprint("failed", &reason).len() <= BYTES);
        }
    }
}

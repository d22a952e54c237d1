//! Crash points: named places where a test ends the agent as `kill -9` would.
//!
//! The code calls [`reach`] before and after it makes something durable, and where an effect begins
//! and ends. Without the feature `crash-points`, which only tests have, the call does nothing. With
//! it, and with the environment variables below, every point that is reached is written to a file
//! (its last line is where the agent died), and at the wanted one the process kills itself: no
//! destructor runs, nothing is flushed, plugins run on.
//!
//! ```text
//! GUEST_AGENT_CRASH_POINTS=FILE             one line per reached point: `begin launch (echo) #2`
//! GUEST_AGENT_CRASH_AT='begin launch (echo) #2'    the point to die at, as such a line …
//! GUEST_AGENT_CRASH_AT=7                           … or as the number of one
//! ```
//!
//! A point is identified by its subject and how often it was reached before for it, not by its
//! place in one total order: tasks that run side by side come in any order.
//! `tests/agent/crash_points.rs` kills the agent at every point.

use crate::ports::Write;

/// The labels of what a commit contains. Empty where there are no crash points.
#[derive(Debug, Default)]
pub(crate) struct Labels(#[cfg(feature = "crash-points")] Vec<(String, String)>);

/// Reports that a point was reached: `moment` and `what` name it, `subject` is the plugin, or
/// another name that tells points of one name apart. May not return.
#[inline]
pub fn reach(moment: &str, what: &str, subject: &str) {
    #[cfg(feature = "crash-points")]
    armed::reach(moment, what, subject);
    #[cfg(not(feature = "crash-points"))]
    {
        // The parameters are named, so that no caller has to be changed.
        let _ = (moment, what, subject);
    }
}

// === impl Labels ===

impl Labels {
    /// Adds what one sender wants to have written. One write stands for all of them: the first, but
    /// for counters that come along.
    #[inline]
    pub(crate) fn add(&mut self, writes: &[Write]) {
        #[cfg(feature = "crash-points")]
        if let Some(write) = writes.iter().find(|it| !armed::is_fact(it)).or(writes.first()) {
            self.0.push(armed::label(write));
        }
        #[cfg(not(feature = "crash-points"))]
        {
            let _ = writes;
        }
    }

    /// Says for each of them that a point was reached.
    #[inline]
    pub(crate) fn reach(&self, moment: &str) {
        #[cfg(feature = "crash-points")]
        for (what, subject) in &self.0 {
            armed::reach(moment, what, subject);
        }
        #[cfg(not(feature = "crash-points"))]
        {
            let _ = moment;
        }
    }
}

#[cfg(feature = "crash-points")]
mod armed {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::io::Write as _;
    use std::sync::{Mutex, OnceLock, PoisonError};

    use crate::ports::{Table, Write};

    struct Hook {
        log: File,
        wanted: Option<String>,
        reached: Mutex<Reached>,
    }

    #[derive(Default)]
    struct Reached {
        total: u64,
        by_name: BTreeMap<String, u64>,
    }

    pub(super) fn reach(moment: &str, what: &str, subject: &str) {
        static HOOK: OnceLock<Option<Hook>> = OnceLock::new();
        if let Some(hook) = HOOK.get_or_init(Hook::from_environment) {
            hook.reach(format!("{moment} {what} ({subject})"));
        }
    }

    pub(super) fn is_fact(write: &Write) -> bool {
        let (Write::Put { table, .. } | Write::Delete { table, .. }) = write;
        *table == Table::Facts
    }

    pub(super) fn label(write: &Write) -> (String, String) {
        let (verb, table, key) = match write {
            Write::Put { table, key, .. } => ("save", table, key),
            Write::Delete { table, key } => ("delete", table, key),
        };
        // Other keys are numbers, and differ from run to run.
        let subject = match table {
            Table::Plugins => String::from_utf8_lossy(key).into_owned(),
            _ => String::new(),
        };
        (format!("{verb} {table:?}"), subject)
    }

    // === impl Hook ===

    impl Hook {
        #[expect(
            clippy::disallowed_methods,
            reason = "a hook of tests in every floor of the agent cannot be handed down to each"
        )]
        fn from_environment() -> Option<Self> {
            let path = std::env::var("GUEST_AGENT_CRASH_POINTS").ok()?;
            let wanted = std::env::var("GUEST_AGENT_CRASH_AT").ok();
            let log = File::options().create(true).append(true).open(path);
            let log = log.expect("the file for crash points can be written");
            Some(Self { log, wanted, reached: Mutex::default() })
        }

        fn reach(&self, name: String) {
            // Held to the end: no other point is reached after the one at which the process kills
            // itself.
            let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
            reached.total += 1;
            let total = reached.total;
            let count = reached.by_name.entry(name.clone()).or_default();
            *count += 1;
            let line = format!("{name} #{count}\n");
            (&self.log).write_all(line.as_bytes()).expect("the file for crash points takes a line");
            let is_wanted = self.wanted.as_deref().is_some_and(|wanted| {
                wanted == line.trim_end() || wanted.parse().is_ok_and(|number: u64| number == total)
            });
            if is_wanted {
                let me = rustix::process::getpid();
                rustix::process::kill_process(me, rustix::process::Signal::KILL)
                    .expect("a process may kill itself");
                loop {
                    std::thread::park();
                }
            }
        }
    }
}

//! A process that listens on the agent's socket and does not answer, as the kernel shows it.
//!
//! Nothing here asks the process anything. The kernel may take long over a process that waits for a
//! device, so the caller looks on a thread of its own and gives up by itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::launch::variables::{PLUGIN_VARIABLE, STATE_DIR_VARIABLE};
use crate::os::procfs;

/// The name of the agent's program. The kernel says it to everybody; the path of the program it says
/// only to its user and to root.
const AGENT: &str = "guest-agent";

/// Most threads that are looked at.
const THREADS_MAX: usize = 256;

/// Most calls of the kernel that are shown, the innermost first.
const FRAMES_MAX: usize = 6;

/// Most plugins that are named.
const NAMED_MAX: usize = 12;

/// Most descriptors that are looked at for the lock of the state directory.
const DESCRIPTORS_MAX: usize = 4096;

/// A process that does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Silent {
    /// The process.
    pub(crate) pid: u32,
    /// The name of its program.
    name: String,
    /// Its state.
    state: State,
    /// How long it has run.
    age: Option<Duration>,
    /// The process that traces it.
    tracer: Option<u32>,
    /// The calls of the kernel that it waits in, where the caller may know.
    kernel: Vec<String>,
    /// Its state directory, and the mount that the directory is on, where the caller may know.
    state_dir: Option<(PathBuf, String)>,
    /// Plugins that run, each with the process that is the first of its session.
    plugins: BTreeMap<String, u32>,
}

/// The state of a process, by the letter of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// T: a signal stopped it.
    Stopped,
    /// t: a debugger stopped it.
    Traced,
    /// D: a thread of it waits in the kernel, and no signal reaches that thread.
    Stuck,
    /// Z or X: it has ended.
    Ended,
    /// Another one: it runs, or waits for something to happen.
    #[default]
    Alive,
}

// === impl Silent ===

impl Silent {
    /// Looks at a process. Blocks; `None` where there is no such process.
    pub(crate) fn look_at(pid: u32) -> Option<Self> {
        let stat = procfs::stat(pid)?;
        let proc = PathBuf::from(format!("/proc/{pid}"));
        let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
        let status = fs::read_to_string(proc.join("status")).unwrap_or_default();
        let (state, thread) = state_of(&proc);
        let state_dir = state_dir_of(&proc);
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        Some(Self {
            pid,
            name: name.trim().to_owned(),
            state,
            age: age_of(stat.start_ticks),
            tracer: field(&status, "TracerPid:")
                .and_then(|pid| pid.parse().ok())
                .filter(|it| *it > 0),
            kernel: thread.map(|thread| kernel_of(&thread)).unwrap_or_default(),
            plugins: plugins_below(state_dir.as_deref()),
            state_dir: state_dir.map(|dir| {
                let mount = mount_of(&mounts, &dir).unwrap_or_default();
                (dir, mount)
            }),
        })
    }

    /// Whether waiting for it is of no use. A thread in the kernel comes back soon on a machine that is only
    /// slow.
    pub(crate) fn stays_silent(&self) -> bool {
        match self.state {
            State::Stopped | State::Traced | State::Ended => true,
            State::Stuck | State::Alive => !self.is_agent(),
        }
    }

    /// Its state, in words.
    pub(crate) fn what(&self) -> String {
        let (pid, name) = (self.pid, &self.name);
        if !self.is_agent() {
            return format!(
                "process {pid} ({name}) listens on the agent's socket and is not the agent"
            );
        }
        match (self.state, self.tracer) {
            (State::Stopped, _) => format!("its process {pid} is stopped by a signal (state T)"),
            (State::Traced, Some(tracer)) => {
                format!(
                    "its process {pid} is stopped by process {tracer}, which traces it (state t)"
                )
            }
            (State::Traced, None) => format!("its process {pid} is stopped by a tracer (state t)"),
            (State::Stuck, _) => {
                format!("its process {pid} waits for a device or a file system (state D)")
            }
            (State::Ended, _) => {
                format!("its process {pid} has ended and was not waited for (state Z)")
            }
            (State::Alive, _) => format!("its process {pid} is there and silent"),
        }
    }

    /// Other facts about it.
    pub(crate) fn facts(&self) -> Vec<String> {
        let mut facts = Vec::new();
        if let Some(age) = self.age {
            facts.push(format!("process {} was started {} ago", self.pid, in_words(age)));
        }
        if !self.kernel.is_empty() {
            facts.push(format!("in the kernel it is in {}", self.kernel.join(" < ")));
        }
        if let (State::Stuck, Some((dir, mount))) = (self.state, &self.state_dir)
            && !mount.is_empty()
        {
            facts.push(format!("its state directory {} is on {mount}", dir.display()));
        }
        let named: Vec<_> = self
            .plugins
            .iter()
            .take(NAMED_MAX)
            .map(|(name, pid)| format!("{name} ({pid})"))
            .collect();
        let more = self.plugins.len().saturating_sub(named.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        if !named.is_empty() {
            facts.push(format!("plugins that run on: {}{more}", named.join(", ")));
        }
        facts
    }

    /// The fix.
    pub(crate) fn fix(&self) -> String {
        let pid = self.pid;
        let restart = "`systemctl restart guest-agent`";
        if !self.is_agent() {
            return format!(
                "end process {pid}, then {restart}; or name the agent's socket with --socket"
            );
        }
        match self.state {
            State::Stopped => {
                format!("let it go on with `kill -CONT {pid}`, or start it afresh with {restart}")
            }
            State::Traced => format!("end the tracer, or start the agent afresh with {restart}"),
            State::Stuck => {
                "mend the device or the mount that it waits for; until then a restart of \
                             the service waits as well, and plugins run on"
                    .to_owned()
            }
            State::Ended => format!("start it with {restart}"),
            State::Alive => format!(
                "try again; where it stays silent, keep its log and start it afresh with {restart}, \
                 which no plugin notices"
            ),
        }
    }

    /// Whether it is an agent: by its name, or, under another one, by the lock of a state directory.
    fn is_agent(&self) -> bool {
        self.name == AGENT || self.state_dir.is_some()
    }
}

/// The state of a process and the folder of the thread that shows it: the first that waits in the
/// kernel, or the main one.
fn state_of(proc: &Path) -> (State, Option<PathBuf>) {
    let letter = |dir: &Path| {
        let stat = fs::read_to_string(dir.join("stat")).ok()?;
        stat.rsplit_once(')')?.1.trim_start().chars().next()
    };
    let main = match letter(proc) {
        Some('T') => State::Stopped,
        Some('t') => State::Traced,
        Some('Z' | 'X') => State::Ended,
        _ => State::Alive,
    };
    let threads = fs::read_dir(proc.join("task")).into_iter().flatten().flatten();
    let mut threads = threads.take(THREADS_MAX).map(|thread| thread.path());
    match threads.find(|thread| letter(thread) == Some('D')) {
        Some(stuck) if main == State::Alive => (State::Stuck, Some(stuck)),
        _ => (main, Some(proc.to_owned())),
    }
}

/// The calls of the kernel that a thread waits in, the innermost first.
fn kernel_of(thread: &Path) -> Vec<String> {
    let stack = fs::read_to_string(thread.join("stack")).unwrap_or_default();
    let frames = frames(&stack);
    if !frames.is_empty() {
        return frames;
    }
    let wchan = fs::read_to_string(thread.join("wchan")).unwrap_or_default();
    Some(wchan.trim().to_owned())
        .filter(|wchan| !matches!(&**wchan, "" | "0"))
        .into_iter()
        .collect()
}

/// The names in a stack as the kernel writes it: `[<0>] do_signal_stop+0xe3/0x190`.
fn frames(stack: &str) -> Vec<String> {
    let frames = stack.lines().filter_map(|line| line.split_once("] ")?.1.split('+').next());
    frames.take(FRAMES_MAX).map(str::to_owned).collect()
}

/// How long ago a process was started. Both counts begin with the machine.
fn age_of(start_ticks: u64) -> Option<Duration> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::try_from_secs_f64(uptime)
        .ok()?
        .checked_sub(Duration::from_secs(start_ticks / per_second))
}

/// The state directory of an agent, by the lock that it holds there. Only its user and root may look.
fn state_dir_of(proc: &Path) -> Option<PathBuf> {
    let descriptors = fs::read_dir(proc.join("fd")).ok()?.flatten().take(DESCRIPTORS_MAX);
    let mut files = descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    files.find(|file| file.is_absolute() && file.ends_with("lock"))?.parent().map(Path::to_owned)
}

/// The source, the type and the place of the mount that a path is on.
fn mount_of(mounts: &str, path: &Path) -> Option<String> {
    let parsed = mounts.lines().filter_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let point = left.split(' ').nth(4)?;
        let mut right = right.split(' ');
        let (kind, source) = (right.next()?, right.next()?);
        path.starts_with(point).then(|| (point, format!("{source} ({kind}) at {point}")))
    });
    // A later mount covers an earlier one.
    parsed.max_by_key(|(point, _)| point.len()).map(|(_, mount)| mount)
}

/// The plugins that have a process, of an agent with this state directory.
fn plugins_below(state_dir: Option<&Path>) -> BTreeMap<String, u32> {
    let mut plugins = BTreeMap::new();
    for process in procfs::all().unwrap_or_default() {
        // The agent starts the first of a session. The kernel may take long over one that is stuck.
        if process.session != process.pid || process.dead || process.stuck {
            continue;
        }
        let Some(environ) = procfs::environ(process.pid) else { continue };
        let text =
            |key| Some(String::from_utf8_lossy(procfs::variable(&environ, key)?).into_owned());
        let (Some(name), Some(dir)) = (text(PLUGIN_VARIABLE), text(STATE_DIR_VARIABLE)) else {
            continue;
        };
        if state_dir.is_none_or(|state_dir| Path::new(&dir).starts_with(state_dir)) {
            // A later one is a descendant that made a session of its own.
            let first = plugins.entry(name).or_insert((process.start_ticks, process.pid));
            *first = (*first).min((process.start_ticks, process.pid));
        }
    }
    plugins.into_iter().map(|(name, (_, pid))| (name, pid)).collect()
}

fn field<'a>(status: &'a str, key: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

fn in_words(age: Duration) -> String {
    let seconds = age.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(state: State) -> Silent {
        Silent { pid: 7, name: AGENT.to_owned(), state, ..Silent::default() }
    }

    #[test]
    fn each_state_has_its_words_and_its_fix() {
        let table = [
            (State::Stopped, "stopped by a signal (state T)", "kill -CONT 7", true),
            (State::Traced, "stopped by a tracer", "end the tracer", true),
            (State::Stuck, "waits for a device", "a restart of the service waits", false),
            (State::Ended, "has ended", "start it with `systemctl", true),
            (State::Alive, "is there and silent", "which no plugin notices", false),
        ];
        for (state, what, fix, stays_silent) in table {
            let silent = agent(state);
            assert!(silent.what().contains(what), "{}", silent.what());
            assert!(silent.fix().contains(fix), "{}", silent.fix());
            assert_eq!(silent.stays_silent(), stays_silent, "{state:?}");
        }
        let traced = Silent { tracer: Some(9), ..agent(State::Traced) };
        assert!(traced.what().contains("by process 9, which traces it"), "{}", traced.what());
        let foreign = Silent { name: "nginx".to_owned(), ..agent(State::Alive) };
        assert_eq!(
            foreign.what(),
            "process 7 (nginx) listens on the agent's socket and is not the agent"
        );
        assert!(foreign.stays_silent() && foreign.fix().starts_with("end process 7"));
        let state_dir = Some(("/state".into(), String::new()));
        let renamed = Silent { name: "guest-agent-1.2".to_owned(), state_dir, ..foreign };
        assert_eq!(renamed.what(), "its process 7 is there and silent");
    }

    #[test]
    fn facts_are_those_that_are_known() {
        assert_eq!(agent(State::Stuck).facts(), [""; 0]);
        let plugins = (0..14).map(|n| (format!("p{n:02}"), 100 + n)).collect();
        let silent = Silent {
            age: Some(Duration::from_secs(7384)),
            kernel: vec!["io_schedule".to_owned(), "folio_wait_bit".to_owned()],
            state_dir: Some(("/state".into(), "/dev/vdb (ext4) at /state".to_owned())),
            plugins,
            ..agent(State::Stuck)
        };
        let facts = silent.facts();
        assert_eq!(facts[0], "process 7 was started 2 h 3 min ago");
        assert_eq!(facts[1], "in the kernel it is in io_schedule < folio_wait_bit");
        assert_eq!(facts[2], "its state directory /state is on /dev/vdb (ext4) at /state");
        assert!(facts[3].starts_with("plugins that run on: p00 (100), p01 (101)"), "{facts:?}");
        assert!(facts[3].ends_with("p11 (111) and 2 more"), "{facts:?}");
    }

    #[test]
    fn a_stack_is_read_without_offsets_and_a_path_is_on_the_deepest_mount() {
        let stack = "[<0>] do_signal_stop+0xe3/0x190\n[<0>] get_signal+0x6f9/0x870\nodd\n";
        assert_eq!(frames(stack), ["do_signal_stop", "get_signal"]);
        let mounts = "22 1 253:0 / / rw,relatime - ext4 /dev/vda rw\n\
                      30 22 0:40 / /var/lib rw shared:5 - nfs4 store:/vm rw\nodd line\n";
        let mount = |path: &str| mount_of(mounts, Path::new(path));
        assert_eq!(mount("/var/lib/guest-agent").as_deref(), Some("store:/vm (nfs4) at /var/lib"));
        assert_eq!(mount("/var/library").as_deref(), Some("/dev/vda (ext4) at /"));
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn a_process_that_is_stopped_shows_it_and_one_that_is_gone_is_none() {
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().expect("a child");
        let pid = child.id();
        let raw = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a pid"));
        nix::sys::signal::kill(raw, nix::sys::signal::Signal::SIGSTOP).expect("our child");
        let give_up = std::time::Instant::now() + Duration::from_secs(30);
        let silent = loop {
            let silent = Silent::look_at(pid).expect("it was not reaped");
            if silent.state == State::Stopped || std::time::Instant::now() > give_up {
                break silent;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        child.kill().expect("our child");
        child.wait().expect("our child");
        assert_eq!((silent.state, &*silent.name), (State::Stopped, "sleep"));
        assert!(silent.age.is_some_and(|age| age < Duration::from_secs(60)), "{silent:?}");
        assert_eq!(Silent::look_at(pid).filter(|it| it.name == "sleep"), None);
    }
}

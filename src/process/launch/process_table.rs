//! All processes of the machine, read once for all callers that ask at that time.
//!
//! Every launch and every stop has to know which processes belong to a plugin, and reading the
//! process table costs more, the more plugins there are. Hundreds of plugins that start together
//! would each read about all the others; so all callers that ask during a look share the next one,
//! which begins after they asked. The environment of a process is read once: it cannot change
//! before the process executes another program, and then its environment lies elsewhere.
//!
//! A look blocks. Reading the environment of a process that hangs in the kernel can hang as well;
//! so there are few looks at a time, each with a deadline. `tree` decides which process belongs to
//! which plugin.

use std::collections::{HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use guest_agent_actors::model::id::PluginName;
use tokio::sync::Semaphore;

use crate::os::procfs::{self, Stat};
use crate::process::launch::variables::{PLUGIN_VARIABLE, STATE_DIR_VARIABLE};

/// How long a look may take before it is given up.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// How often, and after which pause, the agent looks again at a process that waits for a device.
const STUCK_LOOKS: u32 = 5;
const STUCK_PAUSE: Duration = Duration::from_millis(10);

/// How many looks run at a time, those that were given up included, so that hanging ones cannot use
/// up the threads that everything else needs.
static LOOKS: Semaphore = Semaphore::const_new(4);

/// The processes that ran at one time.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Every process but the first one, this one, and the kernel's own, by its pid.
    pub(crate) processes: HashMap<u32, Stat>,
    marks: HashMap<u32, Arc<Mark>>,
}

/// The markers of a process that name its plugin.
#[derive(Debug, PartialEq, Eq)]
struct Mark {
    plugin: Box<[u8]>,
    state_dir: Box<[u8]>,
}

/// Reads the process table for all callers.
#[derive(Debug, Default)]
pub(crate) struct Lookout {
    /// Held during a look.
    turn: tokio::sync::Mutex<()>,
    seen: Mutex<Seen>,
    remembered: Arc<Mutex<Remembered>>,
}

/// The newest look, and the callers that wait for one.
#[derive(Debug, Default)]
struct Seen {
    /// How many callers have asked for a look so far.
    asked: u64,
    /// How many callers wait for an answer.
    waiting: usize,
    /// The last look, and how many callers had asked before it began. Kept as long as a caller
    /// waits.
    newest: Option<(u64, Arc<Census>)>,
}

/// The environments of the processes that ran at the last look.
#[derive(Debug, Default)]
struct Remembered(HashMap<Program, Option<Arc<Mark>>>);

/// A process while it executes one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Program {
    pid: u32,
    start_ticks: u64,
    /// The address of its environment, which the kernel chooses anew for each program.
    environ: (u64, u64),
}

// === impl Lookout ===

impl Lookout {
    /// All processes, by a look that begins after this was called. `None` when they cannot be seen,
    /// or when looking takes too long.
    pub(crate) async fn look(&self) -> Option<Arc<Census>> {
        let waiting = Waiting::of(self);
        let looking = async {
            let _turn = self.turn.lock().await;
            if let Some(census) = waiting.answer() {
                return Some(census);
            }
            let covers = self.lock().asked;
            let remembered = Arc::clone(&self.remembered);
            let census = Arc::new(look_aside_now(move || Census::take(&remembered)).await??);
            self.lock().newest = Some((covers, Arc::clone(&census)));
            Some(census)
        };
        tokio::time::timeout(LOOK_TIMEOUT, looking).await.ok().flatten()
    }

    /// How many callers wanted a look.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> u64 {
        self.lock().asked
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller that waits for a look.
struct Waiting<'a> {
    lookout: &'a Lookout,
    number: u64,
}

impl<'a> Waiting<'a> {
    fn of(lookout: &'a Lookout) -> Self {
        let mut seen = lookout.lock();
        seen.asked += 1;
        seen.waiting += 1;
        Self { lookout, number: seen.asked }
    }

    /// A look that began after this caller asked.
    fn answer(&self) -> Option<Arc<Census>> {
        let seen = self.lookout.lock();
        let newest = seen.newest.as_ref().filter(|(covers, _)| *covers >= self.number);
        newest.map(|(_, census)| Arc::clone(census))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut seen = self.lookout.lock();
        seen.waiting -= 1;
        if seen.waiting == 0 {
            seen.newest = None;
        }
    }
}

// === impl Census ===

impl Census {
    /// Looks now. `None` when processes cannot be seen. Blocks.
    #[cfg(test)]
    pub(crate) fn now() -> Option<Self> {
        Self::take(&Mutex::default())
    }

    fn take(remembered: &Mutex<Remembered>) -> Option<Self> {
        let me = std::process::id();
        // A look would read the environment of the kernel's threads each time: they have none
        // to remember.
        let others = |stat: &Stat| stat.pid > 1 && stat.pid != me && !stat.of_kernel;
        let all = procfs::all()?.into_iter().filter(others);
        let processes: HashMap<u32, Stat> = all.map(|stat| (stat.pid, stat)).collect();
        // Not locked while it is read: reading may hang.
        let known =
            std::mem::take(&mut remembered.lock().unwrap_or_else(PoisonError::into_inner).0);
        let mut now = HashMap::with_capacity(processes.len());
        let mut look = |stat: &Stat| {
            let program = Program::of(stat);
            let mark = match program.and_then(|program| known.get(&program)) {
                Some(mark) => mark.clone(),
                None => {
                    procfs::environ(stat.pid).and_then(|environ| Mark::of(&environ)).map(Arc::new)
                }
            };
            if let Some(program) = program {
                now.insert(program, mark.clone());
            }
            mark.map(|mark| (stat.pid, mark))
        };
        let (mut stuck, free): (Vec<&Stat>, Vec<&Stat>) =
            processes.values().partition(|stat| stat.stuck);
        let mut marks: HashMap<u32, Arc<Mark>> = free.into_iter().filter_map(&mut look).collect();
        // The environment of a process that waits for a device is read a moment later, because most
        // such waits are short. If the process still waits then, its environment is not read at
        // all, because reading could hang.
        for _ in 0..STUCK_LOOKS {
            if stuck.is_empty() {
                break;
            }
            std::thread::sleep(STUCK_PAUSE);
            let freed =
                stuck.extract_if(.., |stat| !procfs::stat(stat.pid).is_some_and(|s| s.stuck));
            marks.extend(freed.filter_map(&mut look));
        }
        remembered.lock().unwrap_or_else(PoisonError::into_inner).0 = now;
        Some(Self { processes, marks })
    }

    /// The plugins, of any agent, whose markers are in the environment of a process.
    pub(crate) fn names(&self) -> HashSet<Box<[u8]>> {
        self.marks.values().map(|mark| mark.plugin.clone()).collect()
    }

    /// The processes with the markers of another plugin, of any agent.
    pub(crate) fn of_others(&self, name: &PluginName) -> impl Iterator<Item = u32> {
        let name = name.as_str().as_bytes();
        let others = self.marks.iter().filter(move |(_, mark)| *mark.plugin != *name);
        others.map(|(pid, _)| *pid)
    }

    /// The processes with the markers of this plugin of this agent.
    pub(crate) fn marked(&self, name: &PluginName, state_dir: &Path) -> impl Iterator<Item = u32> {
        let (name, state_dir) = (name.as_str().as_bytes(), state_dir.as_os_str().as_bytes());
        let marked = self.marks.iter();
        let marked = marked.filter(move |(_, mark)| mark.is(name, state_dir));
        marked.map(|(pid, _)| *pid)
    }
}

// === impl Mark ===

impl Mark {
    fn of(environ: &[u8]) -> Option<Self> {
        let plugin = procfs::variable(environ, PLUGIN_VARIABLE)?.into();
        let state_dir = procfs::variable(environ, STATE_DIR_VARIABLE)?.into();
        Some(Self { plugin, state_dir })
    }

    fn is(&self, plugin: &[u8], state_dir: &[u8]) -> bool {
        *self.plugin == *plugin && *self.state_dir == *state_dir
    }
}

/// Whether an environment carries the markers of this plugin of this agent.
pub(crate) fn carries(environ: &[u8], name: &PluginName, state_dir: &Path) -> bool {
    let (name, state_dir) = (name.as_str().as_bytes(), state_dir.as_os_str().as_bytes());
    Mark::of(environ).is_some_and(|mark| mark.is(name, state_dir))
}

// === impl Program ===

impl Program {
    /// `None` for a process whose environment cannot be read, or that has none.
    fn of(stat: &Stat) -> Option<Self> {
        let Stat { pid, start_ticks, environ, .. } = *stat;
        (environ.0 != 0).then_some(Self { pid, start_ticks, environ })
    }
}

/// Looks at processes on a blocking thread, within the bounds that this module keeps: what is read
/// of a process that hangs in the kernel may never come back. `None` when it took too long.
pub(crate) async fn look_aside<T: Send + 'static>(
    look: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    tokio::time::timeout(LOOK_TIMEOUT, look_aside_now(look)).await.ok().flatten()
}

async fn look_aside_now<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let permit = LOOKS.acquire().await.ok()?;
    let work = tokio::task::spawn_blocking(move || {
        let seen = look();
        drop(permit);
        seen
    });
    work.await.ok()
}

/// The environment of one process, as `procfs` reads it. Empty when it may not be read, when the
/// process has ended, or when it waits for a device and does not stop waiting.
pub(crate) async fn environ(pid: u32) -> Vec<u8> {
    let read = look_aside(move || {
        for _ in 0..STUCK_LOOKS {
            if !procfs::stat(pid)?.stuck {
                return procfs::environ(pid);
            }
            std::thread::sleep(STUCK_PAUSE);
        }
        None
    });
    read.await.flatten().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};
    use std::time::Instant;

    use super::*;

    /// A process with markers that ends with the test.
    struct Marked(Child);

    impl Marked {
        fn new(name: &str) -> Self {
            let mut command = Command::new("sleep");
            command.arg("100").env(PLUGIN_VARIABLE, name).env(STATE_DIR_VARIABLE, DIR);
            let marked = Self(command.spawn().unwrap());
            // `spawn` returns when the exec has closed the descriptors of before, and the kernel shows
            // the environment a moment later.
            let late = Instant::now() + Duration::from_secs(60);
            while procfs::environ(marked.pid()).is_none_or(|found| found.is_empty()) {
                assert!(Instant::now() < late, "it shows no environment");
                std::thread::yield_now();
            }
            marked
        }

        fn pid(&self) -> u32 {
            self.0.id()
        }
    }

    impl Drop for Marked {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    const DIR: &str = "/nowhere/state/of-a-census";

    fn name(text: &str) -> PluginName {
        text.parse().unwrap()
    }

    fn marked(census: &Census, plugin: &str) -> Vec<u32> {
        census.marked(&name(plugin), Path::new(DIR)).collect()
    }

    #[test]
    fn markers_of_another_plugin_or_another_agent_do_not_count() {
        let (name, dir) = (name("p"), Path::new("/var/lib/a/state/p"));
        let full = b"GUEST_AGENT_PLUGIN=p\0GUEST_AGENT_STATE_DIR=/var/lib/a/state/p\0";
        assert!(carries(full, &name, dir));
        assert!(!carries(full, &"q".parse().unwrap(), dir));
        assert!(!carries(full, &name, Path::new("/var/lib/b/state/p")));
        assert!(!carries(b"GUEST_AGENT_PLUGIN=p\0", &name, dir));
    }

    #[tokio::test]
    async fn a_caller_sees_every_process_that_was_there_when_it_called() {
        let lookout = Lookout::default();
        for round in 0..20 {
            let plugin = format!("census-{round}");
            let process = Marked::new(&plugin);
            let both = futures_util::future::join(lookout.look(), lookout.look());
            let (first, second) = both.await;
            for census in [first, second] {
                assert_eq!(marked(&census.unwrap(), &plugin), [process.pid()]);
            }
        }
        assert!(lookout.lock().newest.is_none(), "kept for nobody");
    }

    #[tokio::test]
    async fn who_asks_while_a_look_goes_on_shares_the_next() {
        let lookout = Lookout::default();
        let looks = futures_util::future::join_all((0..50).map(|_| lookout.look()));
        let censuses: Vec<_> = looks.await.into_iter().map(Option::unwrap).collect();
        // The first look began before the others asked; they share the next one.
        let (first, others) = censuses.split_first().unwrap();
        assert!(others.iter().all(|census| Arc::ptr_eq(census, &others[0])));
        assert!(!Arc::ptr_eq(first, &others[0]));
    }

    #[test]
    fn a_process_that_executes_something_else_is_read_again() {
        let remembered = Mutex::default();
        let script = "while [ ! -e \"$0\" ]; do sleep 0.01; done; \
                      exec env GUEST_AGENT_PLUGIN=second sleep 100";
        let dir = tempfile::tempdir().unwrap();
        let go = dir.path().join("go");
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(&go);
        command.env(PLUGIN_VARIABLE, "first").env(STATE_DIR_VARIABLE, DIR);
        let process = Marked(command.spawn().unwrap());
        let census = || Census::take(&remembered).unwrap();
        // Between fork and exec the child still is this test's program.
        let since = std::time::Instant::now();
        let until = |plugin: &str| {
            while !marked(&census(), plugin).contains(&process.pid()) {
                assert!(since.elapsed() < Duration::from_secs(30), "never {plugin}");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        until("first");
        std::fs::write(&go, "").unwrap();
        until("second");
        assert!(!marked(&census(), "first").contains(&process.pid()));
    }

    #[test]
    fn only_those_who_are_there_are_remembered() {
        let remembered = Mutex::default();
        let process = Marked::new("census-gone");
        let pid = process.pid();
        let is_known = |remembered: &Mutex<Remembered>| {
            remembered.lock().unwrap().0.keys().any(|program| program.pid == pid)
        };
        Census::take(&remembered).unwrap();
        assert!(is_known(&remembered));
        drop(process);
        Census::take(&remembered).unwrap();
        assert!(!is_known(&remembered));
    }
}

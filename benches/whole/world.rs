//! What all groups need: the program, beds with its own settings, and what the kernel says of a
//! process.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::Signal;
use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::harness::archive::Compression;
use crate::harness::{ArchiveSpec, Bed, plugins, processes, signal};

/// Settings that a bed changes for the sake of tests, as they are in the product.
const AS_SHIPPED: [&str; 3] = [
    "plugins.health_interval=10s",
    "plugins.restart_max_backoff=5m",
    "install.cache_max_bytes=268435456",
];

/// The plugin that agents run here; it is ready at once.
pub(crate) const PLUGIN: &str = "echo_plugin";

/// Longest that a thousand plugins may take.
pub(crate) const MUCH_PATIENCE: Duration = Duration::from_secs(300);

/// Calls that make data durable, for strace.
const SYNCS: &str = "trace=fsync,fdatasync,sync_file_range,syncfs,sync,msync";

/// How long strace takes to hold a process, at most.
const HOLD: Duration = Duration::from_millis(500);

/// The program that is measured.
pub(crate) fn program() -> PathBuf {
    if let Some(given) = std::env::var_os("GUEST_AGENT_TEST_PROGRAM") {
        return given.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/package/build-program");
    println!("building the program that ships (GUEST_AGENT_TEST_PROGRAM names another)");
    let built = Command::new(&script).output().expect("a shell");
    let path = String::from_utf8_lossy(&built.stdout).trim().to_owned();
    if !built.status.success() {
        eprint!("{}", String::from_utf8_lossy(&built.stderr));
        println!("it cannot be built: what cargo built is measured instead, which is dynamic");
        return env!("CARGO_BIN_EXE_guest-agent").into();
    }
    path.into()
}

/// Builds the plugins that agents run here, if necessary, before the measurement starts.
pub(crate) fn build_plugins() {
    println!("plugin: {}", plugins::program(PLUGIN).display());
}

/// Has the program read from the disk when it is started next, as after a boot. What was just built
/// is in the file's cache in pieces of up to two megabytes, which the kernel maps whole and counts
/// whole, whatever is used of them.
pub(crate) fn forget(program: &Path) {
    let file = File::open(program).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// A bed whose agent is the program that is measured, with the settings it has in the product.
pub(crate) async fn bed(program: &Path, settings: &[&str]) -> Bed {
    let settings = AS_SHIPPED.iter().chain(settings);
    let builder = settings.fold(Bed::builder().by_hand(), |builder, setting| builder.set(*setting));
    let mut bed = builder.build().await;
    bed.use_program(program);
    bed.start_agent().await;
    bed
}

/// A small plugin, as most are: its own program, packed.
pub(crate) fn plugin() -> ArchiveSpec {
    ArchiveSpec::program(PLUGIN).compressed(Compression::Zstd)
}

/// The same without a program of its own.
pub(crate) fn small_plugin() -> ArchiveSpec {
    ArchiveSpec::echo().compressed(Compression::Zstd)
}

/// The same plugin without an agent, listening on this socket.
pub(crate) fn bare(socket: &Path) -> Child {
    Command::new(plugins::program(PLUGIN))
        .args(["--protocol=unix", &format!("--address={}", socket.display())])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Makes sure that there is so much memory. The host of a virtual machine takes back what was not
/// used for a while, and giving it anew takes longer than most of what is measured.
///
/// It is touched as the cache of a file. Pages of a process come and go one by one, and the kernel
/// keeps those apart from the larger pieces that files are written to.
pub(crate) fn warm(bytes: usize) {
    let mut file = tempfile::tempfile().unwrap();
    let piece = vec![1; 256 << 10];
    for _ in 0..bytes / piece.len() {
        file.write_all(&piece).unwrap();
    }
    // What is gone at once is never written to the disk.
    file.set_len(0).unwrap();
}

/// Ends all at once and keeps their files in another folder of the same file system.
pub(crate) async fn put_aside(mut bed: Bed, aside: &Path) {
    bed.stop_agent().await;
    bed.within(MUCH_PATIENCE, "all plugins are dead", async || {
        let alive = processes::all_below(&bed.state_root());
        alive.keys().for_each(|&pid| signal(pid, Signal::SIGKILL));
        alive.is_empty().then_some(())
    })
    .await;
    for folder in ["state", "run", "log"] {
        std::fs::rename(bed.dir().join(folder), aside.join(folder)).unwrap();
    }
    // The next agent knows of no plugin, and removes the control groups that are left.
    bed.finish().await;
}

/// What stands beside anonymous memory.
pub(crate) const PROPORTIONAL: &str = "proportional set size (PSS), pages of files included";

/// What the kernel counts of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counted {
    /// Memory that no file backs, in KiB.
    pub(crate) anonymous_kib: f64,
    /// The proportional set size (PSS), in KiB: a page counts in part where several processes map
    /// it.
    pub(crate) proportional_kib: f64,
}

impl Counted {
    /// Looks at a process.
    pub(crate) fn of(pid: u32) -> Self {
        let [anonymous_kib, proportional_kib] =
            processes::rollup_kib(pid, ["Anonymous:", "Pss:"]).map(f64::from);
        Self { anonymous_kib, proportional_kib }
    }
}

/// The CPU time that a process took so far, threads that ended included.
pub(crate) fn cpu_time(pid: u32) -> Duration {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    clock_getcpuclockid(pid).unwrap().now().unwrap().into()
}

/// How much of one core a process takes while it is looked at, in percent.
pub(crate) async fn cpu_share(pid: u32, look: Duration) -> f64 {
    let (began, before) = (Instant::now(), cpu_time(pid));
    tokio::time::sleep(look).await;
    percent(cpu_time(pid) - before, began.elapsed())
}

/// CPU time within some time, in percent of one core.
pub(crate) fn percent(cpu: Duration, of: Duration) -> f64 {
    cpu.as_secs_f64() / of.as_secs_f64() * 100.0
}

/// From one moment to a later one by the clock on the wall; nothing where the clock went back.
pub(crate) fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}

/// So many in a while, per second.
pub(crate) fn per_second(count: usize, took: Duration) -> f64 {
    f64::from(u32::try_from(count).unwrap()) / took.as_secs_f64()
}

/// As many descriptors as the system allows: thousands of connections have both their ends here.
pub(crate) fn take_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

/// Counts the calls of an agent that make data durable.
pub(crate) struct Syncs {
    strace: Child,
    out: PathBuf,
}

// === impl Syncs ===

impl Syncs {
    /// Begins to count. `None`, with one line of output, where counting is not possible.
    pub(crate) async fn count(bed: &Bed) -> Option<Self> {
        let out = bed.dir().join("strace.out");
        let strace = Command::new("strace")
            .args(["-f", "-q", "-e", SYNCS, "-o"])
            .arg(&out)
            .args(["-p", &bed.agent_pid().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(mut strace) = strace else {
            println!("skipped: calls that sync: no strace here");
            return None;
        };
        tokio::time::sleep(HOLD).await;
        if strace.try_wait().unwrap().is_some() {
            println!("skipped: calls that sync: strace may not look here");
            return None;
        }
        Some(Self { strace, out })
    }

    /// How many there were of these, or of all.
    pub(crate) fn end(mut self, only: Option<&str>) -> f64 {
        signal(self.strace.id(), Signal::SIGINT);
        self.strace.wait().unwrap();
        let traced = std::fs::read_to_string(self.out).unwrap();
        // A call that another thread interrupts is begun on one line and ended on another.
        let calls = traced.lines().filter(|line| line.contains("sync") && !line.contains("<... "));
        let calls = calls.filter(|line| only.is_none_or(|only| line.contains(only)));
        f64::from(u32::try_from(calls.count()).unwrap())
    }
}

//! Makes the process of a plugin: what happens between its first moment and exec.
//!
//! Called by the launcher with everything decided. The child borrows the agent's memory until it
//! executes the plugin, and the thread that made it stands still meanwhile, as with `posix_spawn`.
//! A forked child would have a copy of the tables of all that memory, which takes longer the more
//! plugins there are, and is thrown away at once. A signal that stops the child also keeps that
//! thread waiting, so another thread kills a child that is not done in time.
//!
//! One of the places with `unsafe`. What runs in the child makes only system calls, with what was
//! made before: it allocates nothing, takes no lock, and writes nothing that another thread may
//! look at. What a policy adds is in `sandbox::child`.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::process::cgroup::Entrance;
use crate::process::sandbox::{Failed, Orders, Step};

/// Highest signal number of Linux.
const SIGNAL_MAX: libc::c_int = 64;

/// Size of the kernel's own signal set.
const KERNEL_SIGSET_BYTES: usize = 8;

/// First descriptor that a plugin must not see.
const FIRST_FOREIGN_DESCRIPTOR: libc::c_uint = 3;

/// Stack of a child until it executes the plugin, in bytes: many times what a few system calls
/// need. Only pages that are used are ever there.
const STACK_BYTES: usize = 256 * 1024;

/// How long a child may take until it executes its program. A few system calls need less than a
/// thousandth of it.
pub(crate) const EXEC_TIMEOUT: Duration = Duration::from_secs(5);

/// Only one child at a time shares the agent's memory: after each, the agent restores whether other
/// processes may read that memory.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The exit status of a child that could not execute its program. The agent does not read it.
const NOT_EXECUTED: libc::c_int = 127;

/// A process to be made.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The executable.
    pub(crate) program: PathBuf,
    /// Its arguments, without its own name.
    pub(crate) arguments: Vec<OsString>,
    /// Its whole environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub(crate) directory: PathBuf,
    /// Takes its standard output and error.
    pub(crate) output: File,
    /// The open files through which it enters its control group, in every hierarchy.
    pub(crate) entrance: Arc<Entrance>,
    /// The steps of its policy before exec.
    pub(crate) orders: Arc<Orders>,
}

/// A process that was made. It is this agent's child, and stays a zombie until it is waited for.
#[derive(Debug)]
pub(crate) struct Child(Pid);

/// Stands by while a child is made. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watchdog(Arc<Watched>);

#[derive(Debug, Default)]
struct Watched {
    /// The pid of the child, which the kernel writes.
    pid: AtomicI32,
    stage: Mutex<Stage>,
    changed: Condvar,
}

/// How far a child is. While it is `UnderWay` no thread has waited for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The child has not executed its program yet, and may not even exist.
    #[default]
    UnderWay,
    /// It executed its program, failed, or could not be made.
    Over,
    /// The watchdog ended it.
    TooLong,
}

/// Why a process could not be made.
#[derive(Debug)]
pub(crate) struct SpawnError {
    /// The step of the child that failed; `None` for everything else, exec included.
    pub(crate) step: Option<Step>,
    /// The error of the system call.
    pub(crate) error: io::Error,
}

/// All that the child needs, in the form that the kernel takes.
struct ExecRequest<'a> {
    program: &'a CStr,
    /// Both lists end with a null.
    arguments: &'a [*const libc::c_char],
    environment: &'a [*const libc::c_char],
    directory: &'a CStr,
    input: RawFd,
    output: RawFd,
    entrance: &'a Entrance,
    orders: &'a Orders,
    /// Written by a child that failed: the error, and the number of the step if it has one. Zeros
    /// from one that executed its program.
    errno: AtomicI32,
    step: AtomicU8,
}

/// No signal reaches this thread until this is dropped.
struct Unreachable(SigSet);

// === impl SpawnError ===

impl From<io::Error> for SpawnError {
    fn from(error: io::Error) -> Self {
        Self { step: None, error }
    }
}

impl From<Errno> for SpawnError {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

// === impl Plan ===

impl Plan {
    /// Makes a child that enters the group and executes: a session of its own, an empty environment
    /// but for the given one, default signals, no descriptor but 0 to 2, and what the policy
    /// orders. Blocks until it executes, which the `watchdog` sees to.
    ///
    /// # Errors
    /// The system's error of the failed step, exec itself included; `ETIMEDOUT` for a child that
    /// took too long.
    pub(crate) fn spawn(&self, watchdog: &Watchdog) -> Result<Child, SpawnError> {
        let program = text(self.program.as_os_str().as_bytes())?;
        let directory = text(self.directory.as_os_str().as_bytes())?;
        let mut arguments = vec![program.clone()];
        for argument in &self.arguments {
            arguments.push(text(argument.as_bytes())?);
        }
        // Sorted, and of several variables with one name only the last.
        let variables: BTreeMap<_, _> = self.environment.iter().map(|(k, v)| (k, v)).collect();
        let mut environment = Vec::with_capacity(variables.len());
        for (key, value) in variables {
            environment.push(text(&[key.as_bytes(), b"=", value.as_bytes()].concat())?);
        }
        let input = File::open("/dev/null")?;
        let request = ExecRequest {
            program: &program,
            arguments: &list(&arguments),
            environment: &list(&environment),
            directory: &directory,
            input: input.as_raw_fd(),
            output: self.output.as_raw_fd(),
            entrance: &self.entrance,
            orders: &self.orders,
            errno: AtomicI32::new(0),
            step: AtomicU8::new(0),
        };
        let mut child = request.clone_and_exec(&watchdog.0.pid)?;
        let errno = match watchdog.dismiss() {
            Stage::TooLong => libc::ETIMEDOUT,
            Stage::UnderWay | Stage::Over => request.errno.load(Ordering::Acquire),
        };
        if errno == 0 {
            return Ok(child);
        }
        // The child has ended, or is about to.
        drop(child.wait());
        let step = Step::of_number(request.step.load(Ordering::Acquire));
        Err(SpawnError { step, error: io::Error::from_raw_os_error(errno) })
    }
}

/// A text in the form that the kernel takes.
fn text(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes).map_err(io::Error::from)
}

/// A list of texts in the form that the kernel takes. Valid as long as the texts are.
fn list(texts: &[CString]) -> Vec<*const libc::c_char> {
    texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

// === impl Watchdog ===

impl Watchdog {
    /// Stands by until the child has executed its program or failed, and ends one that takes longer
    /// than `patience`. Blocks.
    pub(crate) fn stand_by(&self, patience: Duration) {
        let under_way = |stage: &mut Stage| *stage == Stage::UnderWay;
        let waited = self.0.changed.wait_timeout_while(self.stage(), patience, under_way);
        let (mut stage, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let child = Pid::from_raw(self.0.pid.load(Ordering::Acquire));
        if let Some(child) = child.filter(|_| *stage == Stage::UnderWay) {
            *stage = Stage::TooLong;
            // No thread has waited for the child, so no other process has its pid. It is as well if
            // the child has just ended.
            match kill_process(child, Signal::KILL) {
                Ok(()) | Err(_) => {}
            }
        }
    }

    /// Tells the watchdog that the child is done, and returns what the watchdog found.
    pub(crate) fn dismiss(&self) -> Stage {
        let mut stage = self.stage();
        if *stage == Stage::UnderWay {
            *stage = Stage::Over;
            self.0.changed.notify_all();
        }
        *stage
    }

    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Child ===

impl Child {
    /// Its process id, which no other process has until this one is waited for.
    pub(crate) fn id(&self) -> u32 {
        self.0.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until it has ended, and reaps it.
    ///
    /// # Errors
    /// Another thread reaped it.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        loop {
            match waitpid(Some(self.0), WaitOptions::empty()) {
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
                Ok(_) => return Ok(()),
            }
        }
    }

    /// Kills it. Call this only before it is waited for.
    ///
    /// # Errors
    /// Another thread reaped it.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        Ok(kill_process(self.0, Signal::KILL)?)
    }
}

// === impl ExecRequest ===

impl ExecRequest<'_> {
    /// Makes the child, whose number is in `pid` before it begins, and returns when it has executed
    /// its program or could not.
    #[expect(unsafe_code, reason = "a child that shares memory is nothing the compiler knows of")]
    fn clone_and_exec(&self, pid: &AtomicI32) -> io::Result<Child> {
        let mut stack = vec![0_u8; STACK_BYTES];
        let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let _unreachable = Unreachable::begin()?;
        let dumpable = rustix::process::dumpable_behavior();
        // SAFETY: the child runs `begin` with `self`, on a stack of its own that grows down from
        // the end of `stack`. Both outlive its use of them, for `CLONE_VFORK` lets this thread
        // continue only when the child has executed something or ended. Meanwhile the child has
        // this thread's place: what the C library keeps for a thread (the last error) is changed by
        // it, and nobody reads that across this call. No signal handler runs in the child: all
        // signals are blocked until it has reset them, in a table that is its own (no
        // `CLONE_SIGHAND`). Its descriptors, directory, user and limits are its own as well. The
        // kernel writes the child's number into `pid`, which is an integer that may be written
        // while others read it.
        let made = unsafe {
            libc::clone(
                begin,
                stack.as_mut_ptr_range().end.cast(),
                libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PARENT_SETTID | libc::SIGCHLD,
                ptr::from_ref(self).cast_mut().cast(),
                pid.as_ptr(),
            )
        };
        let made = if made < 0 { Err(io::Error::last_os_error()) } else { Ok(made) };
        // A child that became another user made the kernel mark the memory that it shared, which is
        // the agent's, as not readable by other processes.
        if let Ok(dumpable) = dumpable {
            // It had this value before, so the kernel accepts it.
            match rustix::process::set_dumpable_behavior(dumpable) {
                Ok(()) | Err(_) => {}
            }
        }
        let pid = Pid::from_raw(made?).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Child(pid))
    }

    /// Runs in the child. Returns only when something failed.
    #[expect(unsafe_code, reason = "the safe wrappers ask for owned descriptors or allocate")]
    fn set_up_and_exec(&self) -> Result<(), (Option<Step>, Errno)> {
        // Before it can fork. A plugin runs outside of its group rather than not at all; the agent
        // finds out whether it is inside, and reports it.
        match self.entrance.enter() {
            Ok(()) | Err(_) => {}
        }
        for (from, to) in [(self.input, 0), (self.output, 1), (self.output, 2)] {
            // SAFETY: the call takes two numbers. The descriptors 0 to 2 are the child's own
            // copies.
            if unsafe { libc::dup2(from, to) } < 0 {
                return Err((None, last_error()));
            }
        }
        rustix::process::chdir(self.directory).map_err(|errno| (None, errno))?;
        let step = |failed: Failed| (Some(failed.step), failed.errno);
        prepare_child().map_err(step)?;
        self.orders.apply().map_err(step)?;
        // SAFETY: the program is a C string and both lists are of C strings and end with a null;
        // all of them live in the frame of `spawn`, whose thread stands still.
        unsafe {
            libc::execve(self.program.as_ptr(), self.arguments.as_ptr(), self.environment.as_ptr())
        };
        Err((None, last_error()))
    }
}

/// The child's first function. Its return value is the child's exit code.
#[expect(unsafe_code, reason = "its argument comes through C")]
extern "C" fn begin(request: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `clone_and_exec` passes a `ExecRequest` that outlives the child's use of it, and only
    // ever a shared reference.
    let request = unsafe { &*request.cast_const().cast::<ExecRequest<'_>>() };
    if let Err((step, errno)) = request.set_up_and_exec() {
        request.step.store(step.map_or(0, |step| step as u8), Ordering::Release);
        request.errno.store(errno.raw_os_error(), Ordering::Release);
    }
    NOT_EXECUTED
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}

// === impl Unreachable ===

impl Unreachable {
    fn begin() -> io::Result<Self> {
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        Ok(Self(before))
    }
}

impl Drop for Unreachable {
    fn drop(&mut self) {
        // This was the mask before, so the kernel accepts it.
        match pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.0), None) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Runs in the child, after its standard descriptors and working directory are set.
pub(crate) fn prepare_child() -> Result<(), Failed> {
    let failed = |errno| Failed { step: Step::Surroundings, errno };
    rustix::process::setsid().map_err(failed)?;
    reset_signals();
    reset_oom_score();
    hide_descriptors().map_err(failed)
}

/// An ignored signal and a blocked one stay so through exec; a plugin is to find neither.
#[expect(unsafe_code, reason = "the safe wrappers refuse some signals")]
fn reset_signals() {
    // All zeros: the default disposition, no flags, an empty mask. Larger than the kernel's
    // structure on every processor.
    let default = [0u64; 8];
    for signal in 1..=SIGNAL_MAX {
        // SAFETY: the kernel reads its `struct sigaction` from `default`, which outlives the call,
        // and writes nowhere. No handler is installed. The bare system call is used because the C
        // library keeps two signals to itself that may be ignored all the same. Signals that cannot
        // be changed give an error, which changes nothing.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                KERNEL_SIGSET_BYTES,
            )
        };
    }
    // SAFETY: `none` is a plain bit set that `sigemptyset` initialises before it is read, and both
    // calls are async-signal-safe.
    unsafe {
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
    }
}

/// The agent may be protected from the OOM killer; a plugin must not be, or the customer's workload
/// dies in its place. Raising the score is always allowed. Lowering it is not for an ordinary user,
/// and then the plugin keeps a score that protects it less, which is harmless.
fn reset_oom_score() {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty()) {
        match rustix::io::write(&file, b"0") {
            // The error has no other consequence, see above.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Sets close-on-exec on all descriptors that the agent or its parent opened without it. Setting
/// the flag, and not closing them, keeps the pipe on which a failed exec is reported.
#[expect(unsafe_code, reason = "no safe wrapper of this call exists")]
fn hide_descriptors() -> Result<(), Errno> {
    // SAFETY: the call takes three numbers and changes only flags of descriptors; nothing in this
    // process relies on a descriptor staying open across exec.
    let done = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            FIRST_FOREIGN_DESCRIPTOR,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_CLOEXEC,
        )
    };
    if done == 0 {
        return Ok(());
    }
    match Errno::from_io_error(&io::Error::last_os_error()) {
        // Kernels before 5.11. Rust opens everything with the flag already.
        Some(Errno::NOSYS | Errno::INVAL) => Ok(()),
        error => Err(error.unwrap_or(Errno::IO)),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::process::{Resource, dumpable_behavior, geteuid, getrlimit};

    use super::*;

    fn plan(program: &str) -> Plan {
        let limits = vec![(Resource::Core, getrlimit(Resource::Core))];
        let orders = Orders {
            umask: 0o022,
            oom_score_adj: None,
            limits,
            identity: None,
            kept: None,
            no_new_privileges: false,
            landlock: None,
            filters: Vec::new(),
        };
        Plan {
            program: program.into(),
            arguments: vec!["-c".into(), "env; echo \"$PWD\"; exit 3".into()],
            environment: vec![("B".into(), "old".into()), ("A".into(), "1".into())],
            directory: "/tmp".into(),
            output: tempfile::tempfile().unwrap(),
            entrance: Arc::default(),
            orders: Arc::new(orders),
        }
    }

    #[test]
    fn a_child_has_what_it_was_given_and_nothing_else() {
        let mut plan = plan("/bin/sh");
        plan.environment.push(("B".into(), "2".into()));
        plan.spawn(&Watchdog::default()).unwrap().wait().unwrap();
        let mut said = String::new();
        io::Seek::rewind(&mut plan.output).unwrap();
        io::Read::read_to_string(&mut plan.output, &mut said).unwrap();
        assert!(
            said.contains("A=1\n") && said.contains("B=2\n") && !said.contains("HOME="),
            "{said}"
        );
        assert!(said.ends_with("/tmp\n"), "{said}");
    }

    #[test]
    fn what_cannot_be_executed_says_why_and_leaves_nothing() {
        let failed = plan("/nowhere").spawn(&Watchdog::default()).unwrap_err();
        assert_eq!(failed.error.raw_os_error(), Some(libc::ENOENT));
        assert_eq!(failed.step, None);
        let mut odd = plan("/bin/sh");
        odd.arguments.push("a\0b".into());
        assert_eq!(
            odd.spawn(&Watchdog::default()).unwrap_err().error.kind(),
            io::ErrorKind::InvalidInput
        );
        let mut elsewhere = plan("/bin/sh");
        elsewhere.directory = "/nowhere".into();
        assert_eq!(
            elsewhere.spawn(&Watchdog::default()).unwrap_err().error.raw_os_error(),
            Some(libc::ENOENT)
        );
    }

    #[test]
    fn a_step_that_fails_is_named() {
        let mut plan = plan("/bin/sh");
        let unusable = File::open("/dev/null").unwrap();
        Arc::get_mut(&mut plan.orders).unwrap().landlock = Some(unusable.into());
        let failed = plan.spawn(&Watchdog::default()).unwrap_err();
        assert_eq!(failed.step, Some(Step::Landlock));
    }

    #[test]
    fn a_child_that_does_not_get_to_its_program_is_ended() {
        // A file that cannot be written to: the child writes into a pipe that is full.
        let (_reader, door) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&door, true).unwrap();
        while rustix::io::write(&door, &[0; 4096]).is_ok() {}
        rustix::io::ioctl_fionbio(&door, false).unwrap();
        let mut plan = plan("/bin/sh");
        plan.entrance = Arc::new(Entrance::through(OwnedFd::from(door).into()));
        let watchdog = Watchdog::default();
        let standby = watchdog.clone();
        let guard = std::thread::spawn(move || {
            while standby.0.pid.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            standby.stand_by(Duration::ZERO);
        });
        let failed = plan.spawn(&watchdog).unwrap_err();
        assert_eq!(failed.error.raw_os_error(), Some(libc::ETIMEDOUT));
        guard.join().unwrap();
        let child = Pid::from_raw(watchdog.0.pid.load(Ordering::Acquire));
        assert_eq!(waitpid(child, WaitOptions::NOHANG).err(), Some(Errno::CHILD));
    }

    #[test]
    fn nobody_stands_by_when_it_is_over() {
        let watchdog = Watchdog::default();
        plan("/bin/sh").spawn(&watchdog).unwrap().wait().unwrap();
        watchdog.stand_by(Duration::MAX);
        assert_eq!(watchdog.dismiss(), Stage::Over);
    }

    #[test]
    fn a_child_of_another_user_does_not_change_what_may_be_done_with_us() {
        if !geteuid().is_root() {
            println!("SKIPPED: a child of another user needs root");
            return;
        }
        let before = dumpable_behavior().unwrap();
        let mut plan = plan("/bin/sh");
        Arc::get_mut(&mut plan.orders).unwrap().identity = Some((65534, 65534));
        plan.spawn(&Watchdog::default()).unwrap().wait().unwrap();
        assert_eq!(dumpable_behavior().unwrap(), before);
        assert!(geteuid().is_root());
    }
}

//! Makes the process of a plugin: what happens between fork and exec.
//!
//! Called by the launcher with everything decided. One of the places with `unsafe`: the closure below
//! runs in the forked child, where only async-signal-safe calls are allowed. It allocates nothing, takes
//! no lock and reports errors as bare numbers: the error itself through the standard library, and which
//! step it was through a pipe. What a policy adds is in `confine::child`.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use crate::cgroup::Entrance;
use crate::confine::{Failed, Orders, Step};

/// Highest signal number of Linux.
const SIGNAL_MAX: libc::c_int = 64;

/// Size of the kernel's own signal set.
const KERNEL_SIGSET_BYTES: usize = 8;

/// First descriptor that a plugin must not see.
const FIRST_FOREIGN_DESCRIPTOR: libc::c_uint = 3;

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
    /// The way into its control group, in every hierarchy.
    pub(crate) entrance: Arc<Entrance>,
    /// What its policy has it do before it is itself.
    pub(crate) orders: Arc<Orders>,
}

/// Why a process could not be made.
#[derive(Debug)]
pub(crate) struct SpawnError {
    /// The step of the child that failed; `None` for everything else, exec included.
    pub(crate) step: Option<Step>,
    /// What the system said.
    pub(crate) error: io::Error,
}

impl From<io::Error> for SpawnError {
    fn from(error: io::Error) -> Self {
        Self { step: None, error }
    }
}

impl Plan {
    /// Forks, enters the group and executes: a session of its own, an empty environment but for the given one,
    /// default signals, no descriptor but 0 to 2, and what the policy orders.
    ///
    /// # Errors
    /// The system's error of the failed step, exec itself included.
    #[expect(
        unsafe_code,
        reason = "code between fork and exec has rules the compiler cannot check"
    )]
    pub(crate) fn spawn(&self) -> Result<Child, SpawnError> {
        let (output, errors) = (self.output.try_clone()?, self.output.try_clone()?);
        let mut command = Command::new(&self.program);
        command
            .args(&self.arguments)
            .env_clear()
            .envs(self.environment.iter().map(|(key, value)| (key, value)))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors);
        let (entrance, orders) = (Arc::clone(&self.entrance), Arc::clone(&self.orders));
        // Never waited for: it is read when the child has told of its failure by other means already.
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (told, tell) = rustix::pipe::pipe_with(flags).map_err(io::Error::from)?;
        // SAFETY: `prepare_child`, `Entrance::enter` and `Orders::apply` make only system calls that
        // are async-signal-safe; they neither allocate nor lock, as their own comments argue, and the
        // closure owns nothing that is dropped in the child.
        unsafe {
            command.pre_exec(move || {
                // Before anything could be forked. A plugin runs without its group rather than not
                // at all; the agent sees whether it is inside, and says so.
                match entrance.enter() {
                    Ok(()) | Err(_) => {}
                }
                let Err(failed) = prepare_child().and_then(|()| orders.apply()) else {
                    return Ok(());
                };
                // Without it, the error goes without its step.
                match rustix::io::write(&tell, &[failed.step as u8]) {
                    Ok(_) | Err(_) => {}
                }
                Err(failed.errno.into())
            })
        };
        command.spawn().map_err(|error| {
            let mut number = [0];
            let read = rustix::io::read(&told, &mut number);
            let step = read.ok().filter(|length| *length == 1);
            SpawnError { step: step.and_then(|_| Step::of_number(number[0])), error }
        })
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
            // Nothing else would be done, see above.
            Ok(_) | Err(_) => {}
        }
    }
}

/// Closes at exec whatever was opened without that flag, by the agent or by who started it. Marking
/// instead of closing keeps the pipe on which a failed exec is reported.
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

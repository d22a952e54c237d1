//! Makes the process of a plugin: what happens between fork and exec.
//!
//! Called by the launcher with everything decided. The other of the two places with `unsafe`: the
//! closure below runs in the forked child, where only async-signal-safe calls are allowed. It
//! allocates nothing, takes no lock and reports errors as bare numbers.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use nix::libc;
use rustix::fs::{Mode, OFlags};

use crate::cgroup::Entrance;

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
}

impl Plan {
    /// Forks, enters the group and executes: a session of its own, an empty environment but for the given one,
    /// default signals, no descriptor but 0 to 2.
    ///
    /// # Errors
    /// The system's error of the failed step, exec itself included.
    #[expect(
        unsafe_code,
        reason = "code between fork and exec has rules the compiler cannot check"
    )]
    pub(crate) fn spawn(&self) -> io::Result<Child> {
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
        let entrance = Arc::clone(&self.entrance);
        // SAFETY: `prepare_child` and `Entrance::enter` make only system calls that are
        // async-signal-safe; they neither allocate nor lock, as their own comments argue, and the
        // closure owns nothing that is dropped in the child.
        unsafe {
            command.pre_exec(move || {
                // Before anything could be forked. A plugin runs without its group rather than not
                // at all; the agent sees whether it is inside, and says so.
                match entrance.enter() {
                    Ok(()) | Err(_) => {}
                }
                prepare_child()
            })
        };
        command.spawn()
    }
}

/// Runs in the child, after its standard descriptors and working directory are set.
pub(crate) fn prepare_child() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    reset_signals();
    reset_oom_score();
    hide_descriptors()
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
fn hide_descriptors() -> io::Result<()> {
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
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // Kernels before 5.11. Rust opens everything with the flag already.
        Some(libc::ENOSYS | libc::EINVAL) => Ok(()),
        _ => Err(error),
    }
}

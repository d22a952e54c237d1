//! The steps of a new process before it becomes the plugin. The audited code of the sandbox.
//!
//! Everything here runs between clone and exec, in a process that shares the agent's memory while
//! other threads of the agent continue to use it. So [`Orders::apply`] only makes system calls with
//! what was made before: it allocates nothing, frees nothing, takes no lock and cannot panic.
//! `rustix` makes the system calls itself: the `setuid` of the C library would change the user of
//! every thread of the agent.
//!
//! Each step comes before the one that takes away what it needs: the child sets limits and the user
//! while it still has the capabilities for that, `no_new_privs` before Landlock and seccomp, which
//! require it, and the filter of system calls last, so that the filter need not allow the other
//! steps.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, Gid, Uid, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};
use seccompiler::BpfProgram;

/// Asks for the version of Landlock's interface instead of a rule set.
const LANDLOCK_VERSION: libc::c_uint = 1;

/// Installs a filter of system calls.
const SET_MODE_FILTER: libc::c_uint = 1;

/// The steps for the child.
#[derive(Debug)]
pub(crate) struct Orders {
    /// The file mode bits that new files do not get.
    pub(crate) umask: u32,
    /// What the child writes into its `oom_score_adj`. `None` keeps the value that `spawn` gave it.
    pub(crate) oom_score_adj: Option<Vec<u8>>,
    /// Limits to set.
    pub(crate) limits: Vec<(Resource, Rlimit)>,
    /// User and group to become, without any other group.
    pub(crate) identity: Option<(u32, u32)>,
    /// Capabilities to keep; where it is `None`, those that the kernel leaves to the user.
    pub(crate) kept: Option<Kept>,
    /// Whether nothing that is executed may gain privileges.
    pub(crate) no_new_privileges: bool,
    /// The rules for files.
    pub(crate) landlock: Option<OwnedFd>,
    /// Filters of system calls, the first of them installed first.
    pub(crate) filters: Vec<BpfProgram>,
}

/// The capabilities that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Those whose bits are set.
    pub(crate) bits: u64,
    /// The last capability of the kernel, where the child can drop all others from the bounding
    /// set.
    pub(crate) bound: Option<u32>,
    /// Whether programs have to get them through the ambient set.
    pub(crate) ambient: bool,
}

/// A step between clone and exec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Step {
    /// The session and the descriptors.
    Surroundings = 1,
    /// The score by which the kernel chooses a process to kill when memory runs out.
    OomScore,
    /// A resource limit.
    Limit,
    /// The bounding set of capabilities.
    Bounding,
    /// The groups.
    Groups,
    /// The user.
    User,
    /// The capabilities themselves.
    Capabilities,
    /// `no_new_privs`.
    NoNewPrivileges,
    /// The rules for files.
    Landlock,
    /// The filter of system calls.
    Seccomp,
}

/// A step that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) step: Step,
    pub(crate) errno: Errno,
}

// === impl Orders ===

impl Orders {
    /// Carries out all steps on the calling thread, and stops at the first one that fails. Only for
    /// a new process: the steps cannot be undone.
    pub(crate) fn apply(&self) -> Result<(), Failed> {
        let at = |step| move |errno| Failed { step, errno };
        rustix::process::umask(Mode::from_raw_mode(self.umask));
        if let Some(score) = &self.oom_score_adj {
            write_oom_score(score).map_err(at(Step::OomScore))?;
        }
        for (resource, limit) in &self.limits {
            setrlimit(*resource, *limit).map_err(at(Step::Limit))?;
        }
        if let Some(kept) = &self.kept {
            kept.bound().map_err(at(Step::Bounding))?;
        }
        if let Some((user, group)) = self.identity {
            // Otherwise the change of user would remove them all.
            set_keep_capabilities(self.kept.is_some()).map_err(at(Step::Capabilities))?;
            set_thread_groups(&[]).map_err(at(Step::Groups))?;
            let group = Gid::from_raw(group);
            set_thread_res_gid(group, group, group).map_err(at(Step::Groups))?;
            let user = Uid::from_raw(user);
            set_thread_res_uid(user, user, user).map_err(at(Step::User))?;
        }
        if let Some(kept) = &self.kept {
            kept.keep().map_err(at(Step::Capabilities))?;
        }
        if self.no_new_privileges {
            set_no_new_privs(true).map_err(at(Step::NoNewPrivileges))?;
        }
        if let Some(rules) = &self.landlock {
            restrict_files(rules).map_err(at(Step::Landlock))?;
        }
        for filter in &self.filters {
            install(filter).map_err(at(Step::Seccomp))?;
        }
        Ok(())
    }
}

// === impl Kept ===

impl Kept {
    /// Drops all other capabilities from the bounding set, so that no program that is executed gets
    /// them.
    fn bound(&self) -> Result<(), Errno> {
        let Some(last) = self.bound else { return Ok(()) };
        for number in 0..=last {
            let bit = 1_u64 << (number % u64::BITS);
            if self.bits & bit == 0 {
                remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(bit))?;
            }
        }
        Ok(())
    }

    /// The process has these capabilities and no others from here on.
    fn keep(&self) -> Result<(), Errno> {
        let set = CapabilitySet::from_bits_retain(self.bits);
        clear_ambient_capability_set()?;
        set_capabilities(
            None,
            CapabilitySets { effective: set, permitted: set, inheritable: set },
        )?;
        if !self.ambient {
            return Ok(());
        }
        for number in 0..u64::BITS {
            let bit = 1_u64 << number;
            if self.bits & bit != 0 {
                configure_capability_in_ambient_set(CapabilitySet::from_bits_retain(bit), true)?;
            }
        }
        Ok(())
    }
}

// === impl Step ===

impl Step {
    /// The step with this number. A child reports the step that failed as a number.
    pub(crate) fn of_number(number: u8) -> Option<Self> {
        [
            Self::Surroundings,
            Self::OomScore,
            Self::Limit,
            Self::Bounding,
            Self::Groups,
            Self::User,
            Self::Capabilities,
            Self::NoNewPrivileges,
            Self::Landlock,
            Self::Seccomp,
        ]
        .into_iter()
        .find(|step| *step as u8 == number)
    }

    /// The step, and what to check when the kernel refuses it.
    pub(crate) fn explained(self) -> (&'static str, &'static str) {
        match self {
            Self::Surroundings => ("start a new session (setsid)", "see the kernel's error"),
            Self::OomScore => ("set oom_score_adj", "set one that is not below the agent's own"),
            Self::Limit => {
                ("set a limit of rlimits", "stay below the agent's own, and below fs.nr_open")
            }
            Self::Bounding => ("drop capabilities permanently", "run the agent as root"),
            Self::Groups => ("set the group", "run the agent as root"),
            Self::User => ("set the user", "run the agent as root"),
            Self::Capabilities => ("keep capabilities", "name only those that the agent has"),
            Self::NoNewPrivileges => ("set no_new_privileges", "use a kernel from 3.5 on"),
            Self::Landlock => {
                ("restrict its files with Landlock", "check whether the agent has a seccomp filter")
            }
            Self::Seccomp => {
                ("filter its system calls", "check whether the agent has a seccomp filter")
            }
        }
    }
}

/// The version of Landlock's interface; 0 where the kernel has no Landlock.
#[expect(unsafe_code, reason = "no safe wrapper of this call exists")]
pub(super) fn landlock_version() -> u32 {
    // SAFETY: for a question about the version the kernel reads nothing: the pointer has to be null
    // and the size zero. It makes no descriptor then and answers with a number.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0_usize,
            LANDLOCK_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

fn write_oom_score(score: &[u8]) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty())?;
    rustix::io::write(&file, score)?;
    Ok(())
}

#[expect(unsafe_code, reason = "the crate's own function allocates, and this runs in a child")]
fn restrict_files(rules: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: the call takes two numbers, a descriptor that is open for as long as `rules` is
    // borrowed and no flags. It reads and writes no memory of this process.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

#[expect(unsafe_code, reason = "the crate's own function allocates, and this runs in a child")]
fn install(filter: &BpfProgram) -> Result<(), Errno> {
    let Ok(len) = u16::try_from(filter.len()) else { return Err(Errno::TOOBIG) };
    let program = libc::sock_fprog { len, filter: filter.as_ptr().cast_mut().cast() };
    // SAFETY: the kernel reads `program`, which lives until after the call, and through it `len`
    // instructions, which is how many the borrowed vector holds. Its elements are laid out as the
    // kernel's (`repr(C)`: 16 bits, twice 8, 32). The kernel copies and never writes them, so the
    // cast to a mutable pointer, which the structure's type asks for, is only that.
    let done = unsafe {
        libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, 0, std::ptr::from_ref(&program))
    };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_known_by_its_number() {
        for number in 1..=10 {
            let step = Step::of_number(number).expect("a step");
            assert_eq!(step as u8, number);
            assert!(!step.explained().0.is_empty() && !step.explained().1.is_empty());
        }
        assert_eq!((Step::of_number(0), Step::of_number(11)), (None, None));
    }

    #[test]
    fn the_instructions_of_a_filter_are_laid_out_as_the_kernels() {
        use std::mem::{align_of, offset_of, size_of};
        type Ours = seccompiler::sock_filter;
        type Kernels = libc::sock_filter;
        assert_eq!(size_of::<Ours>(), size_of::<Kernels>());
        assert_eq!(align_of::<Ours>(), align_of::<Kernels>());
        assert_eq!(offset_of!(Ours, jt), offset_of!(Kernels, jt));
        assert_eq!(offset_of!(Ours, jf), offset_of!(Kernels, jf));
        assert_eq!(offset_of!(Ours, k), offset_of!(Kernels, k));
    }
}

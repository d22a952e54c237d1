//! The built-in profiles: which system calls a plugin may not make.
//!
//! The default one refuses, with "operation not permitted", what changes the kernel, the machine or
//! other processes. It names what is refused and lets through what is not, because plugins are not
//! known here; it is meant as a second wall behind an ordinary user, not as the only one.

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

/// System calls that are refused whatever their arguments.
const REFUSED: [libc::c_long; 53] = [
    // Code in the kernel.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // Another kernel, or a restart of the machine.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    // Mounts.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_open_by_handle_at,
    // Other namespaces.
    libc::SYS_unshare,
    libc::SYS_setns,
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
    // Keys, accounting, the kernel's log.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_lookup_dcookie,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
    // The clock.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    // What goes around this filter: calls made by the kernel on a program's behalf.
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    // The host name.
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Watching the files of other processes.
    libc::SYS_fanotify_init,
];

/// Calls that only one kind of processor has.
#[cfg(target_arch = "x86_64")]
const REFUSED_HERE: [libc::c_long; 5] =
    [libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt, libc::SYS_uselib, libc::SYS__sysctl];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_HERE: [libc::c_long; 0] = [];

/// New namespaces, as flags of `clone`.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Numbers from here on are calls of x32, a second interface of the same processor, with numbers of
/// its own for some calls.
const X32: u32 = 0x4000_0000;

/// Parts of filter instructions, as the kernel numbers them.
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_NOT_LESS: u16 = 0x35;
const RETURN: u16 = 0x06;
const OFFSET_OF_NUMBER: u32 = 0;

/// Which system calls are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profile {
    /// The default one.
    Default,
    /// What would let a plugin out of its control group, or set the limits of other processes. For
    /// plugins that are kept to some files and act as root, where the policy wants no filter.
    Inside,
}

/// Whether filters can be made for this processor.
#[must_use]
pub fn is_supported() -> bool {
    processor().is_ok()
}

/// The filters of a profile, in the order in which they are installed.
///
/// # Errors
/// They cannot be made for this processor.
pub(super) fn filters(profile: Profile) -> Result<Vec<BpfProgram>, seccompiler::Error> {
    let refused = |action, rules| -> Result<BpfProgram, seccompiler::Error> {
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, processor()?)?;
        Ok(filter.try_into()?)
    };
    let mut rules = match profile {
        Profile::Default => default_rules()?,
        Profile::Inside => BTreeMap::new(),
    };
    // The limits of another process may be read and not set. A process names itself as 0.
    let another = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, 0)?;
    let is_set = SeccompCondition::new(2, SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0)?;
    rules.insert(number_of(libc::SYS_prlimit64), vec![SeccompRule::new(vec![another, is_set])?]);
    let not_permitted = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let main = without_x32(refused(not_permitted, rules)?);
    // `clone3` takes its flags, and a control group of version 2 to start in, from memory, which a
    // filter cannot read. The filter answers ENOSYS, and callers then use `clone`.
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let rules = BTreeMap::from([(number_of(libc::SYS_clone3), Vec::new())]);
    Ok(vec![main, refused(absent, rules)?])
}

/// What the default profile refuses and the other does not.
fn default_rules() -> Result<BTreeMap<i64, Vec<SeccompRule>>, seccompiler::Error> {
    let calls = REFUSED.iter().chain(&REFUSED_HERE).map(|number| (number_of(*number), Vec::new()));
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = calls.collect();
    let clone = NAMESPACES.iter().map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        let is_set = SeccompCmpOp::MaskedEq(flag);
        SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Qword, is_set, flag)?])
    });
    rules.insert(number_of(libc::SYS_clone), clone.collect::<Result<_, _>>()?);
    Ok(rules)
}

fn processor() -> Result<TargetArch, seccompiler::Error> {
    Ok(TargetArch::try_from(std::env::consts::ARCH)?)
}

/// A call's number in the type that the crate takes.
fn number_of(call: libc::c_long) -> i64 {
    #[expect(clippy::useless_conversion, reason = "the two are the same type on 64 bits only")]
    i64::from(call)
}

/// Makes every call of x32 fail with ENOSYS.
fn without_x32(program: BpfProgram) -> BpfProgram {
    if !cfg!(target_arch = "x86_64") {
        return program;
    }
    let absent = u32::from(SeccompAction::Errno(libc::ENOSYS.unsigned_abs()));
    // Jumps are relative, so other instructions may stand before a program.
    let mut whole = vec![
        sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: OFFSET_OF_NUMBER },
        sock_filter { code: JUMP_IF_NOT_LESS, jt: 0, jf: 1, k: X32 },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: absent },
    ];
    whole.extend(program);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profiles_fit_the_kernel() {
        if !is_supported() {
            eprintln!("skipped: no filters for this processor");
            return;
        }
        for profile in [Profile::Default, Profile::Inside] {
            for program in filters(profile).expect("it can be made") {
                // The kernel takes no longer ones.
                assert!((4..4096).contains(&program.len()), "{}", program.len());
            }
        }
    }

    #[test]
    fn no_call_is_named_twice() {
        let all: std::collections::BTreeSet<_> = REFUSED.iter().chain(&REFUSED_HERE).collect();
        assert_eq!(all.len(), REFUSED.len() + REFUSED_HERE.len());
        assert!(!all.contains(&libc::SYS_clone) && !all.contains(&libc::SYS_execve));
    }
}

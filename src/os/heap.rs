//! What the allocator of the C library keeps of memory that was freed.
//!
//! glibc keeps freed memory for later. Each of up to eight threads per processor has an arena of
//! its own, and an arena gives back only what lies free at its end. So a short burst of work on
//! many threads leaves as much as its height, for as long as the process lives. musl has one heap
//! for all threads, and gives back a group of pages when the last piece in it is freed; nothing is
//! to be done there.
//!
//! One of the few places with `unsafe`: no safe wrappers of `mallopt` and `malloc_trim` exist.

/// Whether the allocator keeps freed memory until [`give_back`] is called.
pub(crate) const KEEPS_FREED: bool = cfg!(target_env = "gnu");

/// Has all threads share one arena. To be called before the first thread is started.
///
/// Nearly all that the agent allocates it allocates on one thread, so sharing costs no time.
pub fn share_one_arena() {
    #[cfg(target_env = "gnu")]
    glibc::share_one_arena();
}

/// Gives the pages back to the kernel in which nothing is used any more. Blocks for a few
/// milliseconds, in which no other thread gets or frees memory.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    glibc::give_back();
}

#[cfg(target_env = "gnu")]
mod glibc {
    use nix::libc;

    #[expect(unsafe_code, reason = "no safe wrapper of this call exists")]
    pub(super) fn share_one_arena() {
        // SAFETY: the call takes two numbers and changes a setting of the allocator, none of the
        // memory that it lent. It must not run beside other calls of the allocator, and runs before
        // a second thread exists.
        unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    }

    #[expect(unsafe_code, reason = "no safe wrapper of this call exists")]
    pub(super) fn give_back() {
        // SAFETY: the call takes a number, may be made by any thread at any time (MT-Safe), and
        // changes nothing but pages that are part of no allocation.
        unsafe { libc::malloc_trim(0) };
    }
}

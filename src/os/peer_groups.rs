//! The groups of the process at the other end of a unix socket, as the kernel noted them when it
//! connected (`SO_PEERGROUPS` of `socket(7)`): no later change of that process is in them.

use std::io::{Error, Result};
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;

/// Room for the groups of most users.
const USUAL: usize = 32;

/// Most groups that a process may have (`NGROUPS_MAX`).
const MOST: usize = 65_536;

/// The supplementary groups of the peer; its primary group need not be among them.
///
/// # Errors
/// The kernel is older than 4.13, or this is no unix socket.
pub(crate) fn of(stream: impl AsFd) -> Result<Vec<u32>> {
    match read(&stream, USUAL) {
        Err(error) if error.raw_os_error() == Some(Errno::ERANGE as i32) => read(&stream, MOST),
        groups => groups,
    }
}

#[expect(unsafe_code, reason = "no safe wrapper of this option exists")]
fn read(stream: &impl AsFd, room: usize) -> Result<Vec<u32>> {
    let mut groups: Vec<libc::gid_t> = vec![0; room];
    let bytes = size_of_val(groups.as_slice());
    let mut length = libc::socklen_t::try_from(bytes).map_err(Error::other)?;
    let descriptor = stream.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for as long as `stream` is borrowed. The kernel writes at most
    // `length` bytes to `groups`, which has that many, and a length that is no greater to `length`;
    // every pattern of bits is a `gid_t`.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::SOL_SOCKET,
            libc::SO_PEERGROUPS,
            groups.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    Errno::result(result)?;
    groups.truncate(usize::try_from(length).map_err(Error::other)? / size_of::<libc::gid_t>());
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_has_the_groups_of_its_process() {
        let (one, _other) = UnixStream::pair().expect("a pair");
        let mut groups = of(&one).expect("a kernel of 4.13 or newer");
        let mut own: Vec<u32> =
            nix::unistd::getgroups().expect("groups").iter().map(|gid| gid.as_raw()).collect();
        groups.sort_unstable();
        own.sort_unstable();
        assert_eq!(groups, own);
    }

    #[test]
    fn what_is_no_unix_socket_is_an_error() {
        let file = std::fs::File::open("/dev/null").expect("there is one");
        of(&file).expect_err("it is no socket");
    }
}

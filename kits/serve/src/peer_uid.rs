//! Which user of this machine has the other end of a TCP connection over loopback: the kernel's
//! `sock_diag(7)` knows the owner of every socket.
//!
//! ```text
//!   4-tuple, as the peer has it ─► inet_diag_req_v2 ─► kernel ─► inet_diag_msg ─► idiag_uid
//! ```
//!
//! The layout of both messages is that of `linux/inet_diag.h`. Nothing is known of a peer whose
//! socket is closed already, nor where the kernel has no `tcp_diag`.

use std::net::{IpAddr, SocketAddr};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, sendto,
    socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`: the type of the request and of its answer.
const BY_FAMILY: u16 = 20;

/// `NLM_F_REQUEST`.
const REQUEST: u16 = 1;

/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// Bytes of `nlmsghdr`.
const HEADER: usize = 16;

/// Bytes of `inet_diag_req_v2`.
const QUESTION: usize = 56;

/// Where `idiag_state`, `idiag_uid` and `idiag_inode` are in `inet_diag_msg`.
const STATE: usize = 1;
const UID: usize = 64;
const INODE: usize = 68;

/// `TCP_LISTEN`: where the connection is gone, the kernel may find a listener instead.
const LISTENS: u8 = 10;

/// The user that owns the socket whose own address is `peer` and which is connected to `own`.
/// `None` where the kernel does not say.
pub(crate) fn of(own: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = Some(netlink::SOCK_DIAG);
    let socket = socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol).ok()?;
    let kernel = netlink::SocketAddrNetlink::new(0, 0);
    sendto(&socket, &question(own, peer)?, SendFlags::empty(), &kernel).ok()?;
    // The kernel answers within the call that asks.
    let mut answer = [0; 512];
    let (length, _) = recv(&socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
    uid_in(answer.get(..length)?)
}

/// The request for one socket. `None` for addresses of two families.
fn question(own: SocketAddr, peer: SocketAddr) -> Option<[u8; HEADER + QUESTION]> {
    let (family, from, to) = match (peer.ip().to_canonical(), own.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let wide = |address: std::net::Ipv4Addr| {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&address.octets());
                bytes
            };
            (AddressFamily::INET, wide(from), wide(to))
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => (AddressFamily::INET6, from.octets(), to.octets()),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    let length = u32::try_from(HEADER + QUESTION).ok()?;
    let family = u8::try_from(family.as_raw()).ok()?;
    let header = [
        &length.to_ne_bytes()[..],
        &BY_FAMILY.to_ne_bytes(),
        &REQUEST.to_ne_bytes(),
        // The number of the request, and the sender's address: the kernel fills it in.
        &[0; 8],
    ];
    let question = [
        &[family, TCP, 0, 0][..],
        // In any state.
        &u32::MAX.to_ne_bytes(),
        &peer.port().to_be_bytes(),
        &own.port().to_be_bytes(),
        &from,
        &to,
        // On any interface; the cookie of the socket is not known.
        &0u32.to_ne_bytes(),
        &u64::MAX.to_ne_bytes(),
    ];
    [header.concat(), question.concat()].concat().try_into().ok()
}

/// The owner in an answer. `None` for an error, for anything else, and for a socket that its owner
/// has closed: the kernel says uid 0 of that, and it has no inode any more.
fn uid_in(answer: &[u8]) -> Option<u32> {
    let kind = answer.get(4..6)?;
    if u16::from_ne_bytes(kind.try_into().ok()?) != BY_FAMILY {
        return None;
    }
    let number = |at: usize| {
        let bytes = answer.get(HEADER + at..HEADER + at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let is_open = number(INODE)? != 0 && *answer.get(HEADER + STATE)? != LISTENS;
    if is_open { number(UID) } else { None }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    fn accepted(at: &str) -> Option<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind(at).ok()?;
        let client = TcpStream::connect(listener.local_addr().expect("an address"));
        Some((listener.accept().expect("a connection").0, client.expect("it listens")))
    }

    fn uid_of(server: &TcpStream) -> Option<u32> {
        let peer = server.peer_addr().expect("an address");
        of(server.local_addr().expect("an address"), peer)
    }

    #[test]
    fn the_other_end_of_a_connection_is_this_user() {
        let mut looked = 0;
        for at in ["127.0.0.1:0", "[::1]:0"] {
            let Some((server, _client)) = accepted(at) else { continue };
            let me = rustix::process::getuid().as_raw();
            assert_eq!(uid_of(&server), Some(me), "{at}; this needs tcp_diag in the kernel");
            looked += 1;
        }
        assert!(looked > 0, "neither IPv4 nor IPv6 here");
    }

    #[test]
    fn the_other_end_of_a_connection_is_another_user() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can connect as another user");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port} && read -r line <&3");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).uid(12_345).stdin(Stdio::null());
        let mut client = command.spawn().expect("bash");
        let (server, _) = listener.accept().expect("a connection");
        let uid = uid_of(&server);
        drop(server);
        client.wait().expect("it ends");
        assert_eq!(uid, Some(12_345));
    }

    /// The kernel answers with uid 0 for it, which would be root.
    #[test]
    fn a_client_that_closed_its_connection_is_nobody() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: only root can connect as another user");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; exec 3>&-");
        let mut command = Command::new("bash");
        command.args(["-c", &script]).uid(12_345).stdin(Stdio::null());
        let ended = command.status().expect("bash");
        assert!(ended.success(), "{ended}");
        let (server, _) = listener.accept().expect("a connection");
        assert_eq!(uid_of(&server), None);
    }

    #[test]
    fn nothing_is_known_of_sockets_that_are_not_there() {
        let [one, two] = ["127.0.0.1:1", "127.0.0.1:2"].map(|at| at.parse().expect("an address"));
        assert_eq!(of(one, two), None);
        assert_eq!(of(one, "[::1]:2".parse().expect("an address")), None);
    }

    #[test]
    fn an_answer_that_is_none_is_not_read_beyond_its_end() {
        for length in 0..HEADER + INODE + 4 {
            let mut short = vec![0xff; length];
            if let Some(kind) = short.get_mut(4..6) {
                kind.copy_from_slice(&BY_FAMILY.to_ne_bytes());
            }
            assert_eq!(uid_in(&short), None, "{length} bytes");
        }
        // NLMSG_ERROR
        let mut error = [0; 100];
        error[4..6].copy_from_slice(&2u16.to_ne_bytes());
        assert_eq!(uid_in(&error), None);
    }
}

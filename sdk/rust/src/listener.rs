//! Binding: from an [`Address`] to a socket that listens.
//!
//! A unix socket is made owner-only between `bind` and `listen`, when no process can connect yet,
//! so other users can never connect; the process-wide umask stays as it is. A file at the path is
//! removed only if it is a socket on which no process listens.

use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::Address;

/// Number of connections that may wait to be accepted. Only the agent connects.
const BACKLOG: i32 = 64;

/// The loopback addresses, in the order in which they are listened on.
const LOOPBACK: [IpAddr; 2] = [IpAddr::V6(Ipv6Addr::LOCALHOST), IpAddr::V4(Ipv4Addr::LOCALHOST)];

/// How many ports of the kernel's choice are tried for one that is free on both loopback addresses.
const PORTS_TRIED: usize = 16;

/// Why an address could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The file at the path is not a socket; it is left alone.
    #[error("{} exists and is not a socket: it was left alone; use another path", path.display())]
    NotASocket {
        /// The path of the socket.
        path: PathBuf,
    },
    /// Another process listens on the socket at the path.
    #[error("another process listens on {}: end it first or use another path", path.display())]
    InUse {
        /// The path of the socket.
        path: PathBuf,
    },
    /// The socket file at the path could not be tested for a listener, or could not be removed.
    #[error("cannot replace the stale socket {}", path.display())]
    Stale {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The kernel refused, for instance because the directory does not exist.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address that was given.
        address: Address,
        /// The error of the operating system.
        source: io::Error,
    },
}

/// A socket that listens, not yet tied to a runtime.
pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
    /// On `::1` and on `127.0.0.1`.
    Loopback([TcpListener; 2]),
}

/// The file of a unix socket; removed when dropped, unless another file is there by then.
pub(crate) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

// === impl Listener ===

impl Listener {
    /// Listens on the address; gives the listener and the address on which it listens, with its
    /// real port.
    pub(crate) fn bind(address: &Address) -> Result<(Listener, Address), BindError> {
        let failed = |source| BindError::Listen { address: address.clone(), source };
        match address {
            Address::Unix(path) => {
                remove_stale(path)?;
                let (listener, file) = listen_unix(path).map_err(failed)?;
                Ok((Listener::Unix(listener, file), address.clone()))
            }
            Address::Tcp(wanted) => {
                let (listener, real) = listen_tcp(*wanted)?;
                Ok((Listener::Tcp(listener), Address::Tcp(real)))
            }
            Address::Loopback { port } => {
                let mut bound = listen_loopback(LOOPBACK, *port);
                for _ in 1..PORTS_TRIED {
                    // The kernel chooses a port that is free on one of them only.
                    let may_choose_again = *port == 0 && bound.as_ref().is_err_and(is_in_use);
                    if !may_choose_again {
                        break;
                    }
                    bound = listen_loopback(LOOPBACK, 0);
                }
                bound
            }
        }
    }
}

// === impl SocketFile ===

impl SocketFile {
    fn of(path: &Path) -> io::Result<SocketFile> {
        let metadata = path.symlink_metadata()?;
        Ok(SocketFile { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let metadata = self.path.symlink_metadata();
        if metadata.is_ok_and(|now| now.dev() == self.device && now.ino() == self.inode) {
            // A file that cannot be removed is stale; the next start replaces it.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

fn listen_unix(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    let socket = unix_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = SocketFile::of(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok((UnixListener::from(socket), file))
}

fn listen_tcp(wanted: SocketAddr) -> Result<(TcpListener, SocketAddr), BindError> {
    let failed = |source| BindError::Listen { address: Address::Tcp(wanted), source };
    let listener = TcpListener::bind(wanted).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let real = listener.local_addr().map_err(failed)?;
    Ok((listener, real))
}

/// Listens on one port of both addresses, or of the one that the machine has.
///
/// A port that another process has on one of them is an error: the agent could connect to that
/// process instead, and would send it the plugin's configuration.
fn listen_loopback(ips: [IpAddr; 2], port: u16) -> Result<(Listener, Address), BindError> {
    let on = |ip, port| listen_tcp(SocketAddr::new(ip, port));
    let (first, real) = match on(ips[0], port) {
        Ok(bound) => bound,
        Err(error) if is_missing(&error) => {
            let (listener, real) = on(ips[1], port)?;
            return Ok((Listener::Tcp(listener), Address::Tcp(real)));
        }
        Err(error) => return Err(error),
    };
    match on(ips[1], real.port()) {
        Ok((second, _)) => {
            Ok((Listener::Loopback([first, second]), Address::Loopback { port: real.port() }))
        }
        Err(error) if is_missing(&error) => Ok((Listener::Tcp(first), Address::Tcp(real))),
        Err(error) => Err(error),
    }
}

/// Whether the machine does not have the address: a kernel without IPv6 knows no such family
/// (`EAFNOSUPPORT`), and with IPv6 switched off no interface has it (`EADDRNOTAVAIL`).
fn is_missing(error: &BindError) -> bool {
    let BindError::Listen { source, .. } = error else { return false };
    matches!(Errno::from_io_error(source), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

fn is_in_use(error: &BindError) -> bool {
    let BindError::Listen { source, .. } = error else { return false };
    source.kind() == io::ErrorKind::AddrInUse
}

/// Removes the stale socket of an earlier process.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |source| BindError::Stale { path: path.to_owned(), source };
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    if somebody_listens(path).map_err(failed)? {
        return Err(BindError::InUse { path: path.to_owned() });
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Tries to connect, without waiting: a listener whose queue is full counts as a listener.
fn somebody_listens(path: &Path) -> io::Result<bool> {
    let socket = unix_socket()?;
    match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN | Errno::INPROGRESS) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Closed on exec: the plugin's children must not hold the plugin's address.
fn unix_socket() -> io::Result<std::os::fd::OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn somewhere() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("plugin.sock");
        (directory, path)
    }

    fn bind(path: &Path) -> Result<Listener, BindError> {
        Listener::bind(&Address::unix(path).expect("a short path")).map(|(listener, _)| listener)
    }

    #[test]
    fn the_socket_is_the_owners_alone_and_goes_with_the_listener() {
        let (_directory, path) = somewhere();
        let listener = bind(&path).expect("bound");
        let mode = path.symlink_metadata().expect("the socket exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_socket_is_replaced() {
        let (_directory, path) = somewhere();
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "the file outlives its listener");
        let _listener = bind(&path).expect("the stale file is replaced");
        assert!(somebody_listens(&path).expect("probed"));
    }

    #[test]
    fn a_socket_somebody_listens_on_is_left_alone() {
        let (_directory, path) = somewhere();
        let other = UnixListener::bind(&path).expect("bound");
        assert!(matches!(bind(&path), Err(BindError::InUse { .. })));
        assert!(somebody_listens(&path).expect("probed"));
        drop(other);
    }

    #[test]
    fn files_and_symlinks_at_the_path_are_left_alone() {
        let (directory, path) = somewhere();
        std::fs::write(&path, "precious").expect("written");
        assert!(matches!(bind(&path), Err(BindError::NotASocket { .. })));
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");

        let link = directory.path().join("link.sock");
        std::os::unix::fs::symlink(&path, &link).expect("linked");
        assert!(matches!(bind(&link), Err(BindError::NotASocket { .. })));
        assert!(link.symlink_metadata().expect("still there").is_symlink());
    }

    #[test]
    fn a_successors_socket_survives_the_predecessors_end() {
        let (_directory, path) = somewhere();
        let first = bind(&path).expect("bound");
        std::fs::remove_file(&path).expect("removed");
        let _second = UnixListener::bind(&path).expect("bound");
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = bind(Path::new("/nonexistent/plugin.sock")).err().expect("no such directory");
        assert_eq!(error.to_string(), "cannot listen on unix:/nonexistent/plugin.sock");
    }

    fn can_connect(ip: IpAddr, port: u16) -> bool {
        std::net::TcpStream::connect(SocketAddr::new(ip, port)).is_ok()
    }

    /// Whether this machine has an address. Some have no IPv6.
    fn is_here(ip: IpAddr) -> bool {
        TcpListener::bind(SocketAddr::new(ip, 0)).is_ok()
    }

    #[test]
    fn one_port_of_both_loopback_addresses_is_listened_on() {
        let (_listener, real) = Listener::bind(&Address::Loopback { port: 0 }).expect("bound");
        let port = match real {
            Address::Loopback { port } => port,
            Address::Tcp(only) => only.port(),
            Address::Unix(path) => panic!("{} is not a port", path.display()),
        };
        assert_ne!(port, 0);
        for ip in LOOPBACK {
            assert_eq!(can_connect(ip, port), is_here(ip), "{ip}");
        }
    }

    #[test]
    fn an_address_that_the_machine_does_not_have_is_done_without() {
        // From TEST-NET-1, which no machine has.
        let missing = IpAddr::from([192, 0, 2, 1]);
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        for ips in [[missing, here], [here, missing]] {
            let (_listener, real) = listen_loopback(ips, 0).expect("one of them is here");
            let Address::Tcp(real) = real else { panic!("{real}") };
            assert!(real.ip() == here && can_connect(here, real.port()), "{real}");
        }
        let neither = listen_loopback([missing, missing], 7).err().expect("neither is here");
        assert_eq!(neither.to_string(), "cannot listen on tcp:192.0.2.1:7");
    }

    #[test]
    fn a_port_that_another_process_has_on_one_of_the_addresses_is_refused() {
        let other = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bound");
        let port = other.local_addr().expect("bound").port();
        let error = Listener::bind(&Address::Loopback { port }).err().expect("it is taken");
        assert_eq!(error.to_string(), format!("cannot listen on tcp:127.0.0.1:{port}"));
        assert!(is_in_use(&error));
    }

    #[test]
    fn port_zero_becomes_a_real_port() {
        let wanted = Address::parse("tcp", "127.0.0.1:0").expect("loopback");
        let (_listener, real) = Listener::bind(&wanted).expect("bound");
        let Address::Tcp(real) = real else { panic!("{real} is not a TCP address") };
        assert_ne!(real.port(), 0);
    }
}

//! HTTP on a unix socket: the kernel says who asks, and the groups of the machine decide.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::signal::Signal;
use nix::unistd::Uid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::harness::{Bed, PATIENCE, orders, signal};

/// Groups by number: no machine needs to have them.
const READS: u32 = 31_011;
const ACTS: u32 = 31_012;

const ADMIN: &str = "0123456789abcdef-admin";

/// A user with a group and another one.
#[derive(Clone, Copy)]
struct User(u32, u32);

const READER: User = User(12_361, READS);
const OPERATOR: User = User(12_362, ACTS);
const STRANGER: User = User(12_363, 12_363);

/// Connects as another user. The kernel keeps users per thread, so only this thread becomes one.
#[expect(unsafe_code, reason = "nix changes the user of all threads, and the test goes on as root")]
fn connect_as(User(uid, group): User, path: &Path) -> std::io::Result<UnixStream> {
    let path = path.to_owned();
    let connecting = std::thread::spawn(move || {
        let groups = [group];
        // SAFETY: system calls with numbers and with memory that outlives them.
        let failed = unsafe {
            libc::syscall(libc::SYS_setgroups, 1usize, groups.as_ptr())
                | libc::syscall(libc::SYS_setresgid, uid, uid, uid)
                | libc::syscall(libc::SYS_setresuid, uid, uid, uid)
        };
        assert_eq!(failed, 0, "root can become anybody");
        std::os::unix::net::UnixStream::connect(path)
    });
    let stream = connecting.join().expect("the thread ends")?;
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}

/// Sends a request; returns the status and the answer with its head.
async fn ask(mut stream: UnixStream, method: &str, path: &str, headers: &str) -> (u16, String) {
    let host = if headers.contains("host:") { "" } else { "host: localhost\r\n" };
    let request = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{host}{headers}\r\n");
    let asking = async {
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        text
    };
    let text = tokio::time::timeout(PATIENCE, asking).await.expect("an answer in time");
    (text.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"), text)
}

/// A bed whose agent serves HTTP on a socket.
async fn served(settings: &[String]) -> (Bed, PathBuf) {
    let mut builder = Bed::builder();
    for setting in settings {
        builder = builder.set(setting);
    }
    let mut bed = builder.build().await;
    fs::set_permissions(bed.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = bed.dir().join("http.sock");
    let path = bed.dir().join("agent.toml");
    let before = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{before}[api]\nhttp_socket = \"{}\"\n", socket.display())).unwrap();
    bed.start_agent().await;
    bed.until("the socket is served", async || {
        let agent = bed.try_status().await.ok()?.agent?;
        (agent.http_socket == socket.display().to_string()).then_some(())
    })
    .await;
    (bed, socket)
}

#[tokio::test]
async fn the_agents_user_scrapes_and_acts_without_a_token() {
    let (bed, socket) = served(&[]).await;
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o660);
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    let before = bed.running("web", "1").await;
    let own = async || UnixStream::connect(&socket).await.unwrap();
    let (status, page) = ask(own().await, "GET", "/metrics", "").await;
    assert_eq!(status, 200, "{page}");
    let sample = "guest_agent_connections{listener=\"http_socket\",places=\"usual\"} 1";
    assert!(page.contains(sample), "{page}");
    for (headers, expected) in [
        // A browser at the other end of `ssh -L` shows pages of anybody.
        ("host: attacker.example\r\n", 421),
        ("origin: http://attacker.example\r\n", 403),
        ("authorization: Bearer wrong-wrong-wrong\r\n", 401),
        ("", 303),
    ] {
        let form = "content-type: application/x-www-form-urlencoded\r\ncontent-length: 0\r\n";
        let path = "/console/plugins/web/restart";
        let (status, said) = ask(own().await, "POST", path, &format!("{form}{headers}")).await;
        assert_eq!(status, expected, "{headers}: {said}");
    }
    bed.running_again("web", &before).await;
    let status: serde_json::Value =
        serde_json::from_str(&bed.cli(&["status", "--json"]).await.ok()).unwrap();
    assert_eq!(status["agent"]["http_socket"], socket.display().to_string());
    assert_eq!(status["agent"]["http"], "", "it is beside no address");
    bed.finish().await;
    assert!(!socket.exists(), "it goes with the agent");
}

#[tokio::test]
async fn members_of_its_group_read_and_strangers_do_not_get_in() {
    if !Uid::effective().is_root() {
        eprintln!("SKIPPED: only root can connect as another user");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("admin");
    fs::write(&token, ADMIN).unwrap();
    let (bed, socket) = served(&[
        format!("api.http_socket_group={READS}"),
        format!("agent.admin_group={ACTS}"),
        format!("api.http_admin_token_file={}", token.display()),
    ])
    .await;
    let trouble = bed.trouble().await;
    bed.configure(vec![orders::install("web", "1", &trouble).order()]).await;
    let before = bed.running("web", "1").await;
    bed.ask("web", "log my s3cr3t").await;
    assert_eq!(fs::metadata(&socket).unwrap().gid(), READS);
    let page = "/console/plugins/web";
    let restart = format!("{page}/restart");
    let form = "content-type: application/x-www-form-urlencoded\r\ncontent-length: 0\r\n";

    let as_reader = || connect_as(READER, &socket).unwrap();
    assert_eq!(ask(as_reader(), "GET", "/metrics", "").await.0, 200);
    let (status, shown) = ask(as_reader(), "GET", page, "").await;
    assert!(status == 200 && !shown.contains("s3cr3t"), "{shown}");
    let (status, said) = ask(as_reader(), "POST", &restart, form).await;
    assert_eq!(status, 403, "{said}");
    let with_token = format!("{form}authorization: Bearer {ADMIN}\r\n");
    assert_eq!(ask(as_reader(), "POST", &restart, &with_token).await.0, 303, "a token adds to it");
    let again = bed.running_again("web", &before).await;

    // The mode of the file decides who reaches it, what is configured who may use it.
    let refused = connect_as(STRANGER, &socket).expect_err("it is no member");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    fs::set_permissions(&socket, PermissionsExt::from_mode(0o777)).unwrap();
    for path in ["/metrics", "/healthz"] {
        let (status, said) = ask(connect_as(STRANGER, &socket).unwrap(), "GET", path, "").await;
        assert_eq!(status, 403, "{said}");
        assert!(said.contains("uid 12363 may not use this socket"), "{said}");
        assert!(said.contains("api.http_socket_group"), "{said}");
    }
    let as_operator = || connect_as(OPERATOR, &socket).unwrap();
    let (_, shown) = ask(as_operator(), "GET", page, "").await;
    assert!(shown.contains("s3cr3t"), "who may act sees everything: {shown}");
    assert_eq!(ask(as_operator(), "POST", &restart, form).await.0, 303);
    bed.running_again("web", &again).await;
    bed.finish().await;
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_file_that_is_in_the_way_is_reported() {
    let (mut bed, socket) = served(&[]).await;
    bed.kill_agent().await;
    assert!(socket.exists(), "a killed agent leaves it");
    bed.start_agent().await;
    bed.until("it is served again", async || UnixStream::connect(&socket).await.ok()).await;
    let path = bed.dir().join("agent.toml");
    let other = bed.dir().join("other.sock");
    fs::write(&other, "precious").unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("http.sock", "other.sock")).unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.until("the file is reported", async || {
        let troubles = bed.try_status().await.ok()?.agent?.troubles;
        let is_it = |it: &String| it.contains("the HTTP socket is off") && it.contains("move it");
        troubles.iter().any(is_it).then_some(())
    })
    .await;
    assert!(!socket.exists(), "the former one is closed");
    assert_eq!(fs::read_to_string(&other).unwrap(), "precious");
    let config = path.display().to_string();
    let said = bed.cli(&["doctor", "--config", &config]).await;
    assert!(said.stdout.contains("which api.http_socket names"), "{said:?}");
    fs::remove_file(&other).unwrap();
    bed.until("it is served there", async || UnixStream::connect(&other).await.ok()).await;
    bed.finish().await;
}

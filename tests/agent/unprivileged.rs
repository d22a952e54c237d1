//! The agent needs no root: all of it as an ordinary user.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, chown};
use tokio::process::Command;

use crate::harness::archive::Tarball;
use crate::harness::{ArchiveSpec, Bed, Said, copy_program, listing, orders, plugins, signal};

/// The user that owns nothing.
const NOBODY: u32 = 65534;

#[tokio::test]
async fn an_ordinary_user_can_run_the_agent_and_its_plugins() {
    if !Uid::effective().is_root() {
        eprintln!("skipped: the other tests run as an ordinary user already");
        return;
    }
    let bed = Bed::builder().build().await;
    let program = copied(&bed);
    give_away(bed.dir());
    let mut agent = Command::new(&program)
        .args(["run", "--config"])
        .arg(bed.dir().join("agent.toml"))
        .args(["--set", "instance.id=test", "--set", "control_plane.auth=none"])
        .args(["--set", "plugins.echo.user=0", "--set", "plugins.echo.no_new_privileges=true"])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .current_dir("/")
        .stdin(Stdio::null())
        .stderr(std::fs::File::create(bed.dir().join("agent.log")).unwrap())
        .uid(NOBODY)
        .gid(NOBODY)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let echo = std::fs::read(plugins::program("echo_plugin")).unwrap();
    let archive = ArchiveSpec::tar("echo", Tarball::default().file("echo", 0o755, &echo));
    let archive = bed.archive("echo.tar", archive).await;
    bed.configure(vec![orders::install("echo", "1", &archive).order()]).await;
    bed.until("the agent answers", async || bed.try_status().await.ok().map(|_| ())).await;
    let before = bed.running("echo", "1").await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", before.pid.unwrap())).unwrap();
    assert!(status.contains("NoNewPrivs:\t1"), "what needs no root holds: {status}");
    let told = before.not_enforced.iter().find(|it| it.what.starts_with("user 0"));
    let told = told.unwrap_or_else(|| panic!("it is not told: {:?}", before.not_enforced));
    assert!(told.why.contains("CAP_SETUID") && told.fix.contains("as root"), "{told:?}");
    let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
    assert_eq!(
        uids.split_whitespace().collect::<Vec<_>>(),
        ["Uid:", "65534", "65534", "65534", "65534"]
    );
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.running_again("echo", &before).await;
    // The host socket is theirs as well.
    for name in ["provider", "consumer"] {
        let program = ArchiveSpec::program(&format!("registry_{name}"));
        let archive = bed.archive(&format!("{name}.tar"), program).await;
        bed.configure(vec![orders::install(name, "1", &archive).order()]).await;
        bed.running(name, "1").await;
    }
    bed.until_greeted("hello", "hello").await;
    bed.configure(["provider", "consumer"].map(orders::remove).to_vec()).await;
    bed.gone("provider").await;
    bed.gone("consumer").await;
    bed.expect_events("echo", &[1, 4, 3, 7, 4]).await;
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    signal(agent.id().unwrap(), Signal::SIGTERM);
    let ended = tokio::time::timeout(Duration::from_secs(30), agent.wait()).await;
    assert!(ended.expect("it stops").unwrap().success());
    bed.finish().await;
}

#[tokio::test]
async fn an_ordinary_user_is_told_what_is_hidden_and_not_that_it_is_wrong() {
    if !Uid::effective().is_root() {
        eprintln!("skipped: only root can look with the eyes of another user");
        return;
    }
    let mut bed = Bed::builder().build().await;
    let config = bed.dir().join("agent.toml");
    // Root's alone: a manifest, the program that admits plugins, and a token.
    let secret = bed.dir().join("secret");
    std::fs::create_dir_all(bed.dir().join("local/hidden")).unwrap();
    std::fs::create_dir(&secret).unwrap();
    std::fs::write(secret.join("token"), "token").unwrap();
    let more = format!(
        "\n[api]\nhttp_token_file = {0:?}\nhttp_tokens_file = {2:?}\n\n[admission]\ncommand = [{1:?}]\n\n\
         [plugins.p]\nuser = \"root\"\nread_only_paths = [{0:?}]\n",
        secret.join("token").display().to_string(),
        secret.join("admit").display().to_string(),
        secret.join("tokens").display().to_string(),
    );
    let before = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, before + &more).unwrap();
    let private = [secret, bed.dir().join("local/hidden")];
    for (path, mode) in private.iter().map(|path| (path.as_path(), 0o700)).chain([
        (bed.dir(), 0o755),
        (config.as_path(), 0o644),
        (&bed.dir().join("local"), 0o755),
    ]) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    copied(&bed);
    bed.start_agent().await;
    let named = config.display().to_string();

    let status = as_nobody(&bed, &["status", "--config", &named]).await;
    assert_eq!((status.code, status.stdout.as_str()), (3, ""), "{status:?}");
    let socket = bed.socket().display().to_string();
    for part in ["the agent is not reachable: no permission to use", &socket, "run as root"] {
        assert!(status.stderr.contains(part), "{part}: {status:?}");
    }
    let hidden = [
        "the agent and its plugins",
        "the local plugin hidden",
        "the admission plugin",
        "which api.http_token_file names",
        "which api.http_tokens_file names",
    ];
    let doctor = as_nobody(&bed, &["doctor", "--config", &named]).await;
    let first = doctor.stdout.lines().next().unwrap();
    assert!(first.starts_with(HIDDEN) && first.contains(hidden[0]), "{doctor:?}");
    assert!(doctor.stdout.contains("\nnothing is wrong with the rest\n"), "{doctor:?}");
    assert!(doctor.stderr.contains("not everything was looked at"), "{doctor:?}");
    let findings = looked(&as_nobody(&bed, &["doctor", "--json", "--config", &named]).await);
    for part in hidden {
        let what = findings.iter().find(|what| what.contains(part));
        assert!(what.is_some_and(|what| what.starts_with(HIDDEN)), "{part}: {findings:#?}");
    }

    // Not even the configuration.
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o600)).unwrap();
    let status = as_nobody(&bed, &["status", "--config", &named]).await;
    assert_eq!((status.code, status.stdout.as_str()), (3, ""), "{status:?}");
    for part in ["no permission to read", &named, "run as root, or name the agent's socket"] {
        assert!(status.stderr.contains(part), "{part}: {status:?}");
    }
    let findings = looked(&as_nobody(&bed, &["doctor", "--json", "--config", &named]).await);
    for part in ["the configuration", "the agent and its plugins"] {
        assert!(findings.contains(&format!("{HIDDEN}{part}")), "{part}: {findings:#?}");
    }
    bed.finish().await;
}

/// What a finding begins with that says only that the caller may not look.
const HIDDEN: &str = "not looked at, for lack of permission: ";

/// The sentences of the findings of `doctor`, of which none may be a problem.
#[track_caller]
fn looked(said: &Said) -> Vec<String> {
    let report: serde_json::Value = serde_json::from_str(&said.stdout).unwrap();
    let is_whole = report["not_looked_at"].as_array().unwrap().is_empty();
    assert_eq!(said.code, i32::from(!is_whole), "{said:?}");
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["severity"] == "note"), "{report:#}");
    findings.iter().map(|finding| finding["what"].as_str().unwrap().to_owned()).collect()
}

/// Runs the bed's program as a user who owns nothing, without the variable that names the socket.
async fn as_nobody(bed: &Bed, arguments: &[&str]) -> Said {
    let mut command = Command::new(bed.dir().join("guest-agent"));
    command.args(arguments).env_clear().current_dir("/").stdin(Stdio::null());
    let ran = command.uid(NOBODY).gid(NOBODY).kill_on_drop(true).output();
    let output = tokio::time::timeout(Duration::from_secs(30), ran).await.unwrap().unwrap();
    Said {
        code: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// A copy of the program in the bed: neither the build folder nor the sources need be readable for
/// other users.
fn copied(bed: &Bed) -> PathBuf {
    let program = bed.dir().join("guest-agent");
    copy_program(Path::new(env!("CARGO_BIN_EXE_guest-agent")), &program);
    program
}

/// Makes the user the owner of everything in a folder.
fn give_away(path: &Path) {
    if path.is_dir() {
        listing(path).iter().for_each(|entry| give_away(entry));
    }
    chown(path, Some(Uid::from_raw(NOBODY)), Some(Gid::from_raw(NOBODY))).unwrap();
}

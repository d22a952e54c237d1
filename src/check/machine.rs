//! What machines do to plugins: limits, full disks, other users, policies, a bare environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use guest_agent_actors::ports::Cause;
use guest_agent_proto::agent_controlplane::configure_plugin_states::Manifest;
use guest_agent_proto::local::Act;
use tokio::process::Command;

use super::bench::Bench;
use super::life::{completed, shown};
use super::report::Verdict;
use crate::dev::private::Surroundings;

/// A user that owns nothing, by its number: not every machine has a name for it.
const NOBODY: &str = "user = 65534\ngroup = 65534\n";

/// Least memory that a plugin is given.
const LEAST_MEMORY: u64 = 16 << 20;

/// The share of one core that a plugin is given, in percent.
const LITTLE_CPU: i32 = 10;

/// The bytes of a state directory that is full.
const SMALL_DISK: &str = "size=64k,mode=0700";

/// Policies, the strictest first, with what they are called.
const POLICIES: [(&str, &str); 4] = [
    (
        "another user, no capabilities, own files alone, no unusual system calls",
        "user = 65534\ngroup = 65534\ncapabilities = []\nno_new_privileges = true\nread_only_paths = []\n\
         private_tmp = true\nseccomp = \"default\"\nrequired = true\n",
    ),
    (
        "another user, no capabilities, no unusual system calls",
        "user = 65534\ngroup = 65534\ncapabilities = []\nno_new_privileges = true\nseccomp = \"default\"\n\
         required = true\n",
    ),
    (
        "another user without capabilities",
        "user = 65534\ngroup = 65534\ncapabilities = []\nno_new_privileges = true\nrequired = true\n",
    ),
    ("no capabilities", "capabilities = []\nno_new_privileges = true\nrequired = true\n"),
];

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Installs the plugin with a limit, restarts it under it, and says whether it runs; `None` where the machine does
/// not enforce the limit, with the reason.
async fn under(
    bench: &mut Bench,
    change: impl Fn(&mut Manifest),
    word: &str,
) -> Result<Result<Result<(), String>, String>, Cause> {
    bench.limit(&change).await?;
    let status = bench.status().await?.unwrap_or_default();
    let unenforced = status.not_enforced.iter().find(|it| it.what.contains(word));
    if let Some(unenforced) = unenforced {
        let why = unenforced.why.clone();
        bench.limit(|_| {}).await?;
        return Ok(Err(why));
    }
    bench.restart().await?;
    let runs = bench.runs().await?;
    // The limit goes first, so that a plugin that does not run under it comes back.
    bench.limit(|_| {}).await?;
    Ok(Ok(runs.map(drop)))
}

pub(super) async fn memory(bench: &mut Bench) -> Result<Verdict, Cause> {
    let used = bench.status().await?.and_then(|status| status.memory_bytes).unwrap_or(0);
    let said = bench.said_memory();
    // A limit that the author chose is the one to try.
    let limit = said.unwrap_or_else(|| (used * 2).max(LEAST_MEMORY));
    let bytes = i64::try_from(limit).unwrap_or(i64::MAX);
    let shown = format!("{} KiB of memory, where it used {} KiB", limit / 1024, used / 1024);
    Ok(match under(bench, |it| it.max_memory_usage_bytes = bytes, "memory").await? {
        Err(why) => Verdict::skipped(format!("no memory limit here: {why}")),
        Ok(Ok(())) => Verdict::passed(format!("it runs with {shown}")),
        Ok(Err(why)) => Verdict::failed(
            format!("it does not run with {shown}: {why}"),
            "set limits.memory_bytes higher",
        ),
    })
}

pub(super) async fn cpu(bench: &mut Bench) -> Result<Verdict, Cause> {
    Ok(match under(bench, |it| it.max_cpu_usage_percentage = LITTLE_CPU, "cpu").await? {
        Err(why) => Verdict::skipped(format!("no CPU limit here: {why}")),
        Ok(Ok(())) => {
            Verdict::passed(format!("it starts and answers with {LITTLE_CPU} % of a core"))
        }
        Ok(Err(why)) => Verdict::failed(
            format!("it does not start with {LITTLE_CPU} % of a core: {why}"),
            "do less before Start is answered, or set start.timeout higher",
        ),
    })
}

/// Runs a program that mounts; why it cannot be done here.
async fn mount(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output().await;
    let output = output.map_err(|error| format!("{program} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it failed").to_owned())
}

/// Ends a mount, also when a trial is given up.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // Lazily: the plugin may have a file open there.
        let ended = std::process::Command::new("umount").arg("-l").arg(&self.0).output();
        if !ended.is_ok_and(|output| output.status.success()) {
            tracing::warn!(path = %self.0.display(), "a mount of the check remains");
        }
    }
}

pub(super) async fn full_disk(bench: &mut Bench) -> Result<Verdict, Cause> {
    if !is_root() {
        return Ok(Verdict::skipped("only root may mount a small file system"));
    }
    bench.stopped().await?;
    let data = bench.agent.data_of(bench.name());
    let path = data.to_string_lossy().into_owned();
    if let Err(why) = mount("mount", &["-t", "tmpfs", "-o", SMALL_DISK, "tmpfs", &path]).await {
        bench.act(Act::Start).await?;
        return Ok(Verdict::skipped(format!("no small file system here: {why}")));
    }
    let mounted = Mounted(data.clone());
    fill(&data);
    let mark = bench.mark().await?;
    bench.act(Act::Start).await?;
    let runs = bench.runs().await?;
    let answers = bench.ask(Some("guest-agent check")).await;
    let crash = bench.crash_since(mark).await?;
    bench.stopped().await?;
    drop(mounted);
    bench.act(Act::Start).await?;
    let after = bench.runs().await?;
    let fix = "treat an error of writing as one: report it in GetStatus, and go on";
    Ok(match (runs, crash, after) {
        (_, Some(crash), _) => Verdict::failed(format!("it crashed on a full disk: {crash}"), fix),
        (Err(why), None, _) => {
            Verdict::failed(format!("it does not run on a full disk: {why}"), fix)
        }
        (_, _, Err(why)) => {
            Verdict::failed(format!("it does not run when there is room again: {why}"), fix)
        }
        (Ok(_), None, Ok(_)) => Verdict::passed(match answers {
            Ok(_) => "it runs and answers while it cannot write",
            Err(_) => "it runs while it cannot write, and refuses questions",
        }),
    })
}

/// Writes until there is no room left.
fn fill(folder: &Path) {
    use std::io::Write as _;

    let Ok(mut file) = std::fs::File::create(folder.join("full")) else { return };
    while file.write_all(&[0; 1024]).is_ok() {}
    while file.write_all(&[0]).is_ok() {}
}

pub(super) async fn read_only(bench: &mut Bench) -> Result<Verdict, Cause> {
    let Some(folder) = bench.installed().await? else {
        return Ok(Verdict::skipped("it is not installed"));
    };
    let fix = "keep your own files in GUEST_AGENT_STATE_DIR";
    let before = listing(&folder);
    if bench.is_one_shot() {
        bench.act(Act::Run).await?;
        completed(bench).await?;
    } else {
        bench.restart().await?;
        if let Err(why) = bench.runs().await? {
            return Ok(Verdict::failed(format!("it does not run after a restart: {why}"), fix));
        }
    }
    let after = listing(&folder);
    if let Some((name, _)) = after.iter().find(|(name, facts)| before.get(*name) != Some(*facts)) {
        return Ok(Verdict::failed(format!("it wrote {name} where it is installed"), fix));
    }
    if bench.is_one_shot() {
        return Ok(Verdict::passed("it writes nothing where it is installed"));
    }
    let path = folder.to_string_lossy().into_owned();
    if let Err(why) = mount("mount", &["--bind", &path, &path]).await {
        return Ok(Verdict::passed(format!(
            "it writes nothing where it is installed; a read-only mount was not tried: {why}"
        )));
    }
    let mounted = Mounted(folder.clone());
    let is_read_only = mount("mount", &["-o", "remount,ro,bind", &path]).await;
    bench.restart().await?;
    let runs = bench.runs().await?;
    drop(mounted);
    Ok(match (is_read_only, runs) {
        (_, Err(why)) => {
            bench.disturb();
            Verdict::failed(format!("it does not run where its files are read-only: {why}"), fix)
        }
        (Ok(()), Ok(_)) => Verdict::passed("it runs where its files are read-only"),
        (Err(_), Ok(_)) => Verdict::passed("it writes nothing where it is installed"),
    })
}

/// Sizes and times of the files below a folder. Caches of an interpreter, which it makes where it may, are no files of
/// the plugin.
fn listing(folder: &Path) -> BTreeMap<String, (u64, Option<SystemTime>)> {
    let names = super::life::files_in(folder);
    let own = names.into_iter().filter(|name| !name.contains("__pycache__"));
    own.filter_map(|name| {
        let facts = std::fs::symlink_metadata(folder.join(&name)).ok()?;
        Some((name, (facts.len(), facts.modified().ok())))
    })
    .collect()
}

/// Starts an agent with other settings, and sees whether the plugin runs there.
async fn runs_with(
    bench: &mut Bench,
    settings: String,
    surroundings: Surroundings,
) -> Result<Result<(), String>, Cause> {
    bench.reboot(settings, surroundings).await?;
    bench.disturb();
    if bench.is_one_shot() {
        bench.act(Act::Run).await?;
        return Ok(match completed(bench).await? {
            Verdict::Failed { what, .. } => Err(what),
            Verdict::Passed(_) | Verdict::Skipped(_) => Ok(()),
        });
    }
    Ok(bench.runs().await?.map(drop))
}

pub(super) async fn environment(bench: &mut Bench) -> Result<Verdict, Cause> {
    Ok(match runs_with(bench, String::new(), Surroundings::Bare).await? {
        Ok(()) => Verdict::passed("it runs without HOME, LANG and TZ"),
        Err(why) => Verdict::failed(
            format!("it does not run without HOME, LANG and TZ: {why}"),
            "have a default for every variable but those that begin with GUEST_AGENT_",
        ),
    })
}

pub(super) async fn host_socket(bench: &mut Bench) -> Result<Verdict, Cause> {
    let begun = std::time::Instant::now();
    let socket = bench.agent.host_socket();
    if let Err(error) = std::fs::remove_file(&socket) {
        return Ok(Verdict::skipped(format!("{} cannot be removed: {error}", socket.display())));
    }
    bench.disturb();
    bench.restart().await?;
    Ok(match bench.runs().await? {
        Ok(_) => Verdict::passed(format!("it runs without one, after {}", shown(begun.elapsed()))),
        Err(why) => Verdict::failed(
            format!("it does not run without one: {why}"),
            "connect when you need it, and again later where that fails",
        ),
    })
}

/// The settings that give the plugin a policy.
fn policy_of(bench: &Bench, policy: &str) -> String {
    format!("[plugins.{:?}]\n{policy}", bench.name())
}

pub(super) async fn unprivileged(bench: &mut Bench) -> Result<Verdict, Cause> {
    if !is_root() {
        let uid = nix::unistd::geteuid();
        return Ok(Verdict::passed(format!("all of this ran as the user {uid}")));
    }
    let settings = policy_of(bench, NOBODY);
    Ok(match runs_with(bench, settings, Surroundings::Usual).await? {
        Ok(()) => Verdict::passed("it runs as a user that owns nothing but its own data"),
        Err(why) => Verdict::failed(
            format!("it does not run as another user: {why}"),
            "if it needs privileges, name the capabilities in its policy",
        ),
    })
}

pub(super) async fn policy(bench: &mut Bench) -> Result<Verdict, Cause> {
    if !is_root() {
        return Ok(Verdict::skipped("only root may run plugins by a policy"));
    }
    let mut refused = Vec::new();
    for (what, policy) in POLICIES {
        let settings = policy_of(bench, policy);
        match runs_with(bench, settings, Surroundings::Usual).await? {
            Ok(()) => {
                let passed = format!("it runs with {what}");
                return Ok(Verdict::passed(match refused.first() {
                    None => passed,
                    Some(why) => format!("{passed}; not with more: {why}"),
                }));
            }
            Err(why) => refused.push(why),
        }
    }
    Ok(Verdict::failed(
        format!("it runs with no policy: {}", refused.join("; ")),
        "see what it needs with `guest-agent logs`, and grant that alone",
    ))
}

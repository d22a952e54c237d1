//! What happens to every plugin: calls, stops, crashes, restarts, removal.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use guest_agent_actors::ports::Cause;
use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType as Kind;
use guest_agent_proto::local::{Act, NotifyVmEventRequest};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use prost_types::value::Kind as ValueKind;
use prost_types::{Struct, Value};

use super::bench::{Bench, ended};
use super::report::Verdict;

/// How often a plugin is restarted in a row.
const RESTARTS: usize = 5;

/// How many descriptors more a process may have after restarts: those of a moment.
const DESCRIPTORS: usize = 4;

/// What libraries say of a method that failed without an answer of its own.
const ACCIDENTS: [&str; 3] = ["Exception calling application", "panicked", "panic:"];

/// Bytes of a configuration without sense.
const GARBAGE_BYTES: usize = 100_000;

pub(super) async fn start(bench: &mut Bench) -> Result<Verdict, Cause> {
    let begun = Instant::now();
    bench.limit(|_| {}).await?;
    let events = bench.events_since(0).await?;
    let failed = events.iter().find(|event| event.type_value() == Kind::PluginStartFailed);
    if let Some(failed) = failed {
        return Ok(Verdict::failed(
            format!("a start failed: {}", failed.details.replace('\n', "; ")),
            "answer Start when the work has begun, and print why where that cannot be",
        ));
    }
    let end = events.iter().find(|event| ended(event.type_value()));
    match end.map(|event| (event.type_value(), event.details.replace('\n', "; "))) {
        Some((Kind::PluginInstalled, _)) => {}
        Some((_, details)) => {
            return Ok(Verdict::failed(
                format!("it was not installed: {details}"),
                "see what `guest-agent plan` says of the archive",
            ));
        }
        None => {
            return Ok(Verdict::failed(
                bench.why_not().await?,
                "answer Start within start.timeout",
            ));
        }
    }
    if bench.is_one_shot() {
        return completed(bench).await;
    }
    Ok(match bench.started().await? {
        Ok(_) => Verdict::passed(format!("installed and running after {}", shown(begun.elapsed()))),
        Err(why) => Verdict::failed(why, "answer Start within start.timeout"),
    })
}

/// How the run of a plugin ended that runs to completion.
pub(super) async fn completed(bench: &Bench) -> Result<Verdict, Cause> {
    let ends = [StatusValue::ExecutionCompleted, StatusValue::ExecutionFailed];
    let status = bench
        .until(bench.run_patience(), |it| !it.busy && ends.contains(&it.state_value()))
        .await?;
    Ok(match status {
        Some(status) if status.state_value() == StatusValue::ExecutionCompleted => {
            Verdict::passed("it ran to its end")
        }
        Some(status) => Verdict::failed(
            format!("its run failed: {}", status.reason),
            "exit with 0 when the work is done",
        ),
        None => Verdict::failed("its run does not end", "end within one_shot.timeout"),
    })
}

pub(super) async fn health(bench: &mut Bench) -> Result<Verdict, Cause> {
    const CHECKS: usize = 5;
    let mut longest = Duration::ZERO;
    let mut last = None;
    for _ in 0..CHECKS {
        let begun = Instant::now();
        match bench.ask(None).await {
            Ok(answer) => last = Some(answer),
            Err(why) => {
                let fix = "answer GetStatus without data from memory, within 2 s";
                return Ok(Verdict::failed(format!("a health check failed: {why}"), fix));
            }
        }
        longest = longest.max(begun.elapsed());
    }
    let answer = last.unwrap_or_default();
    let said = answer.results.join("; ");
    Ok(if answer.code == 0 {
        Verdict::passed(format!("{CHECKS} checks, the longest took {}", shown(longest)))
    } else {
        Verdict::passed(format!("it answers, and is unhealthy: code {}: {said}", answer.code))
    })
}

pub(super) async fn question(bench: &mut Bench) -> Result<Verdict, Cause> {
    let (mark, before) = (bench.mark().await?, bench.pid().await?);
    for data in ["guest-agent check", "", &"?".repeat(GARBAGE_BYTES)] {
        if let Err(why) = bench.ask(Some(data)).await
            && !why.contains("does not implement")
        {
            let fix = "answer GetStatus with data that you do not know with a code other than 0";
            return Ok(Verdict::failed(format!("a question failed: {why}"), fix));
        }
    }
    alive(bench, mark, before, "questions", "it answered three questions").await
}

/// Whether the same process is still there, without a crash.
async fn alive(
    bench: &Bench,
    mark: u64,
    before: Option<u32>,
    after: &str,
    passed: &str,
) -> Result<Verdict, Cause> {
    let fix = "catch what goes wrong in a call, and answer with an error";
    if let Some(crash) = bench.crash_since(mark).await? {
        return Ok(Verdict::failed(format!("it crashed after {after}: {crash}"), fix));
    }
    if bench.pid().await? != before {
        return Ok(Verdict::failed(format!("it has another process after {after}"), fix));
    }
    Ok(match bench.ask(None).await {
        Ok(_) => Verdict::passed(passed),
        Err(why) => Verdict::failed(format!("it does not answer after {after}: {why}"), fix),
    })
}

pub(super) async fn apply_text(bench: &mut Bench) -> Result<Verdict, Cause> {
    applied(bench, Some(Config::StringConfig("guest-agent check".to_owned()))).await
}

pub(super) async fn apply_structure(bench: &mut Bench) -> Result<Verdict, Cause> {
    let number = Value { kind: Some(ValueKind::NumberValue(7.0)) };
    let text = Value { kind: Some(ValueKind::StringValue("guest-agent check".to_owned())) };
    let fields = [("guest-agent-check".to_owned(), text), ("number".to_owned(), number)];
    let config = Struct { fields: fields.into_iter().collect() };
    applied(bench, Some(Config::StructConfig(config))).await
}

pub(super) async fn apply_nothing(bench: &mut Bench) -> Result<Verdict, Cause> {
    applied(bench, None).await
}

pub(super) async fn apply_garbage(bench: &mut Bench) -> Result<Verdict, Cause> {
    let garbage: String = "\u{1}{[<\\\"\u{fffd}\n".chars().cycle().take(GARBAGE_BYTES).collect();
    applied(bench, Some(Config::StringConfig(garbage))).await
}

/// Hands over a configuration, which is taken or refused, and afterwards the one that the plugin is installed with.
async fn applied(bench: &mut Bench, config: Option<Config>) -> Result<Verdict, Cause> {
    let mark = bench.mark().await?;
    let end = bench.apply(config).await?;
    if let Some(crash) = bench.crash_since(mark).await? {
        bench.disturb();
        let fix =
            "refuse a configuration that you cannot use: answer INVALID_ARGUMENT with the reason";
        return Ok(Verdict::failed(format!("it crashed: {crash}"), fix));
    }
    let Some(end) = end else {
        bench.disturb();
        return Ok(Verdict::failed("Apply has no end", "answer Apply within 5 s"));
    };
    let verdict = match end.type_value() {
        Kind::PluginConfigApplied => Verdict::passed("it took the configuration"),
        _ => refusal(&end.details),
    };
    bench.apply(bench.config()).await?;
    Ok(verdict)
}

/// Whether a refusal helps the operator who reads it.
fn refusal(details: &str) -> Verdict {
    let shown = details.replace('\n', "; ");
    if details.contains("did not answer") || details.contains("cannot be reached") {
        return Verdict::failed(shown, "answer Apply within 5 s");
    }
    let answered = details.split_once("the plugin answered ").map_or(details, |(_, rest)| rest);
    let message = answered.split_once(": ").map_or("", |(_, message)| message);
    let is_accident = ACCIDENTS.iter().any(|words| message.contains(words));
    if is_accident || message.trim().is_empty() {
        let fix = "answer INVALID_ARGUMENT with a sentence that names what is wrong";
        return Verdict::failed(
            format!("it refused by accident or without a reason: {shown}"),
            fix,
        );
    }
    Verdict::passed(format!("it refused the configuration: {}", message.trim()))
}

pub(super) async fn vm_event(bench: &mut Bench) -> Result<Verdict, Cause> {
    let (mark, before) = (bench.mark().await?, bench.pid().await?);
    for event in ["startup", "specialize"] {
        let request = NotifyVmEventRequest { event: event.to_owned() };
        let mut client = bench.agent.client().await?;
        let results = client.notify_vm_event(request).await?.into_inner().results;
        let refused = results.into_iter().find(|it| it.plugin == bench.name() && it.status != 0);
        if let Some(refused) = refused {
            let fix = "answer UNIMPLEMENTED to news of the machine that do not concern you";
            return Ok(Verdict::failed(format!("{event} failed: {}", refused.message), fix));
        }
    }
    alive(bench, mark, before, "news of the machine", "it took startup and specialize").await
}

pub(super) async fn stop(bench: &mut Bench) -> Result<Verdict, Cause> {
    let (logged, begun) = (bench.agent.log().len(), Instant::now());
    let stopped = bench.stopped().await?;
    let took = begun.elapsed();
    bench.act(Act::Start).await?;
    let back = bench.runs().await?;
    if stopped.is_none() {
        return Ok(Verdict::failed("it does not stop", "exit when Stop was answered"));
    }
    if let Some(verdict) = forced(bench.agent.log().get(logged..).unwrap_or_default()) {
        return Ok(verdict);
    }
    Ok(match back {
        Ok(_) => Verdict::passed(format!("it stopped after {} and started again", shown(took))),
        Err(why) => {
            Verdict::failed(format!("it does not start again: {why}"), "keep what a start needs")
        }
    })
}

/// Whether the agent's log of a stop tells that the plugin did not go by itself.
fn forced(log: &str) -> Option<Verdict> {
    let has = |words: &str| log.contains(words);
    if has("signals follow") {
        let line = log.lines().find(|line| line.contains("signals follow")).unwrap_or_default();
        let why = line.split_once("error=").map_or(line, |(_, why)| why);
        let fix = "answer Stop within stop.timeout, and exit then";
        return Some(Verdict::failed(format!("Stop failed: {why}"), fix));
    }
    if has("signalled") {
        let fix = "exit within 2 s of the answer to Stop, and end your child processes before";
        return Some(Verdict::failed(
            "processes of it were there after Stop, and got SIGTERM",
            fix,
        ));
    }
    None
}

pub(super) async fn adoption(bench: &mut Bench) -> Result<Verdict, Cause> {
    let (mark, before) = (bench.mark().await?, bench.pid().await?);
    bench.agent.kill().await?;
    bench.start_agent().await?;
    drop(bench.started().await?);
    alive(bench, mark, before, "a restart of the agent", "the next agent adopted it").await
}

pub(super) async fn killed(bench: &mut Bench) -> Result<Verdict, Cause> {
    let Some(pid) = bench.pid().await? else { return Ok(Verdict::skipped("it has no process")) };
    signal(pid, Signal::SIGKILL)?;
    let patience = bench.start_patience();
    bench.until(patience, |status| status.pid.is_some_and(|it| it != pid)).await?;
    let data = bench.agent.data_of(bench.name());
    let files = files_in(&data).len();
    Ok(match bench.runs().await? {
        Ok(_) => Verdict::passed(format!("it came back, with {files} files of its own")),
        Err(why) => {
            bench.disturb();
            Verdict::failed(
                format!("it does not come back: {why}"),
                "read files of a former process with care: write beside, sync, rename",
            )
        }
    })
}

pub(super) async fn pause(bench: &mut Bench) -> Result<Verdict, Cause> {
    let (mark, before) = (bench.mark().await?, bench.pid().await?);
    let Some(pid) = before else { return Ok(Verdict::skipped("it has no process")) };
    signal(pid, Signal::SIGSTOP)?;
    tokio::time::sleep(bench.pause).await;
    signal(pid, Signal::SIGCONT)?;
    // A check that began during the pause may end in its time-out.
    let until = Instant::now() + bench.start_timeout();
    while bench.ask(None).await.is_err() && Instant::now() < until {
        tokio::time::sleep(crate::dev::private::BEAT).await;
    }
    let passed = format!("it answers after a pause of {}", shown(bench.pause));
    alive(bench, mark, before, "a pause", &passed).await
}

/// What a process and its plugin hold.
struct Held {
    descriptors: usize,
    sockets: usize,
    files: BTreeSet<String>,
}

impl Held {
    async fn now(bench: &Bench) -> Result<Option<Self>, Cause> {
        let Some(pid) = bench.pid().await? else { return Ok(None) };
        let folder = format!("/proc/{pid}/fd");
        let links: Vec<String> = std::fs::read_dir(folder)
            .into_iter()
            .flatten()
            .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
            .map(|link| link.to_string_lossy().into_owned())
            .collect();
        let files = files_in(&bench.agent.data_of(bench.name()));
        let sockets = links.iter().filter(|link| link.starts_with("socket:")).count();
        Ok(Some(Self { descriptors: links.len(), sockets, files }))
    }
}

pub(super) async fn restarts(bench: &mut Bench) -> Result<Verdict, Cause> {
    let mut held = Vec::new();
    for round in 1..=RESTARTS {
        bench.restart().await?;
        if let Err(why) = bench.runs().await? {
            let fix = "let go of ports and locks when you end; the next process comes at once";
            return Ok(Verdict::failed(
                format!("it does not start at restart {round}: {why}"),
                fix,
            ));
        }
        held.extend(Held::now(bench).await?);
    }
    let (Some(first), Some(last)) = (held.first(), held.last()) else {
        return Ok(Verdict::skipped("it has no process"));
    };
    let grows = held.windows(2).all(|pair| pair[0].files.len() < pair[1].files.len());
    if grows {
        let fresh: Vec<_> = last.files.difference(&first.files).take(3).cloned().collect();
        return Ok(Verdict::failed(
            format!("each restart leaves a file more in its state directory: {}", fresh.join(", ")),
            "delete what a former process left, or use the same names again",
        ));
    }
    if last.descriptors > first.descriptors + DESCRIPTORS {
        return Ok(Verdict::failed(
            format!("{} descriptors became {}", first.descriptors, last.descriptors),
            "close what you open",
        ));
    }
    let (descriptors, sockets) = (last.descriptors, last.sockets);
    Ok(Verdict::passed(format!(
        "{RESTARTS} restarts; {descriptors} descriptors, {sockets} of them sockets"
    )))
}

pub(super) async fn removal(bench: &mut Bench) -> Result<Verdict, Cause> {
    let logged = bench.agent.log().len();
    bench.remove().await?;
    if let Some(status) = bench.status().await? {
        let what = format!("it is still there: {} {}", status.state, status.reason);
        return Ok(Verdict::failed(what, "answer Stop with cleanup, and exit"));
    }
    if let Some(verdict) = forced(bench.agent.log().get(logged..).unwrap_or_default()) {
        return Ok(verdict);
    }
    let left = processes_of(bench.name(), bench.agent.folder());
    if !left.is_empty() {
        return Ok(Verdict::failed(
            format!("processes of it are still there: {left:?}"),
            "end your child processes, and keep their environment",
        ));
    }
    let data = bench.agent.data_of(bench.name());
    if data.exists() {
        return Ok(Verdict::failed(
            format!("{} is still there", data.display()),
            "leave it to the agent",
        ));
    }
    Ok(Verdict::passed("its processes and its files are gone"))
}

/// Sends a signal to the process of the plugin.
pub(super) fn signal(pid: u32, signal: Signal) -> Result<(), Cause> {
    Ok(kill(Pid::from_raw(i32::try_from(pid)?), signal)?)
}

/// The files below a folder, but for the plugin's error log.
pub(super) fn files_in(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(path);
            } else if let Ok(below) = path.strip_prefix(folder)
                && below != Path::new("plugin.log")
            {
                found.insert(below.to_string_lossy().into_owned());
            }
        }
    }
    found
}

/// Processes that have the plugin's name and folder in their environment.
fn processes_of(plugin: &str, folder: &Path) -> Vec<u32> {
    let name = format!("GUEST_AGENT_PLUGIN={plugin}");
    let folder = folder.to_string_lossy().into_owned();
    let is_of_it = |pid: u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let text = String::from_utf8_lossy(&environment).into_owned();
        text.split('\0').any(|variable| variable == name) && text.contains(&folder)
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| is_of_it(*pid)).collect()
}

pub(super) fn shown(time: Duration) -> String {
    match time.as_millis() {
        millis @ ..=9_999 => format!("{millis} ms"),
        millis => format!("{} s", millis / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_needs_a_code_and_a_reason() {
        let polite = refusal("the plugin answered InvalidArgument: a greeting is one line");
        assert_eq!(polite, Verdict::passed("it refused the configuration: a greeting is one line"));
        for rude in [
            "the plugin answered Unknown: Exception calling application: 'x'",
            "the plugin answered InvalidArgument: ",
            "the plugin answered Internal: apply panicked: no",
            "the plugin did not answer within 5s",
        ] {
            assert!(matches!(refusal(rude), Verdict::Failed { .. }), "{rude}");
        }
    }

    #[test]
    fn a_stop_by_force_is_seen_in_the_log() {
        assert_eq!(forced("INFO stopped\n"), None);
        assert!(forced("DEBUG signalled plugin=a pid=7 signal=Term\n").is_some());
        let late =
            forced("INFO the Stop call failed; signals follow error=the plugin did not answer");
        assert!(
            matches!(late, Some(Verdict::Failed { what, .. }) if what.contains("did not answer"))
        );
    }
}

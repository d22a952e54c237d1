//! A plugin that misbehaves as its arguments say, for the end-to-end tests.
//!
//! Do not learn plugins from it; `echo_plugin.rs` is the page for that. Arguments, all optional,
//! as `--name=value` or `--name value`:
//!
//! | argument | what happens |
//! |---|---|
//! | `--exit-before-start=CODE` | prints a line to stderr and exits, no socket is made |
//! | `--slow-socket-ms=N` | listens N ms late |
//! | `--never-bind` | lives without ever listening |
//! | `--start-fails=N` | the first N Starts fail, counted in `start-count` in the state directory |
//! | `--start-hangs` | Start is never answered |
//! | `--hang-after-start-ms=N` | N ms after a Start the whole runtime stops; only SIGKILL helps |
//! | `--unhealthy-code=N` | health checks are answered with code N |
//! | `--crash-after-ms=N` | N ms after a Start the process exits with code 70 |
//! | `--fork-children=N` | a Start spawns N `sleep` children in this process group |
//! | `--setsid-children=N` | a Start spawns N `sleep` children in sessions of their own |
//! | `--ignore-stop` | Stop is answered, the process lives on (SIGTERM still ends it) |
//! | `--ignore-sigterm` | SIGTERM and SIGINT do nothing, before and after Stop |
//! | `--apply=ok\|refuse\|unimplemented` | how Apply is answered; `ok` if absent |
//! | `--on-apply=COMMAND` | an Apply first runs a shell command with the configuration in `$1` |
//! | `--write-args-to=FILE` | a Start writes what the process was given to FILE, as JSON |
//! | `--allocate-mb=N` | after a Start the process holds N MiB of written memory |
//! | `--spam-stdout=BYTES` | after a Start that many bytes go to stdout, in lines |
//!
//! Questions: `echo TEXT`, `pid`, `children` (pids of the spawned processes), `config`, `exit N`,
//! `log TEXT` (to stderr), `panic TEXT`, `run COMMAND` (answers with the exit code and the output
//! of a shell command). FILE is relative to the state directory; its object has `argv`, `cwd`,
//! `environment`, `descriptors` (number → target), `oom_score_adj`, `pid`, `session`.

use std::io::{self, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::Mutex;
use std::time::Duration;

use guest_agent_plugin::{
    Arguments, ErrorLog, Plugin, PluginError, PluginStatus, Server, ServiceConfig, StartContext,
    StatusQuery, async_trait,
};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code of `--crash-after-ms`.
const CRASH_CODE: i32 = 70;

struct Trouble {
    arguments: Arguments,
    /// Arguments, environment and descriptors of the process, read before it opened any file.
    given: Value,
    config: Mutex<Option<ServiceConfig>>,
    children: Mutex<Vec<Child>>,
}

#[async_trait]
impl Plugin for Trouble {
    async fn start(&self, context: StartContext) -> Result<(), PluginError> {
        if let Some(file) = self.arguments.value("--write-args-to") {
            write_at_once(&context.state_directory.join(file), &self.given.to_string())?;
        }
        if let Some(failures) = self.number("--start-fails") {
            self.fail_the_first(failures, &context.state_directory)?;
        }
        if self.arguments.has("--start-hangs") {
            std::future::pending::<()>().await;
        }
        *self.config.lock().expect("not poisoned") = context.config;
        self.spawn_children()?;
        self.begin_misbehaving();
        Ok(())
    }

    async fn apply(&self, config: Option<ServiceConfig>) -> Result<(), PluginError> {
        if let Some(command) = self.arguments.value("--on-apply") {
            let text = config.as_ref().map(ServiceConfig::to_text).unwrap_or_default();
            quiet("sh").args(["-c", command, "sh", &text]).status()?;
        }
        match self.arguments.value("--apply") {
            None | Some("ok") => {
                *self.config.lock().expect("not poisoned") = config;
                Ok(())
            }
            Some("refuse") => Err(PluginError::bad_config("told to refuse every configuration")),
            Some(_) => Err(PluginError::Unsupported),
        }
    }

    async fn status(&self, query: StatusQuery) -> PluginStatus {
        let StatusQuery::Question(question) = query else {
            return match self.number("--unhealthy-code") {
                None => PluginStatus::healthy(),
                Some(code) => PluginStatus::unhealthy(code, "told to be unhealthy"),
            };
        };
        match question.split_once(' ').unwrap_or((&question, "")) {
            ("echo", text) => PluginStatus::answer(text),
            ("pid", _) => PluginStatus::answer(std::process::id().to_string()),
            ("children", _) => {
                let children = self.children.lock().expect("not poisoned");
                let results = children.iter().map(|child| child.id().to_string()).collect();
                PluginStatus { code: 0, results }
            }
            ("config", _) => {
                let config = self.config.lock().expect("not poisoned");
                PluginStatus::answer(
                    config.as_ref().map(ServiceConfig::to_text).unwrap_or_default(),
                )
            }
            ("exit", code) => exit(code.parse().unwrap_or(1)),
            ("log", text) => {
                eprintln!("{text}");
                PluginStatus::healthy()
            }
            ("panic", text) => panic!("{text}"),
            ("run", command) => run_in_shell(command),
            _ => PluginStatus::unhealthy(1, format!("unknown question {question:?}")),
        }
    }
}

// === impl Trouble ===

impl Trouble {
    fn number<T: FromStr>(&self, name: &str) -> Option<T> {
        number(&self.arguments, name)
    }

    /// Counts Starts in a file, so that it survives the process.
    fn fail_the_first(&self, failures: u32, state_directory: &Path) -> Result<(), PluginError> {
        let file = state_directory.join("start-count");
        let before: u32 = match std::fs::read_to_string(&file) {
            Ok(text) => text.trim().parse().map_err(|_| "start-count is not a number")?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error.into()),
        };
        write_at_once(&file, &(before + 1).to_string())?;
        if before < failures {
            return Err(format!("told to fail start {} of {failures}", before + 1).into());
        }
        Ok(())
    }

    fn spawn_children(&self) -> io::Result<()> {
        let mut children = self.children.lock().expect("not poisoned");
        for _ in 0..self.number("--fork-children").unwrap_or(0_u32) {
            children.push(quiet("sleep").arg("600").spawn()?);
        }
        for _ in 0..self.number("--setsid-children").unwrap_or(0_u32) {
            // `setsid` becomes `sleep` without forking, so the pid stays the same.
            children.push(quiet("setsid").args(["sleep", "600"]).spawn()?);
        }
        Ok(())
    }

    fn begin_misbehaving(&self) {
        if let Some(after) = self.number("--hang-after-start-ms") {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(after)).await;
                // The runtime has this one thread: nothing is answered from now on.
                sleep_for_ever();
            });
        }
        if let Some(after) = self.number("--crash-after-ms") {
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(after));
                eprintln!("told to crash after {after} ms");
                exit(CRASH_CODE);
            });
        }
        if let Some(megabytes) = self.number::<usize>("--allocate-mb") {
            std::thread::spawn(move || {
                // Not zeros: those cost no memory until they are written.
                let memory = vec![0x5a_u8; megabytes.saturating_mul(1024 * 1024)];
                std::hint::black_box(&memory);
                sleep_for_ever();
                drop(memory);
            });
        }
        if let Some(bytes) = self.number("--spam-stdout") {
            std::thread::spawn(move || spam(bytes));
        }
    }
}

fn main() -> ExitCode {
    let given = what_was_given();
    let arguments = match Arguments::from_env() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(code) = number(&arguments, "--exit-before-start") {
        eprintln!("told to exit with code {code} before start");
        exit(code);
    }
    if arguments.has("--never-bind") {
        sleep_for_ever();
    }
    if let Some(late) = number(&arguments, "--slow-socket-ms") {
        std::thread::sleep(Duration::from_millis(late));
    }
    if let Some(log) = arguments.error_log() {
        ErrorLog::new(log).record_panics();
    }
    // One thread, so that `--hang-after-start-ms` hangs everything.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(run(arguments, given))) {
        // At once: threads that allocate or write do not matter any more.
        Ok(()) => exit(0),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Like `guest_agent_plugin::serve`, but for the ways to ignore being stopped.
async fn run(arguments: Arguments, given: Value) -> Result<(), Box<dyn std::error::Error>> {
    let ignore_stop = arguments.has("--ignore-stop");
    let ignore_signals = arguments.has("--ignore-sigterm");
    let mut signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
    let address = arguments.address().clone();
    let (config, children) = (Mutex::default(), Mutex::default());
    let server = Server::bind(Trouble { arguments, given, config, children }, &address)?;
    server.run_until(asked_to_end(&mut signals, ignore_signals)).await?;
    if ignore_stop {
        asked_to_end(&mut signals, ignore_signals).await;
    }
    Ok(())
}

async fn asked_to_end(signals: &mut [Signal; 2], ignore: bool) {
    let [terminate, interrupt] = signals;
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if !ignore {
            return;
        }
    }
}

fn what_was_given() -> Value {
    let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
    let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value).into()));
    let cwd = std::env::current_dir().ok().map(|path| path.display().to_string());
    let adjustment = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    json!({
        "argv": std::env::args_os().map(text).collect::<Vec<_>>(),
        "cwd": cwd,
        "environment": environment.collect::<Map<_, _>>(),
        "descriptors": descriptors(),
        "oom_score_adj": adjustment.trim().parse::<i32>().ok(),
        "pid": std::process::id(),
        "session": session(),
    })
}

/// The open descriptors and what they refer to. The one that lists the directory is closed by the
/// time its target is read, so it is not among them.
fn descriptors() -> Map<String, Value> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Map::new() };
    let paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    let open = paths.iter().filter_map(|path| {
        let target = std::fs::read_link(path).ok()?;
        let number = path.file_name()?.to_string_lossy().into_owned();
        Some((number, target.display().to_string().into()))
    });
    open.collect()
}

/// The sixth field of `/proc/self/stat`; the second is the program's name in parentheses and may
/// contain anything.
fn session() -> Option<u32> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_whitespace().nth(3)?.parse().ok()
}

fn number<T: FromStr>(arguments: &Arguments, name: &str) -> Option<T> {
    let value = arguments.value(name)?;
    let number = value.parse().ok();
    Some(number.unwrap_or_else(|| {
        eprintln!("error: {name}={value} is not a number it can be");
        exit(2)
    }))
}

/// Readers see the whole file or none.
fn write_at_once(path: &Path, text: &str) -> io::Result<()> {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, text)?;
    std::fs::rename(unfinished, path)
}

fn run_in_shell(command: &str) -> PluginStatus {
    match quiet("sh").args(["-c", command]).stdout(Stdio::piped()).output() {
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stdout);
            let results = said.lines().map(str::to_owned).collect();
            PluginStatus { code: done.status.code().unwrap_or(-1), results }
        }
        Err(error) => PluginStatus::unhealthy(-1, error.to_string()),
    }
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn spam(bytes: usize) {
    let line = [b"spam ".repeat(15), b"eggs\n".to_vec()].concat();
    let mut stdout = io::stdout().lock();
    let mut left = bytes;
    while left > 0 {
        let part = &line[..left.min(line.len())];
        if stdout.write_all(part).is_err() {
            return;
        }
        left -= part.len();
    }
    drop(stdout.flush());
}

fn sleep_for_ever() {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

#[expect(clippy::exit, reason = "the command line asks for an abrupt end")]
fn exit(code: i32) -> ! {
    std::process::exit(code)
}

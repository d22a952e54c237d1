//! The gallery of broken plugins: what the sample plugin can have wrong, one thing at a time.
//!
//! `sample-plugin --flaw NAME` has it. `guest-agent check` finds each of them; its tests hold it to that.

use std::path::Path;
use std::time::Duration;

/// Longer than anybody waits.
const NEVER: Duration = Duration::from_secs(3600);

/// Something that is wrong with a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Flaw {
    /// It refuses to start.
    RefusesStart,
    /// It does not answer health checks.
    Deaf,
    /// It exits at a question that it does not know.
    DiesOfQuestions,
    /// It exits at a configuration that it cannot read.
    DiesOfConfig,
    /// It refuses configurations without a reason.
    Rude,
    /// It fails at news of the machine.
    FearsTheMachine,
    /// It answers Stop late.
    SlowStop,
    /// It answers Stop and stays.
    Stays,
    /// It does not start where it was killed before.
    CannotComeBack,
    /// It leaves a file at each start.
    Litters,
    /// It exits when it cannot write.
    NeedsDisk,
    /// It writes where it is installed.
    WritesAtHome,
    /// It needs the variable HOME.
    NeedsHome,
    /// It needs the agent's host socket.
    NeedsHost,
    /// It needs to be root.
    NeedsRoot,
}

// === impl Flaw ===

impl Flaw {
    /// What goes wrong in Start.
    pub(super) fn at_start(self, data: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        match self {
            Self::RefusesStart => Err("this release is broken on purpose".to_owned()),
            Self::CannotComeBack => {
                let lock = data.join("lock");
                if lock.exists() {
                    return Err("another process has the lock".to_owned());
                }
                std::fs::write(lock, "").map_err(failed)
            }
            Self::Litters => {
                let name = format!("log-{}", std::process::id());
                std::fs::write(data.join(name), "started").map_err(failed)
            }
            Self::NeedsDisk => {
                if std::fs::write(data.join("journal"), vec![7; 1 << 12]).is_err() {
                    die("no journal, no work");
                }
                Ok(())
            }
            Self::WritesAtHome => {
                std::fs::write("cache", std::process::id().to_string()).map_err(failed)
            }
            Self::NeedsHome => {
                std::env::var_os("HOME").map(drop).ok_or_else(|| "no HOME".to_owned())
            }
            Self::NeedsHost => {
                let socket = std::env::var_os("GUEST_AGENT_HOST_SOCKET").unwrap_or_default();
                std::os::unix::net::UnixStream::connect(socket).map(drop).map_err(failed)
            }
            Self::NeedsRoot if !nix::unistd::geteuid().is_root() => Err("not root".to_owned()),
            _ => Ok(()),
        }
    }

    /// What goes wrong in Apply.
    pub(super) fn at_apply(self, config: &str) -> Result<(), String> {
        let is_readable = config.chars().all(|letter| !letter.is_control());
        match self {
            Self::DiesOfConfig if !is_readable => die("a strange configuration"),
            Self::Rude => Err(String::new()),
            _ => Ok(()),
        }
    }

    /// What goes wrong at a question.
    pub(super) fn at_question(self) {
        if self == Self::DiesOfQuestions {
            die("a strange question");
        }
    }

    /// How long Stop takes, and what it puts away.
    pub(super) async fn at_stop(self, data: &Path) {
        match self {
            Self::SlowStop => tokio::time::sleep(NEVER).await,
            Self::CannotComeBack => drop(std::fs::remove_file(data.join("lock"))),
            _ => {}
        }
    }

    /// What the process does when it has served.
    pub(super) fn at_end(self) {
        if self == Self::Stays {
            std::thread::sleep(NEVER);
        }
    }

    /// How long a health check takes.
    pub(super) async fn at_health(self) {
        if self == Self::Deaf {
            tokio::time::sleep(NEVER).await;
        }
    }
}

#[expect(clippy::exit, reason = "a crash leaves no time for anything else")]
fn die(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(70);
}

//! The environment variables that the agent sets for a plugin.
//!
//! All are optional for the plugin: a process that was started by hand, or by another agent that
//! speaks the same protocol, has none of them.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// The plugin's name, revision, directory, host socket and ticket, from the agent. A variable that
/// is unset, empty or (where text is meant) not UTF-8 is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The plugin's name.
    pub name: Option<String>,
    /// The revision of this process.
    pub revision: Option<String>,
    /// The plugin's own directory, the same as in [`StartContext`](crate::StartContext).
    pub state_directory: Option<PathBuf>,
    /// The socket on which the agent answers its plugins.
    pub host_socket: Option<PathBuf>,
    /// The secret that identifies the plugin at the host socket.
    pub ticket: Option<Ticket>,
    /// Why this run began. Only a plugin that runs to completion has one.
    pub trigger: Option<Trigger>,
}

/// Why the agent began a run of a plugin that runs to completion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// An order installed a revision, or changed how it runs.
    Install,
    /// The machine started.
    Startup,
    /// The machine is a new instance.
    FirstBoot,
    /// The plugin's interval was over.
    Interval,
    /// The plugin's rules did not hold before, and hold now.
    Rule,
    /// A person asked for the run.
    Person,
    /// A trigger this version of the SDK does not know, by its name.
    Other(String),
}

/// The secret with which a plugin introduces itself at the host socket. Never printed.
///
/// Children of the plugin inherit the environment; spawn those that must not call in the plugin's
/// name with `Command::env_remove(Environment::TICKET)`.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket(String);

// === impl Environment ===

impl Environment {
    /// The variable that holds the plugin's name.
    pub const NAME: &str = "GUEST_AGENT_PLUGIN";
    /// The variable that holds the revision.
    pub const REVISION: &str = "GUEST_AGENT_REVISION";
    /// The variable that holds the plugin's own directory.
    pub const STATE_DIRECTORY: &str = "GUEST_AGENT_STATE_DIR";
    /// The variable that holds the path of the host socket.
    pub const HOST_SOCKET: &str = "GUEST_AGENT_HOST_SOCKET";
    /// The variable that holds the ticket.
    pub const TICKET: &str = "GUEST_AGENT_TICKET";
    /// The variable that says why a run began.
    pub const TRIGGER: &str = "GUEST_AGENT_TRIGGER";

    /// The process's own environment.
    pub fn from_env() -> Environment {
        Environment::read(|name| std::env::var_os(name))
    }

    /// An environment given by a lookup, for tests.
    pub fn read(lookup: impl Fn(&str) -> Option<OsString>) -> Environment {
        let value = |name| lookup(name).filter(|value| !value.is_empty());
        let text = |name| value(name).and_then(|value| value.into_string().ok());
        Environment {
            name: text(Environment::NAME),
            revision: text(Environment::REVISION),
            state_directory: value(Environment::STATE_DIRECTORY).map(PathBuf::from),
            host_socket: value(Environment::HOST_SOCKET).map(PathBuf::from),
            ticket: text(Environment::TICKET).map(Ticket),
            trigger: text(Environment::TRIGGER).map(Trigger::named),
        }
    }
}

// === impl Trigger ===

impl Trigger {
    fn named(name: String) -> Trigger {
        match name.as_str() {
            "install" => Trigger::Install,
            "startup" => Trigger::Startup,
            "firstboot" => Trigger::FirstBoot,
            "interval" => Trigger::Interval,
            "rule" => Trigger::Rule,
            "run" => Trigger::Person,
            _ => Trigger::Other(name),
        }
    }
}

// === impl Ticket ===

impl Ticket {
    /// The secret itself, to be sent to the host socket and nowhere else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(name: &str) -> Option<OsString> {
        let value = match name {
            Environment::NAME => "echo",
            Environment::REVISION => "1.0",
            Environment::STATE_DIRECTORY => "/var/lib/echo",
            Environment::HOST_SOCKET => "/run/host.sock",
            Environment::TICKET => "hunter2",
            Environment::TRIGGER => "interval",
            _ => return None,
        };
        Some(value.into())
    }

    #[test]
    fn every_variable_is_read() {
        let environment = Environment::read(full);
        assert_eq!(environment.name.as_deref(), Some("echo"));
        assert_eq!(environment.revision.as_deref(), Some("1.0"));
        assert_eq!(environment.state_directory, Some("/var/lib/echo".into()));
        assert_eq!(environment.host_socket, Some("/run/host.sock".into()));
        assert_eq!(environment.ticket.as_ref().map(Ticket::reveal), Some("hunter2"));
        assert_eq!(environment.trigger, Some(Trigger::Interval));
    }

    #[test]
    fn a_trigger_of_a_later_agent_is_known_by_its_name() {
        let later = Environment::read(|name| (name == Environment::TRIGGER).then(|| "moon".into()));
        assert_eq!(later.trigger, Some(Trigger::Other("moon".to_owned())));
    }

    #[test]
    fn unset_and_empty_variables_are_absent() {
        assert_eq!(Environment::read(|_| None), Environment::default());
        assert_eq!(Environment::read(|_| Some(OsString::new())), Environment::default());
    }

    #[test]
    fn debug_never_prints_the_ticket() {
        let text = format!("{:?}", Environment::read(full));
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("/run/host.sock"), "{text}");
    }
}

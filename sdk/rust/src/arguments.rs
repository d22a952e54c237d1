//! The command line: the plugin's own arguments first, then the agent's three.
//!
//! Because the agent's arguments come last, the last occurrence of each counts; an earlier one is
//! an argument of the plugin.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::{Address, AddressError};

const PROTOCOL: &str = "--protocol";
const ADDRESS: &str = "--address";
const ERROR_LOG: &str = "--errorlogfile";

/// The parsed command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    own: Vec<String>,
    address: Address,
    error_log: Option<PathBuf>,
}

/// Why the command line could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgumentsError {
    /// An argument is not valid UTF-8.
    #[error("argument {position} is not valid UTF-8")]
    NotUtf8 {
        /// Counted from 1, without the program's name.
        position: usize,
    },
    /// An argument that the agent always gives is missing.
    #[error(
        "{name} is missing: guest-agent adds it when it launches a plugin; to try one by hand, \
         add --protocol=unix --address=/tmp/plugin.sock"
    )]
    Missing {
        /// The name of the argument.
        name: &'static str,
    },
    /// The address cannot be listened on.
    #[error("cannot listen where asked")]
    Address(#[from] AddressError),
}

// === impl Arguments ===

impl Arguments {
    /// Arguments without a command line, for [`serve_with`](crate::serve_with) and tests.
    pub fn new(address: Address) -> Arguments {
        Arguments { own: Vec::new(), address, error_log: None }
    }

    /// These arguments with an error log.
    #[must_use]
    pub fn with_error_log(mut self, path: impl Into<PathBuf>) -> Arguments {
        self.error_log = Some(path.into());
        self
    }

    /// The process's own command line.
    ///
    /// # Errors
    ///
    /// [`ArgumentsError`] if one of the agent's arguments is missing or wrong.
    pub fn from_env() -> Result<Arguments, ArgumentsError> {
        Arguments::parse(std::env::args_os().skip(1))
    }

    /// A command line without the program's name in front. The agent's arguments may be written
    /// `--key=value` or `--key value`.
    ///
    /// # Errors
    ///
    /// [`ArgumentsError`] if one of the agent's arguments is missing or wrong.
    pub fn parse<A: Into<OsString>>(
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<Arguments, ArgumentsError> {
        let mut own = Vec::new();
        for (position, argument) in (1..).zip(arguments) {
            let text = argument.into().into_string();
            own.push(text.map_err(|_| ArgumentsError::NotUtf8 { position })?);
        }
        let mut required = |name| take(&mut own, name).ok_or(ArgumentsError::Missing { name });
        let protocol = required(PROTOCOL)?;
        let address = Address::parse(&protocol, &required(ADDRESS)?)?;
        let error_log = take(&mut own, ERROR_LOG).filter(|path| !path.is_empty());
        Ok(Arguments { own, address, error_log: error_log.map(PathBuf::from) })
    }

    /// The error log named on a command line that is otherwise wrong.
    pub(crate) fn error_log_from_env() -> Option<PathBuf> {
        let text = |argument: OsString| argument.to_string_lossy().into_owned();
        let mut arguments: Vec<String> = std::env::args_os().skip(1).map(text).collect();
        take(&mut arguments, ERROR_LOG).filter(|path| !path.is_empty()).map(PathBuf::from)
    }

    /// The plugin's own arguments, without the agent's, in their order.
    pub fn own(&self) -> &[String] {
        &self.own
    }

    /// The value of one of the plugin's own arguments, given as `--name=value` or `--name value`;
    /// the last one if there are several. `name` includes its dashes.
    pub fn value(&self, name: &str) -> Option<&str> {
        let (index, place) = find_last(&self.own, name)?;
        match place {
            Place::Inside => self.own[index].split_once('=').map(|(_, value)| value),
            Place::Next => self.own.get(index + 1).map(String::as_str),
        }
    }

    /// Whether the plugin's own arguments contain exactly this one.
    pub fn has(&self, flag: &str) -> bool {
        self.own.iter().any(|argument| argument == flag)
    }

    /// The address on which to listen.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The error log for panics and fatal errors, if the agent gave one.
    pub fn error_log(&self) -> Option<&Path> {
        self.error_log.as_deref()
    }
}

/// The position of an argument's value.
enum Place {
    /// The value stands in the argument itself: `--key=value`.
    Inside,
    /// The value is the next argument: `--key value`.
    Next,
}

/// Removes the last occurrence of an argument and gives its value.
fn take(arguments: &mut Vec<String>, name: &str) -> Option<String> {
    let (index, place) = find_last(arguments, name)?;
    let argument = arguments.remove(index);
    match place {
        Place::Inside => argument.split_once('=').map(|(_, value)| value.to_owned()),
        Place::Next => Some(arguments.remove(index)),
    }
}

fn find_last(arguments: &[String], name: &str) -> Option<(usize, Place)> {
    arguments.iter().enumerate().rev().find_map(|(index, argument)| {
        let rest = argument.strip_prefix(name)?;
        if rest.starts_with('=') {
            return Some((index, Place::Inside));
        }
        // A following argument with dashes is not a value: the plugin's own arguments may end with
        // a word that only looks like an argument of the agent.
        let next = arguments.get(index + 1)?;
        (rest.is_empty() && !next.starts_with("--")).then_some((index, Place::Next))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    #[track_caller]
    fn parsed(line: &str) -> Arguments {
        Arguments::parse(line.split_whitespace()).expect("a good command line")
    }

    #[test]
    fn both_forms_mean_the_same() {
        let equals = parsed("--protocol=unix --address=/run/x.sock --errorlogfile=/var/x.log");
        let spaces = parsed("--protocol unix --address /run/x.sock --errorlogfile /var/x.log");
        assert_eq!(equals, spaces);
        assert_eq!(equals.address(), &Address::Unix("/run/x.sock".into()));
        assert_eq!(equals.error_log(), Some(Path::new("/var/x.log")));
        assert!(equals.own().is_empty());
    }

    #[test]
    fn own_arguments_come_back_in_order() {
        let arguments =
            parsed("serve --greeting=hi -v --protocol=tcp --address=[::1]:7 --errorlogfile=");
        assert_eq!(arguments.own(), ["serve", "--greeting=hi", "-v"]);
        assert_eq!(arguments.error_log(), None);
    }

    #[test]
    fn the_agents_arguments_win_over_the_plugins_own_of_the_same_name() {
        let arguments = parsed("--protocol=http --address 1.2.3.4:80 --protocol=unix --address=/s");
        assert_eq!(arguments.address(), &Address::Unix("/s".into()));
        assert_eq!(arguments.own(), ["--protocol=http", "--address", "1.2.3.4:80"]);
    }

    #[test]
    fn an_own_argument_that_looks_like_one_of_ours_swallows_nothing() {
        let arguments = parsed("--complain-about --address --protocol=unix --address=/s");
        assert_eq!(arguments.own(), ["--complain-about", "--address"]);
        assert_eq!(arguments.address(), &Address::Unix("/s".into()));
    }

    #[test]
    fn a_value_may_contain_equals_signs_and_a_longer_name_is_another_argument() {
        let arguments = parsed("--address-book=x --protocol=unix --address=/run/a=b");
        assert_eq!(arguments.address(), &Address::Unix("/run/a=b".into()));
        assert_eq!(arguments.own(), ["--address-book=x"]);
    }

    #[test]
    fn own_values_and_flags_can_be_looked_up() {
        let arguments = parsed("--a=1 --b 2 --a=3 --c --d --protocol=unix --address=/s");
        assert_eq!(arguments.value("--a"), Some("3"));
        assert_eq!(arguments.value("--b"), Some("2"));
        assert_eq!(arguments.value("--c"), None);
        assert_eq!(arguments.value("--d"), None);
        assert!(arguments.has("--c"));
        assert!(!arguments.has("--a"));
    }

    #[test]
    fn what_is_missing_is_named() {
        #[track_caller]
        fn check(line: &str, missing: &'static str) {
            let error = Arguments::parse(line.split_whitespace()).expect_err("incomplete");
            assert_eq!(error, ArgumentsError::Missing { name: missing });
        }
        check("", "--protocol");
        check("--protocol=unix", "--address");
        check("--protocol=unix --address", "--address");
        check("--protocol --address=/s", "--protocol");
    }

    #[test]
    fn arguments_that_are_not_text_are_an_error_and_no_panic() {
        let bad = OsString::from_vec(vec![0xff, 0xfe]);
        let error = Arguments::parse(["fine".into(), bad]).expect_err("not text");
        assert_eq!(error, ArgumentsError::NotUtf8 { position: 2 });
    }
}

//! The filter that everything in a support bundle passes through.

use crate::display::masked;

/// A secret or a name that is shorter is not replaced: it would be found everywhere.
const LENGTH_MIN: usize = 4;

/// What stands in the place of a known secret.
const MASK: &str = "***";

/// What is known of the machine that nobody else is to know.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The contents of the files of tokens.
    pub(super) secrets: Vec<String>,
    /// The names of the host and of the instance.
    pub(super) machine: Vec<String>,
    /// The names of the plugins.
    pub(super) plugins: Vec<String>,
    /// The service's process, if it runs.
    pub(super) pid: Option<u32>,
    /// Why the agent does not answer, where it does not.
    pub(super) silent: Option<String>,
    /// Where the agent keeps its state.
    pub(super) state_dir: std::path::PathBuf,
    /// Where the logs are.
    pub(super) log_dir: std::path::PathBuf,
}

/// Replaces secrets, and names where that is wanted.
#[derive(Debug)]
pub(super) struct Scrub {
    /// What is replaced, the longest first, and by what.
    replaced: Vec<(String, String)>,
}

// === impl Scrub ===

impl Scrub {
    pub(super) fn new(known: &Known, redact: bool) -> Self {
        let mut replaced: Vec<(String, String)> =
            known.secrets.iter().map(|secret| (secret.clone(), MASK.to_owned())).collect();
        if redact {
            replaced.extend(known.machine.iter().map(|name| (name.clone(), "MACHINE".to_owned())));
            let plugins = known.plugins.iter().enumerate();
            replaced.extend(plugins.map(|(at, name)| (name.clone(), format!("plugin-{}", at + 1))));
        }
        replaced.retain(|(what, _)| what.len() >= LENGTH_MIN);
        // A name may be a part of another.
        replaced.sort_by_key(|(what, _)| std::cmp::Reverse(what.len()));
        Self { replaced }
    }

    /// A text without what nobody else is to know.
    pub(super) fn text(&self, text: &str) -> String {
        self.name(&masked(text))
    }

    /// The same for a name, which has no keys and values.
    pub(super) fn name(&self, name: &str) -> String {
        self.replaced.iter().fold(name.to_owned(), |text, (what, by)| text.replace(what, by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        Known {
            secrets: vec!["s3cr3t-of-a-file".to_owned(), "x".to_owned()],
            machine: vec!["vm-17".to_owned()],
            plugins: vec!["web".to_owned(), "webserver".to_owned(), "metrics".to_owned()],
            ..Known::default()
        }
    }

    #[test]
    fn secrets_go_always_and_names_on_request() {
        let text = "vm-17 runs webserver with s3cr3t-of-a-file\npassword = hunter2\nx marks";
        let plain = Scrub::new(&known(), false).text(text);
        assert_eq!(plain, "vm-17 runs webserver with ***\npassword = ***\nx marks");
        let redacted = Scrub::new(&known(), true);
        let expected = "MACHINE runs plugin-2 with ***\npassword = ***\nx marks";
        assert_eq!(redacted.text(text), expected);
        assert_eq!(redacted.name("logs/webserver.log"), "logs/plugin-2.log");
    }
}

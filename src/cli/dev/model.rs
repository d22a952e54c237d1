//! What is known of the plugin and of the work on it, and the lines that say so. Pure.

use std::collections::VecDeque;

use guest_agent_proto::local::{Event, PluginStatus};

use crate::cli::console::Tone;
use crate::cli::failure::Failure;
use crate::cli::format::one_line;
use crate::display::{event_kind, state_tone, values};

/// Lines that are kept for the screen.
const LINES_MAX: usize = 1000;

/// Something happened.
#[derive(Clone, Debug)]
pub(super) enum Update {
    /// What is being done with the sources now.
    Stage(String),
    /// The build command printed a line.
    Built(String),
    /// The plugin printed a line.
    Printed(String),
    /// So many bytes of the plugin's log were cut off before they could be read.
    Missed(u64),
    /// The agent recorded an event.
    Event(Box<Event>),
    /// How the plugin is; `None` where the agent does not list it.
    Status(Option<Box<PluginStatus>>),
    /// What a key did.
    Acted(String),
    /// The agent does not answer any more.
    Lost(String),
}

/// Who says a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voice {
    /// The build command.
    Build,
    /// The plugin.
    Plugin,
    /// The agent, about the plugin.
    Agent,
    /// This program.
    Dev,
}

/// A line of what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) voice: Voice,
    pub(super) tone: Tone,
    pub(super) text: String,
}

/// Everything that is shown.
pub(super) struct Model {
    pub(super) name: String,
    pub(super) status: Option<PluginStatus>,
    /// What is being done with the sources; `None` while nothing is.
    pub(super) stage: Option<String>,
    /// How the last work on the sources ended.
    pub(super) verdict: Option<(Tone, String)>,
    /// The state as it was said last.
    said: String,
    pub(super) lines: VecDeque<Line>,
}

// === impl Voice ===

impl Voice {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Build => "build",
            Self::Plugin => "plugin",
            Self::Agent => "agent",
            Self::Dev => "dev",
        }
    }
}

// === impl Model ===

impl Model {
    pub(super) fn new(name: String) -> Self {
        let lines = VecDeque::new();
        Self { name, status: None, stage: None, verdict: None, said: String::new(), lines }
    }

    /// Takes in what happened; the line that says so, if one does.
    pub(super) fn update(&mut self, update: Update) -> Option<Line> {
        let (voice, tone, text) = match update {
            Update::Stage(stage) => {
                self.stage = Some(stage.clone());
                (Voice::Dev, Tone::Busy, stage)
            }
            Update::Built(text) => (Voice::Build, Tone::Plain, text),
            Update::Printed(text) => (Voice::Plugin, Tone::Plain, text),
            Update::Missed(bytes) => {
                (Voice::Plugin, Tone::Quiet, format!("({bytes} bytes were cut off its log)"))
            }
            Update::Event(event) => {
                let (kind, tone) = event_kind(&event);
                let details = one_line(&event.details);
                let text = format!("{kind} {} {details}", one_line(&event.revision));
                (Voice::Agent, tone, text.trim_end().to_owned())
            }
            Update::Status(status) => {
                self.status = status.map(|status| *status);
                let text = state(self.status.as_ref());
                if text == self.said {
                    return None;
                }
                self.said.clone_from(&text);
                let tone =
                    self.status.as_ref().map_or(Tone::Quiet, |it| state_tone(values::state(it)));
                (Voice::Agent, tone, text)
            }
            Update::Acted(text) => (Voice::Dev, Tone::Plain, text),
            Update::Lost(why) => (Voice::Dev, Tone::Bad, format!("the agent ended: {why}")),
        };
        Some(self.add(voice, tone, text))
    }

    /// Takes in how the work on the sources ended.
    pub(super) fn ended(&mut self, result: &Result<String, Failure>) -> Line {
        self.stage = None;
        let (tone, text) = match result {
            Ok(text) => (Tone::Good, text.clone()),
            Err(failure) => {
                let causes = failure.causes.iter().filter(|cause| !cause.is_empty());
                let mut text = failure.reason.clone();
                for cause in causes {
                    text.extend([": ", cause]);
                }
                if let Some(hint) = &failure.hint {
                    text.extend(["; try: ", hint]);
                }
                (Tone::Bad, one_line(&text))
            }
        };
        self.verdict = Some((tone, text.clone()));
        self.add(Voice::Dev, tone, text)
    }

    /// Says something.
    pub(super) fn say(&mut self, text: String) -> Line {
        self.add(Voice::Dev, Tone::Plain, text)
    }

    fn add(&mut self, voice: Voice, tone: Tone, text: String) -> Line {
        let line = Line { voice, tone, text };
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line.clone());
        line
    }
}

/// The state, in a line.
pub(super) fn state(status: Option<&PluginStatus>) -> String {
    let Some(status) = status else { return "not installed".to_owned() };
    let mut text = one_line(&status.state);
    if !status.revision.is_empty() {
        text.extend([", revision ", &one_line(&status.revision)]);
    }
    if let Some(pid) = status.pid {
        text.extend([", pid ", &pid.to_string()]);
    }
    if let Some(pending) = &status.pending {
        let (revision, state) = (one_line(&pending.revision), one_line(&pending.state));
        text.extend(["; revision ", &revision, " is ", &state]);
    }
    if !status.reason.is_empty() {
        text.extend(["; ", &one_line(&status.reason)]);
    }
    text
}

/// How a debugger is attached to a process.
pub(super) fn debugger(pid: u32) -> String {
    format!("a debugger attaches with: gdb -p {pid}, dlv attach {pid}, py-spy top --pid {pid}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: &str, pid: Option<u32>) -> Update {
        let (state, revision) = (state.to_owned(), "ab12".to_owned());
        let status = PluginStatus { state, pid, revision, ..PluginStatus::default() };
        Update::Status(Some(Box::new(status)))
    }

    #[test]
    fn a_state_is_said_once() {
        let mut model = Model::new("a".to_owned());
        let text = |line: Option<Line>| line.map(|line| line.text);
        let running = || status("RUNNING", Some(7));
        let said = text(model.update(running()));
        assert_eq!(said.as_deref(), Some("RUNNING, revision ab12, pid 7"));
        assert_eq!(model.update(running()), None);
        let said = text(model.update(status("CRASHED", None)));
        assert_eq!(said.as_deref(), Some("CRASHED, revision ab12"));
        assert_eq!(text(model.update(Update::Status(None))).as_deref(), Some("not installed"));
    }

    #[test]
    fn a_verdict_stays_until_the_next_and_a_stage_until_its_end() {
        let mut model = Model::new("a".to_owned());
        model.update(Update::Stage("building".to_owned()));
        assert_eq!(model.stage.as_deref(), Some("building"));
        let failure = Failure::failed("it failed").cause("the\ndisk").hint("free it");
        let line = model.ended(&Err(failure));
        assert_eq!(line.text, "it failed: the disk; try: free it");
        assert_eq!((model.stage.clone(), line.tone), (None, Tone::Bad));
        model.update(Update::Built("more".to_owned()));
        assert_eq!(model.verdict.as_ref().map(|it| it.0), Some(Tone::Bad));
        model.ended(&Ok("revision 2 runs".to_owned()));
        assert_eq!(model.verdict, Some((Tone::Good, "revision 2 runs".to_owned())));
    }

    #[test]
    fn lines_are_bounded() {
        let mut model = Model::new("a".to_owned());
        for number in 0..LINES_MAX * 2 {
            model.update(Update::Printed(number.to_string()));
        }
        assert_eq!(model.lines.len(), LINES_MAX);
        assert_eq!(model.lines[0].text, LINES_MAX.to_string());
    }
}

//! The request of a caller. Keys are matched without case, values are not.

use std::sync::Arc;

use guest_agent_actors::model::vm_event::VmEvent;
use serde_json::{Map, Value};

use super::reply::Reply;

/// A request that can be carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Notify all plugins of an event.
    VmEvent {
        /// What happens.
        event: VmEvent,
        /// The request as it came.
        request: Arc<str>,
    },
    /// Say how the agent is configured.
    GetOption(OptionKey),
}

/// The option that the caller names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OptionKey {
    /// None.
    Missing,
    /// Something that no option is called.
    Malformed(String),
    /// `section.key`.
    Key(String),
}

/// Longest option that is repeated in an answer, in bytes.
const OPTION_MAX: usize = 256;

// === impl Command ===

impl Command {
    /// Reads a request.
    ///
    /// # Errors
    /// The reply to one that cannot be carried out.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Reply> {
        let fields: Map<String, Value> = serde_json::from_slice(bytes)
            .map_err(|error| Reply::invalid_json(&error.to_string()))?;
        let name = match field(&fields, "Command") {
            Some(Value::String(name)) => name.as_str(),
            None | Some(Value::Null) => "",
            Some(_) => return Err(Reply::invalid_json("Command is not a text")),
        };
        match name {
            "VmEvent" => {
                let event = event(&fields)?;
                let request = std::str::from_utf8(bytes)
                    .map_err(|error| Reply::invalid_json(&error.to_string()))?;
                Ok(Self::VmEvent { event, request: request.into() })
            }
            "agent.config.getoption" => Ok(Self::GetOption(option(&fields))),
            other => Err(Reply::no_such_command(other)),
        }
    }
}

fn event(fields: &Map<String, Value>) -> Result<VmEvent, Reply> {
    let expected = "startup, shutdown or specialize is expected";
    match field(fields, "Event") {
        Some(Value::String(name)) => VmEvent::parse(name).ok_or_else(|| {
            let name: String = name.chars().take(100).collect();
            Reply::handler_failed(&format!("the event {name:?} is unknown; {expected}"))
        }),
        Some(_) => Err(Reply::handler_failed(&format!("Event is not a text; {expected}"))),
        None => Err(Reply::handler_failed(&format!("the request names no Event; {expected}"))),
    }
}

fn option(fields: &Map<String, Value>) -> OptionKey {
    let key = match field(fields, "Option") {
        None | Some(Value::Null) => return OptionKey::Missing,
        Some(Value::String(key)) if key.is_empty() => return OptionKey::Missing,
        Some(Value::String(key)) => key,
        Some(_) => return OptionKey::Malformed(String::new()),
    };
    let is_word = |word: &str| {
        !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-".contains(&c))
    };
    match key.split_once('.') {
        Some((section, name)) if key.len() <= OPTION_MAX && is_word(section) && is_word(name) => {
            OptionKey::Key(key.clone())
        }
        Some(_) | None => OptionKey::Malformed(key.chars().take(OPTION_MAX).collect()),
    }
}

/// A field by its name in any case; the exact spelling comes first.
fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).or_else(|| {
        let found = fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn status(text: &str) -> i32 {
        Command::parse(text.as_bytes()).expect_err(text).status
    }

    #[test]
    fn keys_are_matched_without_case_and_the_bytes_are_kept() {
        for text in [
            r#"{"Command":"VmEvent","Event":"startup"}"#,
            "{ \"command\": \"VmEvent\",\n\"EVENT\": \"startup\", \"more\": [1] }\n",
        ] {
            let expected = Command::VmEvent { event: VmEvent::Startup, request: text.into() };
            assert_eq!(Command::parse(text.as_bytes()), Ok(expected));
        }
    }

    #[test]
    fn each_mistake_has_its_number() {
        assert_eq!(status("{}"), 101);
        assert_eq!(status(r#"{"Command":"vmevent"}"#), 101);
        assert_eq!(status(r#"{"Command":1}"#), 102);
        assert_eq!(status("{]}"), 102);
        assert_eq!(status("[]"), 102);
        assert_eq!(status(r#"{"Command":"VmEvent"}"#), 105);
        assert_eq!(status(r#"{"Command":"VmEvent","Event":"lunch"}"#), 105);
        assert_eq!(status(r#"{"Command":"VmEvent","Event":["startup"]}"#), 105);
    }

    #[test]
    fn options_are_a_section_and_a_key() {
        let key = |json: &str| {
            let text = format!(r#"{{"Command":"agent.config.getoption"{json}}}"#);
            match Command::parse(text.as_bytes()) {
                Ok(Command::GetOption(key)) => key,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(key(""), OptionKey::Missing);
        assert_eq!(key(r#","option":"""#), OptionKey::Missing);
        assert_eq!(key(r#","Option":"a.b""#), OptionKey::Key("a.b".to_owned()));
        for wrong in ["a", ".", "a.", ".b", "a.b.c", "a b.c"] {
            let json = format!(r#","Option":"{wrong}""#);
            assert_eq!(key(&json), OptionKey::Malformed(wrong.to_owned()));
        }
        assert_eq!(key(r#","Option":7"#), OptionKey::Malformed(String::new()));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_a_refusal(
            bytes in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            drop(Command::parse(&bytes));
        }

        #[test]
        fn any_values_are_a_command_or_a_refusal(
            command in r#"("VmEvent"|"agent.config.getoption"|"x"|7|null|\[\])"#,
            value in r#"("startup"|"a.b"|"\\ud800"|"\\u0000"|"é.ü"|-1e999|\{\}|true)"#,
            key in "(Event|event|OPTION|option)",
        ) {
            let text = format!(r#"{{"Command":{command},"{key}":{value}}}"#);
            match Command::parse(text.as_bytes()) {
                Ok(Command::VmEvent { request, .. }) => prop_assert_eq!(&*request, text),
                Ok(Command::GetOption(_)) => {}
                Err(reply) => prop_assert!([101, 102, 105].contains(&reply.status)),
            }
        }
    }
}

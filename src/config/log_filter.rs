//! What is logged: a level, or directives such as `info,guest_agent::install=debug`.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

mod old_names;

/// Levels, and the word that turns the log off.
const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];

/// The crates of this project.
const OURS: [&str; 4] = ["guest_agent", "guest_agent_actors", "guest_fleet", "guest_agent_plugin"];

/// Checks a filter in the form of `log.level`.
///
/// # Errors
/// Names the first invalid directive, with the reason and the fix.
pub fn check(text: &str) -> Result<(), String> {
    const HINT: &str = "use error, warn, info, debug or trace, alone or as TARGET=LEVEL";
    if text.trim().is_empty() {
        return Err(format!("it is empty; {HINT}"));
    }
    for directive in directives(text) {
        let directive = directive.trim();
        let is_word = !directive.contains(['=', '[']);
        if is_word && !LEVELS.contains(&directive.to_ascii_lowercase().as_str()) {
            return Err(format!("{directive:?} is not a level; {HINT}"));
        }
        if directive.contains(',') {
            return Err(format!("the directive {directive:?} names two fields, name one; {HINT}"));
        }
        if let Err(error) = directive.parse::<Directive>() {
            return Err(format!("the directive {directive:?} cannot be read: {error}; {HINT}"));
        }
    }
    // The part of a filter that the parser hides.
    match EnvFilter::try_new(meant(text)) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("{text:?} cannot be read: {error}; {HINT}")),
    }
}

/// Parses a filter. Returns that of `info` when the text is not a valid filter, so that the agent
/// always has a log.
pub(crate) fn filter(text: &str) -> EnvFilter {
    EnvFilter::try_new(meant(text)).unwrap_or_else(|_| EnvFilter::new("info"))
}

/// Expands a filter. A level alone, when it is `debug` or `trace`, applies to this project's own
/// crates: the frames of an HTTP/2 library would bury what the agent does. A directive for the old
/// name of a module applies to the new name, too, unless the filter has a directive for the new
/// name.
fn meant(text: &str) -> String {
    let level = text.trim().to_ascii_lowercase();
    if !matches!(level.as_str(), "debug" | "trace") {
        // The parser does not accept spaces between directives.
        let parts: Vec<&str> = directives(text).into_iter().map(str::trim).collect();
        let renamed = old_names::under_new_names(&parts);
        let all: Vec<&str> = renamed.iter().map(String::as_str).chain(parts).collect();
        return all.join(",");
    }
    let ours: Vec<String> = OURS.iter().map(|name| format!("{name}={level}")).collect();
    format!("info,{}", ours.join(","))
}

/// The parts between commas that are not in brackets.
fn directives(text: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let parts = text.split(move |letter| {
        depth += match letter {
            '[' | '{' => 1,
            ']' | '}' => -1,
            _ => 0,
        };
        letter == ',' && depth <= 0
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(text: &str, because: &str) {
        let error = check(text).expect_err("it is wrong");
        assert!(error.contains(because) && error.contains("TARGET=LEVEL"), "{error}");
    }

    #[test]
    fn levels_and_directives_are_taken() {
        for text in [
            "info",
            "WARN",
            "off",
            "info,guest_agent::install=debug",
            "warn, guest_agent[order{plugin=\"a\"}]=trace",
            "guest_agent[order]",
        ] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
    }

    #[test]
    fn an_old_name_is_meant_for_the_new_one_too() {
        let meant = meant("info, guest_agent::storage=debug,guest_agent::store=trace");
        assert_eq!(
            meant,
            "guest_agent::store=debug,info,guest_agent::storage=debug,guest_agent::store=trace"
        );
    }

    #[test]
    fn the_directive_that_is_wrong_is_named() {
        refused("", "it is empty");
        refused("inof", "\"inof\" is not a level");
        refused("info,guest_agent=loud", "\"guest_agent=loud\" cannot be read");
        refused("info,guest_agent::install", "\"guest_agent::install\" is not a level");
        refused("info,agent[order{plugin=a,order=3}]=trace", "names two fields, name one");
        refused("info,", "\"\" is not a level");
    }

    proptest::proptest! {
        #[test]
        fn law_what_is_checked_can_be_used(
            text in "((guest_agent::(launch|http::metrics|s))?[a-z=,{}\\[\\]\" :]{0,24}){1,2}",
        ) {
            if check(&text).is_ok() {
                proptest::prop_assert!(EnvFilter::try_new(meant(&text)).is_ok(), "{text:?}");
            }
        }
    }
}

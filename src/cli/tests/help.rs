//! The help of every verb, as it is read.

use super::*;

fn check(words: &[&str]) {
    let arguments = [words, &["--help"]].concat();
    let ran = ran(&arguments);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""), "{words:?}");
    // Without a terminal, help is wrapped at 100 columns.
    for line in ran.out.lines() {
        assert!(line.chars().count() <= 100, "{words:?}: {line}");
    }
    assert_snapshot!(format!("help_{}", words.join("_")), ran.out);
}

#[test]
fn every_verb_explains_itself() {
    for verb in Arguments::command().get_subcommands() {
        check(&[verb.get_name()]);
        for below in verb.get_subcommands() {
            check(&[verb.get_name(), below.get_name()]);
        }
    }
}

#[test]
fn every_verb_has_an_example_that_can_be_parsed() {
    for verb in Arguments::command().get_subcommands() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.starts_with("Examples:\n"), "{}: {help}", verb.get_name());
        let whole = help.replace("\\\n", " ").replace("source <(guest-agent", "guest-agent");
        let examples = whole.lines().filter(|line| line.trim_start().starts_with("guest-agent "));
        for example in examples {
            let command = example.split(['|', '>', ')']).next().unwrap_or_default().trim();
            let words = command.split_whitespace().map(|word| word.trim_matches('\''));
            // A digest that stands for any.
            let any = "0".repeat(64);
            let words = words.map(|word| if word == "HEX" { any.as_str() } else { word });
            let parsed = Arguments::command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{command}: {}", parsed.unwrap_err());
        }
    }
}

/// How many lines a usual terminal shows at once.
const SCREEN: usize = 24;

#[test]
fn the_short_help_is_shorter_and_has_every_option_of_the_verb() {
    for verb in Arguments::command().get_subcommands() {
        let help = |flag| ran(&[verb.get_name(), flag]);
        let (short, long) = (help("-h"), help("--help"));
        assert_eq!((short.exit, short.err.as_str()), (Exit::Done, ""));
        let (short, long) = (short.out, long.out);
        assert!(short.lines().count() < long.lines().count(), "{short}");
        assert!(!short.contains("Examples:") && !short.contains("--socket"), "{short}");
        assert!(short.lines().count() <= SCREEN, "{} lines: {short}", short.lines().count());
        let own = verb.get_arguments().filter(|arg| !arg.is_hide_set());
        for flag in own.filter_map(|arg| arg.get_long()) {
            assert!(short.contains(&format!("--{flag}")), "{flag}: {short}");
        }
    }
    // A value of a flag asks for nothing.
    let ran = ran(&["logs", "a", "--grep", "-h", "--help"]);
    assert!(ran.out.contains("--grep"), "{}", ran.out);
}

//! Comments, texts and pages avoid phrases that leave a stranger to guess who does what.
//!
//! Each phrase here stood in many sentences that had to be read twice. A sentence that needs one of them
//! has another form, in which a subject does something and things have their names.

use std::path::{Path, PathBuf};

use crate::pages;

/// Phrases, and what to write instead.
const PHRASES: [(&str, &str); 11] = [
    ("whoever", "name who: the caller, the plugin, an operator"),
    ("is none", "say what is missing or not valid"),
    ("are none", "say what is missing or not valid"),
    ("is told", "name who reports what to whom"),
    ("are told", "name who reports what to whom"),
    ("was told", "name who reported what to whom"),
    ("were told", "name who reported what to whom"),
    ("is said", "name who says it, or what the text holds"),
    ("hears of", "receives, learns, is sent"),
    ("heard of", "known, received"),
    ("the world", "name who: the control plane, people on the machine"),
];

/// Where sentences are. Decisions are history and stay as they were written.
const FOLDERS: [&str; 15] = [
    "src",
    "actors/src",
    "plugin-sdk/src",
    "fleet/src",
    "fleet/core/src",
    "fleet/ledger/src",
    "fleet/program/src",
    "fleet/sessions/src",
    "lab/src",
    "kits",
    "config",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
];

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.ends_with("docs/decisions") {
        return;
    }
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("a folder") {
            collect(&entry.expect("an entry").path(), files);
        }
    } else if path.extension().is_some_and(|end| end == "rs" || end == "md" || end == "toml") {
        files.push(path.to_owned());
    }
}

/// Whether the phrase stands there as words of its own. Words that a line break parts count.
fn holds(text: &str, phrase: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(phrase).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + phrase.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Paragraphs in one line each: comment marks and line breaks are left out.
fn sentences(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    for line in text.lines() {
        let line = line.trim().trim_start_matches(['/', '!', '#']).trim();
        if line.is_empty() {
            found.push(String::new());
        } else if let Some(last) = found.last_mut() {
            last.push_str(&line.to_lowercase());
            last.push(' ');
        }
    }
    found
}

#[test]
fn sentences_name_who_does_what() {
    let mut files = Vec::new();
    for folder in FOLDERS {
        collect(&pages::root().join(folder), &mut files);
    }
    assert!(files.len() > 300, "only {} files were read", files.len());
    let mut found = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("text");
        for sentence in sentences(&text) {
            for (phrase, instead) in PHRASES {
                if holds(&sentence, phrase) {
                    let at = sentence.find(phrase).unwrap_or_default();
                    let from = sentence[..at].char_indices().rev().nth(40).map_or(0, |(at, _)| at);
                    let shown: String = sentence[from..].chars().take(100).collect();
                    found.push(format!("{}: …{shown}…\n    {phrase:?}: {instead}", file.display()));
                }
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn phrases_are_found_as_words_and_over_line_breaks() {
    let text = "/// The plugin is\n/// told of it.\n\n// wordwhoever whoeverword\n";
    let found: Vec<String> = sentences(text);
    assert!(found.iter().any(|sentence| holds(sentence, "is told")));
    assert!(!found.iter().any(|sentence| holds(sentence, "whoever")));
}

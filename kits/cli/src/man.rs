//! Manual pages, one per verb, written from the same source as `--help`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

/// A section of the program's page: a heading, then entries of a word and its meaning.
pub type Section = (&'static str, &'static [(&'static str, &'static str)]);

/// What the pages of a program say beside its verbs.
#[derive(Clone, Copy, Debug)]
pub struct Manual {
    /// The manual that the pages belong to, as their heads have it.
    pub title: &'static str,
    /// The program and its version.
    pub source: &'static str,
    /// Sections of the program's page.
    pub sections: &'static [Section],
}

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The name of its file.
    pub name: String,
    /// Its text, for `man -l`.
    pub text: Vec<u8>,
}

// === impl Manual ===

impl Manual {
    /// All pages, that of the program first. Hidden verbs have none.
    ///
    /// # Errors
    /// A page cannot be rendered, which does not happen in memory.
    pub fn pages(&self, program: Command) -> io::Result<Vec<Page>> {
        let mut command = program.disable_help_subcommand(true);
        command.build();
        let mut pages = Vec::new();
        self.collect(&command, command.get_name(), &mut pages)?;
        Ok(pages)
    }

    fn collect(&self, command: &Command, program: &str, pages: &mut Vec<Page>) -> io::Result<()> {
        let mut text = Vec::new();
        let page = Man::new(command.clone()).manual(self.title).source(self.source);
        page.render_title(&mut text)?;
        page.render_name_section(&mut text)?;
        page.render_synopsis_section(&mut text)?;
        page.render_description_section(&mut text)?;
        page.render_options_section(&mut text)?;
        let verbs: Vec<_> = command.get_subcommands().filter(|verb| !is_hidden(verb)).collect();
        if !verbs.is_empty() {
            page.render_subcommands_section(&mut text)?;
        }
        if let Some(after) = command.get_after_help() {
            examples(&after.to_string(), &mut text)?;
        }
        if pages.is_empty() {
            self.sections.iter().try_for_each(|section| render(section, &mut text))?;
        } else {
            writeln!(text, ".SH \"SEE ALSO\"\n\\fB{}\\fR(1)", escaped(program))?;
        }
        pages.push(Page { name: page.get_filename(), text });
        verbs.into_iter().try_for_each(|verb| self.collect(verb, program, pages))
    }
}

/// Writes pages into a directory, which is made. Returns their files.
///
/// # Errors
/// The directory or a file cannot be written; the error comes with its path.
pub fn write(pages: &[Page], directory: &Path) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    fs::create_dir_all(directory).map_err(|error| (directory.to_owned(), error))?;
    let written = pages.iter().map(|page| {
        let path = directory.join(&page.name);
        match fs::write(&path, &page.text) {
            Ok(()) => Ok(path),
            Err(error) => Err((path, error)),
        }
    });
    written.collect()
}

fn is_hidden(verb: &Command) -> bool {
    verb.is_hide_set() || verb.get_name() == "help"
}

fn render((heading, entries): &Section, page: &mut Vec<u8>) -> io::Result<()> {
    writeln!(page, ".SH \"{heading}\"")?;
    for (word, meaning) in *entries {
        writeln!(page, ".TP\n\\fB{}\\fR\n{}", escaped(word), escaped(meaning))?;
    }
    Ok(())
}

/// The text below the flags in the help, unchanged.
fn examples(help: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let text = help.strip_prefix("Examples:\n");
    let heading = if text.is_some() { "EXAMPLES" } else { "NOTES" };
    writeln!(page, ".SH {heading}\n.nf")?;
    for line in text.unwrap_or(help).lines() {
        writeln!(page, "{}", escaped(line.strip_prefix("  ").unwrap_or(line)))?;
    }
    writeln!(page, ".fi")
}

/// A line that roff does not read as a request.
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANUAL: Manual = Manual {
        title: "Guest x",
        source: "guest-x 1.2.3",
        sections: &[("EXIT STATUS", &[("0", "It succeeded."), ("3", "...")])],
    };

    fn program() -> Command {
        Command::new("guest-x").about("Does x").subcommands([
            Command::new("run-it").about("Runs it").after_help("Examples:\n  guest-x run-it -y"),
            Command::new("keeper").about("Nobody's business").hide(true),
        ])
    }

    fn shown(page: &Page) -> String {
        String::from_utf8(page.text.clone()).expect("text")
    }

    #[test]
    fn every_verb_that_is_shown_has_a_page_with_its_examples() {
        let pages = MANUAL.pages(program()).expect("rendered");
        let names: Vec<&str> = pages.iter().map(|page| page.name.as_str()).collect();
        assert_eq!(names, ["guest-x.1", "guest-x-run-it.1"]);
        let (program, verb) = (shown(&pages[0]), shown(&pages[1]));
        assert!(
            program.contains(".SH \"EXIT STATUS\"\n.TP\n\\fB0\\fR\nIt succeeded."),
            "{program}"
        );
        assert!(program.contains("\\&..."), "no line is a request: {program}");
        assert!(verb.contains("guest\\-x run\\-it \\-y"), "{verb}");
        assert!(verb.contains("\\fBguest\\-x\\fR(1)"), "{verb}");
    }

    #[test]
    fn what_cannot_be_written_is_named() {
        let pages = MANUAL.pages(program()).expect("rendered");
        let (path, _) = write(&pages, Path::new("/dev/null/man")).expect_err("no directory");
        assert_eq!(path, Path::new("/dev/null/man"));
    }
}

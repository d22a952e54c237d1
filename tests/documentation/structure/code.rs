//! Reads Rust sources as far as imports need it: which module a path names, from where.
//!
//! This is no compiler: it knows `use` trees, inline paths that begin with `crate`, `self`, `super`
//! or the name of a child module, and re-exports. Test modules are left out.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A path below the crate's root, one name per element; empty for the root itself.
pub(crate) type Names = Vec<String>;

/// One file of a crate.
#[derive(Debug)]
pub(crate) struct Module {
    /// Where the file is.
    pub(crate) file: PathBuf,
    /// Its text without comments, strings and tests.
    pub(crate) code: String,
    /// Lines of code: no comment, no empty line, no test.
    pub(crate) lines: usize,
    /// What it names of its own crate, as it stands there, made absolute.
    named: Vec<Names>,
    /// Names it hands on from elsewhere, and what they stand for.
    exports: BTreeMap<String, Names>,
}

/// All files of one crate but its tests.
#[derive(Debug)]
pub(crate) struct Crate {
    modules: BTreeMap<Names, Module>,
}

impl Crate {
    /// Reads the crate whose root file is `folder`'s `lib.rs`, and its `main.rs` if there is one.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut sources = Vec::new();
        collect(folder, &mut Vec::new(), &mut sources);
        let tests: Vec<Names> =
            sources.iter().flat_map(|(own, _, text)| of_tests(own, text)).collect();
        sources.retain(|(names, ..)| !tests.iter().any(|test| names.starts_with(test)));
        let children: Vec<Names> = sources.iter().map(|(names, ..)| names.clone()).collect();
        let modules = sources
            .into_iter()
            .map(|(names, file, text)| {
                let code = without_tests(&without_comments(&text));
                let lines = code.lines().filter(|line| !line.trim().is_empty()).count();
                let mut module = Module {
                    file,
                    code: String::new(),
                    lines,
                    named: Vec::new(),
                    exports: BTreeMap::new(),
                };
                read_paths(&code, &names, &children, &mut module);
                module.code = code;
                (names, module)
            })
            .collect();
        Self { modules }
    }

    /// Every module with its path.
    pub(crate) fn modules(&self) -> impl Iterator<Item = (&Names, &Module)> {
        self.modules.iter()
    }

    /// Which other modules each module uses items of.
    pub(crate) fn arrows(&self) -> BTreeMap<&Names, Vec<&Names>> {
        let mut arrows = BTreeMap::new();
        for (from, module) in &self.modules {
            let mut to: Vec<&Names> = module
                .named
                .iter()
                .filter_map(|path| self.home_of(path, 0))
                .filter(|home| *home != from)
                .collect();
            to.sort_unstable();
            to.dedup();
            arrows.insert(from, to);
        }
        arrows
    }

    /// The module in which what `path` names is written. A re-export is followed to its source.
    fn home_of(&self, path: &[String], depth: usize) -> Option<&Names> {
        const DEEPEST: usize = 8;
        let (names, module) = (0..=path.len())
            .rev()
            .find_map(|length| self.modules.get_key_value(&path[..length]))?;
        let exported = path.get(names.len()).and_then(|name| module.exports.get(name));
        match exported {
            Some(source) if depth < DEEPEST && source.as_slice() != path => {
                let mut whole = source.clone();
                whole.extend_from_slice(&path[names.len() + 1..]);
                self.home_of(&whole, depth + 1)
            }
            _ => Some(names),
        }
    }
}

/// The modules that a file declares for tests alone.
fn of_tests(own: &Names, text: &str) -> Vec<Names> {
    let lines: Vec<&str> = text.lines().collect();
    let declared = |line: &str| {
        let line = line.strip_prefix("pub(crate) ").unwrap_or(line);
        Some(line.strip_prefix("mod ")?.strip_suffix(';')?.to_owned())
    };
    let names = lines
        .windows(2)
        .filter(|pair| pair[0].trim() == "#[cfg(test)]")
        .filter_map(|pair| declared(pair[1].trim()));
    names.map(|name| own.iter().cloned().chain([name]).collect()).collect()
}

fn collect(folder: &Path, names: &mut Names, sources: &mut Vec<(Names, PathBuf, String)>) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("an entry of a folder").path();
        let Some(stem) = path.file_stem().and_then(|stem| stem.to_str()) else { continue };
        if stem == "tests" {
            continue;
        }
        if path.is_dir() {
            names.push(stem.to_owned());
            collect(&path, names, sources);
            names.pop();
        } else if path.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source is UTF-8");
            let mut own = names.clone();
            if !(names.is_empty() && stem == "lib") {
                own.push(stem.to_owned());
            }
            sources.push((own, path, text));
        }
    }
}

/// The text with comments, strings and characters blanked, line for line.
pub(crate) fn without_comments(text: &str) -> String {
    let bytes: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    while at < bytes.len() {
        let rest = &bytes[at..];
        let end = if rest.starts_with(&['/', '/']) {
            rest.iter().position(|c| *c == '\n').unwrap_or(rest.len())
        } else if rest.starts_with(&['/', '*']) {
            end_of_block(rest)
        } else if let Some(length) = raw_string(rest) {
            length
        } else if rest[0] == '"' {
            end_of_string(rest)
        } else if rest[0] == '\'' {
            character(rest)
        } else {
            0
        };
        if end == 0 {
            out.push(rest[0]);
            at += 1;
        } else {
            out.extend(rest[..end].iter().copied().map(blank));
            at += end;
        }
    }
    out
}

fn end_of_block(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at + 1 < rest.len() {
        match (rest[at], rest[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

fn end_of_string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

/// The length of the raw string that begins here, if one does.
fn raw_string(rest: &[char]) -> Option<usize> {
    let start = match rest {
        ['b', 'r', ..] => 2,
        ['r', ..] => 1,
        _ => return None,
    };
    let hashes = rest[start..].iter().take_while(|c| **c == '#').count();
    if rest.get(start + hashes) != Some(&'"') {
        return None;
    }
    let mut close = vec!['"'];
    close.extend(std::iter::repeat_n('#', hashes));
    let body = start + hashes + 1;
    let length = rest[body..].windows(close.len()).position(|it| it == close);
    Some(length.map_or(rest.len(), |length| body + length + close.len()))
}

/// The length of a character literal; 0 for a lifetime or label.
fn character(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => {
            rest[3..].iter().position(|c| *c == '\'').map_or(0, |length| 3 + length + 1)
        }
        ['\'', _, '\'', ..] => 3,
        _ => 0,
    }
}

/// The code without what is only compiled for tests.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some(start) = rest.find("#[cfg(test)]") {
        out.push_str(&rest[..start]);
        let item = &rest[start..];
        let end = match (item.find('{'), item.find(';')) {
            (Some(open), semicolon) if semicolon.is_none_or(|it| open < it) => {
                open + end_of_braces(&item[open..])
            }
            (_, Some(semicolon)) => semicolon + 1,
            (_, None) => item.len(),
        };
        rest = &item[end..];
    }
    out.push_str(rest);
    out
}

fn end_of_braces(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    text.len()
}

fn read_paths(code: &str, own: &Names, all: &[Names], module: &mut Module) {
    let is_child = |name: &str| {
        all.iter()
            .any(|it| it.len() == own.len() + 1 && it.starts_with(own) && it[own.len()] == name)
    };
    let mut rest = code;
    let mut inline = String::new();
    // `use` statements are taken out whole; what is left is searched for paths.
    while let Some(start) = find_use(rest) {
        inline.push_str(&rest[..start]);
        let statement = &rest[start..];
        let end = statement.find(';').unwrap_or(statement.len());
        let is_handed_on = rest[..start].trim_end().ends_with(['b', ')'])
            && rest[..start]
                .lines()
                .last()
                .is_some_and(|line| line.trim_start().starts_with("pub"));
        let mut leaves = Vec::new();
        leaves_of(&statement["use ".len()..end], &[], &mut leaves);
        for (path, alias) in leaves {
            let Some(path) = absolute(&path, own, &is_child) else { continue };
            match alias {
                Some(name) if is_handed_on => drop(module.exports.insert(name, path)),
                _ => module.named.push(path),
            }
        }
        rest = &statement[end..];
    }
    inline.push_str(rest);
    for path in inline_paths(&inline) {
        if let Some(path) = absolute(&path, own, &is_child) {
            module.named.push(path);
        }
    }
}

fn find_use(code: &str) -> Option<usize> {
    let mut from = 0;
    while let Some(at) = code[from..].find("use ") {
        let at = from + at;
        let before = code[..at].chars().next_back();
        if before.is_none_or(|c| c.is_whitespace() || c == ')') {
            return Some(at);
        }
        from = at + 4;
    }
    None
}

/// The paths of a `use` tree, each with the name it gets here.
fn leaves_of(tree: &str, prefix: &[String], leaves: &mut Vec<(Names, Option<String>)>) {
    let tree = tree.trim();
    if let Some(open) = tree.find('{') {
        let mut inner = prefix.to_vec();
        inner.extend(names_of(&tree[..open]));
        let mut depth = 0_usize;
        let mut from = open + 1;
        for (at, c) in tree.char_indices().skip_while(|(at, _)| *at <= open) {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                ',' | '}' if depth == 0 => {
                    if !tree[from..at].trim().is_empty() {
                        leaves_of(&tree[from..at], &inner, leaves);
                    }
                    from = at + 1;
                }
                _ => {}
            }
        }
        return;
    }
    let (path, alias) = match tree.split_once(" as ") {
        Some((path, alias)) => (path, Some(alias.trim().to_owned())),
        None => (tree, None),
    };
    let mut names = prefix.to_vec();
    names.extend(names_of(path));
    if names.last().is_some_and(|last| last == "self") && names.len() > 1 {
        names.pop();
    }
    let alias = alias.or_else(|| names.last().cloned());
    leaves.push((names, alias));
}

fn names_of(path: &str) -> Names {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// All paths with two names or more.
fn inline_paths(code: &str) -> Vec<Names> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.split(|c: char| !is_name(c) && c != ':')
        .filter(|word| word.contains("::"))
        .map(names_of)
        .filter(|names| names.len() > 1)
        .collect()
}

/// A path made absolute below the crate; nothing if it leads out of the crate.
fn absolute(path: &[String], own: &Names, is_child: &dyn Fn(&str) -> bool) -> Option<Names> {
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" | "super" => {
            let mut base = own.clone();
            let mut rest = path;
            while let Some((first, others)) = rest.split_first() {
                match first.as_str() {
                    "self" => {}
                    "super" => drop(base.pop()?),
                    _ => break,
                }
                rest = others;
            }
            base.extend_from_slice(rest);
            Some(base)
        }
        child if is_child(child) => {
            let mut whole = own.clone();
            whole.extend_from_slice(path);
            Some(whole)
        }
        _ => None,
    }
}

//! Which files of a folder are packed, by patterns of their paths.
//!
//! `*` and `?` stand for characters of one name, `**` for any number of folders. A pattern without a slash is
//! about names anywhere, one with a slash about the whole path; one that fits a folder fits everything in it.

/// Which files are packed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    include: Vec<String>,
    exclude: Vec<String>,
}

// === impl Choice ===

impl Choice {
    /// The files that fit one of `include`, or all where it is empty, and none of `exclude`.
    #[must_use]
    pub fn new(include: Vec<String>, exclude: Vec<String>) -> Self {
        Self { include, exclude }
    }

    /// Whether a path is left out, with everything below it.
    #[must_use]
    pub fn leaves_out(&self, path: &str) -> bool {
        self.exclude.iter().any(|pattern| fits(pattern, path))
    }

    /// Whether a file is packed.
    #[must_use]
    pub fn takes(&self, path: &str) -> bool {
        !self.leaves_out(path)
            && (self.takes_all() || self.include.iter().any(|pattern| fits_or_above(pattern, path)))
    }

    /// Whether nothing is chosen: then empty folders are packed as well.
    #[must_use]
    pub fn takes_all(&self) -> bool {
        self.include.is_empty()
    }
}

/// Whether a pattern fits a path or a folder above it.
fn fits_or_above(pattern: &str, path: &str) -> bool {
    let ends = path.char_indices().filter(|(_, letter)| *letter == '/').map(|(at, _)| at);
    ends.chain([path.len()]).any(|end| fits(pattern, &path[..end]))
}

fn fits(pattern: &str, path: &str) -> bool {
    let pattern = pattern.trim_end_matches('/');
    match pattern.strip_prefix('/') {
        Some(rooted) => fits_parts(&parts(rooted), &parts(path)),
        None if pattern.contains('/') => fits_parts(&parts(pattern), &parts(path)),
        None => path.rsplit('/').next().is_some_and(|name| fits_name(pattern, name)),
    }
}

fn parts(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect()
}

fn fits_parts(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], []) => true,
        (["**", rest @ ..], _) => {
            fits_parts(rest, path) || matches!(path, [_, below @ ..] if fits_parts(pattern, below))
        }
        ([first, rest @ ..], [name, below @ ..]) => {
            fits_name(first, name) && fits_parts(rest, below)
        }
        ([], _) | (_, []) => false,
    }
}

/// Whether a name fits, in time that grows with the product of the two lengths at most.
fn fits_name(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut at, mut from) = (0, 0);
    // Where the last star is, and how much of the name it stands for.
    let mut star: Option<(usize, usize)> = None;
    while from < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, from));
                at += 1;
            }
            Some(letter) if *letter == '?' || *letter == name[from] => {
                at += 1;
                from += 1;
            }
            _ => match star {
                Some((star_at, upto)) => {
                    star = Some((star_at, upto + 1));
                    at = star_at + 1;
                    from = upto + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, path: &str, expected: bool) {
        assert_eq!(fits_or_above(pattern, path), expected, "{pattern} {path}");
    }

    #[test]
    fn patterns_fit_names_paths_and_what_is_below_them() {
        check("*.py", "lib/a.py", true);
        check("*.py", "lib/a.pyc", false);
        check("lib", "lib/deep/a.py", true);
        check("lib/*.py", "lib/a.py", true);
        check("lib/*.py", "lib/deep/a.py", false);
        check("lib/**/*.py", "lib/deep/er/a.py", true);
        check("lib/**/*.py", "lib/a.py", true);
        check("/lib", "other/lib", false);
        check("lib", "other/lib", true);
        check("a?c*", "abcd", true);
        check("a*b*c", "aXbYbZc", true);
        check("a*b*c", "aXbYbZ", false);
    }

    #[test]
    fn what_is_excluded_is_left_out_although_it_is_included() {
        let choice = Choice::new(vec!["lib".to_owned()], vec!["*.pyc".to_owned()]);
        assert!(choice.takes("lib/a.py") && !choice.takes("lib/a.pyc") && !choice.takes("main"));
        assert!(Choice::default().takes("anything"));
    }
}

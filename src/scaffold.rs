//! `new`: the sources of a plugin that builds, packs, is tested and runs, made of templates.
//!
//! ```text
//! templates/LANGUAGE/* ─ include_str! ─► {{name}}, {{sdk}} filled in ─► NAME/*
//! ```
//!
//! Nothing that is there is overwritten: the folder must not exist.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A language that there are templates for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    /// With `sdk/rust`.
    Rust,
    /// With `sdk/go`.
    Go,
    /// With `sdk/python`.
    Python,
}

/// A file of a template.
struct Template {
    path: &'static str,
    text: &'static str,
    is_program: bool,
}

/// Why no project was made.
#[derive(Debug, thiserror::Error)]
pub enum ScaffoldError {
    /// The name fits plugins, but not the tools of the languages.
    #[error("{0:?} cannot be the name of a project")]
    Name(String),
    /// The folder of the SDKs has none for this language.
    #[error("{} is not there, so {} is not the folder `sdk` of a checkout", missing.display(), sdk.display())]
    Sdk {
        /// The folder that was given.
        sdk: PathBuf,
        /// The file that would be in it.
        missing: PathBuf,
    },
    /// Something has the name of the project already.
    #[error("{} is there already", .0.display())]
    Exists(PathBuf),
    /// A file cannot be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

const RUST: &[Template] = &[
    file("plugin.toml", include_str!("scaffold/templates/rust/plugin.toml")),
    file("Cargo.toml", include_str!("scaffold/templates/rust/Cargo.toml.in")),
    file("src/main.rs", include_str!("scaffold/templates/rust/main.rs.in")),
    file("README.md", include_str!("scaffold/templates/rust/README.md")),
    file(".gitignore", "/package/\n/dist/\n/target/\n"),
];

const GO: &[Template] = &[
    file("plugin.toml", include_str!("scaffold/templates/go/plugin.toml")),
    file("go.mod", include_str!("scaffold/templates/go/go.mod.in")),
    file("main.go", include_str!("scaffold/templates/go/main.go.in")),
    file("main_test.go", include_str!("scaffold/templates/go/main_test.go.in")),
    file("README.md", include_str!("scaffold/templates/go/README.md")),
    file(".gitignore", "/package/\n/dist/\n"),
];

const PYTHON: &[Template] = &[
    file("plugin.toml", include_str!("scaffold/templates/python/plugin.toml")),
    Template { is_program: true, ..file("build", include_str!("scaffold/templates/python/build")) },
    Template {
        is_program: true,
        ..file("main.py", include_str!("scaffold/templates/python/main.py"))
    },
    file("test_main.py", include_str!("scaffold/templates/python/test_main.py")),
    file("README.md", include_str!("scaffold/templates/python/README.md")),
    file(".gitignore", "/package/\n/dist/\n__pycache__/\n"),
];

const fn file(path: &'static str, text: &'static str) -> Template {
    Template { path, text, is_program: false }
}

/// Makes a project in a new folder, with the SDK of a checkout or the published one. Returns its files.
///
/// # Errors
/// See [`ScaffoldError`]. What was written until then stays.
pub fn make(
    folder: &Path,
    name: &str,
    language: Language,
    sdk: Option<&Path>,
) -> Result<Vec<PathBuf>, ScaffoldError> {
    if !is_name(name) {
        return Err(ScaffoldError::Name(name.to_owned()));
    }
    let sdk = sdk.map(|sdk| checkout(sdk, language)).transpose()?;
    let failed = |path: &Path, source| ScaffoldError::Write { path: path.to_owned(), source };
    match fs::create_dir(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(ScaffoldError::Exists(folder.to_owned()));
        }
        Err(error) => return Err(failed(folder, error)),
    }
    let mut made = Vec::new();
    for template in language.templates() {
        let path = folder.join(template.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(|error| failed(parent, error))?;
        }
        let text = template.text.replace("{{name}}", name);
        let text = text.replace("{{sdk}}", &language.dependency(sdk.as_deref()));
        fs::write(&path, text).map_err(|error| failed(&path, error))?;
        if template.is_program {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(&path, mode).map_err(|error| failed(&path, error))?;
        }
        made.push(path);
    }
    // The digests of what the SDK itself depends on.
    if let (Language::Go, Some(sdk)) = (language, &sdk) {
        let path = folder.join("go.sum");
        fs::copy(sdk.join("go.sum"), &path).map_err(|error| failed(&path, error))?;
        made.push(path);
    }
    Ok(made)
}

/// Whether cargo, go and Python take a name, which is that of the program as well.
fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.len() <= 63
        && !name.ends_with('-')
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// The SDK of a language in a checkout. Absolute.
fn checkout(sdk: &Path, language: Language) -> Result<PathBuf, ScaffoldError> {
    let (folder, sign) = match language {
        Language::Rust => ("rust", "Cargo.toml"),
        Language::Go => ("go", "go.mod"),
        Language::Python => ("python", "pyproject.toml"),
    };
    let found = std::path::absolute(sdk).unwrap_or_else(|_| sdk.to_owned()).join(folder);
    let missing = found.join(sign);
    if missing.is_file() {
        Ok(found)
    } else {
        Err(ScaffoldError::Sdk { sdk: sdk.to_owned(), missing })
    }
}

// === impl Language ===

impl Language {
    fn templates(self) -> &'static [Template] {
        match self {
            Self::Rust => RUST,
            Self::Go => GO,
            Self::Python => PYTHON,
        }
    }

    /// How the SDK is named where the language names what a project depends on.
    fn dependency(self, checkout: Option<&Path>) -> String {
        // In quotes of TOML, or of a shell.
        let quoted = |path: &Path| format!("{:?}", path.to_string_lossy());
        match (self, checkout) {
            (Self::Rust, None) => {
                "{ git = \"https://github.com/guest-agent/guest-agent\" }".to_owned()
            }
            (Self::Rust, Some(path)) => format!("{{ path = {} }}", quoted(path)),
            (Self::Go, None) => String::new(),
            (Self::Go, Some(path)) => {
                format!("\nreplace github.com/guest-agent/guest-agent/sdk/go => {}\n", quoted(path))
            }
            (Self::Python, None) => {
                "guest-agent-plugin @ git+https://github.com/guest-agent/guest-agent\
                                     #subdirectory=sdk/python"
                    .to_owned()
            }
            (Self::Python, Some(path)) => path.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::PluginManifest;

    #[test]
    fn every_project_has_a_manifest_a_test_and_a_short_readme() {
        let folder = tempfile::tempdir().expect("a folder");
        for language in [Language::Rust, Language::Go, Language::Python] {
            let project = folder.path().join(format!("{language:?}"));
            let made = make(&project, "my-plugin", language, None).expect("it is made");
            let manifest =
                PluginManifest::find(&project).expect("no mistake").expect("it is there");
            assert_eq!(manifest.says.name, "my-plugin");
            assert!(manifest.says.build.command.is_some(), "{language:?}");
            let readme = fs::read_to_string(project.join("README.md")).expect("a README");
            assert!(readme.lines().count() <= 12, "{language:?}: {readme}");
            let mut tests = 0;
            for file in made {
                let text = fs::read_to_string(&file).expect("a text");
                assert!(!text.contains("{{"), "{}: {text}", file.display());
                tests += usize::from(
                    text.contains("#[tokio::test]")
                        || text.contains("func Test")
                        || text.contains("async def test_"),
                );
            }
            assert_eq!(tests, 1, "{language:?}");
        }
    }

    #[test]
    fn nothing_that_is_there_is_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let again = make(folder.path(), "a", Language::Go, None);
        assert!(matches!(again, Err(ScaffoldError::Exists(_))), "{again:?}");
        for name in ["", "A", "1a", "a_b", "a/b", "a-", &"a".repeat(64)] {
            let made = make(&folder.path().join("new"), name, Language::Go, None);
            assert!(matches!(made, Err(ScaffoldError::Name(_))), "{name}: {made:?}");
        }
        let sdk = make(&folder.path().join("new"), "a", Language::Rust, Some(folder.path()));
        assert!(matches!(sdk, Err(ScaffoldError::Sdk { .. })), "{sdk:?}");
        assert!(!folder.path().join("new").exists());
    }
}

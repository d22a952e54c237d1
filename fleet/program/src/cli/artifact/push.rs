//! `artifact push`: sends archives, and prints a release that names them.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use futures_util::{StreamExt, TryStreamExt};
use guest_fleet_server::artifacts::place::Place;
use guest_fleet_server::artifacts::push::{Hashed, Remote};
use guest_fleet_server::artifacts::store::{ArtifactStore, Bounds, Claim};
use serde::Serialize;
use tokio_util::io::ReaderStream;

use super::error::ArtifactError;
use super::file_name;

const READ_BYTES: usize = 256 << 10;
/// Digits of a digest that make a revision where nothing else does.
const REVISION_DIGITS: usize = 12;

/// The arguments of `artifact push`.
#[derive(Args, Clone, Debug)]
pub struct PushArgs {
    /// Archives of one release, one per architecture. The architecture is read from the name of the
    /// file, or written before it: `arm64=build/plugin.tar.gz`.
    #[arg(required = true, value_name = "[ARCHITECTURE=]FILE")]
    files: Vec<String>,
    /// Name of the plugin; read from the names of the files otherwise.
    #[arg(long, value_name = "NAME")]
    plugin: Option<String>,
    /// Revision; read from the names of the files, or made of a digest otherwise.
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
    /// The program in the archives, for the printed release.
    #[arg(long, value_name = "PATH")]
    entry_point: Option<String>,
    /// Keep them in this store: a directory of this machine, or `s3://BUCKET/PREFIX`.
    #[arg(
        long,
        value_name = "PLACE",
        required_unless_present = "server",
        conflicts_with = "server"
    )]
    artifacts: Option<Place>,
    /// Send them to the artifact listener at this URL.
    #[arg(long, value_name = "URL", requires = "token_file")]
    server: Option<String>,
    /// File with the upload token.
    #[arg(long, value_name = "FILE", requires = "server")]
    token_file: Option<PathBuf>,
    /// Certificates of the authority that the listener is known by, PEM.
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,
    /// Print a JSON document.
    #[arg(long)]
    json: bool,
}

/// What was pushed. The document of `--json`.
#[derive(Debug, Serialize)]
struct Pushed {
    plugin: String,
    revision: String,
    /// By architecture.
    archives: BTreeMap<String, PushedArchive>,
}

#[derive(Debug, Serialize)]
struct PushedArchive {
    file: PathBuf,
    sha256: String,
    bytes: u64,
}

/// Where archives go.
enum Target {
    Store(std::sync::Arc<dyn ArtifactStore>),
    Remote(Remote),
}

pub(super) async fn run(args: PushArgs, out: &mut dyn Write) -> Result<(), ArtifactError> {
    let files = by_architecture(&args.files)?;
    let plugin = plugin(&args, &files)?;
    let target = target(&args).await?;
    let mut archives = BTreeMap::new();
    for (architecture, path) in &files {
        let file = Hashed::read(path).await?;
        match &target {
            Target::Store(store) => keep(store.as_ref(), &file).await?,
            Target::Remote(remote) => remote.put(&plugin, &file).await?,
        }
        let Hashed { path: file, digest, length: bytes } = file;
        let archive = PushedArchive { file, sha256: digest.to_string(), bytes };
        archives.insert(architecture.clone(), archive);
    }
    let revision = revision(&args, &files, &archives);
    let pushed = Pushed { plugin, revision, archives };
    if args.json {
        let document = serde_json::to_string_pretty(&pushed).map_err(std::io::Error::other)?;
        writeln!(out, "{document}")?;
    } else {
        write!(out, "{}", release(&pushed, args.entry_point.as_deref()))?;
    }
    Ok(())
}

/// The files by their architectures.
fn by_architecture(files: &[String]) -> Result<BTreeMap<String, PathBuf>, ArtifactError> {
    let mut found = BTreeMap::new();
    for file in files {
        let (architecture, path) = match file.split_once('=') {
            // A path may have this character in it, an architecture has no slash.
            Some((architecture, path)) if !architecture.contains('/') => {
                (architecture.to_owned(), PathBuf::from(path))
            }
            _ => {
                let path = PathBuf::from(file);
                (file_name::read(&name_of(&path)).architecture.to_owned(), path)
            }
        };
        if let Some(other) = found.insert(architecture.clone(), path.clone()) {
            return Err(ArtifactError::Usage(format!(
                "`{}` and `{}` are both for the architecture {architecture}; write another one \
                 before one of them: `arm64={}`",
                other.display(),
                path.display(),
                path.display()
            )));
        }
    }
    Ok(found)
}

fn plugin(args: &PushArgs, files: &BTreeMap<String, PathBuf>) -> Result<String, ArtifactError> {
    if let Some(plugin) = &args.plugin {
        return checked(plugin);
    }
    let mut said: Vec<_> =
        files.values().map(|path| file_name::read(&name_of(path)).plugin).collect();
    said.dedup();
    match said.as_slice() {
        [Some(plugin)] => checked(plugin),
        _ => Err(ArtifactError::Usage(
            "the names of the files do not say which plugin they are of; give --plugin NAME".into(),
        )),
    }
}

/// A name that can be a part of a URL.
fn checked(plugin: &str) -> Result<String, ArtifactError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if plugin.is_empty() || plugin.starts_with('.') || !plugin.bytes().all(allowed) {
        return Err(ArtifactError::Usage(format!(
            "{plugin:?} is not the name of a plugin, which has letters, digits, `-`, `_` and `.`; \
             give --plugin NAME"
        )));
    }
    Ok(plugin.to_owned())
}

fn revision(
    args: &PushArgs,
    files: &BTreeMap<String, PathBuf>,
    archives: &BTreeMap<String, PushedArchive>,
) -> String {
    let said = || files.values().find_map(|path| file_name::read(&name_of(path)).revision);
    let made = || {
        let first = archives.values().next();
        first.map(|archive| archive.sha256.chars().take(REVISION_DIGITS).collect())
    };
    args.revision.clone().or_else(said).or_else(made).unwrap_or_default()
}

async fn target(args: &PushArgs) -> Result<Target, ArtifactError> {
    if let Some(place) = &args.artifacts {
        return Ok(Target::Store(place.open(Bounds::default()).await?));
    }
    let (Some(server), Some(token)) = (&args.server, &args.token_file) else {
        return Err(ArtifactError::Usage(
            "say where the archives go: --artifacts PLACE, or --server URL --token-file FILE"
                .into(),
        ));
    };
    let token = read(token)?;
    // A file of several tokens has the newest one first.
    let token = token.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let authorities = args.ca.as_deref().map(read).transpose()?;
    Ok(Target::Remote(Remote::new(server, token, authorities.as_deref())?))
}

fn read(path: impl AsRef<Path>) -> Result<String, ArtifactError> {
    let path = path.as_ref();
    std::fs::read_to_string(path)
        .map_err(|source| ArtifactError::File { path: path.to_owned(), source })
}

async fn keep(store: &dyn ArtifactStore, file: &Hashed) -> Result<(), ArtifactError> {
    let opened = tokio::fs::File::open(&file.path).await;
    let failed = |source| ArtifactError::File { path: file.path.clone(), source };
    let bytes = ReaderStream::with_capacity(opened.map_err(failed)?, READ_BYTES);
    let claim = Claim { digest: Some(file.digest), length: Some(file.length) };
    let put = store.put(claim, bytes.into_stream().boxed()).await;
    put.map(drop).map_err(|source| ArtifactError::Put { file: file.path.clone(), source })
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A release in TOML. All that is printed is TOML, so that it may go into a file as it is.
fn release(pushed: &Pushed, entry_point: Option<&str>) -> String {
    let mut lines = vec!["[[release]]".to_owned()];
    lines.push(format!("plugin = {}", quoted(&pushed.plugin)));
    lines.push(format!("revision = {}", quoted(&pushed.revision)));
    lines.push(match entry_point {
        Some(path) => format!("entry_point = {}", quoted(path)),
        None => "# entry_point = \"…\"   # the program, from the top of the archive".to_owned(),
    });
    for (architecture, archive) in &pushed.archives {
        let PushedArchive { file, sha256, bytes } = archive;
        lines.push(format!("# {}, {bytes} bytes", name_of(file).escape_debug()));
        lines.push(format!("archives.{} = {{ sha256 = \"{sha256}\" }}", key(architecture)));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// A basic string. What JSON escapes is escaped in TOML in the same way.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn key(name: &str) -> String {
    let is_bare = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare { name.to_owned() } else { quoted(name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_archives_of_one_architecture_are_refused() {
        let files = ["echo-1-amd64.tar.gz".to_owned(), "other/echo-1-x86_64.tgz".to_owned()];
        let error = by_architecture(&files).expect_err("one has to be renamed").to_string();
        assert!(error.contains("both for the architecture amd64"), "{error}");
        assert!(error.contains("arm64=other/echo-1-x86_64.tgz"), "{error}");
    }

    #[test]
    fn an_architecture_may_stand_before_a_file() {
        let files = ["arm64=a.tar.gz".to_owned(), "dir/with=sign/b.tar.gz".to_owned()];
        let found = by_architecture(&files).expect("two architectures");
        assert_eq!(found["arm64"], PathBuf::from("a.tar.gz"));
        assert_eq!(found["any"], PathBuf::from("dir/with=sign/b.tar.gz"));
    }

    #[test]
    fn the_printed_release_is_toml() {
        let archive =
            |file: &str| PushedArchive { file: file.into(), sha256: "ab".repeat(32), bytes: 7 };
        let archives = BTreeMap::from([
            ("amd64".to_owned(), archive("echo-amd64.tar.gz")),
            ("odd \"name".to_owned(), archive("line\nbreak")),
        ]);
        let pushed = Pushed { plugin: "echo".to_owned(), revision: "1\"2".to_owned(), archives };
        let text = release(&pushed, Some("bin/echo"));
        assert_eq!(
            text,
            format!(
                "[[release]]\nplugin = \"echo\"\nrevision = \"1\\\"2\"\nentry_point = \"bin/echo\"\n\
                 # echo-amd64.tar.gz, 7 bytes\narchives.amd64 = {{ sha256 = \"{0}\" }}\n\
                 # line\\nbreak, 7 bytes\narchives.\"odd \\\"name\" = {{ sha256 = \"{0}\" }}\n",
                "ab".repeat(32)
            )
        );
    }
}

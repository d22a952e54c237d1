//! `pack`: an archive of a plugin's directory, and the order that installs it.
//!
//! The archive itself is written by [`Services::pack`](super::services::Services::pack); this file
//! decides on the name, the revision and the entry point, and writes the order beside the archive.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::{PluginName, RevisionId};
use guest_agent_actors::model::spec::EntryPoint;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;
use super::format::{bytes, counted};
use super::order::{file_url, install_json, order_beside};
use crate::install::bundle;
use crate::install::error::SignError;
use crate::install::pack::Compression;
use crate::install::trust;
use crate::install::trust::sign::SigningKey;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent pack ./metrics -o metrics.tar.gz
  guest-agent pack ./metrics -o metrics.tar.gz --revision 1.4 --sign-key release.key
  guest-agent pack ./metrics -o metrics.bundle --bundle --zstd")]
pub(super) struct Flags {
    /// The directory to pack
    dir: PathBuf,
    /// The archive to write; the order is written beside it as FILE.json
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Compress with zstd instead of gzip
    #[arg(long)]
    zstd: bool,
    /// Name of the plugin [default: the directory's name]
    #[arg(long)]
    name: Option<PluginName>,
    /// Revision of the plugin [default: the beginning of the archive's digest]
    #[arg(long, value_name = "R")]
    revision: Option<RevisionId>,
    /// The executable, as a path in the directory [default: the only executable at its top]
    #[arg(long, value_name = "PATH", value_parser = EntryPoint::parse)]
    entry_point: Option<EntryPoint>,
    /// An argument of the executable; may be repeated
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Sign the archive with this key, as FILE.minisig; `keygen` makes one
    #[arg(long, value_name = "KEY")]
    sign_key: Option<PathBuf>,
    /// Write one file with the archive, its order and its signature, to be installed without a
    /// network
    #[arg(long)]
    bundle: bool,
}

/// An archive and its order, as scripts see them; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ArchiveJson<'a> {
    /// The archive. Absolute.
    archive: &'a Path,
    /// The size of the archive.
    bytes: u64,
    /// Files, folders and links in it.
    entries: u64,
    /// The plugin.
    name: &'a str,
    /// The file with the order that installs it. Absolute.
    order: PathBuf,
    /// The revision.
    revision: &'a str,
    /// The SHA-256 of the archive, in hexadecimal digits.
    sha256: &'a str,
    /// The file with the signature, where it was signed. Absolute.
    signature: Option<PathBuf>,
}

/// A bundle, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BundleJson<'a> {
    /// The bundle. Absolute.
    bundle: &'a Path,
    /// The size of the archive in it.
    bytes: u64,
    /// Files, folders and links in the archive.
    entries: u64,
    /// The plugin.
    name: &'a str,
    /// The revision.
    revision: &'a str,
    /// The SHA-256 of the archive, in hexadecimal digits.
    sha256: &'a str,
    /// Whether its archive is signed.
    signed: bool,
}

pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let name = match &flags.name {
        Some(name) => name.clone(),
        None => name_of(&flags.dir)?,
    };
    let entry_point = match &flags.entry_point {
        Some(path) => checked(&flags.dir, path)?,
        None => only_executable(&flags.dir)?,
    };
    let output = absolute(&flags.output)?;
    if output.starts_with(absolute(&flags.dir)?) {
        return Err(Failure::usage("the archive would be inside the directory it is made of")
            .hint("write it elsewhere with -o"));
    }
    // An unusable key is reported before the archive is written.
    let key = flags.sign_key.as_deref().map(SigningKey::read).transpose().map_err(unsigned)?;
    let compression = if flags.zstd { Compression::Zstd } else { Compression::Gzip };
    // In a bundle, the archive is only one of the members.
    let aside = if flags.bundle { Some(folder_beside(&output)?) } else { None };
    let archive = match &aside {
        Some(folder) => folder.path().join("archive"),
        None => flags.output.clone(),
    };
    let packed = (context.services.pack)(&flags.dir, &archive, compression).map_err(|error| {
        Failure::failed(format_args!("failed to pack {}", flags.dir.display())).because(&*error)
    })?;
    let sha256 = packed.sha256.to_string();
    let revision = match &flags.revision {
        Some(revision) => revision.clone(),
        None => sha256[..12]
            .parse()
            .map_err(|error| Failure::failed("the digest is no valid revision").because(&error))?,
    };
    let signature = key.map(|key| key.sign(&archive, &name, &revision));
    let signature = signature.transpose().map_err(unsigned)?;
    let url = if flags.bundle { String::new() } else { file_url(&output)? };
    let order = install_json(
        name.as_str(),
        revision.as_str(),
        &url,
        &sha256,
        entry_point.as_str(),
        &flags.arguments,
    );
    let order = format!("{order:#}\n");
    let console = context.console;
    if flags.bundle {
        bundle::write(&output, &order, signature.as_deref(), &archive)
            .map_err(|error| Failure::failed("failed to make the bundle").because(&error))?;
        if context.global.json() {
            return Ok(console.document(&BundleJson {
                bundle: &output,
                bytes: packed.bytes,
                entries: packed.entries,
                name: name.as_str(),
                revision: revision.as_str(),
                sha256: &sha256,
                signed: signature.is_some(),
            })?);
        }
        let shown = flags.output.display();
        let signed = if signature.is_some() { "signed" } else { "not signed" };
        let (entries, size) = (counted(packed.entries, "file"), bytes(packed.bytes));
        console.line(&format!("{shown}: {name} {revision}, {entries}, {size}, {signed}"))?;
        console.line(&format!("install it with `guest-agent install -f {shown} --wait`"))?;
        return Ok(());
    }
    let signature_file = signature_beside(&flags.output);
    if let Some(signature) = &signature {
        write(&signature_file, signature)?;
    }
    let order_file = order_beside(&flags.output);
    write(&order_file, &order)?;
    if context.global.json() {
        return Ok(console.document(&ArchiveJson {
            archive: &output,
            bytes: packed.bytes,
            entries: packed.entries,
            name: name.as_str(),
            order: absolute(&order_file)?,
            revision: revision.as_str(),
            sha256: &sha256,
            signature: signature.is_some().then(|| absolute(&signature_file)).transpose()?,
        })?);
    }
    let archive = flags.output.display();
    console.line(&format!(
        "{archive}: {}, {}",
        counted(packed.entries, "file"),
        bytes(packed.bytes)
    ))?;
    console.line(&format!(
        "{}: {name} {revision}, starts {}",
        order_file.display(),
        entry_point.as_str()
    ))?;
    if signature.is_some() {
        console.line(&format!("{}: its signature", signature_file.display()))?;
    }
    console.line(&format!("install it with `guest-agent install -f {archive} --wait`"))?;
    Ok(())
}

/// A temporary folder, on the file system of the result.
fn folder_beside(output: &Path) -> Result<tempfile::TempDir, Failure> {
    let parent = output.parent().unwrap_or(Path::new("/"));
    tempfile::tempdir_in(parent).map_err(|error| {
        Failure::failed(format_args!("failed to write in {}", parent.display())).because(&error)
    })
}

/// The path of an archive's signature.
fn signature_beside(archive: &Path) -> PathBuf {
    let mut name = archive.as_os_str().to_owned();
    name.push(trust::SUFFIX);
    name.into()
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(path, text).map_err(|error| {
        Failure::failed(format_args!("failed to write {}", path.display())).because(&error)
    })
}

fn unsigned(error: SignError) -> Failure {
    Failure::failed("failed to sign the archive").because(&error)
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).map_err(|error| {
        Failure::failed(format_args!("failed to find {}", path.display())).because(&error)
    })
}

fn name_of(dir: &Path) -> Result<PluginName, Failure> {
    let real = dir.canonicalize().map_err(|error| unreadable(dir, &error))?;
    let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.parse().map_err(|error| {
        Failure::usage("the directory's name is not a valid plugin name")
            .because(&error)
            .hint("choose one with --name")
    })
}

/// A named entry point must exist and be executable: this check is cheaper here than on every
/// machine that installs the plugin.
fn checked(dir: &Path, path: &EntryPoint) -> Result<EntryPoint, Failure> {
    let file = dir.join(path.as_str());
    let found = std::fs::metadata(&file).map_err(|error| unreadable(&file, &error))?;
    if found.is_file() && found.permissions().mode() & 0o111 != 0 {
        return Ok(path.clone());
    }
    Err(Failure::failed(format_args!("{} is not an executable file", file.display()))
        .hint(format_args!("chmod +x {}", file.display())))
}

fn only_executable(dir: &Path) -> Result<EntryPoint, Failure> {
    let failed = |error: std::io::Error| unreadable(dir, &error);
    let mut found = Vec::new();
    for member in std::fs::read_dir(dir).map_err(failed)? {
        let member = member.map_err(failed)?;
        let facts = member.metadata().map_err(failed)?;
        if facts.is_file() && facts.permissions().mode() & 0o111 != 0 {
            found.push(member.file_name().to_string_lossy().into_owned());
        }
    }
    found.sort();
    match found.as_slice() {
        [only] => EntryPoint::parse(only)
            .map_err(|error| Failure::failed("the executable's name is not valid").because(&error)),
        [] => Err(Failure::usage(format_args!("no executable is at the top of {}", dir.display()))
            .hint("name it with --entry-point, or make it executable with chmod +x")),
        many => Err(Failure::usage(format_args!(
            "more than one executable is at the top of {}: {}",
            dir.display(),
            many.join(", ")
        ))
        .hint("choose one with --entry-point")),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::failed(format_args!("failed to read {}", path.display())).because(error)
}

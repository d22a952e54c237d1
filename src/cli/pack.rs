//! `pack`: an archive of a plugin's directory, and the order that installs it.
//!
//! ```text
//! directory, plugin.toml, flags ─► Wanted ─► archive, one per architecture ─► signature
//!                                              ├─► order beside it (kept: what a person wrote stays)
//!                                              └─► index: the archives of a release, for `guest-fleet`
//! ```
//!
//! The archive itself is written by [`Services::pack`](super::services::Services::pack).

use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::{PluginName, RevisionId};
use guest_agent_actors::model::spec::EntryPoint;
use schemars::JsonSchema;
use serde::Serialize;

use super::console::Console;
use super::context::Context;
use super::failure::Failure;
use super::format::{bytes, counted};
use super::order::{file_url, order_beside};
use crate::install::bundle;
use crate::install::error::SignError;
use crate::install::trust;
use crate::install::trust::sign::SigningKey;
use crate::manifest::package::{Package, PackageError, Wanted};
use crate::manifest::{ANY_ARCHITECTURE, ManifestError, PluginManifest, build};

mod files;
pub(super) mod index;
mod kept;

use files::{absolute, write};
use kept::Kept;

mod compression;

use compression::CompressionFlags;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent pack ./metrics -o metrics.tar
  guest-agent pack ./metrics -o metrics.tar.gz --revision 1.4 --sign-key release.key
  guest-agent pack ./metrics -o metrics.bundle --bundle --zstd
  guest-agent pack . -o dist/metrics-{architecture}.tar.gz --build --index dist/release.json")]
pub(super) struct Flags {
    /// The directory to pack, as its plugin.toml says
    dir: PathBuf,
    /// The archive to write; the order is written beside it as FILE.json
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    compression: CompressionFlags,
    /// Name of the plugin [default: the directory's name]
    #[arg(long)]
    name: Option<PluginName>,
    /// Revision of the plugin [default: the beginning of the archive's digest]
    #[arg(long, value_name = "R")]
    revision: Option<RevisionId>,
    /// The executable in the directory [default: the only one at its top]
    #[arg(long, value_name = "PATH", value_parser = EntryPoint::parse)]
    entry_point: Option<EntryPoint>,
    /// An argument of the executable; may be repeated
    #[arg(long = "arg", value_name = "ARG", allow_hyphen_values = true)]
    arguments: Vec<String>,
    /// Sign the archive with this key, as FILE.minisig; `keygen` makes one
    #[arg(long, value_name = "KEY")]
    sign_key: Option<PathBuf>,
    /// Write archive, order and signature as one file, for machines offline
    #[arg(long, conflicts_with = "index")]
    bundle: bool,
    /// Run the build command of plugin.toml first
    #[arg(long)]
    build: bool,
    /// List the archives of the release, for `guest-fleet artifact push`
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
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
    /// How the archive is compressed: tar (not at all), gzip or zstd.
    compression: &'a str,
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

/// What all archives of one call share.
struct Release {
    wanted: Wanted,
    name: PluginName,
    key: Option<SigningKey>,
}

/// An archive that is to be written, with what is beside it already.
struct Target {
    architecture: String,
    /// As the flag names it.
    output: PathBuf,
    kept: Kept,
}

pub(super) fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let manifest = PluginManifest::find(&flags.dir)?;
    let has_manifest = manifest.is_some();
    let is_said = manifest.as_ref().is_some_and(|it| it.says.pack.compression.is_some());
    let key_file = flags.sign_key.clone().or_else(|| key_file_of(manifest.as_ref()));
    let mut wanted = Wanted {
        folder: flags.dir.clone(),
        manifest,
        name: flags.name.clone(),
        revision: flags.revision.clone(),
        entry_point: flags.entry_point.clone(),
        arguments: flags.arguments.clone(),
        compression: flags.compression.asked(flags.bundle, is_said),
    };
    let architectures = wanted.architectures();
    if architectures.len() > 1 && flags.index.is_none() {
        return Err(Failure::usage(
            "plugin.toml names several architectures, which make one release",
        )
        .hint("say where its list of archives goes with --index FILE"));
    }
    let mut targets = Vec::new();
    for architecture in architectures {
        let output = output_of(&flags.output, &architecture);
        let kept = Kept::read(&order_beside(&output), has_manifest, flags.bundle)?;
        targets.push(Target { architecture, output, kept });
    }
    if let [Target { kept, .. }] = targets.as_slice() {
        kept.complete(&mut wanted);
    }
    if flags.build {
        build_all(&wanted, &targets)?;
    }
    for Target { architecture, output, .. } in &targets {
        wanted.entry_point(architecture)?;
        if absolute(output)?.starts_with(absolute(&wanted.packed_folder(architecture))?) {
            return Err(Failure::usage("the archive would be inside the directory it is made of")
                .hint("write it elsewhere with -o"));
        }
    }
    // An unusable key is reported before the archive is written.
    let key = key_file.as_deref().map(SigningKey::read).transpose().map_err(unsigned)?;
    let name = wanted.name()?;
    let release = Release { wanted, name, key };
    if flags.bundle {
        let [target] = targets.as_slice() else {
            return Err(Failure::usage("a bundle has one archive, and plugin.toml names several"));
        };
        return release.bundle(target, context);
    }
    release.archives(&targets, flags.index.as_deref(), context)
}

// === impl Release ===

impl Release {
    /// One file with everything.
    fn bundle(&self, target: &Target, context: Context<'_, '_>) -> Result<(), Failure> {
        let output = absolute(&target.output)?;
        // In a bundle, the archive is only one of the members.
        let aside = folder_beside(&output)?;
        let archive = aside.path().join("archive");
        let package = self.wanted.pack(&target.architecture, &archive, &*context.services.pack)?;
        let revision = self.wanted.revision(std::slice::from_ref(&package));
        let signature = self.sign(&package, &revision)?;
        let order = target.kept.order(self.wanted.order(&package, &revision, "")?);
        bundle::write(&output, &order, signature.as_deref(), &archive)
            .map_err(|error| Failure::failed("failed to make the bundle").because(&error))?;
        let (console, packed, name) = (context.console, package.packed, &self.name);
        if context.global.json() {
            return Ok(console.document(&BundleJson {
                bundle: &output,
                bytes: packed.bytes,
                entries: packed.entries,
                name: name.as_str(),
                revision: revision.as_str(),
                sha256: &packed.sha256.to_string(),
                signed: signature.is_some(),
            })?);
        }
        let shown = target.output.display();
        let signed = if signature.is_some() { "signed" } else { "not signed" };
        let (entries, size) = (counted(packed.entries, "file"), bytes(packed.bytes));
        console.line(&format!("{shown}: {name} {revision}, {entries}, {size}, {signed}"))?;
        console.line(&format!("install it with `guest-agent install -f {shown} --wait`"))?;
        Ok(())
    }

    /// Archives with their orders, and the index of them.
    fn archives(
        &self,
        targets: &[Target],
        index: Option<&Path>,
        context: Context<'_, '_>,
    ) -> Result<(), Failure> {
        let packages: Vec<Package> = targets
            .iter()
            .map(|it| self.wanted.pack(&it.architecture, &it.output, &*context.services.pack))
            .collect::<Result<_, _>>()?;
        let revision = self.wanted.revision(&packages);
        let mut signatures = Vec::new();
        for (target, package) in targets.iter().zip(&packages) {
            signatures.push(self.beside(target, package, &revision)?);
        }
        let index = match index {
            None => None,
            Some(file) => {
                let whole = index::Index::of(
                    file,
                    (&self.wanted, &self.name, &revision),
                    &packages,
                    &signatures,
                )?;
                let text = serde_json::to_string_pretty(&whole)
                    .map_err(|error| Failure::failed("the index has no JSON").because(&error))?;
                write(file, &(text + "\n"))?;
                Some((file, whole))
            }
        };
        let console = context.console;
        if context.global.json() {
            return match (&index, packages.as_slice()) {
                (Some((_, index)), _) => Ok(console.document(index)?),
                (None, all) => {
                    let [package] = all else { return Ok(()) };
                    self.document(package, &revision, signatures[0].as_deref(), console)
                }
            };
        }
        for ((target, package), signature) in targets.iter().zip(&packages).zip(&signatures) {
            self.tell(target, package, &revision, signature.as_deref(), console)?;
        }
        match index {
            Some((file, _)) => console.line(&format!(
                "{0}: the release; send it with `guest-fleet artifact push --index {0}`",
                file.display()
            ))?,
            None => {
                let archive = targets[0].output.display();
                console
                    .line(&format!("install it with `guest-agent install -f {archive} --wait`"))?;
            }
        }
        Ok(())
    }

    /// Writes what stands beside an archive: its signature, which is returned, and its order.
    fn beside(
        &self,
        target: &Target,
        package: &Package,
        revision: &RevisionId,
    ) -> Result<Option<PathBuf>, Failure> {
        let signature = self.sign(package, revision)?;
        let signature_file = signature_beside(&target.output);
        if let Some(signature) = &signature {
            write(&signature_file, signature)?;
        }
        let url = match self.wanted.url(&target.output) {
            Some(url) => url,
            None => file_url(&target.output)?,
        };
        target.kept.write(self.wanted.order(package, revision, &url)?)?;
        Ok(signature.is_some().then_some(signature_file))
    }

    fn sign(&self, package: &Package, revision: &RevisionId) -> Result<Option<String>, Failure> {
        let signature =
            self.key.as_ref().map(|key| key.sign(&package.archive, &self.name, revision));
        signature.transpose().map_err(unsigned)
    }

    fn document(
        &self,
        package: &Package,
        revision: &RevisionId,
        signature: Option<&Path>,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let archive = absolute(&package.archive)?;
        Ok(console.document(&ArchiveJson {
            archive: &archive,
            bytes: package.packed.bytes,
            entries: package.packed.entries,
            name: self.name.as_str(),
            order: order_beside(&archive),
            revision: revision.as_str(),
            compression: compression::word(package.chosen.compression),
            sha256: &package.packed.sha256.to_string(),
            signature: signature.map(absolute).transpose()?,
        })?)
    }

    fn tell(
        &self,
        target: &Target,
        package: &Package,
        revision: &RevisionId,
        signature: Option<&Path>,
        console: &mut Console<'_>,
    ) -> Result<(), Failure> {
        let (entries, size) =
            (counted(package.packed.entries, "file"), bytes(package.packed.bytes));
        console.line(&format!("{}: {entries}, {size}", target.output.display()))?;
        let chosen = package.chosen;
        console.line(&format!("{}, {}", compression::name(chosen.compression), chosen.why))?;
        console.line(&format!(
            "{}: {} {revision}, starts {}",
            order_beside(&target.output).display(),
            self.name,
            package.entry_point.as_str()
        ))?;
        if let Some(note) = target.kept.note(package, revision) {
            console.line(&note)?;
        }
        if let Some(signature) = signature {
            console.line(&format!("{}: its signature", signature.display()))?;
        }
        Ok(())
    }
}

// === impl Failure ===

impl From<ManifestError> for Failure {
    fn from(error: ManifestError) -> Self {
        match &error {
            ManifestError::Problems { path, problems } => {
                let count = problems.len();
                let s = if count == 1 { "" } else { "s" };
                let failure =
                    Self::failed(format_args!("{} has {count} mistake{s}", path.display()));
                problems.iter().fold(failure, Self::cause)
            }
            ManifestError::Read { .. } | ManifestError::TooLarge(_) => Self::of(&error),
        }
    }
}

impl From<PackageError> for Failure {
    fn from(error: PackageError) -> Self {
        let mut failure = Self::of(&error);
        if error.is_usage() {
            failure.exit = super::failure::Exit::Usage;
        }
        match error.hint() {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// The key that the manifest names, beside it.
fn key_file_of(manifest: Option<&PluginManifest>) -> Option<PathBuf> {
    let manifest = manifest?;
    Some(manifest.folder.join(manifest.says.signature.key_file.as_ref()?))
}

fn build_all(wanted: &Wanted, targets: &[Target]) -> Result<(), Failure> {
    let Some(manifest) = &wanted.manifest else {
        return Err(Failure::usage("there is no plugin.toml with a build command")
            .hint("write one, or leave --build out"));
    };
    for Target { architecture, .. } in targets {
        build::build(manifest, architecture).map_err(|error| Failure::of(&error))?;
    }
    Ok(())
}

/// The path of an archive: of several, each has a name of its own.
fn output_of(output: &Path, architecture: &str) -> PathBuf {
    const MARK: &str = "{architecture}";
    let name = output.to_string_lossy();
    if name.contains(MARK) {
        return name.replace(MARK, architecture).into();
    }
    if architecture == ANY_ARCHITECTURE {
        return output.to_owned();
    }
    let file = output.file_name().unwrap_or_default().to_string_lossy();
    // `greeter-1.0.tar.gz`: only the ends of archives are ends.
    let at = [".tar.", ".tgz", ".tar", ".bundle"].iter().filter_map(|end| file.rfind(end)).min();
    let (stem, end) = file.split_at(at.unwrap_or(file.len()));
    output.with_file_name(format!("{stem}-{architecture}{end}"))
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

fn unsigned(error: SignError) -> Failure {
    Failure::failed("failed to sign the archive").because(&error)
}

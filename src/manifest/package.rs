//! An archive of a plugin, and the order that installs it: what a manifest says, or without one what
//! the folder and the caller say.
//!
//! ```text
//! manifest ─┐
//! flags  ───┼─► Wanted ─ pack ─► Package ─► order
//! folder ───┘
//! ```

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::{IdError, PluginName, RevisionId, Sha256Digest};
use guest_agent_actors::model::spec::{EntryPoint, EntryPointError};
use guest_agent_actors::ports::Cause;
use serde_json::{Map, Value, json};

use super::{ANY_ARCHITECTURE, Chosen, PluginManifest};
use crate::install::pack::{Choice, Compression, Packed};

/// Packs the chosen files of a folder, its first argument, into an archive, its second.
pub type Packing<'a> = dyn Fn(&Path, &Path, Compression, &Choice) -> Result<Packed, Cause> + 'a;

/// Digits of a digest that make a revision where nothing else does.
const REVISION_DIGITS: usize = 12;

/// What is to be packed. What the caller says goes before what the manifest says.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// The folder that was named; the one to pack is in its manifest.
    pub folder: PathBuf,
    /// The manifest of that folder.
    pub manifest: Option<PluginManifest>,
    /// The name.
    pub name: Option<PluginName>,
    /// The revision.
    pub revision: Option<RevisionId>,
    /// The program.
    pub entry_point: Option<EntryPoint>,
    /// Its arguments; none asks for those of the manifest.
    pub arguments: Vec<String>,
    /// How the archive is compressed; the manifest, then the name of the file says it otherwise.
    pub compression: Option<Chosen>,
}

/// An archive that was packed.
#[derive(Clone, Debug)]
pub struct Package {
    /// The file.
    pub archive: PathBuf,
    /// Its architecture.
    pub architecture: String,
    /// How it is compressed, and why.
    pub chosen: Chosen,
    /// Its digest and size.
    pub packed: Packed,
    /// The program in it.
    pub entry_point: EntryPoint,
}

/// Why nothing was packed.
#[derive(Debug, thiserror::Error)]
pub enum PackageError {
    /// A file cannot be read.
    #[error("failed to read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The name of the folder is not that of a plugin.
    #[error("the directory's name is not a valid plugin name")]
    Name(#[source] IdError),
    /// The folder has no program at its top.
    #[error("no executable is at the top of {}", .0.display())]
    NoExecutable(PathBuf),
    /// The folder has several programs at its top.
    #[error("more than one executable is at the top of {}: {}", folder.display(), names.join(", "))]
    Executables {
        /// The folder.
        folder: PathBuf,
        /// The programs.
        names: Vec<String>,
    },
    /// What was named is no program.
    #[error("{} is not an executable file", .0.display())]
    NotExecutable(PathBuf),
    /// The program has a name that no order can have.
    #[error("the executable's name is not valid")]
    EntryPoint(#[source] EntryPointError),
    /// The manifest has a value that has no form in an order.
    #[error("the manifest makes no order: {0}")]
    Manifest(String),
    /// The archive was not written.
    #[error("failed to pack {}", folder.display())]
    Pack {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        #[source]
        source: Cause,
    },
}

// === impl Wanted ===

impl Wanted {
    /// The folder, as its manifest has it.
    #[must_use]
    pub fn of(folder: &Path, manifest: Option<PluginManifest>) -> Self {
        Self { folder: folder.to_owned(), manifest, ..Self::default() }
    }

    /// The folder to pack, for an architecture.
    #[must_use]
    pub fn packed_folder(&self, architecture: &str) -> PathBuf {
        match &self.manifest {
            Some(manifest) => manifest.packed_folder(architecture),
            None => self.folder.clone(),
        }
    }

    /// The name of the plugin.
    ///
    /// # Errors
    /// Nothing says it, and the folder has another kind of name.
    pub fn name(&self) -> Result<PluginName, PackageError> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        if let Some(manifest) = &self.manifest {
            return manifest.says.name.parse().map_err(PackageError::Name);
        }
        let real = self.folder.canonicalize().map_err(|error| unread(&self.folder, error))?;
        let name = real.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.parse().map_err(PackageError::Name)
    }

    /// The revision that was said.
    fn said_revision(&self) -> Option<RevisionId> {
        let said = || self.manifest.as_ref()?.says.revision.as_ref()?.parse().ok();
        self.revision.clone().or_else(said)
    }

    /// The revision of packages, which is made of their digests where nothing says it.
    #[must_use]
    pub fn revision(&self, packages: &[Package]) -> RevisionId {
        self.said_revision().unwrap_or_else(|| {
            let digest = match packages {
                [one] => one.packed.sha256.to_string(),
                all => {
                    let digests: String =
                        all.iter().map(|it| it.packed.sha256.to_string()).collect();
                    Sha256Digest::of(digests.as_bytes()).to_string()
                }
            };
            digest[..REVISION_DIGITS].parse().expect("hexadecimal digits are a revision")
        })
    }

    /// The arguments of the program.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        match (&self.manifest, self.arguments.as_slice()) {
            (Some(manifest), []) => &manifest.says.arguments,
            (_, said) => said,
        }
    }

    /// The program, which has to be there.
    ///
    /// # Errors
    /// It is not there, or none is named and none stands out.
    pub fn entry_point(&self, architecture: &str) -> Result<EntryPoint, PackageError> {
        let folder = self.packed_folder(architecture);
        let said = self.manifest.as_ref().and_then(|manifest| manifest.says.entry_point.as_deref());
        match (&self.entry_point, said) {
            (Some(path), _) => checked(&folder, path),
            (None, Some(path)) => {
                checked(&folder, &EntryPoint::parse(path).map_err(PackageError::EntryPoint)?)
            }
            (None, None) => only_executable(&folder),
        }
    }

    /// Packs the files for an architecture.
    ///
    /// # Errors
    /// See [`PackageError`].
    pub fn pack(
        &self,
        architecture: &str,
        archive: &Path,
        packing: &Packing<'_>,
    ) -> Result<Package, PackageError> {
        let entry_point = self.entry_point(architecture)?;
        let said = self.manifest.as_ref().and_then(|manifest| manifest.says.pack.compression);
        let chosen = self.compression.or_else(|| said.map(Chosen::said));
        let chosen = chosen.unwrap_or_else(|| Chosen::by_name(archive));
        let choice = self.manifest.as_ref().map(PluginManifest::choice).unwrap_or_default();
        let folder = self.packed_folder(architecture);
        let packed = packing(&folder, archive, chosen.compression, &choice)
            .map_err(|source| PackageError::Pack { folder, source })?;
        let archive = archive.to_owned();
        Ok(Package { archive, architecture: architecture.to_owned(), chosen, packed, entry_point })
    }

    /// The manifest of an order.
    ///
    /// # Errors
    /// A value has no form in an order.
    pub fn manifest_json(&self) -> Result<Map<String, Value>, PackageError> {
        match &self.manifest {
            Some(manifest) => manifest.says.manifest_json().map_err(PackageError::Manifest),
            None => Ok(Map::new()),
        }
    }

    /// The order that installs a package, as protobuf JSON.
    ///
    /// # Errors
    /// A value of the manifest has no form in an order.
    pub fn order(
        &self,
        package: &Package,
        revision: &RevisionId,
        url: &str,
    ) -> Result<Value, PackageError> {
        let mut order = install_json(
            self.name()?.as_str(),
            revision.as_str(),
            url,
            &package.packed.sha256.to_string(),
            package.entry_point.as_str(),
            self.arguments(),
        );
        let manifest = self.manifest_json()?;
        if !manifest.is_empty() {
            order["manifest"] = Value::Object(manifest);
        }
        Ok(order)
    }

    /// Where agents find an archive, as the manifest says.
    #[must_use]
    pub fn url(&self, archive: &Path) -> Option<String> {
        let url = self.manifest.as_ref()?.says.url.as_deref()?;
        let file = archive.file_name().unwrap_or_default().to_string_lossy();
        Some(url.replace("{file}", &file))
    }

    /// The architectures to pack for.
    #[must_use]
    pub fn architectures(&self) -> Vec<String> {
        match &self.manifest {
            Some(manifest) => manifest.architectures(),
            None => vec![ANY_ARCHITECTURE.to_owned()],
        }
    }
}

// === impl PackageError ===

impl PackageError {
    /// Whether the command line has to say more.
    #[must_use]
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Name(_) | Self::NoExecutable(_) | Self::Executables { .. })
    }

    /// What to try.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Name(_) => Some("choose one with --name".to_owned()),
            Self::NoExecutable(_) => {
                Some("name it with --entry-point, or make it executable with chmod +x".to_owned())
            }
            Self::Executables { .. } => Some("choose one with --entry-point".to_owned()),
            Self::NotExecutable(file) => Some(format!("chmod +x {}", file.display())),
            Self::Read { .. } | Self::EntryPoint(_) | Self::Manifest(_) | Self::Pack { .. } => None,
        }
    }
}

fn unread(path: &Path, source: std::io::Error) -> PackageError {
    PackageError::Read { path: path.to_owned(), source }
}

/// A named entry point must exist and be executable: this check is cheaper here than on every
/// machine that installs the plugin.
fn checked(dir: &Path, path: &EntryPoint) -> Result<EntryPoint, PackageError> {
    let file = dir.join(path.as_str());
    let found = std::fs::metadata(&file).map_err(|error| unread(&file, error))?;
    if found.is_file() && found.permissions().mode() & 0o111 != 0 {
        return Ok(path.clone());
    }
    Err(PackageError::NotExecutable(file))
}

fn only_executable(dir: &Path) -> Result<EntryPoint, PackageError> {
    let failed = |error: std::io::Error| unread(dir, error);
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
        [only] => EntryPoint::parse(only).map_err(PackageError::EntryPoint),
        [] => Err(PackageError::NoExecutable(dir.to_owned())),
        _ => Err(PackageError::Executables { folder: dir.to_owned(), names: found }),
    }
}

/// The `file:` URL of a path, absolute, with every byte escaped that has a meaning in URLs.
///
/// # Errors
/// The path is relative, and the current directory is not known.
pub fn file_url(path: &Path) -> std::io::Result<String> {
    use std::os::unix::ffi::OsStrExt;

    let absolute = std::path::absolute(path)?;
    let mut url = "file://".to_owned();
    for byte in absolute.as_os_str().as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-._~+,=@".contains(byte) {
            url.push(char::from(*byte));
        } else {
            let digit = |nibble: u8| {
                char::from_digit(nibble.into(), 16).expect("four bits").to_ascii_uppercase()
            };
            url.extend(['%', digit(byte >> 4), digit(byte & 15)]);
        }
    }
    Ok(url)
}

/// The JSON of an order to install, in the protobuf JSON mapping.
#[must_use]
pub fn install_json(
    name: &str,
    revision: &str,
    url: &str,
    sha256: &str,
    entry_point: &str,
    arguments: &[String],
) -> Value {
    json!({
        "action": "INSTALL",
        "plugin": {
            "name": name,
            "revisionId": revision,
            "gcsSignedUrl": url,
            "entryPoint": entry_point,
            "arguments": arguments,
            "checksum": sha256,
        },
    })
}

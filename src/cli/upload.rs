//! Uploads the archive of a bundle to the agent, which then needs neither the network nor the
//! bundle. `plan` unpacks the bundle into a folder of its own instead, so that the agent keeps only
//! archives that were ordered.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local::PlaceArchiveRequest;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::client::{Client, Patience, next};
use super::failure::{Exit, Failure};
use super::order::{self, file_url};
use crate::install::bundle::{Bundle, BundleError};
use crate::install::trust::SUFFIX;

/// Bytes of one message.
const PIECE: u64 = 256 << 10;

const ENDS_EARLY: BundleError =
    BundleError::Damaged("it ends early; it was probably not copied completely");

/// Messages on their way to the agent.
const PIECES_IN_FLIGHT: usize = 4;

/// How long an archive may take: this, and a second for each of so many bytes.
const WAIT: Duration = Duration::from_secs(60);
const BYTES_PER_SECOND: u64 = 2 << 20;

/// A bundle with an order that can be given.
pub(super) struct Given {
    order: ConfigurePlugin,
    bundle: Bundle<File>,
}

/// Opens a bundle. Returns `None` when the file is not a bundle.
pub(super) fn open(path: &Path) -> Result<Option<Given>, Failure> {
    let failed = |error: BundleError| {
        Failure::failed(format_args!("{} is not a valid bundle", path.display())).because(&error)
    };
    if order::is_standard_input(path) || !path.is_file() {
        return Ok(None);
    }
    // The caller reads such a file as an order, and reports the mistakes in it.
    let Some(bundle) = Bundle::open(path).map_err(failed)? else { return Ok(None) };
    let order = order::of_bundle(path, &bundle.manifest).map_err(|error| Failure::of(&error))?;
    Ok(Some(Given { order, bundle }))
}

/// Uploads the archive, and returns the order to install it.
pub(super) async fn hand_over(
    client: &mut Client,
    given: Given,
) -> Result<ConfigurePlugin, Failure> {
    let Given { mut order, bundle } = given;
    let total = bundle.archive_bytes();
    let sha256 = order.plugin.as_ref().map(|plugin| plugin.checksum.clone()).unwrap_or_default();
    let (pieces, received) = mpsc::channel(PIECES_IN_FLIGHT);
    let reading = tokio::task::spawn_blocking(move || read(bundle, sha256, &pieces));
    let placed = async {
        let request = ReceiverStream::new(received);
        let mut answers = client.place_archive(request).await?.into_inner();
        next(&mut answers, Patience::Forever).await
    };
    let wait = WAIT + Duration::from_secs(total / BYTES_PER_SECOND);
    let placed = tokio::time::timeout(wait, placed).await;
    match placed {
        Ok(Ok(Some(placed))) => {
            let path = PathBuf::from(placed.path);
            let url = file_url(&path).map_err(|error| {
                Failure::failed("the agent's directory is not usable").because(&error)
            })?;
            if let Some(plugin) = &mut order.plugin {
                plugin.gcs_signed_url = url;
            }
            Ok(order)
        }
        placed => {
            // An error of the file on this side is closer to the cause than the agent's error.
            if let Ok(Ok(Err(error))) = tokio::time::timeout(Duration::from_secs(1), reading).await
            {
                return Err(Failure::failed("the bundle cannot be uploaded").because(&error));
            }
            Err(match placed {
                Ok(Err(failure)) => failure,
                Ok(Ok(_)) => Failure::failed("the agent did not return the path of the archive"),
                Err(_elapsed) => {
                    Failure::new(Exit::TimedOut, "the agent did not take the archive in time")
                }
            })
        }
    }
}

/// Writes the archive and its signature into a folder, and returns the order to install them from
/// there. Blocks.
pub(super) fn lay_out(given: Given, folder: &Path) -> Result<ConfigurePlugin, Failure> {
    let Given { mut order, mut bundle } = given;
    let path = folder.join("archive");
    let failed = |error: io::Error| {
        Failure::failed(format_args!("cannot unpack the bundle to {}", folder.display()))
            .because(&error)
            .hint("TMPDIR names another place for temporary files")
    };
    let signature = bundle.signature.take();
    File::create_new(&path)
        .and_then(|mut file| io::copy(&mut bundle.archive, &mut file))
        .and_then(|_| match signature {
            Some(signature) => fs::write(folder.join(format!("archive{SUFFIX}")), signature),
            None => Ok(()),
        })
        .map_err(failed)?;
    if bundle.archive_bytes() > 0 {
        return Err(Failure::failed("the bundle cannot be used").because(&ENDS_EARLY));
    }
    let url = file_url(&path).map_err(failed)?;
    if let Some(plugin) = &mut order.plugin {
        plugin.gcs_signed_url = url;
    }
    Ok(order)
}

fn read(
    mut bundle: Bundle<File>,
    sha256: String,
    pieces: &mpsc::Sender<PlaceArchiveRequest>,
) -> Result<(), BundleError> {
    let total_bytes = bundle.archive_bytes();
    let signature = bundle.signature.take().unwrap_or_default();
    let mut message = PlaceArchiveRequest { sha256, signature, total_bytes, data: Vec::new() };
    loop {
        let mut piece = Vec::new();
        let room = (&mut bundle.archive).take(PIECE).read_to_end(&mut piece);
        let is_last = room.map_err(BundleError::Read)? == 0;
        if is_last && bundle.archive_bytes() > 0 {
            return Err(ENDS_EARLY);
        }
        message.data = piece;
        if pieces.blocking_send(std::mem::take(&mut message)).is_err() || is_last {
            return Ok(());
        }
    }
}

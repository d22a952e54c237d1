//! The error of serving a plugin, for the server and for the process around it.

use std::error::Error;
use std::io;

use crate::{ArgumentsError, BindError};

/// Why a plugin could not be served, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The command line could not be understood.
    #[error("bad command line")]
    Arguments(#[source] ArgumentsError),
    /// The address could not be listened on.
    #[error("cannot begin to listen")]
    Bind(#[from] BindError),
    /// The current thread has no tokio runtime, or a runtime could not be made, or it takes no
    /// signals or sockets.
    #[error("the runtime failed")]
    Runtime(#[source] io::Error),
    /// The gRPC server failed.
    #[error("the server broke")]
    Transport(#[source] tonic::transport::Error),
    /// A signal asked the plugin to stop and that failed.
    #[error("stopping on a signal failed")]
    Stop(#[source] Box<dyn Error + Send + Sync>),
}

//! The local gRPC socket.

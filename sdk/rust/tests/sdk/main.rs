//! The SDK from outside: over real sockets with the generated client, in this process and with the
//! examples as processes of their own.

mod harness;

mod in_process;
mod processes;
mod testing;

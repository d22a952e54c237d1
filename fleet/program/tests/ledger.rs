//! The ledger of one machine under what happens to processes and disks: they are killed, and full.

mod child;
mod crash;
mod disk;

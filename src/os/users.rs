//! Names of users.

use nix::unistd::{Uid, User};

/// The name of a user; the number where the machine has no name for it. Blocks: the database of
/// users may be on a network.
pub(crate) fn name_of(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

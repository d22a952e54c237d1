//! Names of users and groups.

use nix::unistd::{Group, Uid, User};

/// The name of a user; the number where the machine has no name for it. Blocks: the database of
/// users may be on a network.
pub(crate) fn name_of(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => format!("uid {uid}"),
    }
}

/// The number of a group, by its name or its number; `None` where there is no group of this name, or
/// the database cannot be asked. Blocks.
pub(crate) fn group(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    Group::from_name(name).ok().flatten().map(|group| group.gid.as_raw())
}

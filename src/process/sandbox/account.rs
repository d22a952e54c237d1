//! Users and groups of a policy: names become numbers.

use std::path::PathBuf;

use nix::errno::Errno;
use nix::unistd::{Gid, Group, Uid, User};

use super::host::Host;
use crate::config::policy::Account;

/// The user and group that a plugin runs as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its user.
    pub user: u32,
    /// Its only group.
    pub group: u32,
    /// The user's home directory, if its entry has one.
    pub home: Option<PathBuf>,
}

/// Why a user or group cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AccountError {
    /// This machine has no such user or group.
    #[error(
        "the policy names the {what} {name:?}, which does not exist; create it, or correct {what}"
    )]
    Unknown {
        /// `user` or `group`.
        what: &'static str,
        /// As the policy has it.
        name: String,
    },
    /// The user database cannot be read.
    #[error("failed to look up the {what} {name:?}")]
    Lookup {
        /// `user` or `group`.
        what: &'static str,
        /// As the policy has it.
        name: String,
        #[source]
        error: Errno,
    },
    /// The policy names a user id without an entry in the user database and no group.
    #[error(
        "the user {0} has no entry in the user database and so no group; name the group in the \
         policy, too"
    )]
    NoGroup(u32),
}

/// Finds the user and group of a policy; `None` when it names neither. Blocks.
///
/// # Errors
/// The user or the group does not exist, or the database of accounts cannot be read.
pub fn resolve(
    user: Option<&Account>,
    group: Option<&Account>,
    host: &Host,
) -> Result<Option<Identity>, AccountError> {
    if user.is_none() && group.is_none() {
        return Ok(None);
    }
    let found = user.map(find_user).transpose()?;
    let group = group.map(find_group).transpose()?;
    let identity = match (found, group) {
        (Some((id, entry)), group) => {
            let own = entry.as_ref().map(|entry| entry.gid.as_raw());
            let group = group.or(own).ok_or(AccountError::NoGroup(id))?;
            Identity { user: id, group, home: entry.map(|entry| entry.dir) }
        }
        (None, group) => {
            Identity { user: host.user, group: group.unwrap_or(host.group), home: None }
        }
    };
    Ok(Some(identity))
}

fn find_user(account: &Account) -> Result<(u32, Option<User>), AccountError> {
    let found = match account {
        Account::Id(id) => User::from_uid(Uid::from_raw(*id)),
        Account::Name(name) => User::from_name(name),
    };
    match (found, account) {
        (Ok(Some(user)), _) => Ok((user.uid.as_raw(), Some(user))),
        // A number needs no entry in the database.
        (Ok(None) | Err(_), Account::Id(id)) => Ok((*id, None)),
        (Ok(None), Account::Name(name)) => {
            Err(AccountError::Unknown { what: "user", name: name.clone() })
        }
        (Err(error), Account::Name(name)) => {
            Err(AccountError::Lookup { what: "user", name: name.clone(), error })
        }
    }
}

fn find_group(account: &Account) -> Result<u32, AccountError> {
    let name = match account {
        Account::Id(id) => return Ok(Gid::from_raw(*id).as_raw()),
        Account::Name(name) => name,
    };
    match Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(AccountError::Unknown { what: "group", name: name.clone() }),
        Err(error) => Err(AccountError::Lookup { what: "group", name: name.clone(), error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Account {
        Account::parse(name).expect("a name")
    }

    #[test]
    fn a_user_brings_its_group_unless_another_is_named() {
        let host = Host::look();
        assert_eq!(resolve(None, None, &host).expect("nobody is named"), None);
        let root = resolve(Some(&named("root")), None, &host).expect("it exists").expect("named");
        assert_eq!((root.user, root.group), (0, 0));
        let other = resolve(Some(&named("root")), Some(&Account::Id(7)), &host);
        assert_eq!(other.expect("both exist").map(|it| it.group), Some(7));
        let group = resolve(None, Some(&Account::Id(7)), &host).expect("it exists");
        assert_eq!(group.map(|it| (it.user, it.group)), Some((host.user, 7)));
    }

    #[test]
    fn an_account_that_does_not_exist_is_named() {
        let host = Host::look();
        let error = resolve(Some(&named("no-such-user")), None, &host).expect_err("unknown");
        assert!(error.to_string().contains("\"no-such-user\", which does not exist"), "{error}");
        let error = resolve(None, Some(&named("no-such-group")), &host).expect_err("unknown");
        assert!(error.to_string().contains("group"), "{error}");
        let error = resolve(Some(&Account::Id(4_000_000_001)), None, &host).expect_err("no group");
        assert!(matches!(error, AccountError::NoGroup(4_000_000_001)), "{error}");
    }
}

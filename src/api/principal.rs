//! Who acts: a user over a socket, or the holder of a token over HTTP.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::model::act::BY_MAX;
use guest_agent_actors::model::audit::{Asker, Via, WHO_MAX};
use tonic::Extensions;

use crate::display::one_line;
use crate::net::vetted::Caller;

/// Longest wait for the name of a user: names may come from a database on a network.
const NAME_WAIT: Duration = Duration::from_secs(2);

/// Who acts, and over which way. A caller inside of this process states it as an extension of its
/// request, which no client can set; of a client the kernel says who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Principal {
    name: Arc<str>,
    uid: Option<u32>,
    via: Via,
}

// === impl Principal ===

impl Principal {
    /// The holder of the HTTP token of this name.
    pub(crate) fn of_token(name: &str) -> Self {
        Self { name: format!("token {name}").into(), uid: None, via: Via::Http }
    }

    /// The sender of a request of the local API.
    pub(crate) async fn of(extensions: &Extensions) -> Self {
        if let Some(stated) = extensions.get::<Self>() {
            return stated.clone();
        }
        match extensions.get::<Caller>() {
            Some(caller) => {
                let via = extensions.get::<Via>().copied().unwrap_or(Via::AgentSocket);
                Self::of_caller(caller.clone(), via).await
            }
            None => Self { name: "the web console".into(), uid: None, via: Via::Http },
        }
    }

    /// The user at the other end of a socket.
    pub(crate) async fn of_caller(caller: Caller, via: Via) -> Self {
        let uid = caller.uid;
        let naming = tokio::task::spawn_blocking(move || caller.name());
        let name = match tokio::time::timeout(NAME_WAIT, naming).await {
            Ok(Ok(name)) => name,
            Ok(Err(_)) | Err(_) => format!("uid {uid}"),
        };
        Self { name: name.into(), uid: Some(uid), via }
    }

    /// A caller of a socket of whom the kernel says nothing.
    pub(crate) fn unknown(via: Via) -> Self {
        Self { name: "a caller whom the kernel does not name".into(), uid: None, via }
    }

    /// Who asks, and why, as plugins keep it: `alice as root: the disk is full`.
    pub(crate) fn by(&self, reason: &str) -> Arc<str> {
        let mut text = match one_line(reason) {
            reason if reason.is_empty() => self.name.to_string(),
            reason => format!("{}: {reason}", self.name),
        };
        text.truncate(text.floor_char_boundary(BY_MAX));
        text.into()
    }

    /// The same for the audit record, with words about what is asked: `alice as root (uid 0)`.
    pub(crate) fn asker(&self, detail: &str) -> Asker {
        let mut name = one_line(&self.name);
        // A user without a name is `uid 7` already.
        let number = self.uid.filter(|uid| name != format!("uid {uid}"));
        let number = number.map(|uid| format!(" (uid {uid})")).unwrap_or_default();
        name.truncate(name.floor_char_boundary(WHO_MAX - number.len()));
        let (who, detail) = ([name, number].concat().into(), one_line(detail).into());
        Asker { who, via: self.via, detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, uid: u32) -> Principal {
        Principal { name: name.into(), uid: Some(uid), via: Via::AgentSocket }
    }

    #[test]
    fn a_user_is_recorded_with_the_number_that_the_kernel_gave() {
        assert_eq!(&*user("alice as root", 0).asker("").who, "alice as root (uid 0)");
        assert_eq!(&*user("uid 12345", 12_345).asker("").who, "uid 12345");
        let long = user(&"é".repeat(400), u32::MAX).asker("a\nb");
        assert!(long.who.ends_with(" (uid 4294967295)") && long.who.len() <= WHO_MAX);
        assert_eq!(&*long.detail, "a b");
    }

    #[test]
    fn a_token_is_recorded_under_its_name_alone() {
        let token = Principal::of_token("grafana");
        assert_eq!(&*token.asker("").who, "token grafana");
        assert_eq!(&*token.by("leaks"), "token grafana: leaks");
        assert_eq!(&*token.by(""), "token grafana");
        assert!(token.by(&"é".repeat(BY_MAX)).len() <= BY_MAX);
    }

    #[tokio::test]
    async fn what_the_process_states_comes_before_what_the_kernel_says() {
        let caller = Caller { uid: 7, gid: 7, groups: Arc::default(), login: None };
        let mut extensions = Extensions::new();
        assert_eq!(&*Principal::of(&extensions).await.name, "the web console");
        extensions.insert(caller);
        assert_eq!(Principal::of(&extensions).await.uid, Some(7));
        extensions.insert(Principal::of_token("a"));
        assert_eq!(Principal::of(&extensions).await, Principal::of_token("a"));
    }
}

//! Certificates of this process that end. Each process tells of its own; the authority's is the same in all.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use guest_fleet_core::notice::Kind;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::event::{self, Content};
use guest_fleet_ledger::{Entry, Ledger, Log, SharedLedger};
use tokio_util::sync::CancellationToken;

use super::append::{AppendError, append};
use super::{Notice, Settings};
use crate::chain::Chain;
use crate::configuration::words;
use crate::enroll::ends::{End, Ends, Renewal, Urgency, fix};

/// How often the ends are looked at.
const LOOK: Duration = Duration::from_secs(600);

/// How soon it is looked again where the ledger did not answer, at most.
const AGAIN: Duration = Duration::from_secs(60);

/// Tells of certificates that end, and that were renewed, until `ending`.
pub async fn run(ledger: SharedLedger, settings: Settings, ends: Ends, ending: CancellationToken) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut told = HashMap::new();
    loop {
        let mut pause = LOOK;
        for end in ends.all() {
            let now = (settings.wall)();
            if let Err(error) = tell(&*ledger, (&end, &host), &mut told, now).await {
                tracing::debug!(error = %Chain(&error), "the end of a certificate has no notice");
                pause = AGAIN;
            }
        }
        let pause = (settings.jittered)(pause);
        if ending.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return;
        }
    }
}

/// Appends the notice of a certificate, where its end came nearer or it was renewed. `told` has the last notices
/// of this process and their ids: two on one host may have different files.
pub(super) async fn tell(
    ledger: &dyn Ledger,
    (end, host): (&End, &str),
    told: &mut HashMap<String, (Kind, String)>,
    now: Seconds,
) -> Result<(), AppendError> {
    // This program renews its own, and a notice of that would ask nobody for anything.
    if end.renewal == Renewal::Ours {
        return Ok(());
    }
    let name = match end.of {
        "authority" => "certificate authority".to_owned(),
        of => format!("certificate {of}@{host}"),
    };
    let urgency = end.urgency(SystemTime::UNIX_EPOCH + Duration::from_secs(now.0));
    let own = told.get(&name);
    if urgency == Urgency::None && own.is_none_or(|(kind, _)| *kind != Kind::CertificateEnds) {
        // Only after a trouble its end is news: of the authority, whichever process told it.
        let is_shared = own.is_none() && end.of == "authority";
        if !is_shared {
            return Ok(());
        }
        let last = ledger.last(Log::Events, &event::notice_subject("", &name)).await?;
        if last.as_ref().and_then(kind) != Some(Kind::CertificateEnds) {
            return Ok(());
        }
    }
    let (kind, notice) = notice(&name, end, urgency, now);
    if own.is_none_or(|(_, id)| *id != notice.id) {
        append(ledger, &notice, now, || true).await?;
        told.insert(name, (kind, notice.id));
    }
    Ok(())
}

fn notice(name: &str, end: &End, urgency: Urgency, now: Seconds) -> (Kind, Notice) {
    let (kind, step) = match urgency {
        Urgency::None => (Kind::CertificateRenewed, "renewed"),
        Urgency::Warning => (Kind::CertificateEnds, "soon"),
        Urgency::Error => (Kind::CertificateEnds, "days"),
        Urgency::Ended => (Kind::CertificateEnds, "ended"),
    };
    let at = words::time(Seconds(end.seconds()));
    let days = end.days_left(SystemTime::UNIX_EPOCH + Duration::from_secs(now.0));
    let text = match urgency {
        Urgency::None => format!("the certificate was renewed and ends at {at}"),
        Urgency::Ended => format!("the certificate ended at {at}"),
        _ => format!("the certificate ends in {days} days, at {at}"),
    };
    let trouble = end.trouble.as_ref().map_or_else(String::new, |trouble| format!("; {trouble}"));
    let fix = if urgency == Urgency::None { String::new() } else { fix(end.of).to_owned() };
    let id = format!("{}-{step}", end.seconds());
    (kind, Notice::of_fleet(name, &id, kind, format!("{text}{trouble}"), fix))
}

fn kind(last: &Entry) -> Option<Kind> {
    match event::read(last).ok()?.content {
        Content::Notice(kind, _) => Some(kind),
        Content::Event(_) => None,
    }
}

//! The durable form of what people asked. The number of an entry is its record's key.

use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_proto::record as rec;
use guest_agent_proto::record::audit_record as form;
use prost::Message;

use super::RecordError;
use crate::model::audit::{Asker, AuditAct, AuditEntry, AuditVerdict, Target, Via};
use crate::model::id::Generation;

const VERSION: u32 = 1;

// === impl AuditEntry ===

impl AuditEntry {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let plugin = match &self.target {
            Target::Plugin(name) => name.to_string(),
            Target::AllPlugins | Target::Agent => String::new(),
        };
        let outcome = match &self.verdict {
            AuditVerdict::Accepted(order) => {
                form::Outcome::Accepted(order.map(|order| order.0).unwrap_or_default())
            }
            AuditVerdict::Refused(why) => form::Outcome::Refused(why.to_string()),
        };
        rec::AuditRecord {
            version: VERSION,
            at: Some(self.at.into()),
            who: self.who.to_string(),
            via: via_record(self.via).into(),
            what: what_record(self.what).into(),
            plugin,
            all: self.target == Target::AllPlugins,
            detail: self.detail.to_string(),
            outcome: Some(outcome),
        }
        .encode_to_vec()
    }

    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let record = rec::AuditRecord::decode(bytes)?;
        if record.version != VERSION {
            return Err(RecordError::Version(record.version));
        }
        let via = via_of(record.via()).ok_or(RecordError::Missing("way"))?;
        let what = what_of(record.what()).ok_or(RecordError::Missing("act"))?;
        let at = record.at.and_then(|at| SystemTime::try_from(at).ok());
        let at = at.ok_or(RecordError::Missing("time"))?;
        let verdict = match record.outcome.ok_or(RecordError::Missing("outcome"))? {
            form::Outcome::Accepted(0) => AuditVerdict::Accepted(None),
            form::Outcome::Accepted(order) => AuditVerdict::Accepted(Some(Generation(order))),
            form::Outcome::Refused(why) => AuditVerdict::Refused(why.into()),
        };
        let target = match (record.all, record.plugin) {
            (true, _) => Target::AllPlugins,
            (false, name) if name.is_empty() => Target::Agent,
            (false, name) => Target::Plugin(name.into()),
        };
        let (who, detail) = (record.who.into(), Arc::from(record.detail));
        Ok(Self::new(at, &Asker { who, via, detail }, what, target, verdict))
    }
}

const fn via_record(via: Via) -> form::Via {
    match via {
        Via::AgentSocket => form::Via::AgentSocket,
        Via::Http => form::Via::Http,
        Via::CommandSocket => form::Via::CommandSocket,
        Via::ControlPlane => form::Via::ControlPlane,
    }
}

const fn via_of(record: form::Via) -> Option<Via> {
    match record {
        form::Via::Unspecified => None,
        form::Via::AgentSocket => Some(Via::AgentSocket),
        form::Via::Http => Some(Via::Http),
        form::Via::CommandSocket => Some(Via::CommandSocket),
        form::Via::ControlPlane => Some(Via::ControlPlane),
    }
}

const fn what_record(what: AuditAct) -> form::What {
    match what {
        AuditAct::Install => form::What::Install,
        AuditAct::Remove => form::What::Remove,
        AuditAct::Apply => form::What::Apply,
        AuditAct::Restart => form::What::Restart,
        AuditAct::Stop => form::What::Stop,
        AuditAct::Start => form::What::Start,
        AuditAct::Rollback => form::What::Rollback,
        AuditAct::Hold => form::What::Hold,
        AuditAct::Release => form::What::Release,
        AuditAct::Dismiss => form::What::Dismiss,
        AuditAct::Limit => form::What::Limit,
        AuditAct::Run => form::What::Run,
        AuditAct::VmEvent => form::What::VmEvent,
        AuditAct::Orders => form::What::Orders,
        AuditAct::Sweep => form::What::Sweep,
        AuditAct::Forget => form::What::Forget,
        AuditAct::ClearQuarantine => form::What::ClearQuarantine,
    }
}

const fn what_of(record: form::What) -> Option<AuditAct> {
    Some(match record {
        form::What::Unspecified => return None,
        form::What::Install => AuditAct::Install,
        form::What::Remove => AuditAct::Remove,
        form::What::Apply => AuditAct::Apply,
        form::What::Restart => AuditAct::Restart,
        form::What::Stop => AuditAct::Stop,
        form::What::Start => AuditAct::Start,
        form::What::Rollback => AuditAct::Rollback,
        form::What::Hold => AuditAct::Hold,
        form::What::Release => AuditAct::Release,
        form::What::Dismiss => AuditAct::Dismiss,
        form::What::Limit => AuditAct::Limit,
        form::What::Run => AuditAct::Run,
        form::What::VmEvent => AuditAct::VmEvent,
        form::What::Orders => AuditAct::Orders,
        form::What::Sweep => AuditAct::Sweep,
        form::What::Forget => AuditAct::Forget,
        form::What::ClearQuarantine => AuditAct::ClearQuarantine,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::model::audit::{DETAIL_MAX, WHO_MAX};

    fn any_entry() -> impl Strategy<Value = AuditEntry> {
        let target = prop_oneof![
            ".{1,300}".prop_map(|name| Target::Plugin(name.into())),
            Just(Target::AllPlugins),
            Just(Target::Agent),
        ];
        let verdict = prop_oneof![
            proptest::option::of(1..u64::MAX)
                .prop_map(|order| AuditVerdict::Accepted(order.map(Generation))),
            ".{0,600}".prop_map(|why| AuditVerdict::Refused(why.into())),
        ];
        let asker = (".{0,300}", 1..=3, ".{0,600}");
        let time = (0u64..4_000_000_000, 0u32..1_000_000_000);
        (asker, 1..=15, target, verdict, time).prop_map(
            |((who, via, detail), what, target, verdict, (seconds, nanos))| {
                let via = via_of(form::Via::try_from(via).expect("a number")).expect("a way");
                let what = what_of(form::What::try_from(what).expect("a number")).expect("an act");
                let at = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
                let asker = Asker { who: who.into(), via, detail: detail.into() };
                AuditEntry::new(at, &asker, what, target, verdict)
            },
        )
    }

    proptest! {
        #[test]
        fn law_an_entry_gives_back_what_was_recorded_and_is_bounded(entry in any_entry()) {
            prop_assert!(entry.who.len() <= WHO_MAX && entry.detail.len() <= DETAIL_MAX);
            let bytes = entry.encode();
            prop_assert!(bytes.len() < 2048, "{} bytes", bytes.len());
            prop_assert_eq!(AuditEntry::decode(&bytes).expect("its own bytes"), entry);
        }

        #[test]
        fn law_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..99)) {
            drop(AuditEntry::decode(&bytes));
        }
    }

    #[test]
    fn a_record_without_what_every_record_has_is_refused_with_its_name() {
        let whole = rec::AuditRecord {
            version: VERSION,
            at: Some(SystemTime::UNIX_EPOCH.into()),
            via: form::Via::Http.into(),
            what: form::What::Stop.into(),
            outcome: Some(form::Outcome::Accepted(0)),
            ..rec::AuditRecord::default()
        };
        let read = |record: rec::AuditRecord| AuditEntry::decode(&record.encode_to_vec());
        read(whole.clone()).expect("it is whole");
        for (record, lacks) in [
            (rec::AuditRecord { at: None, ..whole.clone() }, "time"),
            (rec::AuditRecord { via: 99, ..whole.clone() }, "way"),
            (rec::AuditRecord { what: 99, ..whole.clone() }, "act"),
            (rec::AuditRecord { outcome: None, ..whole.clone() }, "outcome"),
        ] {
            let error = read(record).expect_err(lacks);
            assert_eq!(error.to_string(), format!("the record has no usable {lacks}"));
        }
        let newer = read(rec::AuditRecord { version: 2, ..whole }).expect_err("it is newer");
        assert!(newer.to_string().contains("version 2"), "{newer}");
    }
}

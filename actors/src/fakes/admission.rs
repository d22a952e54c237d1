//! Admission plugins that a test scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::mpsc;

use crate::admission::{AdmissionVerdict, Offer, ProcessRun};
use crate::fakes::Shared;
use crate::ports::{
    AdmissionCommand, AdmissionHost, HungUp, ListCalled, QueueRecipients, ResolveCalled,
};

/// A host whose plugins are rules of a test.
pub struct FakeAdmission(AdmissionHandle);

/// Scripts a [`FakeAdmission`] and reads the questions that it received.
#[derive(Clone)]
pub struct AdmissionHandle(Shared<Script>);

/// What plugins do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Answers {
    /// Admit everything.
    #[default]
    Admit,
    /// Deny everything, for this reason.
    Deny(String),
    /// Read what is offered, and answer nothing.
    Silent,
    /// Never call ListAdmissions.
    Unconnected,
    /// End with these words when the second check is offered.
    EndAtSecond(String),
    /// Cannot be started.
    Unstartable(String),
}

#[derive(Default)]
struct Script {
    answers: Answers,
    asked: Vec<(ProcessRun, Arc<Offer>)>,
    /// Lives that run; set to true when they were asked to go.
    lives: BTreeMap<ProcessRun, bool>,
    launched: u32,
    mistakes: Vec<String>,
}

/// A host whose plugins admit everything.
#[must_use]
pub fn admission() -> (FakeAdmission, AdmissionHandle) {
    let handle = AdmissionHandle(Shared::new(Script::default()));
    (FakeAdmission(handle.clone()), handle)
}

// === impl AdmissionHandle ===

impl AdmissionHandle {
    /// What plugins do from now on, those that run included.
    pub fn set_answers(&self, answers: Answers) {
        self.0.with(|script| script.answers = answers);
    }

    /// The questions so far, as package and life.
    #[must_use]
    pub fn asked(&self) -> Vec<(String, u64)> {
        let name = |(life, offer): &(ProcessRun, Arc<Offer>)| (offer.package.to_string(), life.0);
        self.0.with(|script| script.asked.iter().map(name).collect())
    }

    /// How many plugins were started, and how many run now.
    #[must_use]
    pub fn launched(&self) -> (u32, usize) {
        self.0.with(|script| (script.launched, script.lives.len()))
    }

    /// What no agent should have done.
    #[must_use]
    pub fn mistakes(&self) -> Vec<String> {
        self.0.with(|script| script.mistakes.clone())
    }
}

// === impl FakeAdmission ===

/// Forgets a life, also when it is dropped.
struct Running<'a>(&'a Shared<Script>, ProcessRun);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.with(|script| script.lives.remove(&self.1));
    }
}

impl FakeAdmission {
    async fn serve(&self, life: ProcessRun, queue: QueueRecipients) -> String {
        let script = &self.0.0;
        if script.with(|script| script.answers == Answers::Unconnected) {
            return std::future::pending().await;
        }
        let (stream, mut offers) = mpsc::channel(64);
        let list = ListCalled { life, protocol_version: 1, stream };
        if !matches!(queue.list.send(list).await, Ok(Ok(()))) {
            return "its ListAdmissions was refused".to_owned();
        }
        let mut seen = 0;
        while let Some(offer) = offers.recv().await {
            seen += 1;
            let answers = script.with(|script| {
                script.asked.push((life, Arc::clone(&offer)));
                script.answers.clone()
            });
            let verdict = match answers {
                Answers::Admit => AdmissionVerdict::of_status(Some((0, "OK", ""))),
                Answers::Deny(reason) => {
                    AdmissionVerdict::of_status(Some((7, "PERMISSION_DENIED", &reason)))
                }
                Answers::EndAtSecond(how) if seen == 2 => {
                    queue.hung_up.do_send(HungUp(life));
                    return how;
                }
                Answers::EndAtSecond(_)
                | Answers::Silent
                | Answers::Unconnected
                | Answers::Unstartable(_) => continue,
            };
            let id = offer.id.as_str().to_owned();
            queue.resolve.do_send(ResolveCalled { life, id, verdict });
        }
        // Its stream was closed: it waits to be told to go.
        std::future::pending().await
    }
}

#[async_trait]
impl AdmissionHost for FakeAdmission {
    async fn run(&self, life: ProcessRun, _: AdmissionCommand, queue: QueueRecipients) -> String {
        let script = &self.0.0;
        let answers = script.with(|script| {
            script.launched += 1;
            if script.lives.values().any(|told_to_go| !told_to_go) {
                script.mistakes.push(format!("{life:?} is started beside another"));
            }
            script.lives.insert(life, false);
            script.answers.clone()
        });
        let _running = Running(script, life);
        if let Answers::Unstartable(how) = answers {
            return how;
        }
        let told_to_go = script.until(|script| {
            script.lives.get(&life).is_none_or(|told_to_go| *told_to_go).then_some(())
        });
        tokio::select! {
            how = self.serve(life, queue) => how,
            () = told_to_go => "exited with code 0".to_owned(),
        }
    }

    fn end(&self, life: ProcessRun) {
        self.0.0.with(|script| {
            if let Some(told_to_go) = script.lives.get_mut(&life) {
                *told_to_go = true;
            }
        });
    }

    fn salt(&self) -> [u8; 32] {
        [7; 32]
    }
}

//! Who becomes an agent, and who stays one: the rules, without the network.

mod refusal;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_proto::enrolment::{EnrollRequest, Granted, Trust};
use guest_fleet_ledger::SharedLedger;

use super::agents;
use super::ca::{Authorities, Authority};
use super::certificate::{self, AgentCertificate};
use super::csr;
use super::issue::Issued;
use super::token;
use crate::telemetry::figures::Figures;

pub use refusal::Refusal;

/// How enrolment is set up.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long certificates of agents are valid; a minute at least.
    pub life: Duration,
    /// How long after its end a certificate can be renewed.
    pub grace: Duration,
    /// Where agents of the fleet connect; the answer to an enrolment names it.
    pub gateway: Option<String>,
}

/// Enrolment of one fleet; clones are the same.
#[derive(Clone)]
pub struct Enrolment {
    authorities: Authorities,
    ledger: SharedLedger,
    settings: Settings,
    figures: Arc<Figures>,
}

impl Default for Settings {
    fn default() -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self { life: 30 * DAY, grace: 90 * DAY, gateway: None }
    }
}

// === impl Settings ===

impl Settings {
    /// Shortest life of a certificate.
    pub const SHORTEST: Duration = Duration::from_secs(60);
}

// === impl Enrolment ===

impl Enrolment {
    /// Enrolment with this authority and ledger.
    #[must_use]
    pub fn new(authorities: Authorities, ledger: SharedLedger, settings: Settings) -> Self {
        let life = settings.life.max(Settings::SHORTEST);
        let settings = Settings { life, ..settings };
        Self { authorities, ledger, settings, figures: Arc::default() }
    }

    /// Counts here what is asked.
    #[must_use]
    pub fn counting(self, figures: Arc<Figures>) -> Self {
        Self { figures, ..self }
    }

    /// What is counted.
    #[must_use]
    pub fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    /// How it is set up.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The authority.
    #[must_use]
    pub fn authorities(&self) -> &Authorities {
        &self.authorities
    }

    /// Makes the sender of a request an agent. `bearer` is the token of the request's header.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn enroll(
        &self,
        request: &EnrollRequest,
        bearer: Option<&str>,
        now: SystemTime,
    ) -> Result<Granted, Refusal> {
        let token = request.token.as_deref().or(bearer).ok_or(Refusal::NoToken)?;
        // Everything that can be wrong with a request is looked at before a use is taken.
        let key = csr::check(&request.csr)?;
        let wanted = request.id.as_deref().map(str::parse).transpose()?;
        let authority = self.usable(now)?;
        let spent = token::spend(&*self.ledger, token, &key.digest, wanted.as_ref(), now).await?;
        let issued = authority.issue_agent(&key, &spent.agent, self.settings.life, now)?;
        agents::enrol(&*self.ledger, &spent, &issued.facts, now).await?;
        tracing::info!(
            agent = %spent.agent, token = spent.token, serial = issued.facts.serial, "agent enrolled"
        );
        Ok(self.granted(&authority, spent.agent.to_string(), &issued, now))
    }

    /// Gives an agent that shows its certificate the next one.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub async fn renew(
        &self,
        shown: &AgentCertificate,
        csr: &str,
        now: SystemTime,
    ) -> Result<Granted, Refusal> {
        let authority = self.usable(now)?;
        if shown.fleet != *authority.fleet() {
            return Err(Refusal::OtherFleet { theirs: shown.fleet.clone() });
        }
        if shown.facts.ends + self.settings.grace < now {
            return Err(Refusal::TooLate { grace: self.settings.grace });
        }
        let key = csr::check(csr)?;
        let issued = authority.issue_agent(&key, &shown.agent, self.settings.life, now)?;
        agents::renew(&*self.ledger, &shown.agent, &shown.facts, &issued.facts, now).await?;
        tracing::info!(agent = %shown.agent, serial = issued.facts.serial, "certificate renewed");
        Ok(self.granted(&authority, shown.agent.to_string(), &issued, now))
    }

    /// The authorities that agents shall trust.
    #[must_use]
    pub fn trust(&self, now: SystemTime) -> Trust {
        let authority = self.authorities.current();
        Trust { fleet_id: authority.fleet().to_string(), trust: authority.trust_pem(now) }
    }

    fn usable(&self, now: SystemTime) -> Result<Arc<Authority>, Refusal> {
        let authority = self.authorities.current();
        if authority.ends() <= now {
            return Err(Refusal::Authority(super::ca::AuthorityError::Ended));
        }
        Ok(authority)
    }

    fn granted(
        &self,
        authority: &Authority,
        agent_id: String,
        issued: &Issued,
        now: SystemTime,
    ) -> Granted {
        let seconds = |time: SystemTime| {
            time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
        };
        let left = issued.facts.ends.duration_since(now).unwrap_or_default();
        Granted {
            agent_id,
            fleet_id: authority.fleet().to_string(),
            certificate: issued.pem(),
            chain: authority.chain().iter().map(certificate::pem).collect(),
            trust: authority.trust_pem(now),
            gateway: self.settings.gateway.clone(),
            ends: seconds(issued.facts.ends),
            renew_at: seconds(now + left * 2 / 3),
        }
    }
}

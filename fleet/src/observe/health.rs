//! Whether this process lives, and whether agents can count on it.

use std::sync::Arc;
use std::time::Duration;

use guest_fleet_ledger::records::audit::AUDIT_HEAD;
use guest_fleet_ledger::{Bucket, SharedLedger};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::chain::Chain;
use crate::orders::{AGE_MAX, Orders};

/// Longest that the engine may take to answer a question about its health.
const ANSWER: Duration = Duration::from_secs(2);

/// How far the process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Not all listeners are bound.
    Starting,
    /// All listeners are bound.
    Serving,
    /// It stops: no new stream should come here.
    Stopping,
}

/// One check, and why it is not passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// Its name, for programs.
    pub name: &'static str,
    /// The trouble, in a sentence for people; `None` where all is well.
    pub problem: Option<String>,
}

/// The parts of the process that answer for its health. Cheap to clone.
#[derive(Clone)]
pub struct Health {
    /// The ledger.
    pub ledger: SharedLedger,
    /// Cancelled when the ledger failed for good; `None` for an engine that knows no such failure.
    pub failed: Option<CancellationToken>,
    /// The desk that has a view of the configuration, where this process is a gateway.
    pub orders: Option<Arc<Orders>>,
    /// How far the process has come.
    pub stage: watch::Receiver<Stage>,
}

// === impl Health ===

impl Health {
    /// The checks of a service manager: it leaves the process alone while all of them pass.
    #[must_use]
    pub fn alive(&self) -> Vec<Check> {
        let has_failed = self.failed.as_ref().is_some_and(CancellationToken::is_cancelled);
        let problem = has_failed.then(|| {
            "the ledger failed, and what it holds may not be durable: see the log, then start again"
                .to_owned()
        });
        vec![Check { name: "ledger", problem }]
    }

    /// The checks of a load balancer: it sends agents here while all of them pass.
    pub async fn ready(&self) -> Vec<Check> {
        let mut checks = self.alive();
        let listeners = match *self.stage.borrow() {
            Stage::Starting => Some("not all listeners are bound yet".to_owned()),
            Stage::Serving => None,
            Stage::Stopping => Some("the process stops".to_owned()),
        };
        checks.push(Check { name: "listeners", problem: listeners });
        if self.orders.is_some() {
            checks.push(Check { name: "view", problem: self.view() });
        }
        checks.push(Check { name: "engine", problem: self.engine().await });
        checks
    }

    /// Age of the view of the configuration.
    #[must_use]
    pub fn view_age(&self) -> Option<Duration> {
        self.orders.as_ref()?.view_age()
    }

    fn view(&self) -> Option<String> {
        let most = AGE_MAX.as_secs();
        match self.view_age() {
            Some(age) if age <= AGE_MAX => None,
            Some(age) => Some(format!(
                "the view of the configuration is {} s old, and orders leave on one of at most \
                 {most} s: the ledger takes no heartbeat, see the log",
                age.as_secs()
            )),
            None => Some("the configuration was not read yet".to_owned()),
        }
    }

    async fn engine(&self) -> Option<String> {
        let asked = self.ledger.get(Bucket::Configuration, AUDIT_HEAD);
        match tokio::time::timeout(ANSWER, asked).await {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(format!("the ledger cannot be read: {}", Chain(&error))),
            Err(_elapsed) => Some(format!("the ledger did not answer within {ANSWER:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::orders::OrderSettings;
    use guest_fleet_ledger::{Faults, MemoryLedger};

    fn problem<'a>(checks: &'a [Check], name: &str) -> Option<&'a str> {
        let check = checks.iter().find(|check| check.name == name).expect(name);
        check.problem.as_deref()
    }

    #[tokio::test]
    async fn what_is_not_ready_says_why() {
        let ledger = Arc::new(MemoryLedger::new());
        let orders = Orders::new(ledger.clone(), OrderSettings::default());
        let (stage, seen) = watch::channel(Stage::Starting);
        let failed = CancellationToken::new();
        let health = Health {
            ledger: ledger.clone(),
            failed: Some(failed.clone()),
            orders: Some(orders.clone()),
            stage: seen,
        };
        let checks = health.ready().await;
        assert_eq!(problem(&checks, "listeners"), Some("not all listeners are bound yet"));
        assert_eq!(problem(&checks, "view"), Some("the configuration was not read yet"));
        assert_eq!(problem(&checks, "engine"), None);

        stage.send_replace(Stage::Serving);
        let running = tokio::spawn(orders.clone().run());
        while health.view_age().is_none() {
            tokio::task::yield_now().await;
        }
        assert!(health.ready().await.iter().all(|check| check.problem.is_none()));
        assert!(health.alive().iter().all(|check| check.problem.is_none()));

        ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
        let checks = health.ready().await;
        assert!(problem(&checks, "engine").is_some_and(|it| it.contains("cannot be read")));
        ledger.set_faults(Faults::default());
        failed.cancel();
        assert!(problem(&health.alive(), "ledger").is_some_and(|it| it.contains("see the log")));
        stage.send_replace(Stage::Stopping);
        assert_eq!(problem(&health.ready().await, "listeners"), Some("the process stops"));
        orders.stop();
        running.await.expect("it ends");
    }
}

//! `Act` and `Restart`: what a person asks of one plugin.

use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_actors::messages::{Listed, Submission};
use guest_agent_actors::model::act::{Act, Hold, LimitOverride};
use guest_agent_actors::model::audit::{AuditAct, Target};
use guest_agent_actors::model::id::{PluginName, RevisionId};
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::model::verdict::failed_beside;
use guest_agent_actors::model::view::{PluginView, Reported};
use guest_agent_proto::local;
use tonic::{Request, Status};
use tracing::info;

use super::orders::submit;
use super::reach::{LocalApi, parse_name, unknown};
use crate::api::principal::Principal;
use crate::display::{self, one_line, rfc3339};

pub(super) async fn act(
    api: &LocalApi,
    request: Request<local::ActRequest>,
) -> Result<local::ActResponse, Status> {
    let (metadata, extensions, request) = request.into_parts();
    let principal = Principal::of(&extensions).await;
    let by = principal.by(&request.reason);
    let (plugin, target) = if request.all {
        ("all", Target::AllPlugins)
    } else {
        (&*request.name, Target::Plugin(request.name.as_str().into()))
    };
    info!(plugin, act = ?request.act(), by = &*by, "a person acts");
    let asker = principal.asker(&detail(&request));
    let judged = judge(api, &request, by).await;
    let what = what(request.act());
    let submission = api.audit.or_refused(&asker, what, target, judged).await?;
    let results = submit(api, submission, asker, &metadata).await?;
    let (generation, at_most) = accepted(&results);
    Ok(local::ActResponse { generation, at_most })
}

pub(super) async fn restart(
    api: &LocalApi,
    request: Request<local::RestartRequest>,
) -> Result<local::RestartResponse, Status> {
    let (metadata, extensions, request) = request.into_parts();
    let asker = Principal::of(&extensions).await.asker("");
    let judged = async {
        let name = parse_name(&request.name)?;
        startable(&find(api, &name).await?.view)?;
        Ok(Submission::Restart(name))
    };
    let (judged, target) = (judged.await, Target::Plugin(request.name.as_str().into()));
    let submission = api.audit.or_refused(&asker, AuditAct::Restart, target, judged).await?;
    let results = submit(api, submission, asker, &metadata).await?;
    let (generation, at_most) = accepted(&results);
    Ok(local::RestartResponse { generation, at_most })
}

/// The number of the order, and how long it takes at most.
fn accepted(results: &[local::ConfigureResult]) -> (u64, Option<prost_types::Duration>) {
    results.first().map(|result| (result.generation, result.at_most)).unwrap_or_default()
}

/// The order, or why there can be none.
async fn judge(
    api: &LocalApi,
    request: &local::ActRequest,
    by: Arc<str>,
) -> Result<Submission, Status> {
    if request.all {
        return of_all(request, by);
    }
    let name = parse_name(&request.name)?;
    submission(&find(api, &name).await?.view, request, by)
}

/// What the audit record calls it.
const fn what(act: local::Act) -> AuditAct {
    match act {
        local::Act::Stop => AuditAct::Stop,
        local::Act::Start => AuditAct::Start,
        local::Act::Rollback => AuditAct::Rollback,
        local::Act::Release => AuditAct::Release,
        local::Act::Dismiss => AuditAct::Dismiss,
        local::Act::Limit => AuditAct::Limit,
        local::Act::Run => AuditAct::Run,
        local::Act::Hold => AuditAct::Hold,
        // It is refused.
        local::Act::Unspecified => AuditAct::Orders,
    }
}

/// The details of the request in the audit record: the revision, the end of a hold, the limits, the reason.
fn detail(request: &local::ActRequest) -> String {
    let revision = Some(&request.revision).filter(|revision| !revision.is_empty());
    let of_revision = |revision| match request.act() {
        local::Act::Dismiss => format!("the failure of {revision}"),
        _returns => format!("to {revision}"),
    };
    let parts = [
        revision.map(of_revision),
        rfc3339(request.until.as_ref()).map(|until| format!("until {until}")),
        (request.act() == local::Act::Limit).then(|| {
            let given = request.limits.as_ref().and_then(display::limits);
            given.unwrap_or_else(|| "as ordered".to_owned())
        }),
        Some(request.reason.clone()).filter(|reason| !reason.is_empty()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// A plugin, if there is one of this name.
async fn find(api: &LocalApi, name: &PluginName) -> Result<Listed, Status> {
    let found = api.list().await?.into_iter().find(|listed| listed.view.name == *name);
    found.ok_or_else(|| unknown(name.as_str()))
}

/// What is asked of all plugins.
fn of_all(request: &local::ActRequest, by: Arc<str>) -> Result<Submission, Status> {
    if !request.name.is_empty() {
        return Err(Status::invalid_argument("name a plugin or all of them, not both"));
    }
    match request.act() {
        local::Act::Hold => Ok(Submission::AskedOfAll(Act::Hold(hold(request, by)?))),
        local::Act::Release => Ok(Submission::AskedOfAll(Act::Release)),
        local::Act::Unspecified
        | local::Act::Stop
        | local::Act::Start
        | local::Act::Rollback
        | local::Act::Run
        | local::Act::Dismiss
        | local::Act::Limit => {
            Err(Status::invalid_argument("only a hold and its end can be for all plugins"))
        }
    }
}

/// The end of the year 9999, in seconds after the Unix epoch: what RFC 3339 can write.
const LAST_SECOND: i64 = 253_402_300_799;

fn hold(request: &local::ActRequest, by: Arc<str>) -> Result<Hold, Status> {
    let since = SystemTime::now();
    let no_time =
        || Status::invalid_argument("the end of the hold has to be before the year 10000");
    if request.until.is_some_and(|until| until.seconds > LAST_SECOND) {
        return Err(no_time());
    }
    let until = request.until.map(SystemTime::try_from).transpose().map_err(|_| no_time())?;
    if until.is_some_and(|until| until <= since) {
        return Err(Status::invalid_argument("the end of the hold is in the past"));
    }
    Ok(Hold { by, since, until })
}

/// The order, or why it makes no sense for this plugin. The plugin may change until it gets the order;
/// it ignores one that makes no sense then.
fn submission(
    view: &PluginView,
    request: &local::ActRequest,
    by: Arc<str>,
) -> Result<Submission, Status> {
    let name = view.name.clone();
    let refuse = |why: String| Err(Status::failed_precondition(why));
    let is_one_shot = view.spec.execution.one_shot().is_some();
    Ok(match request.act() {
        local::Act::Unspecified => {
            return Err(Status::invalid_argument("the request names nothing to do"));
        }
        local::Act::Stop => Submission::Asked(name, Act::Stop(by)),
        local::Act::Start => Submission::Asked(name, Act::Start),
        local::Act::Rollback => {
            let Some(back) = &view.way_back else {
                return refuse(format!(
                    "no revision of {name} to return to is on disk: only the one that ran before {} \
                     is kept; install another with `guest-agent install`",
                    view.revision
                ));
            };
            if !request.revision.is_empty() && request.revision != back.as_str() {
                return refuse(format!(
                    "revision {} of {name} is not on disk; a rollback returns to {back}",
                    one_line(&request.revision)
                ));
            }
            Submission::Asked(name, Act::Rollback(by))
        }
        local::Act::Hold => Submission::Asked(name, Act::Hold(hold(request, by)?)),
        local::Act::Release if view.left.is_none() && view.held.is_none() => {
            return refuse(format!(
                "{name} is not held and no revision of it was rolled back, so there is nothing to \
                 release"
            ));
        }
        local::Act::Release => Submission::Asked(name, Act::Release),
        local::Act::Dismiss => {
            let revision = dismissible(view, &request.revision);
            let revision = revision.map_err(Status::failed_precondition)?;
            Submission::Asked(name, Act::Dismiss { by, revision })
        }
        local::Act::Limit => {
            let limits = limits_of(&request.limits.unwrap_or_default());
            let limits = limits.map_err(Status::invalid_argument)?;
            if limits == Limits::default() && view.limit_override.is_none() {
                return refuse(format!(
                    "nobody gave {name} limits over the limits of its orders, so there is \
                     nothing to take back"
                ));
            }
            let since = SystemTime::now();
            let own = (limits != Limits::default()).then_some(LimitOverride { limits, by, since });
            Submission::Asked(name, Act::Limit(own))
        }
        local::Act::Run if !is_one_shot => {
            return refuse(format!(
                "{name} is no one-shot plugin; start it again with `guest-agent restart {name}`"
            ));
        }
        local::Act::Run => {
            startable(view)?;
            Submission::Run(name)
        }
    })
}

/// The revision whose failure a person dismisses.
///
/// # Errors
/// No failure of a revision shows, or that of another one than the person `named`.
fn dismissible(view: &PluginView, named: &str) -> Result<RevisionId, String> {
    let name = &view.name;
    let Some(failed) = failed_beside(view) else {
        return Err(match (view.state, view.left.is_some()) {
            (Reported::InstallFailed | Reported::Crashed, _) => format!(
                "{name} does not run, and that counts until it does: see `guest-agent explain {name}`; \
                 start it with `guest-agent restart {name}`, order another revision, or remove it"
            ),
            (_, true) => format!(
                "a person rolled a revision of {name} back, which counts as no failure; \
                 `guest-agent release {name}` ends that"
            ),
            _runs => format!("no failed revision of {name} shows, so there is nothing to dismiss"),
        });
    };
    if !named.is_empty() && named != failed.revision.as_str() {
        return Err(format!(
            "revision {} of {name} does not show as failed; revision {} does",
            one_line(named),
            failed.revision
        ));
    }
    Ok(failed.revision.clone())
}

/// The least memory that a person may leave a plugin: with less, none lives long enough to say why.
const MEMORY_MIN: u64 = 1 << 20;

/// The most tasks that the kernel takes as a limit (`PID_MAX_LIMIT`).
const TASKS_MAX: u64 = 4_194_304;

/// The limits that a person gives.
///
/// # Errors
/// One of them leaves a plugin no room to run.
fn limits_of(given: &local::Limits) -> Result<Limits, String> {
    let local::Limits { memory_bytes, cpu_percent, tasks } = *given;
    if memory_bytes.is_some_and(|bytes| bytes < MEMORY_MIN) {
        return Err("a memory limit has to be 1 MiB at least".to_owned());
    }
    if cpu_percent == Some(0) {
        return Err("a CPU limit has to be 1 % of a core at least".to_owned());
    }
    if tasks.is_some_and(|tasks| !(1..=TASKS_MAX).contains(&tasks)) {
        return Err(format!("a limit of tasks has to be from 1 to {TASKS_MAX}"));
    }
    Ok(Limits { memory_bytes, cpu_percent, tasks })
}

/// Whether a plugin may be started at all.
///
/// # Errors
/// A person stopped it.
fn startable(view: &PluginView) -> Result<(), Status> {
    if view.stopped.is_none() {
        return Ok(());
    }
    let (name, why) = (&view.name, one_line(&view.reason));
    let why = if why.is_empty() { "a person stopped it".to_owned() } else { why };
    Err(Status::failed_precondition(format!(
        "{name} is to stay stopped ({why}); let it run with `guest-agent start {name}`"
    )))
}

#[cfg(test)]
mod tests {
    use guest_agent_actors::fakes::sample_view;
    use tonic::Code;

    use super::*;

    fn asked(view: &PluginView, act: local::Act, revision: &str) -> Result<Submission, Status> {
        let request = local::ActRequest {
            act: act.into(),
            revision: revision.to_owned(),
            ..local::ActRequest::default()
        };
        submission(view, &request, "root".into())
    }

    #[track_caller]
    fn refused(asked: Result<Submission, Status>, why: &str) {
        let status = asked.expect_err("it makes no sense");
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert!(status.message().contains(why), "{status:?}");
    }

    #[test]
    fn what_makes_no_sense_for_a_plugin_is_refused_with_what_would() {
        let mut view = sample_view("web", "2");
        refused(asked(&view, local::Act::Rollback, ""), "only the one that ran before 2 is kept");
        refused(asked(&view, local::Act::Release, ""), "no revision of it was rolled back");
        refused(asked(&view, local::Act::Run, ""), "guest-agent restart web");
        view.way_back = Some("1".parse().expect("a revision"));
        refused(asked(&view, local::Act::Rollback, "7"), "a rollback returns to 1");
        for revision in ["", "1"] {
            let submission = asked(&view, local::Act::Rollback, revision).expect("it is on disk");
            assert!(
                matches!(submission, Submission::Asked(_, Act::Rollback(by)) if &*by == "root")
            );
        }
        view.stopped = Some("alice as root: maintenance".into());
        view.reason = "stopped by alice as root: maintenance".into();
        let status = startable(&view).expect_err("it is to stay stopped");
        assert!(status.message().contains("alice as root: maintenance"), "{status:?}");
        assert!(status.message().contains("guest-agent start web"), "{status:?}");
        let status = asked(&view, local::Act::Unspecified, "").expect_err("nothing");
        assert_eq!(status.code(), Code::InvalidArgument);
    }

    #[test]
    fn the_record_has_what_was_asked_in_words() {
        let until = Some(prost_types::Timestamp { seconds: 1_900_000_000, nanos: 0 });
        let reason = "freeze".to_owned();
        let hold = local::ActRequest { until, reason, ..local::ActRequest::default() };
        assert_eq!(detail(&hold), "until 2030-03-17T17:46:40Z: freeze");
        let revision = "3".to_owned();
        let rollback = local::ActRequest { revision, ..local::ActRequest::default() };
        assert_eq!(detail(&rollback), "to 3");
        let dismiss = local::ActRequest { act: local::Act::Dismiss.into(), ..rollback };
        assert_eq!(detail(&dismiss), "the failure of 3");
        assert_eq!(detail(&local::ActRequest::default()), "");
    }

    #[test]
    fn only_a_hold_that_lasts_is_taken_and_only_a_hold_is_for_all() {
        let hold = |until: Option<i64>| local::ActRequest {
            act: local::Act::Hold.into(),
            until: until.map(|seconds| prost_types::Timestamp { seconds, nanos: 0 }),
            all: true,
            ..local::ActRequest::default()
        };
        let taken = |request: &local::ActRequest| of_all(request, "root".into());
        assert!(matches!(
            taken(&hold(Some(99_999_999_999))),
            Ok(Submission::AskedOfAll(Act::Hold(Hold { until: Some(_), .. })))
        ));
        assert!(matches!(
            taken(&hold(None)),
            Ok(Submission::AskedOfAll(Act::Hold(Hold { until: None, .. })))
        ));
        let named = local::ActRequest { name: "web".to_owned(), ..hold(None) };
        let other = local::ActRequest { act: local::Act::Stop.into(), ..hold(None) };
        for bad in [hold(Some(1)), hold(Some(i64::MAX)), named, other] {
            let status = taken(&bad).expect_err("it makes no sense");
            assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        }
    }
}

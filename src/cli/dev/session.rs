//! The work on a plugin, from the first build until somebody ends it.

use std::future::pending;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::feed::feed;
use super::keys::{self, Deed, Target};
use super::model::{Model, Update, debugger};
use super::round::{Done, Round};
use super::sources::{Sources, SourcesError};
use super::view::View;
use crate::cli::context::Context;
use crate::cli::failure::Failure;
use crate::cli::top::canvas::Theme;
use crate::cli::top::model::Key;
use crate::cli::top::screen::{self, Screen};
use crate::dev::private::{Judgement, PrivateAgent};
use crate::dev::signals::Signals;
use crate::manifest::PluginManifest;
use crate::manifest::package::Wanted;

/// Updates and keys that may wait for the next picture.
const WAITING_MAX: usize = 256;

/// Names of changed files that are shown.
const NAMES_MAX: usize = 3;

/// What is to be worked on, and how.
pub(super) struct Wish {
    /// The folder of the plugin.
    pub(super) folder: PathBuf,
    pub(super) trigger: Trigger,
    pub(super) build_timeout: Duration,
}

/// What makes another round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// A key.
    Keys,
    /// A key, and a file that changes.
    Changes,
}

/// Why the work goes on or ends.
enum Next {
    Update(Update),
    Pressed(Key),
    Changed(Result<Vec<PathBuf>, SourcesError>),
    Finished(Box<Done>),
    End,
}

type Work<'a> = Pin<Box<dyn Future<Output = Done> + 'a>>;

/// The work while it lasts.
struct Session<'a> {
    round: Round<'a>,
    model: Model,
    sources: Option<Sources>,
    /// The round that is under way.
    work: Option<Work<'a>>,
    tell: mpsc::Sender<Update>,
}

/// Works on a plugin until it is ended. The agent and the plugin end with it, and their files are deleted.
pub(super) async fn run(wish: Wish, context: Context<'_, '_>) -> Result<(), Failure> {
    let Context { global, services, console, .. } = context;
    // First, so that nothing is left behind by a signal.
    let mut signals = Signals::new()
        .map_err(|error| Failure::failed("failed to listen for signals").because(&error))?;
    let folder = std::path::absolute(&wish.folder).map_err(|error| {
        Failure::failed(format_args!("failed to find {}", wish.folder.display())).because(&error)
    })?;
    let name = name_of(&folder)?;
    let sources = match wish.trigger {
        Trigger::Keys => None,
        Trigger::Changes => Some(Sources::watch(&folder)?),
    };
    let not_made = |error: &(dyn std::error::Error + 'static)| {
        Failure::failed("failed to start an agent of its own").because(error)
    };
    let mut agent = PrivateAgent::new(Judgement::Slow).map_err(|error| not_made(&*error))?;
    let started = tokio::select! {
        started = agent.start() => started.map_err(|error| not_made(&*error)),
        () = signals.come() => Err(Failure::failed("interrupted; the agent was stopped")),
    };
    let ended = match started {
        Err(failure) => Err(failure),
        Ok(()) => {
            let (tell, told) = mpsc::channel(WAITING_MAX);
            let round = Round {
                folder,
                archive: agent.folder().join("archive.tar"),
                socket: agent.socket(),
                packing: &*services.pack,
                build_timeout: wish.build_timeout,
                name: name.clone(),
                before: None,
            };
            let model = Model::new(name);
            let session = Session { round, model, sources, work: None, tell };
            let is_screen = console.width.is_some() && !global.json();
            if is_screen {
                let theme = Theme::new(console.colour);
                match screen_and_keys() {
                    Ok((screen, pressed)) => {
                        let view = View::Screen(screen, theme);
                        session.last(view, told, Some(pressed), &mut signals).await
                    }
                    Err(error) => {
                        Err(Failure::failed("failed to use the terminal").because(&error))
                    }
                }
            } else {
                session.last(View::Lines(console), told, None, &mut signals).await
            }
        }
    };
    agent.stop().await;
    ended
}

fn screen_and_keys() -> std::io::Result<(Screen, mpsc::Receiver<Key>)> {
    let screen = Screen::open()?;
    let keys = screen::keys(WAITING_MAX)?;
    Ok((screen, keys))
}

/// The name of the plugin in a folder.
fn name_of(folder: &Path) -> Result<String, Failure> {
    if !folder.is_dir() {
        return Err(Failure::failed(format_args!("{} is not a directory", folder.display()))
            .hint("make a plugin with `guest-agent new NAME --lang rust|go|python`"));
    }
    let manifest = PluginManifest::find(folder)?;
    Ok(Wanted::of(folder, manifest).name()?.to_string())
}

// === impl Session ===

impl Session<'_> {
    /// Lasts until a key or a signal ends it, or the agent is gone; without keys and changes, until a first round
    /// that fails.
    async fn last(
        mut self,
        mut view: View<'_, '_>,
        mut told: mpsc::Receiver<Update>,
        mut pressed: Option<mpsc::Receiver<Key>>,
        signals: &mut Signals,
    ) -> Result<(), Failure> {
        let socket = self.round.socket.clone();
        let note = format!("the agent is at {}: guest-agent --socket {0} status", socket.display());
        let line = self.model.say(note);
        shown(view.line(&line))?;
        let feeding =
            Aborted(tokio::spawn(feed(socket, self.model.name.clone(), self.tell.clone())));
        self.begin()?;
        loop {
            shown(view.draw(&self.model))?;
            let is_idle = self.work.is_none();
            let next = tokio::select! {
                biased;
                () = signals.come() => Next::End,
                key = received(&mut pressed) => key.map_or(Next::End, Next::Pressed),
                done = finished(&mut self.work) => Next::Finished(Box::new(done)),
                changed = changed(&mut self.sources, is_idle) => Next::Changed(changed),
                update = told.recv() => update.map_or(Next::End, Next::Update),
            };
            match next {
                Next::End => break,
                Next::Update(update) => self.update(update, &mut view)?,
                Next::Pressed(Key::Interrupt | Key::Escape | Key::Char('q')) => break,
                Next::Pressed(Key::Char(key)) => self.pressed(key)?,
                Next::Pressed(_) => {}
                Next::Changed(changed) => {
                    let line = self.model.say(names(&changed?));
                    shown(view.line(&line))?;
                    self.begin()?;
                }
                Next::Finished(done) => {
                    // What was said before it ended comes before its end.
                    for _ in 0..WAITING_MAX {
                        let Ok(update) = told.try_recv() else { break };
                        self.update(update, &mut view)?;
                    }
                    // Who reads that it ended may save at once; that is not of this round any more.
                    let changed = self.sources.as_mut().map_or(Ok(Vec::new()), Sources::end)?;
                    let line = self.model.ended(&done.result);
                    shown(view.line(&line))?;
                    let is_first = self.round.before.is_none();
                    let can_go_on = self.sources.is_some() || pressed.is_some();
                    match done.result {
                        Err(failure) if is_first && !can_go_on => return Err(failure),
                        Ok(_) | Err(_) => {}
                    }
                    if done.ordered.is_some() {
                        self.round.before = done.ordered;
                    }
                    self.again(&changed, &mut view)?;
                }
            }
        }
        drop(feeding);
        Ok(())
    }

    fn update(&mut self, update: Update, view: &mut View<'_, '_>) -> Result<(), Failure> {
        if let Update::Lost(why) = update {
            return Err(Failure::failed("the agent ended").cause(why));
        }
        let pid = |model: &Model| model.status.as_ref().and_then(|status| status.pid);
        let before = pid(&self.model);
        if let Some(line) = self.model.update(update) {
            shown(view.line(&line))?;
        }
        let (View::Lines(_), Some(pid)) =
            (&view, pid(&self.model).filter(|now| before != Some(*now)))
        else {
            return Ok(());
        };
        let line = self.model.say(debugger(pid));
        shown(view.line(&line))
    }

    /// Begins a round, unless one is under way.
    fn begin(&mut self) -> Result<(), Failure> {
        if self.work.is_some() {
            return Ok(());
        }
        if let Some(sources) = &mut self.sources {
            sources.begin()?;
        }
        self.work = Some(Box::pin(self.round.clone().run(self.tell.clone())));
        Ok(())
    }

    /// Begins another round where files changed during the last.
    fn again(&mut self, changed: &[PathBuf], view: &mut View<'_, '_>) -> Result<(), Failure> {
        if changed.is_empty() {
            return Ok(());
        }
        let line = self.model.say(names(changed));
        shown(view.line(&line))?;
        self.begin()
    }

    fn pressed(&mut self, key: char) -> Result<(), Failure> {
        if key == 'b' {
            return self.begin();
        }
        if let Some(deed) = Deed::of(key) {
            let target = Target {
                socket: self.round.socket.clone(),
                folder: self.round.folder.clone(),
                name: self.model.name.clone(),
                pid: self.model.status.as_ref().and_then(|status| status.pid),
            };
            tokio::spawn(keys::carry_out(deed, target, self.tell.clone()));
        }
        Ok(())
    }
}

/// A task that ends with this.
struct Aborted(JoinHandle<()>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The next key; none ever comes where there is no keyboard, and `None` when the terminal is gone.
async fn received(pressed: &mut Option<mpsc::Receiver<Key>>) -> Option<Key> {
    match pressed {
        Some(pressed) => pressed.recv().await,
        None => pending().await,
    }
}

/// The end of a round.
async fn finished(work: &mut Option<Work<'_>>) -> Done {
    let Some(running) = work else { return pending().await };
    let done = running.await;
    *work = None;
    done
}

/// The next change of the sources, while no round is under way.
async fn changed(
    sources: &mut Option<Sources>,
    is_idle: bool,
) -> Result<Vec<PathBuf>, SourcesError> {
    match sources {
        Some(sources) if is_idle => sources.changed().await,
        Some(_) | None => pending().await,
    }
}

fn names(changed: &[PathBuf]) -> String {
    let mut names: Vec<String> = changed
        .iter()
        .take(NAMES_MAX)
        .map(|path| crate::cli::format::one_line(&path.to_string_lossy()))
        .collect();
    if changed.len() > NAMES_MAX {
        names.push(format!("{} more", changed.len() - NAMES_MAX));
    }
    format!("changed: {}", names.join(", "))
}

fn shown(result: std::io::Result<()>) -> Result<(), Failure> {
    result.map_err(|error| Failure::failed("failed to write to the terminal").because(&error))
}

// === impl Failure ===

impl From<SourcesError> for Failure {
    fn from(error: SourcesError) -> Self {
        Self::of(&error).hint(error.hint())
    }
}

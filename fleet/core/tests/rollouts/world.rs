//! A fleet of which the truth is known: agents in zones of unequal size, what happens to them, and what
//! of it the control plane gets to know.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use guest_fleet_core::fold::{AWAY_AFTER, SEEN_STEP, silent_after};
use guest_fleet_core::time::Seconds;

use crate::random::Random;

/// The zones: their shares in a thousand, and how many plugins in a million crash of themselves in an hour.
const ZONES: [(u64, f64); 5] =
    [(500, 200.0), (250, 500.0), (150, 1_000.0), (70, 3_000.0), (30, 10_000.0)];

/// Installations that fail whatever is installed, in a million.
const UNAVOIDABLE: u64 = 10_000;

/// How long an installation takes, in seconds.
const INSTALLS: (u64, u64) = (20, 60);

/// How long after its installation a plugin crashes that does because of the release, in seconds.
const CRASHES: u64 = 300;

/// How often a gateway records that an agent was seen, in seconds.
const SEEN: u64 = 750;

/// How long an outage takes, in seconds.
const OUTAGE: (u64, u64) = (300, 3_600);

/// What one order may take before it is called silent, in seconds: what a manifest without times gives.
pub(crate) const PATIENCE: u64 = 570;

/// When the world begins.
pub(crate) const BEGAN: Seconds = Seconds(1_000_020);

/// A release, by how many agents in a million it is bad on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Truth {
    /// Installations that fail, beside those that always do.
    pub(crate) install: u64,
    /// Plugins that crash after their installation, beside those that always do.
    pub(crate) crash: u64,
    /// Machines that are never heard of again.
    pub(crate) lose: u64,
    /// Whether a zone goes away meanwhile.
    pub(crate) outage: bool,
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    UnderWay,
    Silent,
    Done,
    Failed,
}

/// What the control plane knows of the order for the new release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) made: Seconds,
    /// When it was acknowledged; later when it settled.
    pub(crate) since: Seconds,
    pub(crate) fate: Fate,
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Agent {
    pub(crate) zone: usize,
    pub(crate) order: Option<Order>,
    /// When its plugin crashed, as far as it told.
    pub(crate) crashes: Vec<Seconds>,
    /// When its connection ended; `None` while it has one.
    pub(crate) gone: Option<Seconds>,
    /// Since when it counts as out of reach.
    pub(crate) lost: Option<Seconds>,
    /// When it was connected again.
    back: Seconds,
    /// The release took its machine away.
    is_dead: bool,
    phase: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Settles { is_good: bool, is_of_release: bool },
    Crashes,
    Silence,
    Vanishes,
    LosesSight,
    OutageBegins,
    OutageEnds,
    ZoneCrash,
}

pub(crate) struct World {
    pub(crate) agents: Vec<Agent>,
    pub(crate) now: Seconds,
    truth: Truth,
    random: Random,
    events: BinaryHeap<Reverse<(Seconds, Event, usize)>>,
    pub(crate) of_zone: Vec<Vec<usize>>,
    /// The zone that is away, and until when.
    away: Option<(usize, Seconds)>,
}

pub(crate) fn zone_name(zone: usize) -> String {
    format!("zone-{zone}")
}

// === impl World ===

impl World {
    /// A fleet; something happens to a zone within so many seconds.
    pub(crate) fn new(targets: u32, truth: Truth, within: u64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut of_zone = vec![Vec::new(); ZONES.len()];
        let agents: Vec<Agent> = (0..targets as usize)
            .map(|at| {
                let mut drawn = random.below(1_000);
                let zone = ZONES.iter().position(|(share, _)| {
                    let is_here = drawn < *share;
                    drawn = drawn.saturating_sub(*share);
                    is_here
                });
                let zone = zone.expect("the shares are all");
                of_zone[zone].push(at);
                Agent { zone, phase: random.below(SEEN), ..Agent::default() }
            })
            .collect();
        let mut world = Self {
            agents,
            now: BEGAN,
            truth,
            random,
            events: BinaryHeap::new(),
            of_zone,
            away: None,
        };
        for zone in 0..ZONES.len() {
            world.crash_next(zone);
        }
        if truth.outage {
            let zone = world.random.at(ZONES.len());
            let begins = BEGAN.plus(world.random.below(within));
            world.happens(begins, Event::OutageBegins, zone);
        }
        world
    }

    /// When a gateway recorded last that it saw an agent.
    pub(crate) fn seen(&self, agent: usize) -> Seconds {
        let agent = &self.agents[agent];
        let until = agent.gone.unwrap_or(self.now);
        let regular = until.0 - (until.0 - agent.phase) % SEEN;
        Seconds(regular.max(agent.back.0))
    }

    /// Gives an agent its order for the new release. Whether it is connected is the caller's to ask.
    pub(crate) fn order(&mut self, at: usize) {
        let acknowledged = self.now.plus(1);
        let order = Order { made: self.now, since: acknowledged, fate: Fate::UnderWay, reason: "" };
        self.agents[at].order = Some(order);
        self.happens(silent_after(acknowledged, PATIENCE), Event::Silence, at);
        if self.random.happens(self.truth.lose) {
            let vanishes = self.now.plus(5);
            return self.happens(vanishes, Event::Vanishes, at);
        }
        let settles = self.now.plus(INSTALLS.0 + self.random.below(INSTALLS.1));
        let is_of_release = self.random.happens(self.truth.install);
        let is_good = !is_of_release && !self.random.happens(UNAVOIDABLE);
        self.happens(settles, Event::Settles { is_good, is_of_release }, at);
        if is_good && self.random.happens(self.truth.crash) {
            let crashes = settles.plus(self.random.below(CRASHES));
            self.happens(crashes, Event::Crashes, at);
        }
    }

    /// Lets everything happen until a time; tells who changed.
    pub(crate) fn pass(&mut self, until: Seconds, mut changes: impl FnMut(&Self, usize, Change)) {
        while let Some(Reverse((at, event, who))) = self.events.peek().copied()
            && at <= until
        {
            self.events.pop();
            self.now = at;
            self.happen(event, who, &mut changes);
        }
        self.now = until;
    }

    fn happen(&mut self, event: Event, who: usize, changes: &mut impl FnMut(&Self, usize, Change)) {
        match event {
            Event::OutageBegins => return self.begin_outage(who),
            Event::OutageEnds => {
                self.away = None;
                for at in self.of_zone[who].clone() {
                    self.come_back(at, changes);
                }
                return;
            }
            Event::ZoneCrash => {
                self.crash_next(who);
                let of_zone = &self.of_zone[who];
                if !of_zone.is_empty() {
                    let at = of_zone[self.random.at(of_zone.len())];
                    self.happen(Event::Crashes, at, changes);
                }
                return;
            }
            _ => {}
        }
        // An agent without a connection reports what it did when the connection is back.
        let is_told = matches!(event, Event::Settles { .. } | Event::Crashes);
        if is_told && self.agents[who].gone.is_some() {
            if let Some((_, ends)) = self.away {
                let told = ends.plus(5 + self.random.below(60));
                self.happens(told, event, who);
            }
            return;
        }
        let before = Change::of(&self.agents[who]);
        let (now, is_silent) = (self.now, self.is_silent(who));
        let agent = &mut self.agents[who];
        match event {
            Event::Settles { is_good, is_of_release } => {
                if let Some(order) = &mut agent.order {
                    order.since = now;
                    order.fate = if is_good { Fate::Done } else { Fate::Failed };
                    order.reason = match (is_good, is_of_release) {
                        (true, _) => "",
                        (false, true) => "exit code 3",
                        (false, false) => "no space left",
                    };
                }
            }
            Event::Crashes => agent.crashes.push(now),
            Event::Silence if is_silent => {
                if let Some(order) = &mut agent.order {
                    order.fate = Fate::Silent;
                }
            }
            Event::Vanishes => {
                agent.is_dead = true;
                if agent.gone.is_none() {
                    agent.gone = Some(now);
                    self.lose_sight(who);
                }
            }
            Event::LosesSight if agent.gone.is_some() => agent.lost = Some(now),
            _ => return,
        }
        changes(self, who, before);
    }

    fn is_silent(&self, who: usize) -> bool {
        self.agents[who].order.as_ref().is_some_and(|order| order.fate == Fate::UnderWay)
    }

    fn begin_outage(&mut self, zone: usize) {
        let ends = self.now.plus(OUTAGE.0 + self.random.below(OUTAGE.1 - OUTAGE.0));
        self.away = Some((zone, ends));
        self.happens(ends, Event::OutageEnds, zone);
        for at in self.of_zone[zone].clone() {
            if self.agents[at].gone.is_none() {
                self.agents[at].gone = Some(self.now);
                self.lose_sight(at);
            }
        }
    }

    /// One in ten plugins of a zone that was away crashes when it is back.
    fn come_back(&mut self, at: usize, changes: &mut impl FnMut(&Self, usize, Change)) {
        if self.agents[at].gone.is_none() || self.agents[at].is_dead {
            return;
        }
        let before = Change::of(&self.agents[at]);
        let now = self.now;
        let agent = &mut self.agents[at];
        (agent.gone, agent.lost, agent.back) = (None, None, now);
        changes(self, at, before);
        if self.random.below(10) == 0 {
            let crashes = now.plus(self.random.below(60));
            self.happens(crashes, Event::Crashes, at);
        }
    }

    fn lose_sight(&mut self, at: usize) {
        let seen = self.seen(at);
        let away = Seconds((seen.0 - seen.0 % SEEN_STEP + AWAY_AFTER).next_multiple_of(60));
        self.happens(away.max(self.now), Event::LosesSight, at);
    }

    fn crash_next(&mut self, zone: usize) {
        let an_hour = ZONES[zone].1 / 1e6 * self.of_zone[zone].len() as f64;
        if an_hour > 0.0 {
            let at = self.now.plus(1 + self.random.pause(an_hour));
            self.happens(at, Event::ZoneCrash, zone);
        }
    }

    fn happens(&mut self, at: Seconds, event: Event, who: usize) {
        self.events.push(Reverse((at, event, who)));
    }
}

/// What was known of an agent before something happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) order: Option<Order>,
    pub(crate) crashes: usize,
    pub(crate) lost: Option<Seconds>,
}

impl Change {
    fn of(agent: &Agent) -> Self {
        Self { order: agent.order.clone(), crashes: agent.crashes.len(), lost: agent.lost }
    }
}

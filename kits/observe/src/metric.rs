//! One metric: its name, its meaning, and what to do when its value looks bad; and how a catalogue of
//! them is written down.

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only goes up, and starts again with the agent or the plugin.
    Counter,
    /// How many durations were in each range.
    Histogram,
    /// Always 1; its labels have the information.
    Info,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds; for a point in time, since 1970.
    Seconds,
    /// Bytes.
    Bytes,
    /// A plain number.
    Number,
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name, without the unit and without what its kind appends.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// The labels that it has.
    pub labels: &'static [&'static str],
    /// Its meaning, as a sentence.
    pub help: &'static str,
    /// What to do when its value looks bad.
    pub then: &'static str,
}

// === impl Kind ===

impl Kind {
    /// The kind as Prometheus names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }
}

// === impl Unit ===

impl Unit {
    /// The unit as names contain it.
    #[must_use]
    pub const fn as_str(self) -> Option<&'static str> {
        match self {
            Self::Seconds => Some("seconds"),
            Self::Bytes => Some("bytes"),
            Self::Number => None,
        }
    }
}

// === impl Metric ===

impl Metric {
    /// The name of its family in OpenMetrics.
    #[must_use]
    pub fn family(&self) -> String {
        match self.unit.as_str() {
            Some(unit) => format!("{}_{unit}", self.name),
            None => self.name.to_owned(),
        }
    }

    /// The suffix that its kind appends to the name of its family, for kinds with one sample.
    #[must_use]
    pub const fn suffix(&self) -> &'static str {
        match self.kind {
            Kind::Gauge | Kind::Histogram => "",
            Kind::Counter => "_total",
            Kind::Info => "_info",
        }
    }

    /// The names under which it can be queried.
    #[must_use]
    pub fn samples(&self) -> Vec<String> {
        let family = self.family();
        match self.kind {
            Kind::Gauge | Kind::Counter | Kind::Info => vec![family + self.suffix()],
            Kind::Histogram => {
                ["_bucket", "_sum", "_count"].map(|suffix| format!("{family}{suffix}")).into()
            }
        }
    }

    /// Its row in a table: name, kind, labels, what it says, what to do when it looks bad.
    #[must_use]
    pub fn row(&self) -> String {
        let name = format!("`{}{}`", self.family(), self.suffix());
        let labels: Vec<_> = self.labels.iter().map(|label| format!("`{label}`")).collect();
        let cells = [&name, self.kind.as_str(), &labels.join(", "), self.help, self.then];
        format!("| {} |\n", cells.join(" | "))
    }
}

/// Writes a catalogue down: a constant for each metric, and `METRICS` with all of them in order.
///
/// `ID = "name" Kind Unit ["label"...] "what it says" "what to do when it looks bad";`
#[macro_export]
macro_rules! catalogue {
    ($($id:ident = $name:literal $kind:ident $unit:ident [$($label:literal)*]
        $help:literal $then:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: $crate::metric::Metric = $crate::metric::Metric {
                name: $name,
                kind: $crate::metric::Kind::$kind,
                unit: $crate::metric::Unit::$unit,
                labels: &[$($label),*],
                help: $help,
                then: $then,
            };
        )*

        /// All metrics, in the order in which they are shown.
        pub const METRICS: &[&$crate::metric::Metric] = &[$(&$id),*];
    };
}

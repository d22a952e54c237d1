//! What the agents that failed have in common, and those that passed have not.

use std::collections::BTreeMap;

/// Most facets of an answer.
pub const TOLD: usize = 5;

/// Least difference between the two shares that counts, in a hundred.
const LEAST: u32 = 20;

/// A property of agents, such as a zone or a kernel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Facet {
    /// Which property.
    pub key: String,
    /// Its value.
    pub value: String,
    /// How many that failed have it.
    pub failed: u32,
    /// How many that passed have it.
    pub passed: u32,
}

/// The properties in which those that failed and those that passed differ most: at most [`TOLD`], the
/// most telling first.
#[must_use]
pub fn facets<'a>(agents: impl IntoIterator<Item = (bool, Vec<(&'a str, &'a str)>)>) -> Vec<Facet> {
    let mut counts: BTreeMap<(&str, &str), [u32; 2]> = BTreeMap::new();
    let mut all = [0_u32; 2];
    for (is_failed, properties) in agents {
        let side = usize::from(!is_failed);
        all[side] += 1;
        for property in properties {
            counts.entry(property).or_default()[side] += 1;
        }
    }
    let share = |count: u32, of: u32| u32::try_from(u64::from(count) * 100 / u64::from(of.max(1)));
    let mut found: Vec<(u32, Facet)> = counts
        .into_iter()
        .filter_map(|((key, value), [failed, passed])| {
            let more = share(failed, all[0]).ok()?.checked_sub(share(passed, all[1]).ok()?)?;
            let (key, value) = (key.to_owned(), value.to_owned());
            (all[1] > 0 && more >= LEAST).then_some((more, Facet { key, value, failed, passed }))
        })
        .collect();
    found.sort_by(|(more, facet), (other, than)| other.cmp(more).then_with(|| facet.cmp(than)));
    found.into_iter().take(TOLD).map(|(_, facet)| facet).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(agents: &[(bool, &[(&'static str, &'static str)])]) -> Vec<(String, u32, u32)> {
        let agents = agents.iter().map(|(failed, of)| (*failed, of.to_vec()));
        let found = facets(agents).into_iter();
        found.map(|it| (format!("{} {}", it.key, it.value), it.failed, it.passed)).collect()
    }

    #[test]
    fn what_most_failed_ones_have_and_few_passed_ones_comes_first() {
        let found = told(&[
            (true, &[("kernel", "6.1"), ("zone", "a")]),
            (true, &[("kernel", "6.1"), ("zone", "b")]),
            (false, &[("kernel", "5.4"), ("zone", "a")]),
            (false, &[("kernel", "5.4"), ("zone", "b")]),
            (false, &[("kernel", "6.1"), ("zone", "b")]),
        ]);
        assert_eq!(found, [("kernel 6.1".to_owned(), 2, 1)]);
    }

    #[test]
    fn nothing_is_told_where_nobody_passed_or_nobody_failed() {
        assert_eq!(told(&[(true, &[("zone", "a")]), (true, &[("zone", "a")])]), []);
        assert_eq!(told(&[(false, &[("zone", "a")])]), []);
        assert_eq!(told(&[]), []);
    }

    #[test]
    fn it_is_bounded() {
        let keys: Vec<String> = (0..100).map(|at| format!("key{at:03}")).collect();
        let many: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "x")).collect();
        let found = facets([(true, many), (false, Vec::new())]);
        assert_eq!(found.len(), TOLD);
    }
}

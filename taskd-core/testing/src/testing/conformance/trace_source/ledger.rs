//! Compares the facts of a source with the expected facts.

use crate::trace::{Fact, Signal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Returns the number of a fact, if it has one.
type Numbering = Box<dyn Fn(&Fact) -> Option<u64> + Send>;

/// What the suite knows about the expected facts of a source.
pub(super) enum Expected {
    Unknown,
    /// All facts that the source has to report, in order, as text.
    Facts(Vec<String>),
    /// Only the numbers of facts, which have no gap: a function that returns the number of a fact.
    Numbers(Numbering),
}

/// The facts of one reading by position, and the number that the source reported as lost.
pub(super) struct Ledger {
    places: BTreeSet<u64>,
    lost: u64,
    /// First expected position, 0 if unknown; `to` is the position after the last expected one.
    from: u64,
    to: u64,
}

impl Expected {
    /// Builds the ledger of a reading. `ended` is true if the source had no more facts.
    pub(super) fn ledger(&self, facts: &[Fact], ended: bool) -> Ledger {
        let lost = facts.iter().map(|fact| if let Signal::Lost { count } = fact.signal { count } else { 0 });
        let lost = lost.fold(0, u64::saturating_add);
        let places: BTreeSet<u64> = match self {
            Expected::Unknown => BTreeSet::new(),
            Expected::Numbers(number) => facts.iter().filter_map(number).collect(),
            Expected::Facts(all) => places(all, facts),
        };
        let behind = places.last().map_or(0, |last| last.saturating_add(1));
        let (from, to) = match self {
            Expected::Facts(all) => (0, if ended { all.len() as u64 } else { behind }),
            _ => (places.first().copied().unwrap_or(0), behind),
        };
        Ledger { places, lost, from, to }
    }

    fn name(&self, place: u64) -> String {
        let fact = match self {
            Expected::Facts(all) => usize::try_from(place).ok().and_then(|place| all.get(place)),
            _ => None,
        };
        fact.cloned().unwrap_or_else(|| format!("number {place}"))
    }
}

impl Ledger {
    /// Returns the number of positions that have a fact.
    pub(super) fn filled(&self) -> usize {
        self.places.len()
    }

    /// Describes the facts that are missing and were not reported as lost.
    pub(super) fn missing(&self, expected: &Expected) -> Option<String> {
        let missing = (self.to - self.from).saturating_sub(self.places.len() as u64);
        if missing <= self.lost {
            return None;
        }
        let next = (self.from..).zip(&self.places).find(|(next, place)| next != *place).map(|(next, _)| next);
        let next = next.unwrap_or(self.from + self.places.len() as u64);
        let (lost, first) = (self.lost, expected.name(next));
        Some(format!("{missing} facts are missing and {lost} were reported as lost; the first is {first}"))
    }
}

/// Returns the positions in `all`, the expected facts, of the facts that the source reported. Unexpected and repeated
/// facts have no position.
fn places(all: &[String], facts: &[Fact]) -> BTreeSet<u64> {
    let mut open: BTreeMap<&str, VecDeque<u64>> = BTreeMap::new();
    for (place, words) in (0..).zip(all) {
        open.entry(words).or_default().push_back(place);
    }
    facts.iter().filter_map(|fact| open.get_mut(words(fact).as_str())?.pop_front()).collect()
}

/// Returns a fact without its age, as text: a NaN does not equal a NaN.
pub(super) fn words(fact: &Fact) -> String {
    format!("{:?} about {}", fact.signal, fact.about)
}

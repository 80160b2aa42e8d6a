//! What a source told, against what it should have told.

use crate::trace::{Fact, Signal};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Gives a fact its number, if it has one.
type Numbering = Box<dyn Fn(&Fact) -> Option<u64> + Send>;

/// What is known about what a source is to tell.
pub(super) enum Expected {
    Unknown,
    /// All of it, in words.
    Facts(Vec<String>),
    /// Nothing but that numbers have no gap.
    Numbers(Numbering),
}

/// The facts of one reading by their places, and how many the source reported as lost.
pub(super) struct Ledger {
    places: BTreeSet<u64>,
    lost: u64,
    /// Where the places begin and end, as far as that is known.
    from: u64,
    to: u64,
}

impl Expected {
    /// `ended`: the source had no more to tell.
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
    /// How many places have a fact.
    pub(super) fn filled(&self) -> usize {
        self.places.len()
    }

    /// What is missing and was not reported as lost, in words.
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

/// Where in `all` the facts stand. Facts that nobody expects, and repeated ones, stand nowhere.
fn places(all: &[String], facts: &[Fact]) -> BTreeSet<u64> {
    let mut open: BTreeMap<&str, VecDeque<u64>> = BTreeMap::new();
    for (place, words) in (0..).zip(all) {
        open.entry(words).or_default().push_back(place);
    }
    facts.iter().filter_map(|fact| open.get_mut(words(fact).as_str())?.pop_front()).collect()
}

/// A fact without its age, as text: a NaN equals no NaN.
pub(super) fn words(fact: &Fact) -> String {
    format!("{:?} about {}", fact.signal, fact.about)
}

//! Clauses, and the results of a suite for each.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;

/// One requirement of a plugin's contract, which a conformance suite checks: a sentence with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Clause {
    suite: &'static str,
    name: &'static str,
    text: &'static str,
}

impl Clause {
    /// Creates a clause. For the macro that defines a suite's clauses.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(suite: &'static str, name: &'static str, text: &'static str) -> Clause {
        Clause { suite, name, text }
    }

    /// Returns the requirement itself: what the plugin must do, in one sentence.
    #[must_use]
    pub const fn text(&self) -> &'static str {
        self.text
    }
}

impl fmt::Display for Clause {
    /// Writes the path of the clause's constant in this module: `launcher::START_ONCE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}::{}", self.suite, self.name)
    }
}

/// Defines the clauses of one suite as constants, and `ALL`, which lists them in order. For suites of other packages too.
#[doc(hidden)]
#[macro_export]
macro_rules! clauses {
    ($suite:literal: $($name:ident = $text:literal;)*) => {
        $(
            #[doc = concat!("Clause: ", $text, ".")]
            pub const $name: $crate::testing::conformance::Clause =
                $crate::testing::conformance::Clause::new($suite, stringify!($name), $text);
        )*
        /// All clauses of this conformance suite, in the order of the plugin's contract.
        pub const ALL: &[$crate::testing::conformance::Clause] = &[$($name),*];
    };
}
pub(super) use clauses;

/// A clause of the contract that a plugin broke, and the plugin's behaviour that broke it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The clause that the plugin broke.
    pub clause: Clause,
    /// Description of the first time that the plugin broke the clause.
    pub seen: String,
    /// Number of times that the suite found the clause broken.
    pub times: u32,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.clause, self.seen)?;
        if self.times > 1 {
            write!(f, " (and {} more times)", self.times - 1)?;
        }
        write!(f, "; expected: {}", self.clause.text)
    }
}

/// The result of a conformance suite for a plugin that broke no clause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    checked: Vec<Clause>,
    skipped: Vec<(Clause, String)>,
}

impl Report {
    /// Returns the clauses of the contract that the suite checked. The plugin keeps all of them.
    #[must_use]
    pub fn checked(&self) -> &[Clause] {
        &self.checked
    }

    /// Returns the clauses of the contract that the suite did not check, or that its caller excluded, each with the
    /// reason.
    #[must_use]
    pub fn skipped(&self) -> &[(Clause, String)] {
        &self.skipped
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} clauses hold, {} were not checked", self.checked.len(), self.skipped.len())?;
        self.skipped.iter().try_for_each(|(clause, why)| write!(f, "\n  {clause}: {why}"))
    }
}

/// The results of a running suite. For suites of other packages too.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Verdict {
    violations: BTreeMap<Clause, Violation>,
    skipped: BTreeMap<Clause, String>,
    waived: BTreeMap<Clause, String>,
}

impl Verdict {
    /// Records that the plugin broke `clause`. The first description is kept, further violations are counted.
    pub fn broken(&mut self, clause: Clause, seen: impl Into<String>) {
        let new = || Violation { clause, seen: seen.into(), times: 0 };
        self.violations.entry(clause).or_insert_with(new).times += 1;
    }

    /// Returns true if the plugin has broken `clause`.
    #[must_use]
    pub fn is_broken(&self, clause: Clause) -> bool {
        self.violations.contains_key(&clause)
    }

    /// Records that `clause` cannot be checked here.
    pub fn skip(&mut self, clause: Clause, why: impl Into<String>) {
        self.skipped.entry(clause).or_insert_with(|| why.into());
    }

    /// Records that the author excludes `clause`, which the plugin does not keep, with the reason.
    pub fn waive(&mut self, clause: Clause, why: impl Into<String>) {
        self.waived.insert(clause, why.into());
    }

    /// Returns the report on the suite with the clauses `all`.
    ///
    /// # Errors
    /// Returns one violation for each clause that the plugin broke.
    pub fn finish(self, all: &[Clause]) -> Result<Report, Vec<Violation>> {
        let Verdict { mut violations, mut skipped, waived } = self;
        violations.retain(|clause, _| !waived.contains_key(clause));
        skipped.extend(waived);
        let broken: Vec<Violation> = all.iter().filter_map(|clause| violations.remove(clause)).collect();
        if !broken.is_empty() {
            return Err(broken);
        }
        let checked = all.iter().filter(|clause| !skipped.contains_key(clause)).copied().collect();
        let skipped = all.iter().filter_map(|clause| Some((*clause, skipped.remove(clause)?))).collect();
        Ok(Report { checked, skipped })
    }
}

/// Returns the report, or panics with a list of every violation.
///
/// # Panics
/// Panics if there are violations.
#[doc(hidden)]
#[track_caller]
pub fn insist(suite: &str, found: Result<Report, Vec<Violation>>) -> Report {
    found.unwrap_or_else(|violations| {
        let lines: Vec<String> = violations.iter().map(|v| format!("\n  {v}")).collect();
        panic!("the {suite} breaks {} of its contract's clauses:{}", lines.len(), lines.concat())
    })
}

/// Longest text, in characters, that is shown in full.
const WHOLE_MAX: usize = 200;
/// Characters shown of a longer text: before the first difference, and from there on.
const AROUND: (usize, usize) = (40, 120);

/// Shortens two different texts to the part around the first difference, so that a violation fits in one sentence.
pub(super) fn apart(one: &str, two: &str) -> (String, String) {
    if one.len() <= WHOLE_MAX && two.len() <= WHOLE_MAX {
        return (one.to_owned(), two.to_owned());
    }
    let same = one.chars().zip(two.chars()).take_while(|(a, b)| a == b).count();
    let from = same.saturating_sub(AROUND.0);
    let cut = |text: &str| {
        let before = if from > 0 { ".." } else { "" };
        let shown: String = text.chars().skip(from).take(same - from + AROUND.1).collect();
        let after = if text.chars().count() > same + AROUND.1 { ".." } else { "" };
        format!("{before}{shown}{after}")
    };
    (cut(one), cut(two))
}

/// Returns the message of a caught panic.
pub(super) fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&'static str>().copied()).unwrap_or("something that is no text")
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn long_texts_are_cut_down_to_where_they_differ() {
        let whole = ("a refusal".to_owned(), "a proposal".to_owned());
        assert_eq!(apart(&whole.0, &whole.1), whole);
        let (before, after) = ("ä".repeat(500), "z".repeat(500));
        let (one, two) = apart(&format!("{before}1{after}"), &format!("{before}2{after}"));
        assert_eq!(one, format!("..{}1{}..", "ä".repeat(40), "z".repeat(119)));
        assert_eq!(two, one.replace('1', "2"));
        assert_eq!(apart(&before, &format!("{before}x")).0, format!("..{}", "ä".repeat(40)));
    }
}

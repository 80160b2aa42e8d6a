//! A one-line summary, for people, of what each strategy may do.
//!
//! The permissions are part of the policy; this module only formats them.

use super::{Name, Permission, Policy};
use std::collections::BTreeMap;
use std::fmt::Write as _;

impl Policy {
    /// Returns a one-line summary of which of the given recovery strategies are allowed, cannot work for the job, or
    /// are not allowed, with reasons: `allowed: restart, exit; cannot work for this job: dump (the job names no
    /// directory); not allowed: retry (whole restarts only)`. `cannot` contains, by strategy name, the
    /// [reasons](crate::recover::RecoveryStrategy::unsupported_reason) why strategies cannot work for the job.
    ///
    /// ```
    /// # extern crate taskd_kernel as taskd_core;
    /// use std::collections::BTreeMap;
    /// use taskd_core::job::{Name, Permission, Policy};
    ///
    /// let ladder = ["retry", "restart", "exit"].map(Name::new);
    /// let mut policy = Policy::default();
    /// let mut cannot = BTreeMap::new();
    /// assert_eq!(policy.permissions(&ladder, &cannot), "every strategy is allowed: retry, restart, exit");
    ///
    /// policy.strategies.insert(Name::new("retry"), Permission::Never);
    /// policy.reasons.insert(Name::new("retry"), "it is not trusted here".into());
    /// assert_eq!(policy.permissions(&ladder, &cannot), "allowed: restart, exit; not allowed: retry (it is not trusted here)");
    ///
    /// cannot.insert(Name::new("restart"), "it has no ranks".to_owned());
    /// assert_eq!(
    ///     policy.permissions(&ladder, &cannot),
    ///     "allowed: exit; cannot work for this job: restart (it has no ranks); not allowed: retry (it is not trusted here)",
    /// );
    /// ```
    #[must_use]
    pub fn permissions(&self, strategies: &[Name], cannot: &BTreeMap<Name, String>) -> String {
        let is_out = |name: &Name| cannot.contains_key(name) && self.permission(name) != Permission::Never;
        let with = |permission| {
            let of = move |name: &&Name| self.permission(name) == permission && !is_out(name);
            strategies.iter().filter(of)
        };
        let allowed: Vec<&Name> = with(Permission::Auto).collect();
        if allowed.len() == strategies.len() {
            return format!("every strategy is allowed: {}", list(&allowed));
        }
        let mut line = format!("allowed: {}", list(&allowed));
        let mut add = |words: &str, groups: ByReason<'_>| {
            for (reason, names) in groups {
                let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
                let _ = write!(line, "; {words}: {}{reason}", list(&names));
            }
        };
        add("cannot work for this job", by_reason(strategies.iter().filter(|name| is_out(name)), cannot));
        add("if approved", by_reason(with(Permission::Ask), &self.reasons));
        add("not allowed", by_reason(with(Permission::Never), &self.reasons));
        line
    }
}

/// Names of strategies, grouped by reason.
type ByReason<'a> = Vec<(Option<&'a str>, Vec<&'a Name>)>;

/// Groups strategies by reason, in the order in which each reason occurs first.
fn by_reason<'a>(names: impl Iterator<Item = &'a Name>, reasons: &'a BTreeMap<Name, String>) -> ByReason<'a> {
    let mut groups: ByReason<'a> = Vec::new();
    for name in names {
        let reason = reasons.get(name).map(String::as_str);
        match groups.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => groups.push((reason, vec![name])),
        }
    }
    groups
}

fn list(names: &[&Name]) -> String {
    match names {
        [] => "none".into(),
        names => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

//! What strategies may do, in one line for people.
//!
//! It decides nothing: the permissions are the policy's.

use super::{Name, Permission, Policy};
use std::collections::BTreeMap;
use std::fmt::Write as _;

impl Policy {
    /// What these strategies may do by themselves, and why not, in one line: `allowed: restart, exit; cannot work for this job: dump
    /// (the job names no directory); not allowed: retry (whole restarts only)`. What a strategy says that it
    /// [cannot](crate::recover::RecoveryStrategy::cannot) do is in `cannot`, by its name.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use taskd_core::job::{Name, Permission, Policy};
    ///
    /// let ladder = ["retry", "restart", "exit"].map(Name::new);
    /// let mut policy = Policy::default();
    /// let mut cannot = BTreeMap::new();
    /// assert_eq!(policy.permissions(&ladder, &cannot), "every strategy is allowed: retry, restart, exit");
    ///
    /// policy.strategies.insert(Name::new("retry"), Permission::Never);
    /// policy.reasons.insert(Name::new("retry"), "nobody here trusts it".into());
    /// assert_eq!(policy.permissions(&ladder, &cannot), "allowed: restart, exit; not allowed: retry (nobody here trusts it)");
    ///
    /// cannot.insert(Name::new("restart"), "it has no ranks".to_owned());
    /// assert_eq!(
    ///     policy.permissions(&ladder, &cannot),
    ///     "allowed: exit; cannot work for this job: restart (it has no ranks); not allowed: retry (nobody here trusts it)",
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

/// Strategies that share a reason.
type ByReason<'a> = Vec<(Option<&'a str>, Vec<&'a Name>)>;

/// The strategies that share a reason, in the order in which each reason is met first.
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

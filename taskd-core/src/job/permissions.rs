//! What strategies may do, in one line for people.
//!
//! It decides nothing: the permissions are the policy's.

use super::{Name, Permission, Policy};
use std::fmt::Write as _;

impl Policy {
    /// What these strategies may do by themselves, and why not, in one line: `allowed: restart, exit; not allowed: retry (whole
    /// restarts only)`.
    ///
    /// ```
    /// use taskd_core::job::{Name, Permission, Policy};
    ///
    /// let ladder = ["retry", "restart", "exit"].map(Name::new);
    /// let mut policy = Policy::default();
    /// assert_eq!(policy.permissions(&ladder), "every strategy is allowed: retry, restart, exit");
    ///
    /// policy.strategies.insert(Name::new("retry"), Permission::Never);
    /// policy.reasons.insert(Name::new("retry"), "nobody here trusts it".into());
    /// assert_eq!(policy.permissions(&ladder), "allowed: restart, exit; not allowed: retry (nobody here trusts it)");
    /// ```
    #[must_use]
    pub fn permissions(&self, strategies: &[Name]) -> String {
        let with = |permission| strategies.iter().filter(move |name| self.permission(name) == permission);
        let allowed: Vec<&Name> = with(Permission::Auto).collect();
        if allowed.len() == strategies.len() {
            return format!("every strategy is allowed: {}", list(&allowed));
        }
        let mut line = format!("allowed: {}", list(&allowed));
        for (permission, words) in [(Permission::Ask, "if approved"), (Permission::Never, "not allowed")] {
            for (reason, names) in self.by_reason(with(permission)) {
                let _ = match reason {
                    Some(reason) => write!(line, "; {words}: {} ({reason})", list(&names)),
                    None => write!(line, "; {words}: {}", list(&names)),
                };
            }
        }
        line
    }

    /// The strategies that share a reason, in the order in which each reason is met first.
    fn by_reason<'a>(&'a self, names: impl Iterator<Item = &'a Name>) -> Vec<(Option<&'a str>, Vec<&'a Name>)> {
        let mut groups: Vec<(Option<&str>, Vec<&Name>)> = Vec::new();
        for name in names {
            let reason = self.reasons.get(name).map(String::as_str);
            match groups.iter_mut().find(|(known, _)| *known == reason) {
                Some((_, names)) => names.push(name),
                None => groups.push((reason, vec![name])),
            }
        }
        groups
    }
}

fn list(names: &[&Name]) -> String {
    match names {
        [] => "none".into(),
        names => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", "),
    }
}

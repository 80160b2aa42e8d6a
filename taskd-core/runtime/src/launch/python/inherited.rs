//! The relevant variables that a process inherits from the launcher's environment.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::HOOKS_VARIABLE;
use crate::job::WorkerSpec;

const PYTHON_PATH: &str = "PYTHONPATH";

/// Variables of the launcher's own environment that affect the processes that it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited(BTreeMap<String, String>);

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Inherited {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Inherited {
        Inherited(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Inherited {
    /// Reads PYTHONPATH, the hooks switch and the given variables.
    pub(super) fn of_this_process(names: &[&str]) -> Inherited {
        let value = |name: &&str| std::env::var(name).ok().map(|value| ((*name).to_owned(), value));
        names.iter().chain(&[PYTHON_PATH, HOOKS_VARIABLE]).filter_map(value).collect()
    }

    /// Returns the value that a process with this specification would inherit.
    pub(super) fn get(&self, spec: &WorkerSpec, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|_| spec.inherit.passes(name))
    }

    /// Returns PYTHONPATH with the helper in front, as name and value.
    pub(super) fn python_path(&self, spec: &WorkerSpec, helper: &dyn Display) -> (String, String) {
        let own = spec.env.get(PYTHON_PATH).map(String::as_str);
        let path = match own.or_else(|| self.get(spec, PYTHON_PATH)).filter(|path| !path.is_empty()) {
            Some(path) => format!("{helper}:{path}"),
            None => helper.to_string(),
        };
        (PYTHON_PATH.to_owned(), path)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::job::InheritEnv;

    #[test]
    fn variables_are_inherited_as_the_specification_permits() {
        let set = Inherited::from_iter([("PYTHONPATH", "/theirs"), ("THREADS", "8")]);
        let all = WorkerSpec::new(["python"]);
        let nothing = all.clone().with_inherit(InheritEnv::Nothing);
        let only = all.clone().with_inherit(InheritEnv::Only(BTreeSet::from(["PYTHONPATH".to_owned()])));

        assert_eq!([&all, &nothing, &only].map(|spec| set.get(spec, "THREADS")), [Some("8"), None, None]);
        let path = |spec: &WorkerSpec| set.python_path(spec, &"/helper").1;
        assert_eq!(path(&all), "/helper:/theirs");
        assert_eq!(path(&only), "/helper:/theirs");
        assert_eq!(path(&nothing), "/helper");
        assert_eq!(path(&all.with_env("PYTHONPATH", "/own")), "/helper:/own");
    }
}

//! What a process would inherit of this process's environment, as far as it matters here.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::HOOKS_VARIABLE;
use crate::job::{InheritEnv, WorkerSpec};

const PYTHON_PATH: &str = "PYTHONPATH";

/// Variables of this process's environment, as far as those of other processes depend on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited(BTreeMap<String, String>);

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Inherited {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Inherited {
        Inherited(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Inherited {
    /// PYTHONPATH, whether hooks are wanted, and these.
    pub(super) fn of_this_process(names: &[&str]) -> Inherited {
        let value = |name: &&str| std::env::var(name).ok().map(|value| ((*name).to_owned(), value));
        names.iter().chain(&[PYTHON_PATH, HOOKS_VARIABLE]).filter_map(value).collect()
    }

    /// The value that a process of this specification would inherit.
    pub(super) fn get(&self, spec: &WorkerSpec, name: &str) -> Option<&str> {
        let passes = match &spec.inherit {
            InheritEnv::All => true,
            InheritEnv::Nothing => false,
            InheritEnv::Only(names) => names.contains(name),
        };
        self.0.get(name).map(String::as_str).filter(|_| passes)
    }

    /// PYTHONPATH with the helper in front, as a variable.
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

    #[test]
    fn what_is_inherited_is_kept_as_far_as_it_is_inherited() {
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

//! Properties that processes must have in common to be interchangeable.

use crate::launch::guard::tree::{JOB_MARK, PROC_MARK};
use crate::launch::guard::wire::{StandbyMode, WireOrder, WireSpec, WireStandby};
use crate::redact::{SecretNames, shown_arguments};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The properties of a process that do not differ from rank to rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::launch::guard) struct Like {
    pub(in crate::launch::guard) program: PathBuf,
    /// The program's name, and the arguments that are the same for all ranks.
    pub(in crate::launch::guard) argv: Vec<String>,
    /// Environment without the per-rank variables, and without those that a template overrides.
    env: BTreeMap<String, String>,
    pub(in crate::launch::guard) cwd: PathBuf,
    pub(in crate::launch::guard) nice: u8,
    pub(in crate::launch::guard) standby: WireStandby,
    secrets: SecretNames,
}

/// The properties of a process that are specific to its rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::launch::guard) struct Own {
    pub(in crate::launch::guard) arguments: Vec<String>,
    pub(in crate::launch::guard) set: BTreeMap<String, String>,
    pub(in crate::launch::guard) unset: Vec<String>,
}

/// Arguments and environment of a pre-warmed standby; once it is ready, only the variables that its program has read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::launch::guard) struct Ahead {
    pub(in crate::launch::guard) arguments: Vec<String>,
    pub(in crate::launch::guard) set: BTreeMap<String, String>,
}

impl Ahead {
    /// Returns true if the standby would have reached the same state with the other arguments and environment.
    pub(in crate::launch::guard) fn fits(&self, other: &Ahead) -> bool {
        let is_so = |(name, value): (&String, &String)| other.set.get(name) == Some(value);
        self.arguments == other.arguments && self.set.iter().all(is_so)
    }
}

impl Like {
    /// Returns the common properties of an order's process; `None` if it may not use a standby.
    pub(in crate::launch::guard) fn of(order: &WireOrder, spec: &WireSpec, program: &Path) -> Option<Like> {
        let standby = spec.standby.as_ref().filter(|_| order.proc.role.rank().is_some())?;
        let argv = spec.argv.get(..standby.fixed)?.to_vec();
        let mut env = merged(order, spec);
        env.retain(|name, _| !standby.is_late(name));
        let cannot_know = is_template(standby) && order.cpus.is_some() && !merged(order, spec).contains_key(THREADS);
        (!cannot_know).then(|| Like {
            program: program.to_owned(),
            argv,
            env,
            cwd: spec.cwd.clone(),
            nice: spec.nice,
            standby: standby.clone(),
            secrets: spec.secrets.clone(),
        })
    }

    /// Returns the command line for display, without arguments that are secret by their name.
    pub(in crate::launch::guard) fn command(&self) -> String {
        shown_arguments(&self.argv, &self.secrets).join(" ")
    }

    /// Returns the rank-specific properties of an order's process.
    pub(in crate::launch::guard) fn own(&self, order: &WireOrder, spec: &WireSpec) -> Own {
        let env = merged(order, spec);
        let late = self.standby.late.iter().chain(self.standby.held.keys());
        let unset = late.filter(|name| !env.contains_key(*name)).cloned().collect();
        let set = env.into_iter().filter(|(name, _)| self.standby.is_late(name)).collect();
        Own { arguments: spec.argv.get(self.standby.fixed..).unwrap_or_default().to_vec(), set, unset }
    }

    /// Returns the arguments and the shared ones of a rank's variables, which is the input of a pre-warmed standby.
    pub(in crate::launch::guard) fn ahead(&self, order: &WireOrder, spec: &WireSpec) -> Ahead {
        let mut own = self.own(order, spec);
        own.set.retain(|name, _| self.standby.shared.contains(name) || self.standby.held.contains_key(name));
        Ahead { arguments: own.arguments, set: own.set }
    }

    /// Returns the variables whose values a pre-warmed standby does not have.
    pub(in crate::launch::guard) fn unknown<'a>(&'a self, ahead: &'a Ahead) -> impl Iterator<Item = &'a String> {
        let late = self.standby.late.iter().chain(self.standby.held.keys());
        late.filter(|name| !ahead.set.contains_key(*name) && !self.standby.held.contains_key(*name))
    }

    /// Returns the environment with which a standby is started.
    pub(in crate::launch::guard) fn environment(&self, job: &str, holds: bool) -> BTreeMap<String, String> {
        let mut env = self.env.clone();
        if holds {
            env.extend(self.standby.held.clone());
        }
        env.insert(JOB_MARK.into(), job.into());
        env.insert(PROC_MARK.into(), format!("{:-<SHOWN_BYTES$}", "standby"));
        env
    }
}

/// Variable with the number of compute threads of a rank.
const THREADS: &str = "OMP_NUM_THREADS";
/// Space reserved in the initial environment, which `/proc` shows, for a rank's own variables, its name first.
const SHOWN_BYTES: usize = 2048;

fn is_template(standby: &WireStandby) -> bool {
    matches!(standby.mode, StandbyMode::Template)
}

fn merged(order: &WireOrder, spec: &WireSpec) -> BTreeMap<String, String> {
    spec.env.iter().chain(&order.env).map(|(name, value)| (name.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::ProcId;

    fn spec(args: [&str; 3]) -> WireSpec {
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let standby = WireStandby {
            mode: StandbyMode::Template,
            probe: texts(&["python", "-c", "pass"]),
            fixed: 2,
            script: Some("train.py".into()),
            framework: Vec::new(),
            imports: Vec::new(),
            late: texts(&["RANK", "PORT"]),
            shared: Vec::new(),
            held: BTreeMap::from([("OMP_NUM_THREADS".into(), "1".into())]),
            ahead: None,
            parked: 1,
            after_ms: 0,
        };
        let env = BTreeMap::from([("DATA".into(), "/data".into()), ("OMP_NUM_THREADS".into(), "8".into())]);
        WireSpec {
            argv: texts(&args),
            env,
            cwd: "/".into(),
            nice: 0,
            log: None,
            listen: None,
            standby: Some(standby),
            secrets: SecretNames::default(),
        }
    }

    fn order(rank: u32) -> WireOrder {
        let env = BTreeMap::from([("RANK".into(), rank.to_string())]);
        WireOrder { proc: ProcId::rank(rank, 1), generation: 1, spec: 0, env, cpus: None }
    }

    #[test]
    fn a_pre_warmed_standby_fits_orders_with_the_values_that_it_read() {
        let ahead = |set: &[(&str, &str)], last: &str| Ahead {
            arguments: vec![last.to_owned()],
            set: set.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        };
        let it = ahead(&[("WORLD_SIZE", "4")], "a");
        assert!(it.fits(&ahead(&[("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "2")], "a")));
        assert!(!it.fits(&ahead(&[("WORLD_SIZE", "3")], "a")) && !it.fits(&ahead(&[], "a")));
        assert!(!it.fits(&ahead(&[("WORLD_SIZE", "4")], "b")));
    }

    #[test]
    fn ranks_of_a_job_are_alike_and_bring_their_own() {
        let like = |rank, last| Like::of(&order(rank), &spec(["python", "train.py", last]), Path::new("/bin/python"));
        let of_first = like(0, "a").unwrap();
        assert_eq!(Some(&of_first), like(1, "b").as_ref());
        let own = of_first.own(&order(1), &spec(["python", "train.py", "b"]));
        assert_eq!((own.arguments, own.unset), (vec!["b".to_owned()], vec!["PORT".to_owned()]));
        let set = [("OMP_NUM_THREADS", "8"), ("RANK", "1")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(own.set, set.into());
        let template = of_first.environment("job", true);
        assert_eq!((&*template["OMP_NUM_THREADS"], template.contains_key("RANK")), ("1", false));
        assert!(!of_first.environment("job", false).contains_key("OMP_NUM_THREADS"));
    }

    #[test]
    fn any_other_difference_makes_them_unlike() {
        let of = |spec: &WireSpec, program: &str| Like::of(&order(0), spec, Path::new(program)).unwrap();
        let usual = spec(["python", "train.py", "a"]);
        let changes: [&dyn Fn(&mut WireSpec); 5] = [
            &|spec| drop(spec.env.insert("DATA".into(), "/other".into())),
            &|spec| drop(spec.env.remove("DATA")),
            &|spec| spec.cwd = "/tmp".into(),
            &|spec| spec.argv[1] = "other.py".into(),
            &|spec| spec.nice = 1,
        ];
        for change in changes {
            let mut changed = usual.clone();
            change(&mut changed);
            assert_ne!(of(&usual, "/bin/python"), of(&changed, "/bin/python"));
        }
        assert_ne!(of(&usual, "/bin/python"), of(&usual, "/other/python"));
    }

    #[test]
    fn services_and_ranks_of_unknown_thread_count_have_no_standbys() {
        let mut usual = spec(["python", "train.py", "a"]);
        let service = WireOrder { proc: ProcId::service(crate::job::Name::new("store"), 1), ..order(0) };
        let placed = WireOrder { cpus: Some(vec![0]), ..order(0) };
        let program = Path::new("/bin/python");
        assert_eq!(Like::of(&service, &usual, program), None);
        assert!(Like::of(&placed, &usual, program).is_some());
        usual.env.remove("OMP_NUM_THREADS");
        assert_eq!(Like::of(&placed, &usual, program), None);
    }
}

//! Jobs configured for MindCluster: every key in every place, what is allowed, the ranks' environment, and the
//! warnings.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod allowed;
mod bytes;
mod environment;
mod files;
mod keys;
mod ladder;
mod warnings;

use taskd_core::job::{JobSpec, Name, Permission, WorkerSpec};
use taskd_core::recover::{self, RecoveryStrategy};
use taskd_hw_ascend::mindcluster::{Configured, Sources, WarningKind};

fn spec() -> JobSpec {
    JobSpec::new("job", 2, WorkerSpec::new(["python", "train.py"]))
}

/// A job of these annotations.
fn noted(annotations: &[(&str, &str)]) -> JobSpec {
    annotations.iter().fold(spec(), |spec, (name, value)| spec.with_annotation(*name, *value))
}

fn sources(spec: &JobSpec) -> Sources {
    Sources::of(spec, &recover::defaults())
}

fn configured(annotations: &[(&str, &str)]) -> Configured {
    sources(&noted(annotations)).configured()
}

fn names(strategies: &[Box<dyn RecoveryStrategy>]) -> Vec<Name> {
    strategies.iter().map(|strategy| strategy.name()).collect()
}

/// The strategies of the usual ladder that a job may use once it is configured, from cheap to dear.
fn allowed_in(spec: &JobSpec, configured: &Configured) -> Vec<String> {
    let mut spec = spec.clone();
    configured.apply(&mut spec);
    let names = names(&recover::defaults());
    let allowed = names.iter().filter(|name| spec.policy.permission(name) != Permission::Never);
    allowed.map(ToString::to_string).collect()
}

fn allowed(configured: &Configured) -> Vec<String> {
    allowed_in(&spec(), configured)
}

const ALL: [&str; 9] =
    ["retry", "recover-in-place", "recover", "shrink", "grow", "dump", "restart", "dump-exit", "exit"];
const WHOLE: [&str; 2] = ["restart", "exit"];

fn warned(configured: &Configured, kind: WarningKind) -> Vec<String> {
    let of_kind = configured.warnings().iter().filter(|warning| warning.kind == kind);
    of_kind.map(ToString::to_string).collect()
}

//! What is written for other programs: jobs, events and reports as JSON, with their schemas, in every released version.
//!
//! `TASKD_RECORD=1 cargo test -p taskd-core --test documents` writes the schemas again, and the recorded documents of a
//! version that has none yet. Recorded documents are never written again: later versions have to read them.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

mod environment;
mod validator;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use taskd_core::detect::{Damage, Evidence, Fault, FaultClass, Suspect};
use taskd_core::job::*;
use taskd_core::journal::{Entry, History};
use taskd_core::kernel::Effect;
use taskd_core::kernel::{Event, JobReport, Kernel, Plugins};
use taskd_core::runtime::TimestampedEvent;
use taskd_core::runtime::control::{PROTOCOL_VERSION, Request};
use taskd_core::schema;
use taskd_core::secrets::SecretNames;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn recorded(name: &str) -> PathBuf {
    home().join("tests/recorded").join(name)
}

fn recording() -> bool {
    std::env::var_os("TASKD_RECORD").is_some()
}

/// The recorded file of this name, which is made if it is to be recorded and is not there.
fn recording_of(name: &str, make: impl FnOnce() -> String) -> String {
    let path = recorded(name);
    if recording() && !path.exists() {
        std::fs::write(&path, make()).unwrap();
    }
    std::fs::read_to_string(&path).unwrap()
}

fn schema_of(name: &str) -> Value {
    let (_, schema) = schema::all().into_iter().find(|(n, _)| *n == name).unwrap();
    schema.to_value()
}

#[test]
fn the_schema_files_are_what_the_types_give() {
    for (name, schema) in schema::all() {
        let path = home().join(format!("schema/{name}.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if recording() {
            std::fs::write(&path, &text).unwrap();
        }
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(file == text, "{} is outdated: write it again as described at the head of this file", path.display());
    }
}

/// Reads a recorded document, and requires that nothing that stands in it is lost, and that it is of its schema.
fn keeps<T: DeserializeOwned + Serialize>(text: &str, schema: &Value) -> T {
    let document: Value = serde_json::from_str(text).unwrap();
    validator::check(schema, &document).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let read: T = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let again = serde_json::to_value(&read).unwrap();
    validator::check(schema, &again).unwrap();
    contains(&again, &document).unwrap_or_else(|place| panic!("{place} was lost of {text}"));
    read
}

/// Whether everything in `part` stands in `whole`; else where it does not.
fn contains(whole: &Value, part: &Value) -> Result<(), String> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part.iter().try_for_each(|(key, value)| {
            let there = whole.get(key).ok_or_else(|| format!("/{key}"))?;
            contains(there, value).map_err(|place| format!("/{key}{place}"))
        }),
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            whole.iter().zip(part).try_for_each(|(whole, part)| contains(whole, part))
        }
        _ if whole == part => Ok(()),
        _ => Err(format!(": {part}")),
    }
}

/// A job with a value of its own everywhere.
fn elaborate() -> JobSpec {
    let worker = WorkerSpec::new(["python", "train.py"])
        .with_env("A", "b")
        .with_inherit(InheritEnv::Only(["PATH".to_owned()].into()))
        .with_cwd("/data")
        .with_nice(5)
        .with_affinity(Affinity::Cpus([0, 2].into()));
    let group = |kind, ranks: [u32; 2]| (GroupId { kind, index: 0 }, ranks.map(Rank).to_vec());
    let groups = [group(GroupKind::Tp, [0, 1]), group(GroupKind::Other(Name::new("moe")), [1, 3])];
    let mut policy = Policy::default();
    policy.strategies = BTreeMap::from([(Name::new("restart"), Permission::Never)]);
    policy.default_permission = Permission::Ask;
    policy.mode = Mode::DryRun;
    policy.node_removals = RemovalCap { nodes_max: 1, within: Duration::from_secs(86_400) };
    policy.correlation_window = Duration::from_millis(35);
    policy.budget = BudgetSpec { recoveries_max: 3, refill_every: Duration::from_secs(7200) };
    policy.max_attempts = 5;
    policy.termination_grace_period = Duration::from_millis(2500);
    policy.ready = Ready::Stepping;
    policy.start_timeout = Duration::from_secs(90);
    policy.suspend_threshold = Duration::from_secs(3);
    policy.no_restart_exit_code = 66;
    let nodes = ["node-0", "node-1"].map(|name| NodeId(Name::new(name)));
    JobSpec::new("demo", 4, worker).with_groups(groups.into()).with_nodes(nodes).with_policy(policy)
}

#[test]
fn a_job_comes_back_from_json_and_is_of_its_schema() {
    let schema = schema_of("job-spec");
    let plain = JobSpec::new("plain", 1, WorkerSpec::new(["true"]));
    let mut noted = plain.clone().with_annotation("queue", "gold");
    noted.secrets = SecretNames::default().with("licence").without("SORT_KEY");
    noted.policy.reasons = BTreeMap::from([(Name::new("restart"), "it takes too long".to_owned())]);
    for spec in [elaborate(), plain, noted] {
        let json = spec.to_json().unwrap();
        assert_eq!(JobSpec::from_json(&json).unwrap(), spec, "{json}");
        validator::check(&schema, &serde_json::from_str(&json).unwrap()).unwrap();
    }
}

#[test]
fn the_smallest_job_is_a_name_a_number_and_a_program() {
    let text = r#"{"name": "demo", "ranks": 4, "worker": {"argv": ["python", "train.py"]}}"#;
    let spec = JobSpec::from_json(text).unwrap();
    assert_eq!(spec, JobSpec::new("demo", 4, WorkerSpec::new(["python", "train.py"])));
    assert_eq!(spec.problems(), []);
    validator::check(&schema_of("job-spec"), &serde_json::from_str(text).unwrap()).unwrap();
}

#[test]
fn a_group_that_would_come_back_as_another_is_a_problem_of_the_job() {
    for kind in ["tp", ""] {
        let group = GroupId { kind: GroupKind::Other(Name::new(kind)), index: 0 };
        let spec = JobSpec::new("demo", 1, WorkerSpec::new(["true"])).with_groups([(group, vec![Rank(0)])].into());
        assert_eq!(spec.problems().len(), 1, "{:?}", spec.problems());
        assert!(spec.problems()[0].to_string().starts_with("groups must have a kind with a name"));
    }
}

#[test]
fn a_job_that_cannot_be_read_is_refused_with_what_to_do() {
    let refusals = [
        (r#"{"version": 3, "gpus": 8}"#, "the job has format version 3, this program reads up to 2: use a"),
        (r#"{"version": 0}"#, "the job has format version 0"),
        (r#"{"name": "a", "rank": 4}"#, "unknown field `rank`, expected one of `version`, `name`, `ranks`"),
        (r#"{"worker": {"args": []}}"#, "unknown field `args`, expected one of `argv`, `env`"),
        (r#"{"policy": {"grace": 1}}"#, "unknown field `grace`, expected one of `strategies`"),
        (
            r#"{"policy": {"ready": "soon"}}"#,
            "unknown variant `soon`, expected one of `accepted`, `running`, `stepping`",
        ),
        (r#"{"policy": {"termination_grace_period": "soon"}}"#, "expected a duration such as \"90s\""),
        (r#"{"groups": {"tp-0": []}}"#, "\"tp-0\" is not a group: write its kind and its index"),
        (r#"{"name": "a", "ranks": 1}"#, "missing field `worker`"),
        (r#"{"name": "#, "EOF while parsing a value at line 1 column 9"),
        ("[]", "the job cannot be read"),
    ];
    for (text, sentence) in refusals {
        let error = JobSpec::from_json(text).unwrap_err().to_string();
        assert!(error.contains(sentence), "{text}: {error}");
    }
}

#[test]
fn the_recorded_jobs_of_every_version_are_read() {
    for version in 1..=SPEC_VERSION {
        let text = recording_of(&format!("job-spec-{version}.json"), || elaborate().to_json().unwrap() + "\n");
        if version == SPEC_VERSION {
            validator::check(&schema_of("job-spec"), &serde_json::from_str(&text).unwrap()).unwrap();
        }
        assert_eq!(JobSpec::from_json(&text).unwrap(), elaborate());
    }
}

/// All events that the recorded log holds, and those that its job does not have.
fn events() -> Vec<TimestampedEvent> {
    let history = History::open(&recorded("journal-2")).unwrap();
    let steps = history.latest().unwrap().steps(Seq(0));
    let announced = steps.flat_map(|entry| {
        let Entry::Step(step) = entry else { panic!("{entry:?}") };
        let events = step.commands.unwrap().into_iter().filter_map(|command| match command.effect {
            Effect::Publish(event) => Some(*event),
            _ => None,
        });
        events.map(move |event| TimestampedEvent { at: step.now, wall: None, event }).collect::<Vec<_>>()
    });
    let (incident, strategy, reason) = (IncidentId(7), Name::new("restart"), "it was so".to_owned());
    let others = [
        Event::Cancelled { incident, strategy: strategy.clone(), reason: reason.clone() },
        Event::Failed { incident, strategy, reason },
        Event::Merged { incident, into: IncidentId(3) },
    ];
    let others = others.map(|event| TimestampedEvent { at: JobTime::from_nanos(99), wall: None, event });
    announced.chain(others).collect()
}

#[test]
fn the_recorded_events_are_read() {
    let text = recording_of("events-2.jsonl", || {
        events().iter().map(|event| serde_json::to_string(event).unwrap() + "\n").collect()
    });
    let schema = schema_of("timestamped-event");
    let read: Vec<TimestampedEvent> = text.lines().map(|line| keeps(line, &schema)).collect();
    let earlier = std::fs::read_to_string(recorded("announcements-1.jsonl")).unwrap();
    let earlier: Vec<TimestampedEvent> = earlier.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(earlier, read, "in the words of an earlier version");
    assert!(read.len() > 30, "{}", read.len());
    for kind in ["found", "decided", "cancelled", "stage-done", "failed", "closed", "merged", "entered"] {
        assert!(text.contains(&format!("\"event\":{{\"{kind}\"")), "{kind} is among them");
    }
}

#[test]
fn the_recorded_reports_are_read() {
    let text = recording_of("job-report-2.json", || serde_json::to_string_pretty(&report()).unwrap() + "\n");
    let report: JobReport = keeps(&text, &schema_of("job-report"));
    let earlier = std::fs::read_to_string(recorded("job-report-1.json")).unwrap();
    assert_eq!(serde_json::from_str::<JobReport>(&earlier).unwrap().incidents.len(), report.incidents.len());
    assert!(report.incidents.len() > 2 && report.incidents[1].blamed.contains(&Rank(1)), "{report:?}");
}

/// The report of the recorded job, as its last snapshot has it.
fn report() -> JobReport {
    let history = History::open(&recorded("journal-2")).unwrap();
    let life = history.latest().unwrap();
    let snapshot = life.snapshot(life.snapshots().next_back().unwrap()).unwrap().unwrap();
    let (kernel, _) = Kernel::restore(Plugins::default(), &snapshot).unwrap();
    kernel.report()
}

/// Each is a line that a client of this version of the protocol may send.
#[test]
fn the_recorded_requests_are_read() {
    let earlier = std::fs::read_to_string(recorded("control-requests-1.jsonl")).unwrap();
    let parse = |line: &str| Request::parse(line.as_bytes()).unwrap_or_else(|e| panic!("{e:?}: {line}"));
    let text = recording_of("control-requests-2.jsonl", || {
        let current = earlier.lines().map(|line| Request { v: PROTOCOL_VERSION, ..parse(line) });
        current.map(|request| serde_json::to_string(&request).unwrap() + "\n").collect()
    });
    for (earlier, current) in earlier.lines().map(parse).zip(text.lines().map(parse)) {
        assert_eq!(Request { v: PROTOCOL_VERSION, ..earlier }, current);
    }
    let schema = schema_of("control-request");
    for line in text.lines() {
        let request = Request::parse(line.as_bytes()).unwrap_or_else(|e| panic!("{e:?}: {line}"));
        let (document, again) = (serde_json::from_str(line).unwrap(), serde_json::to_value(&request).unwrap());
        for value in [&document, &again] {
            validator::check(&schema, value).unwrap_or_else(|e| panic!("{e}: {value}"));
        }
        contains(&again, &document).unwrap_or_else(|place| panic!("{place} was lost of {line}"));
    }
    assert!(text.lines().count() > 15);
}

/// The names of all classes: those of the type, those that a client of the control socket can write, and those that its
/// documentation lists are the same.
#[test]
fn a_class_of_fault_has_one_name_everywhere() {
    let schema = schema_of("control-request");
    let classes = schema_of("timestamped-event")["$defs"]["FaultClass"]["oneOf"].clone();
    let of_type: Vec<String> =
        classes.as_array().unwrap().iter().filter_map(|class| Some(class["const"].as_str()?.to_owned())).collect();
    assert_eq!(FaultClass::BUILT_IN.map(|class| class.to_string()).to_vec(), of_type);
    let description = schema["$defs"]["FaultReport"]["properties"]["class"]["description"].as_str().unwrap();
    let listed: Vec<&str> = description.split('`').skip(1).step_by(2).collect();
    assert_eq!(listed, of_type);
}

#[test]
fn a_fault_comes_back_from_json() {
    let suspect = Suspect::certain(Domain::Device(NodeId(Name::new("n")), 3), FaultClass::Device, Damage::default());
    let fault = Fault::new(Name::new("dcgm"), JobTime::from_nanos(5), suspect)
        .with_suspect(Suspect::victim(
            Domain::Process(Role::Rank(Rank(2))),
            FaultClass::Other(Name::new("odd")),
            Damage::PROCESS_GONE,
        ))
        .with_evidence(Evidence::figure("temperature", 97.5, 60.0, "hot"));
    let value = serde_json::to_value(&fault).unwrap();
    assert_eq!(value["suspects"][0]["domain"], json!({"device": ["n", 3]}));
    assert_eq!(value["suspects"][1]["class"], json!({"other": "odd"}));
    assert_eq!(serde_json::from_value::<Fault>(value).unwrap(), fault);
}

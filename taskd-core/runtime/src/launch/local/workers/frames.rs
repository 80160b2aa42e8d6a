//! The messages between a training process and its supervisor, version 1.
//!
//! This module defines formats and validates them; a process is never trusted. A frame is its length (`u32`, little
//! endian) and that many bytes of JSON, as between guard and owner. Unknown fields are ignored, so that a later version
//! can add fields.
//!
//! | from the process | |
//! |---|---|
//! | `{"hello": {"version": 1, "proc": "rank-2.5", "pid": 7, "generation": 1, "framework": "pytorch", "capabilities": [..], "position": "in-loop"}}` | the first message, on every new connection |
//! | `{"position": {"now": "in-loop", "unsupported_reason": "..", "sharded": ["optimizer"]}}` | its position changed, or its limits: why it cannot be kept, and the state of which no other process has a copy, both as in its hello |
//! | `{"failed": {"kind": "collective", "step": 41, "message": ".."}}` | a failure; the process waits |
//! | `{"digest": {"loop": 1, "step": 64, "digest": "9f..", "group": "3c..", "took_us": 310}}` | the checksum of its parameters and optimizer state at the start of a step |
//! | `{"in-memory-checkpoint": {"generation": 1, "number": 3, "at": 60, "of": {"made_in": 1, "step": 60}, "whole": true, "bytes": 4096}}` | a copy of its state is in memory, or was skipped |
//! | `{"reply": {"id": 7, "ok": {"state": {..}, "joined_ms": 7.1}}}` or `{"reply": {"id": 7, "error": ".."}}` | the reply to a directive |
//!
//! | to the process | |
//! |---|---|
//! | `{"welcome": {"version": 1, "mode": "train"}}` | the answer to its hello |
//! | `{"do": {"id": 7, "generation": 2, "what": {"abort": {}}}}` | a [`Directive`] |

use crate::job::{CommandId, Generation, Name, printable};
use crate::launch::{
    CheckpointShard, ControlLink, Directive, DirectiveReply, FIGURES_MAX, FailureKind, InMemoryCheckpoint,
    LoopPosition, StateDigest, WorkerState,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The protocol version that this program supports.
pub(super) const VERSION: u32 = 1;
/// Maximum length of a frame in either direction, in bytes.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 20;
/// Maximum length of a process's text that is written to the log, in characters.
const TEXT_CHARS_MAX: usize = 2048;
/// Maximum number of directives that a process may list as capabilities.
const CAPABILITIES_MAX: usize = 64;
/// Maximum number of names of unreplicated state that are kept per process: one is enough to know that such state
/// exists.
const SHARDED_MAX: usize = 16;

/// A message from a training process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FromWorker {
    Hello(Hello),
    Position {
        now: LoopPosition,
        #[serde(default)]
        state_bytes: Option<u64>,
        #[serde(flatten)]
        limits: Limits,
    },
    Failed(Failed),
    Reply(Reply),
    InMemoryCheckpoint(InMemoryCheckpoint),
    Digest(StateDigest),
}

/// The identification of a process.
#[derive(Debug, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) proc: String,
    generation: Generation,
    framework: Name,
    #[serde(default)]
    capabilities: Vec<Name>,
    position: LoopPosition,
    #[serde(default)]
    state_bytes: Option<u64>,
    #[serde(default)]
    digest: Option<StateDigest>,
    #[serde(flatten)]
    limits: Limits,
}

/// Recoveries in which the process cannot take part, as far as it knows.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Limits {
    #[serde(default)]
    unsupported_reason: Option<String>,
    #[serde(default)]
    sharded: Vec<String>,
}

impl Limits {
    pub(super) fn unsupported_reason(&self) -> Option<String> {
        self.unsupported_reason.as_deref().map(shortened)
    }

    pub(super) fn sharded(&self) -> Vec<String> {
        self.sharded.iter().take(SHARDED_MAX).map(|name| shortened(name)).collect()
    }
}

impl Hello {
    pub(super) fn linked(&self) -> ControlLink {
        ControlLink::new(self.generation, self.framework.clone(), self.position)
            .with_capabilities(self.capabilities.iter().take(CAPABILITIES_MAX).cloned().collect())
            .with_state_bytes(self.state_bytes)
            .with_unsupported_reason(self.limits.unsupported_reason())
            .with_sharded(self.limits.sharded())
            .with_digest(self.digest.clone().filter(StateDigest::is_sound).map(Box::new))
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Failed {
    pub(super) kind: FailureKind,
    #[serde(default)]
    pub(super) step: Option<u64>,
    #[serde(default)]
    message: String,
    #[serde(default)]
    op: Option<String>,
    #[serde(default)]
    group: Option<String>,
}

impl Failed {
    pub(super) fn message(&self) -> String {
        shortened(&self.message)
    }

    pub(super) fn op(&self) -> Option<String> {
        self.op.as_deref().map(shortened)
    }

    pub(super) fn group(&self) -> Option<String> {
        self.group.as_deref().map(shortened)
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Reply {
    pub(super) id: CommandId,
    #[serde(default)]
    ok: Option<Well>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Well {
    #[serde(default)]
    state: Option<WorkerState>,
    #[serde(default)]
    shard: Option<CheckpointShard>,
    #[serde(default)]
    digest: Option<StateDigest>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

impl Reply {
    /// Returns the result of the directive.
    pub(super) fn result(self) -> Result<Box<DirectiveReply>, String> {
        match (self.ok, self.error) {
            (_, Some(error)) => Err(shortened(&error)),
            (Some(Well { shard: Some(shard), .. }), None) if !shard.is_sound() => {
                Err(shortened(&format!("its report of the file {} that it wrote is invalid", shard.file)))
            }
            (Some(Well { state, shard, digest, others }), None) => {
                let figures = others.into_iter().filter_map(|(name, value)| Some((Name::from(name), value.as_f64()?)));
                let digest = digest.filter(StateDigest::is_sound);
                Ok(Box::new(
                    DirectiveReply::default()
                        .with_state(state)
                        .with_figures(figures.take(FIGURES_MAX).collect())
                        .with_shard(shard)
                        .with_digest(digest),
                ))
            }
            (None, None) => Err("its answer has neither a result nor an error".into()),
        }
    }
}

/// A message to a training process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ToWorker<'a> {
    /// The answer to hello. A process that joins others has that information from its environment.
    Welcome {
        version: u32,
        mode: &'static str,
    },
    Do {
        id: CommandId,
        generation: Generation,
        what: &'a Directive,
    },
}

pub(super) fn shortened(text: &str) -> String {
    printable(text).chars().take(TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_an_answer_are_kept_and_everything_else_is_passed_over() {
        let text = r#"{"reply": {"id": 7, "ok": {"joined_ms": 7.5, "abandoned": 1, "note": "x", "state": {"step": 3,
            "committed": 2, "window": "before", "later": true}}}}"#;
        let FromWorker::Reply(answer) = serde_json::from_str(text).unwrap() else { panic!("an answer") };
        assert_eq!(answer.id, CommandId(7));
        let answered = answer.result().unwrap();
        assert_eq!(answered.figures, [(Name::new("abandoned"), 1.0), (Name::new("joined_ms"), 7.5)].into());
        assert_eq!(answered.state.unwrap().committed, Some(2));
    }

    #[test]
    fn sharded_objects_are_reported_within_bounds_in_hello_or_later() {
        let hello = |sharded: &str| -> Hello {
            let text = format!(
                r#"{{"version": 1, "proc": "x", "generation": 1, "framework": "f", "position": "in-loop"{sharded}}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        assert!(hello("").linked().sharded.is_empty());
        assert_eq!(hello(r#", "sharded": ["optimizer"]"#).linked().sharded, ["optimizer"]);
        let many = format!(r#", "sharded": [{}"y"]"#, format!(r#""{}", "#, "x".repeat(10_000)).repeat(100));
        let many = hello(&many).linked().sharded;
        assert!(many.len() == SHARDED_MAX && many.iter().all(|name| name.len() == TEXT_CHARS_MAX));
        let later = r#"{"position": {"now": "in-loop", "sharded": ["model"]}}"#;
        let FromWorker::Position { limits, .. } = serde_json::from_str(later).unwrap() else { panic!("{later}") };
        assert_eq!(limits.sharded(), ["model"]);
    }

    #[test]
    fn an_answer_without_a_result_is_an_error_and_a_long_sentence_is_cut() {
        let answer = |text| -> Reply { serde_json::from_str(text).unwrap() };
        assert!(answer(r#"{"id": 1}"#).result().is_err());
        let long = format!(r#"{{"id": 1, "error": "{}"}}"#, "x".repeat(10_000));
        let long: Reply = serde_json::from_str(&long).unwrap();
        assert_eq!(long.result().unwrap_err().chars().count(), TEXT_CHARS_MAX);
    }

    #[test]
    fn a_part_that_was_written_is_a_plain_name_with_a_check_sum() {
        let result = |file: &str| {
            let digits = "0a".repeat(32);
            let part = format!(r#"{{"file": "{file}", "bytes": 9, "sha256": "{digits}"}}"#);
            let answer = format!(r#"{{"id": 1, "ok": {{"shard": {part}, "saved_ms": 2.5}}}}"#);
            serde_json::from_str::<Reply>(&answer).unwrap().result()
        };
        let answered = result("set-0.part-1-of-2.pt").unwrap();
        assert_eq!((answered.shard.unwrap().bytes, answered.figures.len()), (9, 1));
        for file in ["", "../set-0.pt", ".hidden", &"x".repeat(1000)] {
            assert!(result(file).unwrap_err().contains("is invalid"), "{file}");
        }
    }

    /// The other end is implemented in Python (`taskd/_session.py`, `_frames.py`, `_attempt.py`).
    #[test]
    fn both_ends_of_the_link_have_the_same_words() {
        use crate::launch::Window;
        use std::collections::BTreeSet;
        use taskd_core::testing::python::{evaluated, texts, variants};
        let theirs = evaluated(
            &[],
            "from taskd import _attempt, _frames, _session as s\n\
             print(json.dumps([_frames.VERSION, _frames.FRAME_BYTES_MAX, s.CAPABILITIES, list(s.DIRECTIVES), \
             [s.BEFORE_LOOP, s.IN_LOOP, s.PARKED], [s.TRAIN, s.JOIN], [_attempt.BEFORE, _attempt.TORN]]))",
        );
        assert_eq!((&theirs[0], &theirs[1]), (&VERSION.into(), &FRAME_BYTES_MAX.into()));
        let is_current = |name: &String| crate::state::current_name(&Name::from(name.clone())) == **name;
        let directives: BTreeSet<String> = variants::<Directive>().into_iter().filter(is_current).collect();
        assert_eq!(texts(&theirs[2]), directives);
        let mut and_exit = directives; // which comes as a signal as well
        and_exit.insert("exit".into());
        assert_eq!(texts(&theirs[3]), and_exit);
        let positions = [LoopPosition::BeforeLoop, LoopPosition::InLoop, LoopPosition::Parked];
        let positions = positions.map(|position| serde_json::to_value(position).unwrap().as_str().unwrap().to_owned());
        assert_eq!(texts(&theirs[4]), positions.into());
        assert!(texts(&theirs[5]).contains("train"), "the mode of a welcome");
        let windows = variants::<Window>();
        assert!(texts(&theirs[6]).is_subset(&windows), "{} of {windows:?}", theirs[6]);
    }

    #[test]
    fn directives_have_the_form_that_workers_read() {
        let of = |what: &Directive| {
            serde_json::to_string(&ToWorker::Do { id: CommandId(7), generation: Generation(2), what }).unwrap()
        };
        assert_eq!(of(&Directive::Abort {}), r#"{"do":{"id":7,"generation":2,"what":{"abort":{}}}}"#);
        assert_eq!(
            of(&Directive::Resume { step: 5 }),
            r#"{"do":{"id":7,"generation":2,"what":{"resume":{"step":5}}}}"#
        );
    }
}

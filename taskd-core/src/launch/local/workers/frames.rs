//! What a training process and its supervisor say to each other, version 1.
//!
//! Shapes only; nobody is trusted here. A frame is its length (`u32`, little endian) and that many bytes of JSON, as between
//! guard and owner. Unknown fields are passed over, so that a later version can say more.
//!
//! | from the process | |
//! |---|---|
//! | `{"hello": {"version": 1, "proc": "rank-2.5", "pid": 7, "generation": 1, "framework": "pytorch", "can": [..], "at": "loop"}}` | first of all, and after every new connection |
//! | `{"at": {"point": "loop", "cannot": "..", "sharded": ["optimizer"]}}` | it stands elsewhere now, or knows more of what it cannot do: why it cannot be kept, and what no other process has a copy of, both as in its hello |
//! | `{"failed": {"kind": "collective", "step": 41, "message": ".."}}` | something failed, and it waits |
//! | `{"digest": {"loop": 1, "step": 64, "digest": "9f..", "group": "3c..", "took_us": 310}}` | the checksum of its parameters and optimizer state at the start of a step |
//! | `{"memory": {"generation": 1, "number": 3, "at": 60, "of": {"made_in": 1, "step": 60}, "whole": true, "bytes": 4096}}` | a copy of its state is in memory, or was left out |
//! | `{"answer": {"id": 7, "ok": {"state": {..}, "joined_ms": 7.1}}}` or `{"answer": {"id": 7, "error": ".."}}` | to a directive |
//!
//! | to the process | |
//! |---|---|
//! | `{"welcome": {"version": 1, "mode": "train"}}` | the answer to its hello |
//! | `{"do": {"id": 7, "generation": 2, "what": {"give-up": {}}}}` | a [`Directive`] |

use crate::job::{CommandId, Generation, Name, printable};
use crate::launch::{
    Answered, Directive, DumpPart, FIGURES_MAX, FailureKind, Linked, MemoryCopy, Point, StateDigest, WorkerState,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the link that is spoken here.
pub(super) const VERSION: u32 = 1;
/// Longest frame in either direction, in bytes.
pub(super) const FRAME_BYTES_MAX: usize = 1 << 20;
/// Longest sentence of a process that goes into the log, in characters.
const TEXT_CHARS_MAX: usize = 2048;
/// Most directives that a process may say it understands.
const CAN_MAX: usize = 64;
/// Most names of what a process alone holds that are kept of what it says: one is enough to know that there is something.
const SHARDED_MAX: usize = 16;

/// From a training process.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FromWorker {
    Hello(Hello),
    At {
        point: Point,
        #[serde(default)]
        state_bytes: Option<u64>,
        #[serde(flatten)]
        limits: Limits,
    },
    Failed(Failed),
    Answer(Answer),
    Memory(MemoryCopy),
    Digest(StateDigest),
}

/// Who it says that it is.
#[derive(Debug, Deserialize)]
pub(super) struct Hello {
    pub(super) version: u32,
    pub(super) proc: String,
    generation: Generation,
    framework: Name,
    #[serde(default)]
    can: Vec<Name>,
    at: Point,
    #[serde(default)]
    state_bytes: Option<u64>,
    #[serde(default)]
    digest: Option<StateDigest>,
    #[serde(flatten)]
    limits: Limits,
}

/// What of recoveries it cannot take part in, as far as it knows.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Limits {
    #[serde(default)]
    cannot: Option<String>,
    #[serde(default)]
    sharded: Vec<String>,
}

impl Limits {
    pub(super) fn cannot(&self) -> Option<String> {
        self.cannot.as_deref().map(shortened)
    }

    pub(super) fn sharded(&self) -> Vec<String> {
        self.sharded.iter().take(SHARDED_MAX).map(|name| shortened(name)).collect()
    }
}

impl Hello {
    pub(super) fn linked(&self) -> Linked {
        Linked {
            cannot: self.limits.cannot(),
            sharded: self.limits.sharded(),
            generation: self.generation,
            framework: self.framework.clone(),
            can: self.can.iter().take(CAN_MAX).cloned().collect(),
            at: self.at,
            state_bytes: self.state_bytes,
            digest: self.digest.clone().filter(StateDigest::is_sound).map(Box::new),
        }
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
pub(super) struct Answer {
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
    part: Option<DumpPart>,
    #[serde(default)]
    digest: Option<StateDigest>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
}

impl Answer {
    /// What came of the directive.
    pub(super) fn result(self) -> Result<Box<Answered>, String> {
        match (self.ok, self.error) {
            (_, Some(error)) => Err(shortened(&error)),
            (Some(Well { part: Some(part), .. }), None) if !part.is_sound() => {
                Err(shortened(&format!("what it says of the file {} that it wrote cannot be", part.file)))
            }
            (Some(Well { state, part, digest, others }), None) => {
                let figures = others.into_iter().filter_map(|(name, value)| Some((Name::from(name), value.as_f64()?)));
                let digest = digest.filter(StateDigest::is_sound);
                Ok(Box::new(Answered { state, figures: figures.take(FIGURES_MAX).collect(), part, digest }))
            }
            (None, None) => Err("its answer says neither what came of it nor why nothing did".into()),
        }
    }
}

/// To a training process.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ToWorker<'a> {
    /// Who joins others knows it from its environment.
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
        let text = r#"{"answer": {"id": 7, "ok": {"joined_ms": 7.5, "abandoned": 1, "note": "x", "state": {"step": 3,
            "committed": 2, "window": "before", "later": true}}}}"#;
        let FromWorker::Answer(answer) = serde_json::from_str(text).unwrap() else { panic!("an answer") };
        assert_eq!(answer.id, CommandId(7));
        let answered = answer.result().unwrap();
        assert_eq!(answered.figures, [(Name::new("abandoned"), 1.0), (Name::new("joined_ms"), 7.5)].into());
        assert_eq!(answered.state.unwrap().committed, Some(2));
    }

    #[test]
    fn what_is_sharded_is_told_with_the_hello_or_later_within_bounds() {
        let hello = |sharded: &str| -> Hello {
            let text =
                format!(r#"{{"version": 1, "proc": "x", "generation": 1, "framework": "f", "at": "loop"{sharded}}}"#);
            serde_json::from_str(&text).unwrap()
        };
        assert!(hello("").linked().sharded.is_empty());
        assert_eq!(hello(r#", "sharded": ["optimizer"]"#).linked().sharded, ["optimizer"]);
        let many = format!(r#", "sharded": [{}"y"]"#, format!(r#""{}", "#, "x".repeat(10_000)).repeat(100));
        let many = hello(&many).linked().sharded;
        assert!(many.len() == SHARDED_MAX && many.iter().all(|name| name.len() == TEXT_CHARS_MAX));
        let later = r#"{"at": {"point": "loop", "sharded": ["model"]}}"#;
        let FromWorker::At { limits, .. } = serde_json::from_str(later).unwrap() else { panic!("{later}") };
        assert_eq!(limits.sharded(), ["model"]);
    }

    #[test]
    fn an_answer_without_a_result_is_an_error_and_a_long_sentence_is_cut() {
        let answer = |text| -> Answer { serde_json::from_str(text).unwrap() };
        assert!(answer(r#"{"id": 1}"#).result().is_err());
        let long = format!(r#"{{"id": 1, "error": "{}"}}"#, "x".repeat(10_000));
        let long: Answer = serde_json::from_str(&long).unwrap();
        assert_eq!(long.result().unwrap_err().chars().count(), TEXT_CHARS_MAX);
    }

    #[test]
    fn a_part_that_was_written_is_a_plain_name_with_a_check_sum() {
        let result = |file: &str| {
            let digits = "0a".repeat(32);
            let part = format!(r#"{{"file": "{file}", "bytes": 9, "sha256": "{digits}"}}"#);
            let answer = format!(r#"{{"id": 1, "ok": {{"part": {part}, "saved_ms": 2.5}}}}"#);
            serde_json::from_str::<Answer>(&answer).unwrap().result()
        };
        let answered = result("set-0.part-1-of-2.pt").unwrap();
        assert_eq!((answered.part.unwrap().bytes, answered.figures.len()), (9, 1));
        for file in ["", "../set-0.pt", ".hidden", &"x".repeat(1000)] {
            assert!(result(file).unwrap_err().contains("cannot be"), "{file}");
        }
    }

    /// The other end is Python's (`taskd/_session.py`, `_frames.py`, `_loop.py`).
    #[test]
    fn both_ends_of_the_link_have_the_same_words() {
        use crate::launch::Window;
        use crate::testing::python::{evaluated, texts, variants};
        let theirs = evaluated(
            &[],
            "from taskd import _frames, _loop, _session as s\n\
             print(json.dumps([_frames.VERSION, _frames.FRAME_BYTES_MAX, s.CAN, list(s.KINDS), \
             [s.SCRIPT, s.LOOP, s.PARKED], [s.TRAIN, s.JOIN], [_loop.BEFORE, _loop.TORN]]))",
        );
        assert_eq!((&theirs[0], &theirs[1]), (&VERSION.into(), &FRAME_BYTES_MAX.into()));
        let directives = variants::<Directive>();
        assert_eq!(texts(&theirs[2]), directives);
        let mut and_exit = directives; // which comes as a signal as well
        and_exit.insert("exit".into());
        assert_eq!(texts(&theirs[3]), and_exit);
        assert_eq!(texts(&theirs[4]), variants::<Point>());
        assert!(texts(&theirs[5]).contains("train"), "the mode of a welcome");
        let windows = variants::<Window>();
        assert!(texts(&theirs[6]).is_subset(&windows), "{} of {windows:?}", theirs[6]);
    }

    #[test]
    fn directives_have_the_form_that_workers_read() {
        let of = |what: &Directive| {
            serde_json::to_string(&ToWorker::Do { id: CommandId(7), generation: Generation(2), what }).unwrap()
        };
        assert_eq!(of(&Directive::GiveUp {}), r#"{"do":{"id":7,"generation":2,"what":{"give-up":{}}}}"#);
        assert_eq!(
            of(&Directive::Resume { step: 5 }),
            r#"{"do":{"id":7,"generation":2,"what":{"resume":{"step":5}}}}"#
        );
    }
}

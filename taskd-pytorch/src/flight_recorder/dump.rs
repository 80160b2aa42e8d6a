//! One process's dump: its process groups and its latest calls.

use super::value::{Id, Value, Values};
use super::{DETAILS_MAX, DUMP_BYTES_MAX, DumpError, ENTRIES_MAX, FRAMES_MAX, json, pickle};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The flight-recorder dump of one rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dump {
    /// Rank of the process that wrote the dump. The dump itself does not contain it: it is in the name of the file.
    pub rank: u32,
    /// Version of the format, such as `2.10`.
    pub version: String,
    /// Version of the communication library; empty if unknown.
    pub library_version: String,
    /// Process groups that the process knows, by name. The entry of a gloo group has an empty name, and the ranks of
    /// another group, in `torch` 2.15: it is ignored by [`evaluate`](super::evaluate).
    pub groups: BTreeMap<String, GroupConfig>,
    /// State of each process group, by the process's own number of the group ([`Entry::group_id`]). Another process may
    /// use the same number for another group.
    pub status: BTreeMap<i64, GroupStatus>,
    /// The latest calls, oldest first.
    pub entries: Vec<Entry>,
    /// State of each communicator, as the library reports it: fields and values by address.
    pub communicators: BTreeMap<String, BTreeMap<String, String>>,
    /// Number of entries, stack frames and tensor dimensions that were not read, because of a limit or because they are
    /// malformed.
    pub left_out: u64,
}

/// A process group as a process knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupConfig {
    /// Description that the program gave; may be empty.
    pub description: String,
    /// Global ranks of the members, in group order.
    pub ranks: Vec<u32>,
}

/// Numbers of the latest collectives of a process group; `None` if there was none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// Number of the latest collective that the process has called.
    pub enqueued: Option<u64>,
    /// Number of the latest collective that began on the device; gloo does not report it.
    pub started: Option<u64>,
    /// Number of the latest collective that completed.
    pub completed: Option<u64>,
}

/// One function call on the Python stack of an [`Entry`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Name of the function.
    pub function: Arc<str>,
    /// Path of the source file.
    pub file: Arc<str>,
    /// Line in the file, from 1.
    pub line: i64,
}

/// One recorded call of a collective, or of a send or receive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// Number of the record in its process, from 0, without gaps.
    pub record_id: u64,
    /// The process's own number of the process group.
    pub group_id: i64,
    /// Name of the process group, the same in all its members.
    pub group: Arc<str>,
    /// Description of the process group, such as `default_pg`.
    pub description: Arc<str>,
    /// Identifier of the thread that made the call.
    pub thread_id: Arc<str>,
    /// Name of the thread that made the call.
    pub thread_name: Arc<str>,
    /// Number of the collective in its group, the same in all members.
    pub collective_seq: u64,
    /// Number of the latest send or receive of the process in this group.
    pub p2p_seq: u64,
    /// Number of the operation in its group, in this process.
    pub op_id: u64,
    /// Backend and operation, such as `nccl:all_reduce` or `nccl:send 1->2`.
    pub name: Arc<str>,
    /// Time of the call, in nanoseconds since the Unix epoch.
    pub created_ns: i64,
    /// Time at which the start on the device was noticed, in nanoseconds since the Unix epoch, if it was.
    pub started_ns: Option<i64>,
    /// Time at which the completion was noticed, in nanoseconds since the Unix epoch, if it was.
    pub completed_ns: Option<i64>,
    /// Duration on the device in milliseconds, if it was measured.
    pub duration_ms: Option<f64>,
    /// Dimensions of each input tensor.
    pub input_sizes: Vec<Vec<i64>>,
    /// Dimensions of each output tensor.
    pub output_sizes: Vec<Vec<i64>>,
    /// Element types of the input tensors, such as `Float`.
    pub input_dtypes: Vec<Arc<str>>,
    /// Element types of the output tensors.
    pub output_dtypes: Vec<Arc<str>>,
    /// `scheduled`, `started` or `completed`. It stays `scheduled` for gloo.
    pub state: Arc<str>,
    /// True if the process has seen the end of the call.
    pub retired: bool,
    /// Time limit of the call in milliseconds.
    pub timeout_ms: i64,
    /// True for a send or a receive.
    pub is_p2p: bool,
    /// Python stack of the call, innermost function first; empty in JSON dumps.
    pub frames: Arc<[Frame]>,
}

impl Entry {
    /// Returns true if the call has not completed. The state alone does not show it: gloo never changes it.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        !self.retired && self.completed_ns.is_none() && *self.state != *"completed"
    }
}

impl Dump {
    /// Reads a dump in pickle or JSON form.
    ///
    /// # Errors
    /// If the bytes are malformed or too many, contain objects or calls, or are no dump of version 2.
    pub fn parse(rank: u32, bytes: &[u8]) -> Result<Dump, DumpError> {
        if bytes.len() as u64 > DUMP_BYTES_MAX {
            return Err(DumpError::TooLarge { what: "bytes", limit: DUMP_BYTES_MAX });
        }
        let (values, top) = if pickle::is_pickle(bytes) { pickle::read(bytes)? } else { json::read(bytes)? };
        Reader { values: &values, details: 0, left_out: 0, stacks: BTreeMap::new() }.dump(rank, top)
    }

    /// Returns true if older calls than those in [`entries`](Self::entries) were recorded, and are lost.
    #[must_use]
    pub fn is_evicted(&self) -> bool {
        self.entries.first().is_some_and(|first| first.record_id > 0)
    }
}

/// Converts values to a dump, within limits.
struct Reader<'a> {
    values: &'a Values,
    /// Number of stack frames, dimensions and ranks read so far.
    details: usize,
    left_out: u64,
    /// Stacks by the numbers of their frames: calls from the same place share one.
    stacks: BTreeMap<&'a [Id], Arc<[Frame]>>,
}

impl Reader<'_> {
    fn dump(mut self, rank: u32, top: Id) -> Result<Dump, DumpError> {
        let content = |why: &str| DumpError::Content(why.to_owned());
        let values = self.values;
        if !matches!(values.get(top), Value::Dict(_)) {
            return Err(content("the outermost value is no dictionary"));
        }
        let text = |name: &str| values.text(values.field(top, name)).map(|text| text.to_string());
        let version = text("version").ok_or_else(|| content("it has no field `version`"))?;
        if version.split('.').next() != Some("2") {
            return Err(DumpError::Content(format!("its version is {version:?}")));
        }
        let groups = self.groups(values.field(top, "pg_config"));
        let status = values.pairs(values.field(top, "pg_status"));
        let status = status.filter_map(|(id, at)| Some((id.parse().ok()?, self.status(at)))).collect();
        let communicators = self.communicators(values.field(top, "nccl_comm_state"));
        let listed = values.list(values.field(top, "entries"));
        let skipped = listed.len().saturating_sub(ENTRIES_MAX);
        self.left_out += skipped as u64;
        let mut entries: Vec<Entry> = Vec::new();
        for at in listed.iter().skip(skipped) {
            match self.entry(*at) {
                Some(entry) => entries.push(entry),
                None => self.left_out += 1,
            }
        }
        entries.sort_by_key(|entry| entry.record_id); // only malformed dumps are not sorted
        let library_version = text("comm_lib_version").unwrap_or_default();
        let left_out = self.left_out;
        Ok(Dump { rank, version, library_version, groups, status, entries, communicators, left_out })
    }

    /// Returns true if `count` more details may be read; counts them as left out otherwise.
    fn may_read(&mut self, count: usize) -> bool {
        let is_allowed = self.details.saturating_add(count) <= DETAILS_MAX;
        match is_allowed {
            true => self.details += count,
            false => self.left_out += count as u64,
        }
        is_allowed
    }

    fn groups(&mut self, id: Option<Id>) -> BTreeMap<String, GroupConfig> {
        let mut groups = BTreeMap::new();
        for (name, at) in self.values.pairs(id) {
            let description = self.string(at, "desc");
            let ranks = self.values.field(at, "ranks").map(|ranks| self.ranks(ranks)).unwrap_or_default();
            groups.insert(name.to_string(), GroupConfig { description, ranks });
        }
        groups
    }

    /// Reads a list of ranks, or a text such as `[0, 1]`.
    fn ranks(&mut self, id: Id) -> Vec<u32> {
        let values = self.values;
        let Value::Text(text) = values.get(id) else {
            let listed = values.list(Some(id));
            let read = if self.may_read(listed.len()) { listed } else { &[] };
            return read.iter().filter_map(|rank| u32::try_from(values.int(Some(*rank))?).ok()).collect();
        };
        if !self.may_read(text.len()) {
            return Vec::new();
        }
        let words = text.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
        words.filter_map(|word| word.parse().ok()).collect()
    }

    fn status(&self, id: Id) -> GroupStatus {
        let number = |name: &str| u64::try_from(self.values.int(self.values.field(id, name))?).ok();
        GroupStatus {
            enqueued: number("last_enqueued_collective"),
            started: number("last_started_collective"),
            completed: number("last_completed_collective"),
        }
    }

    fn communicators(&mut self, id: Option<Id>) -> BTreeMap<String, BTreeMap<String, String>> {
        let mut communicators = BTreeMap::new();
        for (name, at) in self.values.pairs(id) {
            let mut fields = BTreeMap::new();
            for (field, value) in self.values.pairs(Some(at)) {
                if !self.may_read(1) {
                    break;
                }
                fields.insert(field.to_string(), self.values.text(Some(value)).unwrap_or_default().to_string());
            }
            communicators.insert(name.to_string(), fields);
        }
        communicators
    }

    /// Reads an entry; `None` if it has no name, group or state.
    fn entry(&mut self, id: Id) -> Option<Entry> {
        let values = self.values;
        let field = |name: &str| values.field(id, name);
        let int = |name: &str| values.int(field(name));
        let count = |name: &str| int(name).and_then(|number| u64::try_from(number).ok()).unwrap_or_default();
        let text = |name: &str| values.text(field(name)).unwrap_or_default();
        let time = |name: &str| int(name).filter(|time| *time > 0); // JSON dumps contain 0 for an unknown time
        let group = values.list(field("process_group"));
        Some(Entry {
            record_id: count("record_id"),
            group_id: int("pg_id").unwrap_or_default(),
            group: values.text(Some(*group.first()?))?,
            description: values.text(group.get(1).copied()).unwrap_or_default(),
            thread_id: text("thread_id"),
            thread_name: text("thread_name"),
            collective_seq: count("collective_seq_id"),
            p2p_seq: count("p2p_seq_id"),
            op_id: count("op_id"),
            name: values.text(field("profiling_name"))?,
            created_ns: int("time_created_ns").unwrap_or_default(),
            started_ns: time("time_discovered_started_ns"),
            completed_ns: time("time_discovered_completed_ns"),
            duration_ms: values.float(field("duration_ms")),
            input_sizes: self.sizes(field("input_sizes")),
            output_sizes: self.sizes(field("output_sizes")),
            input_dtypes: self.texts(field("input_dtypes")),
            output_dtypes: self.texts(field("output_dtypes")),
            state: values.text(field("state"))?,
            retired: values.bool(field("retired")).unwrap_or_default(),
            timeout_ms: int("timeout_ms").unwrap_or_default(),
            is_p2p: values.bool(field("is_p2p")).unwrap_or_default(),
            frames: self.frames(field("frames")),
        })
    }

    fn sizes(&mut self, id: Option<Id>) -> Vec<Vec<i64>> {
        let mut sizes = Vec::new();
        for tensor in self.values.list(id) {
            let dimensions = self.values.list(Some(*tensor));
            if self.may_read(1 + dimensions.len()) {
                sizes.push(dimensions.iter().filter_map(|at| self.values.int(Some(*at))).collect());
            }
        }
        sizes
    }

    fn texts(&mut self, id: Option<Id>) -> Vec<Arc<str>> {
        let listed = self.values.list(id);
        let read = if self.may_read(listed.len()) { listed } else { &[] };
        read.iter().filter_map(|at| self.values.text(Some(*at))).collect()
    }

    fn frames(&mut self, id: Option<Id>) -> Arc<[Frame]> {
        let values = self.values;
        let listed = values.list(id);
        self.left_out += listed.len().saturating_sub(FRAMES_MAX) as u64;
        let read = &listed[..listed.len().min(FRAMES_MAX)];
        if let Some(known) = self.stacks.get(read) {
            return Arc::clone(known);
        }
        if !self.may_read(read.len()) {
            return Arc::default();
        }
        let text = |at: Id, name: &str| values.text(values.field(at, name)).unwrap_or_default();
        let frame = |at: &Id| Frame {
            function: text(*at, "name"),
            file: text(*at, "filename"),
            line: values.int(values.field(*at, "line")).unwrap_or_default(),
        };
        let stack: Arc<[Frame]> = read.iter().map(frame).collect();
        self.stacks.insert(read, Arc::clone(&stack));
        stack
    }

    fn string(&self, id: Id, name: &str) -> String {
        self.values.text(self.values.field(id, name)).unwrap_or_default().to_string()
    }
}

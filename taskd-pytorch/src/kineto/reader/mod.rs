//! Whole traces in the common model, for analyses that need single events.

mod communication;
mod resources;
mod spans;

use super::classify;
use super::document::{self, Document, Sink};
use super::event::{RawEvent, step_number};
use super::files::{self, KinetoError, Part};
use super::{classify::Device, decimal};
use communication::Communications;
use resources::Samples;
use spans::Category;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use taskd_core::analysis::model::{Event, Kind, Missing, Names, RankTrace, StepSpan, Trace};

/// Events of one rank that are kept, of 40 bytes each. Further events are counted in [`RankTrace::lost`] and reported.
pub const EVENTS_MAX: usize = 20_000_000;

/// Begin events without their end that are kept per rank.
const OPEN_MAX: usize = 100_000;

/// Times from this one on are counted from 1970, not from the time zero of the file: traces before PyTorch 2.2 have
/// microseconds since 1970. The value is the year 2001.
const SINCE_1970_NS: i64 = 1_000_000_000_000_000_000;

/// Reads all trace files in a directory (`*.json`, `*.json.gz`), one file per rank. As many files are read at the same time
/// as the machine has cores. Files that cannot be used, or not completely, are listed in [`Trace::missing`].
///
/// # Errors
/// Fails if the directory cannot be read or has no trace file.
pub fn read_directory(directory: &Path) -> Result<Trace, KinetoError> {
    let title = directory.file_name().unwrap_or(directory.as_os_str()).to_string_lossy().into_owned();
    Ok(Trace { title, ..read_files(&files::find(directory)?) })
}

/// Reads these files, one file per rank, which may be in a directory per rank. The trace has no title.
#[must_use]
pub fn read_files(paths: &[PathBuf]) -> Trace {
    combine(files::read_all(paths, scan), String::new())
}

/// Reads the trace of one rank from an open file, which may be compressed. `name` is its name in messages; a rank is taken
/// from it if the file itself has none.
#[must_use]
pub fn read(name: &str, source: impl Read + Send) -> Trace {
    combine(vec![files::read_one(name, source, scan)], name.to_owned())
}

fn scan(source: &mut dyn Read) -> (Document, Collected) {
    let mut collector = Collector::default();
    let document = document::read(source, &mut collector);
    let collected = collector.finish(&document);
    (document, collected)
}

/// The events of one file.
#[derive(Default)]
struct Collected {
    trace: RankTrace,
    /// Time zero of the events, in nanoseconds since 1970.
    began_unix_ns: Option<i64>,
    /// Rest of sentences that begin with the file's name.
    notes: Vec<String>,
}

fn combine(parts: Vec<Part<Collected>>, title: String) -> Trace {
    let (parts, missing) = files::by_rank(parts);
    let began = parts.values().filter_map(|part| part.value.began_unix_ns).min();
    let mut trace = Trace { title, began_unix_ns: began, missing, ..Trace::default() };
    let is_single = parts.len() == 1;
    for (rank, part) in parts {
        let Collected { trace: mut events, began_unix_ns, mut notes } = part.value;
        match (began, began_unix_ns) {
            (Some(zero), Some(began)) => spans::shift(&mut events, began.saturating_sub(zero)),
            _ if !is_single => notes.push(
                "has no clock (baseTimeNanoseconds): its times cannot be compared with those of other ranks".into(),
            ),
            _ => {}
        }
        trace
            .missing
            .extend(notes.into_iter().map(|what| Missing { rank: Some(rank), what: format!("{} {what}", part.name) }));
        trace.ranks.insert(rank, events);
    }
    trace
}

/// Process and thread of an event, as the file has them.
type Thread = (Box<[u8]>, Box<[u8]>);

/// A begin event before its end was read.
struct Open {
    category: Category,
    name: Box<str>,
    start: i64,
}

/// Collects the events of one file.
#[derive(Default)]
struct Collector {
    events: Vec<(Event, Category)>,
    names: Names,
    communications: Communications,
    steps: Vec<StepSpan>,
    device_steps: Vec<StepSpan>,
    open: BTreeMap<Thread, Vec<Open>>,
    open_count: usize,
    samples: Samples,
    device: Option<u32>,
    lost: u64,
    unreadable: u64,
    unpaired: u64,
}

impl Sink for Collector {
    fn event(&mut self, event: &RawEvent<'_>) {
        match event.phase {
            b'X' => {
                let (Some(start), Some(duration)) = (event.start_ns(), event.duration_ns()) else {
                    self.unreadable += 1;
                    return;
                };
                let category = Category::of(event.category());
                self.span(event, category, &event.name.decode(), start, duration);
            }
            b'B' => self.begin(event),
            b'E' => self.end(event),
            b'i' => self.samples.instant(event),
            _ => {} // metadata, flows and counters
        }
    }
}

impl Collector {
    fn begin(&mut self, event: &RawEvent<'_>) {
        let Some(start) = event.start_ns().filter(|_| self.open_count < OPEN_MAX) else {
            self.unpaired += 1;
            return;
        };
        self.open_count += 1;
        let category = Category::of(event.category());
        let open = Open { category, name: event.name.decode().into(), start };
        self.open.entry(thread(event)).or_default().push(open);
    }

    fn end(&mut self, event: &RawEvent<'_>) {
        let open = self.open.get_mut(&thread(event)).and_then(Vec::pop);
        let (Some(Open { category, name, start }), Some(end)) = (open, event.start_ns()) else {
            self.unpaired += 1;
            return;
        };
        self.open_count -= 1;
        match u64::try_from(end.saturating_sub(start)) {
            Ok(duration) => self.span(event, category, &name, start, duration),
            Err(_) => self.unreadable += 1,
        }
    }

    fn span(&mut self, event: &RawEvent<'_>, category: Category, name: &str, start: i64, duration: u64) {
        let step = || Some(StepSpan { number: step_number(name.as_bytes())?, start_ns: start, duration_ns: duration });
        match category {
            Category::Annotation => self.steps.extend(step()),
            // The device's copy of an annotation: its kernels are events of their own.
            Category::DeviceAnnotation => return self.device_steps.extend(step()),
            Category::Profiler => return,
            _ => {}
        }
        if self.events.len() >= EVENTS_MAX {
            self.lost += 1;
            return;
        }
        if category == Category::Operator {
            self.samples.operator(name, event.arguments, start, duration);
        }
        let is_device = matches!(category, Category::Device(_));
        let lane = if is_device { event.stream.or(event.thread) } else { event.thread };
        if is_device && self.device.is_none() {
            self.device = event.process.and_then(decimal::integer).and_then(|device| u32::try_from(device).ok());
        }
        let name_id = self.names.intern(name);
        let communication = match category {
            Category::Device(Device::Kernel) if classify::is_communication_kernel(name.as_bytes()) => true,
            Category::Annotation => name.starts_with("gloo:"),
            _ => false,
        };
        let communication =
            communication.then(|| self.communications.add(name, event.arguments, &mut self.names)).flatten();
        let event = Event {
            start_ns: start,
            duration_ns: duration,
            kind: Kind::Host, // replaced when all categories of the file are known
            lane: lane_number(lane),
            name: name_id,
            communication,
        };
        self.events.push((event, category));
    }

    fn finish(mut self, document: &Document) -> Collected {
        self.unpaired += self.open.values().map(|open| open.len() as u64).sum::<u64>();
        let mut notes = Vec::new();
        let mut note = |count: u64, what: &str| {
            if count > 0 {
                notes.push(format!("has {count} {what}"));
            }
        };
        note(self.lost, "events beyond the limit of 20 million, which are not used: record fewer steps");
        note(self.samples.lost, "samples of memory or operations beyond the limit of 4 million, which are not used");
        note(self.unreadable, "events without a readable start or duration, which are not used");
        note(self.unpaired, "begin or end events without their counterpart, which are not used");
        let has_device = self.events.iter().any(|(_, category)| matches!(category, Category::Device(_)));
        let mut steps = if self.steps.is_empty() { self.device_steps } else { self.steps };
        steps.sort_by_key(|step| step.start_ns);
        let resources = self.samples.finish(&steps);
        let groups = self.communications.groups_with(&document.header.distributed);
        let (events, communications) =
            spans::classified(self.events, &mut self.names, self.communications.all, &steps, has_device);
        let mut trace = RankTrace {
            host: document.header.host.clone(),
            device: self.device,
            names: self.names,
            groups,
            steps,
            events,
            communications,
            resources,
            lost: self.lost,
            ..RankTrace::default()
        };
        let first =
            trace.events.iter().map(|event| event.start_ns).chain(trace.steps.iter().map(|step| step.start_ns)).min();
        let first = first.unwrap_or_default();
        spans::shift(&mut trace, first.saturating_neg());
        let began_unix_ns = match document.header.base_ns {
            Some(base) => base.checked_add(first),
            None => (first >= SINCE_1970_NS).then_some(first),
        };
        Collected { trace, began_unix_ns, notes }
    }
}

fn thread(event: &RawEvent<'_>) -> Thread {
    (event.process.unwrap_or_default().into(), event.thread.unwrap_or_default().into())
}

/// Returns the number of a stream or thread. Of a number that is too large, the lowest 32 bits; of a name, a checksum.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "only has to differ between lanes")]
fn lane_number(text: Option<&[u8]>) -> u32 {
    let text = text.unwrap_or_default();
    match decimal::integer(text) {
        Some(number) => number as u32,
        None => text.iter().fold(0, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte))),
    }
}

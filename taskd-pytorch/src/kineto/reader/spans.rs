//! Kinds of the events of a whole file, and the spans that follow from several events.

use crate::kineto::classify::{self, Device};
use std::collections::BTreeMap;
use taskd_core::analysis::model::{Communication, Event, Kind, NameId, Names, RankTrace, StepSpan};

/// Category of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Category {
    Device(Device),
    /// An annotation of the training script, of PyTorch or of gloo on the host.
    Annotation,
    /// The copy of an annotation on the device.
    DeviceAnnotation,
    Operator,
    /// The profiler's own spans.
    Profiler,
    Other,
}

impl Category {
    pub(super) fn of(category: &[u8]) -> Self {
        match category {
            b"user_annotation" => Self::Annotation,
            b"gpu_user_annotation" => Self::DeviceAnnotation,
            b"cpu_op" | b"Operator" => Self::Operator,
            b"Trace" => Self::Profiler,
            _ => classify::device(category).map_or(Self::Other, Self::Device),
        }
    }

    fn kind(self, name: &str, has_device: bool) -> Kind {
        match self {
            Self::Device(Device::Memory) => Kind::Copy,
            Self::Device(Device::Kernel) if classify::is_communication_kernel(name.as_bytes()) => Kind::Collective,
            Self::Device(Device::Kernel) => Kind::Compute,
            Self::Annotation => classify::host(b"user_annotation", name, has_device),
            Self::Operator => classify::host(b"cpu_op", name, has_device),
            _ => Kind::Host,
        }
    }
}

/// Returns the events in the order of their starts with their kinds, and the communications to which they refer.
pub(super) fn classified(
    collected: Vec<(Event, Category)>,
    names: &mut Names,
    communications: Vec<Communication>,
    steps: &[StepSpan],
    has_device: bool,
) -> (Vec<Event>, Vec<Communication>) {
    let mut kinds: BTreeMap<(Category, NameId), Kind> = BTreeMap::new();
    let mut events: Vec<Event> = collected
        .into_iter()
        .map(|(event, category)| {
            let name = event.name;
            let kind = *kinds.entry((category, name)).or_insert_with(|| category.kind(names.get(name), has_device));
            Event { kind, ..event }
        })
        .collect();
    events.sort_by_key(|event| event.start_ns);
    let mut communications: Vec<Option<Communication>> = communications.into_iter().map(Some).collect();
    let mut kept = Vec::new();
    for event in &mut events {
        let details = event.communication.take().and_then(|index| communications.get_mut(index as usize)?.take());
        if event.kind.is_communication()
            && let Some(details) = details
        {
            // The arguments of a kernel know more than its name: one kernel serves sends and receives.
            event.kind = classify::communication(names.get(details.operation)).0;
            event.communication = u32::try_from(kept.len()).ok();
            kept.push(details);
        }
    }
    merge_backward(&mut events, names, steps);
    (events, kept)
}

/// Adds one span per backward pass and thread. The autograd engine records each node on its own: nodes belong to one pass
/// until a step, a forward pass or the optimizer begins.
fn merge_backward(events: &mut Vec<Event>, names: &mut Names, steps: &[StepSpan]) {
    let mut passes: Vec<Event> = Vec::new();
    let mut running: BTreeMap<u32, Event> = BTreeMap::new();
    let mut steps = steps.iter().peekable();
    let backward = names.intern("backward");
    for event in events.iter_mut() {
        let mut begins_step = false;
        while steps.next_if(|step| step.start_ns <= event.start_ns).is_some() {
            begins_step = true;
        }
        if begins_step || matches!(event.kind, Kind::Forward | Kind::Optimizer) {
            passes.extend(std::mem::take(&mut running).into_values());
        }
        if event.kind != Kind::Backward || event.name == backward {
            continue;
        }
        event.kind = Kind::Host;
        let pass = running.entry(event.lane).or_insert(Event { kind: Kind::Backward, name: backward, ..*event });
        let end = pass.end_ns().max(event.end_ns());
        pass.duration_ns = u64::try_from(end.saturating_sub(pass.start_ns)).unwrap_or_default();
    }
    passes.extend(running.into_values());
    events.append(&mut passes);
    events.sort_by_key(|event| event.start_ns);
}

/// Moves all times of a rank.
pub(super) fn shift(trace: &mut RankTrace, by_ns: i64) {
    if by_ns == 0 {
        return;
    }
    for event in &mut trace.events {
        event.start_ns = event.start_ns.saturating_add(by_ns);
    }
    for step in &mut trace.steps {
        step.start_ns = step.start_ns.saturating_add(by_ns);
    }
    trace.resources.shift(by_ns);
}

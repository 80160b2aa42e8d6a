//! Lengths of overlapping spans in a window: one pass over the spans in the order of their beginnings.

use crate::trace::DeviceTimes;

/// What a device does during a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Class {
    Compute,
    Communication,
    Copy,
}

/// Activity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) class: Class,
}

/// Union of intervals that are added in the order of their beginnings, cut at a window.
#[derive(Clone, Copy, Debug)]
struct Union {
    length: u64,
    /// End of the covered part of the window.
    until: u64,
    window_end: u64,
}

impl Union {
    const fn of_window(begin: u64, end: u64) -> Union {
        Union { length: 0, until: begin, window_end: end }
    }

    #[inline]
    fn add(&mut self, begin: u64, end: u64) {
        let (from, to) = (begin.max(self.until), end.min(self.window_end));
        if to > from {
            self.length += to - from;
            self.until = to;
        }
    }
}

/// Measures the spans in a window. They must be sorted by their beginnings.
pub(super) fn measure(spans: &[Span], step: u64, begin: u64, end: u64) -> DeviceTimes {
    let window = Union::of_window(begin, end);
    let [mut compute, mut communication, mut copy, mut busy, mut any] = [window; 5];
    let mut count = 0_u32;
    for span in spans {
        if span.begin >= end {
            break;
        }
        if span.end <= begin {
            continue;
        }
        count = count.saturating_add(1);
        match span.class {
            Class::Compute => compute.add(span.begin, span.end),
            Class::Communication => communication.add(span.begin, span.end),
            Class::Copy => copy.add(span.begin, span.end),
        }
        if span.class != Class::Communication {
            busy.add(span.begin, span.end);
        }
        any.add(span.begin, span.end);
    }
    let wall_ns = end.saturating_sub(begin);
    DeviceTimes {
        step,
        wall_ns,
        compute_ns: compute.length,
        communication_ns: communication.length,
        wait_ns: any.length - busy.length,
        copy_ns: copy.length,
        idle_ns: wall_ns - any.length,
        spans: count,
        lost: 0,
    }
}

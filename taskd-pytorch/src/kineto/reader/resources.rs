//! Memory in use and floating-point operations of a rank over time.
//!
//! With `profile_memory=True` the profiler writes an event `[memory]` for each allocation. FLOPs are not in its files: they
//! follow from the shapes of matrix products, which it writes with `record_shapes=True`. The formula is that of
//! `with_flops=True` (`torch/csrc/profiler/util.cpp`, `computeFlops`): 2 m n k for each matrix of a batch. Convolutions and
//! operations on single elements are not counted.

use crate::kineto::decimal;
use crate::kineto::event::RawEvent;
use crate::kineto::scan::{Cursor, Stop};
use taskd_core::analysis::model::{Resources, StepSpan};

/// Samples of memory, and of operations, that are kept per rank. Further ones are counted and reported.
const SAMPLES_MAX: usize = 4_000_000;

/// Dimensions of a tensor that are read: matrix products have at most three.
const DIMENSIONS_MAX: usize = 8;

/// Bytes in use at each moment, and floating-point operations at the middle of each operation.
#[derive(Default)]
pub(super) struct Samples {
    /// Time, bytes and true for the memory of a device.
    memory: Vec<(i64, u64, bool)>,
    flop: Vec<(i64, f64)>,
    /// Samples beyond [`SAMPLES_MAX`].
    pub(super) lost: u64,
}

impl Samples {
    /// Adds an instant event if it is about memory.
    pub(super) fn instant(&mut self, event: &RawEvent<'_>) {
        if event.name.raw != b"[memory]" {
            return;
        }
        let mut total = None;
        let mut is_device = false;
        let read = members(event.arguments, |key, value| match key {
            b"Total Allocated" => total = decimal::integer(value).and_then(|bytes| u64::try_from(bytes).ok()),
            b"Device Type" => is_device = value != b"0",
            _ => {}
        });
        let (Ok(()), Some(total), Some(at)) = (read, total, event.start_ns()) else { return };
        if self.memory.len() < SAMPLES_MAX {
            self.memory.push((at, total, is_device));
        } else {
            self.lost += 1;
        }
    }

    /// Adds an operator if it is a matrix product with known shapes.
    pub(super) fn operator(&mut self, name: &str, arguments: &[u8], start: i64, duration: u64) {
        let first = match name {
            "aten::mm" | "aten::bmm" => 0,
            "aten::addmm" | "aten::baddbmm" => 1,
            _ => return,
        };
        let mut flop = None;
        let read = members(arguments, |key, value| {
            if key == b"Input Dims" {
                flop = products(value, first);
            }
        });
        let (Ok(()), Some(flop)) = (read, flop) else { return };
        if self.flop.len() < SAMPLES_MAX {
            self.flop.push((start.saturating_add_unsigned(duration / 2), flop));
        } else {
            self.lost += 1;
        }
    }

    /// Returns the resources of the rank. Memory is that of the device if the trace has it.
    pub(super) fn finish(mut self, steps: &[StepSpan]) -> Resources {
        let has_device = self.memory.iter().any(|sample| sample.2);
        self.memory.retain(|sample| sample.2 == has_device);
        let mut memory: Vec<(i64, u64)> = self.memory.into_iter().map(|(at, bytes, _)| (at, bytes)).collect();
        memory.sort_by_key(|sample| sample.0);
        self.flop.sort_by_key(|sample| sample.0);
        let flop_per_step = per_step(&self.flop, steps);
        Resources { flop_per_step, memory, flop: self.flop, ..Resources::default() }
    }
}

/// Returns the mean of the steps; `None` without steps or operations.
fn per_step(flop: &[(i64, f64)], steps: &[StepSpan]) -> Option<f64> {
    if steps.is_empty() || flop.is_empty() {
        return None;
    }
    let of_step = |step: &StepSpan| -> f64 {
        let end = step.start_ns.saturating_add_unsigned(step.duration_ns);
        let first = flop.partition_point(|sample| sample.0 < step.start_ns);
        flop.iter().skip(first).take_while(|sample| sample.0 < end).map(|sample| sample.1).sum()
    };
    #[allow(clippy::cast_precision_loss, reason = "a number of steps")]
    let count = steps.len() as f64;
    Some(steps.iter().map(of_step).sum::<f64>() / count)
}

/// Calls `visit` with each member of an object: the key and the bytes of the value.
fn members<'a>(object: &'a [u8], mut visit: impl FnMut(&[u8], &'a [u8])) -> Result<(), Stop> {
    if object.is_empty() {
        return Ok(());
    }
    let mut cursor = Cursor::new(object);
    cursor.expect(b'{')?;
    if cursor.take(b'}')? {
        return Ok(());
    }
    loop {
        let key = cursor.key()?;
        visit(key.raw, cursor.value()?);
        if !cursor.has_more(b'}')? {
            return Ok(());
        }
    }
}

/// Returns the floating-point operations of the product of the tensors `first` and `first + 1` in a list of shapes such as
/// `[[8, 64], [64, 32]]`; `None` if they are no matrices that can be multiplied.
fn products(shapes: &[u8], first: usize) -> Option<f64> {
    let mut cursor = Cursor::new(shapes);
    cursor.expect(b'[').ok()?;
    let mut tensor = |is_wanted: bool| {
        let shape = cursor.value().ok()?;
        cursor.has_more(b']').ok()?;
        if is_wanted { dimensions(shape) } else { Some(Vec::new()) }
    };
    for _ in 0..first {
        tensor(false)?;
    }
    let (left, right) = (tensor(true)?, tensor(true)?);
    let product = |m: f64, k: f64, n: f64| 2.0 * m * k * n;
    match (&left[..], &right[..]) {
        ([m, k], [inner, n]) if k == inner => Some(product(*m, *k, *n)),
        ([batch, m, k], [other, inner, n]) if batch == other && k == inner => Some(batch * product(*m, *k, *n)),
        _ => None,
    }
}

fn dimensions(shape: &[u8]) -> Option<Vec<f64>> {
    let mut cursor = Cursor::new(shape);
    cursor.expect(b'[').ok()?;
    let mut dimensions = Vec::new();
    if cursor.take(b']').ok()? {
        return Some(dimensions);
    }
    while dimensions.len() < DIMENSIONS_MAX {
        let number = decimal::integer(cursor.scalar().ok()??).and_then(|number| u32::try_from(number).ok())?;
        dimensions.push(f64::from(number));
        if !cursor.has_more(b']').ok()? {
            return Some(dimensions);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_count_two_operations_per_element_and_term() {
        assert_eq!(products(b"[[8, 64], [64, 32]]", 0), Some(2.0 * 8.0 * 64.0 * 32.0));
        assert_eq!(products(b"[[64],[8,64],[64,64],[],[]]", 1), Some(2.0 * 8.0 * 64.0 * 64.0));
        assert_eq!(products(b"[[2, 8, 64], [2, 64, 32]]", 0), Some(2.0 * 2.0 * 8.0 * 64.0 * 32.0));
        for damaged in
            ["", "[", "[[8, 64]]", "[[8,64],[32,64]]", "[[8,64],[64,-1]]", "[[8],[8]]", "[[8,64],[64,\"x\"]]", "3"]
        {
            assert_eq!(products(damaged.as_bytes(), 0), None, "{damaged}");
        }
    }
}

//! Statistics of kernels by name.

use super::{Class, KernelRow};
use std::collections::BTreeMap;
use taskd_core::analysis::kernels::Durations;

/// Distinct kernel names that are kept per rank. Further kernels are counted under one name.
pub const KERNEL_NAMES_MAX: usize = 100_000;

/// Name of the row for kernels beyond [`KERNEL_NAMES_MAX`].
const BEYOND: &[u8] = b"(further names)";

/// Kernels by name. A name has a number, by which events refer to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Kernels {
    rows: Vec<(Class, Box<[u8]>, Durations)>,
    /// Numbers of the names with this hash.
    numbers: BTreeMap<u64, Vec<u32>>,
    /// Number of kernels without a kept name.
    pub(super) beyond: u64,
}

impl Kernels {
    /// Returns the number of a name and the class of its kernels, which `classify` yields for a new name.
    #[inline]
    pub(super) fn number(&mut self, seed: u64, name: &[u8], classify: impl FnOnce() -> Class) -> (u32, Class) {
        let hash = hash(seed, name);
        if let Some(numbers) = self.numbers.get(&hash) {
            for number in numbers {
                if let Some((class, known, _)) = self.rows.get(*number as usize)
                    && **known == *name
                {
                    return (*number, *class);
                }
            }
        }
        self.add(hash, name, classify())
    }

    #[cold]
    fn add(&mut self, hash: u64, name: &[u8], class: Class) -> (u32, Class) {
        let is_kept = self.rows.len() < KERNEL_NAMES_MAX;
        let name = if is_kept { name } else { BEYOND };
        self.beyond += u64::from(!is_kept);
        let known = |row: &(Class, Box<[u8]>, Durations)| row.0 == class && *row.1 == *BEYOND;
        if !is_kept && let Some(number) = self.rows.iter().rposition(known) {
            return (u32::try_from(number).unwrap_or(u32::MAX), class);
        }
        let number = u32::try_from(self.rows.len()).unwrap_or(u32::MAX);
        self.rows.push((class, name.into(), Durations::default()));
        if is_kept {
            self.numbers.entry(hash).or_default().push(number);
        }
        (number, class)
    }

    /// Adds the duration of kernels.
    #[inline]
    pub(super) fn record(&mut self, number: u32, duration: i64, count: u64) {
        if let Some((_, _, durations)) = self.rows.get_mut(number as usize) {
            durations.add(duration, count);
        }
    }

    /// Returns the class of a name.
    pub(super) fn class(&self, number: u32) -> Class {
        self.rows.get(number as usize).map_or(Class::Other, |row| row.0)
    }

    /// Returns the name of a number; empty for an unknown one.
    pub(super) fn name(&self, number: u32) -> &[u8] {
        self.rows.get(number as usize).map_or(&[], |row| &*row.1)
    }

    /// Returns the class, name and durations of each name that has kernels.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Class, &[u8], &Durations)> {
        self.rows.iter().filter(|row| row.2.count > 0).map(|(class, name, durations)| (*class, &**name, durations))
    }

    /// Returns one row per name, with the largest sum first in each class.
    pub(super) fn into_rows(self, rank: u32) -> Vec<KernelRow> {
        let mut rows: Vec<KernelRow> = self
            .iter()
            .map(|(class, name, durations)| KernelRow {
                rank,
                class,
                name: String::from_utf8_lossy(name).into_owned(),
                count: durations.count,
                sum_ns: i64::try_from(durations.sum).unwrap_or(i64::MAX),
                min_ns: durations.min,
                max_ns: durations.max,
                mean_ns: durations.mean(),
                deviation_ns: durations.deviation(),
            })
            .collect();
        rows.sort_by(|one, other| (one.class, -one.sum_ns, &one.name).cmp(&(other.class, -other.sum_ns, &other.name)));
        rows
    }
}

/// Hash for a table of names: one multiplication for eight bytes, as in Firefox and rustc. Not for hostile input: equal
/// hashes only make the table slow.
#[inline]
fn hash(seed: u64, name: &[u8]) -> u64 {
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let mix = |hash: u64, word: u64| (hash.rotate_left(5) ^ word).wrapping_mul(FACTOR);
    let mut words = name.chunks_exact(8);
    let mut hash = mix(seed, name.len() as u64);
    for word in words.by_ref() {
        hash = mix(hash, u64::from_le_bytes(word.try_into().unwrap_or_default()));
    }
    words.remainder().iter().fold(hash, |hash, byte| mix(hash, u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_beyond_the_limit_are_counted_under_one_name() {
        let mut kernels = Kernels::default();
        for number in 0..KERNEL_NAMES_MAX + 5 {
            let (number, _) = kernels.number(0, format!("k{number}").as_bytes(), || Class::Compute);
            kernels.record(number, 1, 1);
        }
        assert_eq!(kernels.beyond, 5);
        let rows = kernels.into_rows(0);
        assert_eq!(rows.len(), KERNEL_NAMES_MAX + 1);
        let further = rows.iter().find(|row| row.name == "(further names)").unwrap();
        assert_eq!(further.count, 5);
    }
}

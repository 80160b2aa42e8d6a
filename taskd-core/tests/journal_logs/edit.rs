//! A log with something else in it, which no accident could have put there.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

/// Puts `new` in the place of the first `old` in a log, and gives its record right check sums again.
pub(crate) fn replace(file: &mut [u8], old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let place = file.windows(old.len()).position(|bytes| bytes == old).unwrap();
    let frame = (0..place).rev().find(|at| file[at + 5..at + 8] == *b"tkd").unwrap();
    file[place..place + new.len()].copy_from_slice(new);
    let length = u32::from_le_bytes(file[frame..frame + 4].try_into().unwrap()) as usize;
    let payload = crc32fast::hash(&file[frame + 32..frame + 32 + length]);
    file[frame + 24..frame + 28].copy_from_slice(&payload.to_le_bytes());
    let check = crc32fast::hash(&file[frame..frame + 28]);
    file[frame + 28..frame + 32].copy_from_slice(&check.to_le_bytes());
}

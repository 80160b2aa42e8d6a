//! Checkpoints: the training state as bytes, and the directory of the last few.
//!
//! A checkpoint is used only if it is complete: its digest covers every byte. It contains no pace, place or path, so
//! that any rank of any generation can resume from it.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::config::TrainerConfig;
use super::durable;
use super::error::TrainerError;
use super::model::PARAMETERS;
use super::rng::Rng;
use super::state::TrainState;

/// Checkpoints that are kept; older ones are deleted after a newer one is safe.
pub(super) const KEPT: usize = 3;

const MAGIC: [u8; 8] = *b"TASKDCKP";
const VERSION: u32 = 1;
const DIGEST: usize = 32;
const HEADER: usize = MAGIC.len() + 4 + 4 + 8 + 8 + 8;
/// Length of an encoded checkpoint in bytes.
pub(super) const ENCODED: usize = HEADER + 2 * PARAMETERS * 4 + DIGEST;

/// The values that a run and its checkpoints must share for the result to be the undisturbed one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) world_size: u32,
    pub(super) seed: u64,
}

impl Origin {
    pub(super) fn of(config: &TrainerConfig) -> Self {
        Self { world_size: config.place.world_size, seed: config.settings.seed }
    }
}

/// Why bytes are not a checkpoint to resume from.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unusable {
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    #[error("it is not a checkpoint")]
    NotACheckpoint,
    #[error("it has format version {0}, and this program reads version {VERSION}")]
    Version(u32),
    #[error("it was truncated or extended: it has {0} bytes instead of {ENCODED}")]
    Length(usize),
    #[error("it is damaged: its digest does not match its content")]
    Digest,
}

/// Encodes `state`. All numbers are little endian:
///
/// | magic | version | world size | seed | step | generator | parameters | momentum | SHA-256 of all before |
/// |---|---|---|---|---|---|---|---|---|
/// | 8 bytes | u32 | u32 | u64 | u64 | u64 | 2410 f32 | 2410 f32 | 32 bytes |
pub(super) fn encode(origin: Origin, state: &TrainState) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENCODED);
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(origin.world_size.to_le_bytes());
    bytes.extend(origin.seed.to_le_bytes());
    bytes.extend(state.step.to_le_bytes());
    bytes.extend(state.rng.state().to_le_bytes());
    bytes.extend(state.parameters.iter().chain(&state.momentum).flat_map(|value| value.to_le_bytes()));
    let digest = Sha256::digest(&bytes);
    bytes.extend(digest);
    bytes
}

/// The inverse of [`encode`]. Takes any bytes.
pub(super) fn decode(bytes: &[u8]) -> Result<(Origin, TrainState), Unusable> {
    let mut reader = Reader { rest: bytes, length: bytes.len() };
    if reader.take()? != MAGIC {
        return Err(Unusable::NotACheckpoint);
    }
    let version = u32::from_le_bytes(reader.take()?);
    if version != VERSION {
        return Err(Unusable::Version(version));
    }
    if bytes.len() != ENCODED {
        return Err(Unusable::Length(bytes.len()));
    }
    let (content, digest) = bytes.split_at(ENCODED - DIGEST);
    if Sha256::digest(content)[..] != *digest {
        return Err(Unusable::Digest);
    }
    let origin = Origin { world_size: u32::from_le_bytes(reader.take()?), seed: u64::from_le_bytes(reader.take()?) };
    let step = u64::from_le_bytes(reader.take()?);
    let rng = Rng::new(u64::from_le_bytes(reader.take()?));
    let state = TrainState { step, parameters: reader.take_values()?, momentum: reader.take_values()?, rng };
    Ok((origin, state))
}

/// Takes one field after the other from the front.
struct Reader<'a> {
    rest: &'a [u8],
    /// Length of the whole, for error messages.
    length: usize,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Unusable> {
        let (field, rest) = self.rest.split_first_chunk().ok_or(Unusable::Length(self.length))?;
        self.rest = rest;
        Ok(*field)
    }

    fn take_values(&mut self) -> Result<Vec<f32>, Unusable> {
        (0..PARAMETERS).map(|_| self.take().map(f32::from_le_bytes)).collect()
    }
}

/// The directory of the checkpoints, used by rank 0 only.
#[derive(Debug)]
pub(super) struct CheckpointStore {
    directory: PathBuf,
    generation: u64,
    origin: Origin,
}

impl CheckpointStore {
    /// Creates the directory if necessary, and deletes unfinished files in it.
    pub(super) fn open(config: &TrainerConfig) -> Result<Self, TrainerError> {
        let directory = config.settings.checkpoint_dir.clone();
        durable::prepare(&directory)?;
        Ok(Self { directory, generation: config.place.generation, origin: Origin::of(config) })
    }

    /// Returns the newest sound checkpoint of at most `steps` steps, with its path.
    ///
    /// An unsound one is reported to `passed_over` and left in place: training soon overwrites it.
    pub(super) fn newest(
        &self,
        steps: u64,
        mut passed_over: impl FnMut(&Path, &Unusable),
    ) -> Result<Option<(PathBuf, TrainState)>, TrainerError> {
        let listing = format!("read directory {}", self.directory.display());
        let checkpoints = self.checkpoints().map_err(TrainerError::io(listing))?;
        for path in checkpoints.range(..=steps).rev().map(|(_, path)| path) {
            match fs::read(path).map_err(Unusable::from).and_then(|bytes| decode(&bytes)) {
                Ok((origin, state)) => {
                    self.check_origin(path, origin)?;
                    return Ok(Some((path.clone(), state)));
                }
                Err(reason) => passed_over(path, &reason),
            }
        }
        Ok(None)
    }

    fn check_origin(&self, path: &Path, theirs: Origin) -> Result<(), TrainerError> {
        let foreign =
            |what, theirs, ours| TrainerError::ForeignCheckpoint { path: path.to_owned(), what, theirs, ours };
        if theirs.world_size != self.origin.world_size {
            return Err(foreign("world size", theirs.world_size.into(), self.origin.world_size.into()));
        }
        if theirs.seed != self.origin.seed {
            return Err(foreign("seed", theirs.seed, self.origin.seed));
        }
        Ok(())
    }

    /// Returns the path of the checkpoint of `step`, whether it exists or not.
    pub(super) fn path_of(&self, step: u64) -> PathBuf {
        self.directory.join(format!("step-{step}.ckpt"))
    }

    /// Writes the checkpoint of `state`: after this it is safe on disk, or the directory is unchanged.
    pub(super) fn save(&self, state: &TrainState) -> io::Result<()> {
        durable::write(&self.path_of(state.step), self.generation, &encode(self.origin, state))
    }

    /// Deletes all but the last [`KEPT`] checkpoints up to `newest`, which has just been saved.
    ///
    /// Checkpoints of later steps are unsound ones that were passed over: they do not count, and stay until they are
    /// overwritten.
    pub(super) fn delete_old(&self, newest: u64) -> io::Result<()> {
        let checkpoints = self.checkpoints()?;
        for path in checkpoints.range(..=newest).rev().skip(KEPT).map(|(_, path)| path) {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Returns all files that have the name of a checkpoint, by step.
    fn checkpoints(&self) -> io::Result<BTreeMap<u64, PathBuf>> {
        let step_of = |path: &Path| -> Option<u64> {
            path.file_name()?.to_str()?.strip_prefix("step-")?.strip_suffix(".ckpt")?.parse().ok()
        };
        let paths = durable::list(&self.directory)?;
        Ok(paths.into_iter().filter_map(|path| Some((step_of(&path)?, path))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trainer::config::{Place, TrainerSettings};

    const ORIGIN: Origin = Origin { world_size: 4, seed: 1 };

    fn state(step: u64) -> TrainState {
        TrainState { step, ..TrainState::fresh(step) }
    }

    fn config(dir: &Path) -> TrainerConfig {
        let place = Place { job: "test".into(), generation: 0, rank: 0, world_size: 4 };
        TrainerConfig { place, settings: TrainerSettings::in_dir(dir) }
    }

    /// Returns the step from which a restart would resume, and the reasons for which files were passed over.
    fn resume(store: &CheckpointStore) -> (Option<u64>, Vec<String>) {
        let mut reasons = Vec::new();
        let passed_over = |path: &Path, reason: &Unusable| reasons.push(format!("{}: {reason}", path.display()));
        let newest = store.newest(u64::MAX, passed_over).unwrap();
        (newest.map(|(_, state)| state.step), reasons)
    }

    #[test]
    fn a_checkpoint_comes_back_to_the_bit() {
        let mut state = state(40);
        state.momentum[3] = f32::from_bits(0x7fc0_1234);
        let bytes = encode(ORIGIN, &state);
        assert_eq!(bytes.len(), ENCODED);
        let (origin, decoded) = decode(&bytes).unwrap();
        assert_eq!((origin, decoded.step, decoded.digest()), (ORIGIN, 40, state.digest()));
    }

    #[test]
    fn every_cut_and_every_flipped_byte_is_noticed() {
        let bytes = encode(ORIGIN, &state(40));
        // Positions at multiples of a prime: the cuts and flips fall on all fields, and the test stays quick without
        // optimisation.
        for at in (0..ENCODED).step_by(37) {
            assert!(decode(&bytes[..at]).is_err(), "cut at {at}");
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            assert!(decode(&flipped).is_err(), "flipped at {at}");
        }
        assert!(decode(&[bytes, vec![0]].concat()).is_err(), "a byte too many");
    }

    #[test]
    fn another_version_is_named() {
        let mut bytes = encode(ORIGIN, &state(40));
        bytes[8] = 9;
        assert!(matches!(decode(&bytes), Err(Unusable::Version(9))));
    }

    #[test]
    fn the_last_three_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(&config(dir.path())).unwrap();
        for step in [8, 9, 10, 11] {
            store.save(&state(step)).unwrap();
            store.delete_old(step).unwrap();
        }
        assert_eq!(store.checkpoints().unwrap().into_keys().collect::<Vec<_>>(), [9, 10, 11]);
    }

    #[test]
    fn damaged_checkpoints_are_skipped_with_a_reason_each() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(&config(dir.path())).unwrap();
        for step in [10, 20, 30, 40] {
            store.save(&state(step)).unwrap();
        }
        let bytes = fs::read(store.path_of(40)).unwrap();
        fs::write(store.path_of(40), &bytes[..9000]).unwrap();
        let mut bytes = fs::read(store.path_of(30)).unwrap();
        bytes[5000] ^= 1;
        fs::write(store.path_of(30), bytes).unwrap();
        fs::write(store.path_of(20), "something else").unwrap();

        let (step, reasons) = resume(&store);
        assert_eq!((step, reasons.len()), (Some(10), 3));
        assert!(reasons[0].contains("step-40.ckpt: it was truncated or extended: it has 9000 bytes"), "{reasons:?}");
        assert!(reasons[1].contains("step-30.ckpt: it is damaged: its digest"), "{reasons:?}");
        assert!(reasons[2].contains("step-20.ckpt: it is not a checkpoint"), "{reasons:?}");
    }

    #[test]
    fn unsound_later_checkpoints_do_not_push_out_sound_ones() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(&config(dir.path())).unwrap();
        for later in [40, 50, 60] {
            fs::write(store.path_of(later), "torn").unwrap();
        }
        for step in [10, 20] {
            store.save(&state(step)).unwrap();
            store.delete_old(step).unwrap();
        }
        assert_eq!(resume(&store).0, Some(20));
    }

    #[test]
    fn a_checkpoint_beyond_the_last_step_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let store = CheckpointStore::open(&config(dir.path())).unwrap();
        for step in [10, 20] {
            store.save(&state(step)).unwrap();
        }
        let (_, newest) = store.newest(15, |_, _| {}).unwrap().unwrap();
        assert_eq!(newest.step, 10);
    }

    #[test]
    fn a_checkpoint_of_another_run_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        CheckpointStore::open(&config).unwrap().save(&state(10)).unwrap();
        config.settings.seed = 2;
        let error = CheckpointStore::open(&config).unwrap().newest(10, |_, _| {}).unwrap_err().to_string();
        assert!(error.contains("step-10.ckpt") && error.contains("seed 1") && error.contains("2"), "{error}");
    }
}

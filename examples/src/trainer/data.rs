//! The handwritten digits, and the samples of a rank at each step.
//!
//! Batches are a pure function of seed, step, rank and world size: this module keeps no state, so a restarted rank gets
//! exactly the samples that the lost one would have got.

use super::config::Place;
use super::rng::Rng;

/// Pixels of one image (8x8).
pub(super) const PIXELS: usize = 64;
/// Images in the data set.
pub(super) const IMAGES: usize = 1797;
/// Images in each rank's batch.
pub(super) const BATCH_PER_RANK: usize = 16;

/// The file is described in `data/README.md`, with its source and licence.
static FILE: &[u8; HEADER + IMAGES * (PIXELS + 1)] = include_bytes!("../../data/digits.bin");
const HEADER: usize = 12;
const BLACK: f32 = 16.0;
/// Separates the shuffling from every other use of the seed.
const SHUFFLE: u64 = 1;

/// The whole data set in memory, pixels scaled to `0.0 ..= 1.0`.
#[derive(Debug)]
pub(super) struct Digits {
    images: Vec<[f32; PIXELS]>,
    labels: &'static [u8],
}

impl Digits {
    /// Unpacks the data set, which is part of the program.
    pub(super) fn load() -> Self {
        let (pixels, labels) = FILE[HEADER..].split_at(IMAGES * PIXELS);
        let (images, _) = pixels.as_chunks::<PIXELS>();
        Self { images: images.iter().map(|image| image.map(|pixel| f32::from(pixel) / BLACK)).collect(), labels }
    }

    /// Returns image and label of sample `index`, which is below [`IMAGES`].
    pub(super) fn sample(&self, index: usize) -> (&[f32; PIXELS], usize) {
        (&self.images[index], usize::from(self.labels[index]))
    }
}

/// Returns the samples of `place` at the step after `steps_done`.
///
/// Each epoch goes through the data once in an order of its own; what does not fill a batch of the whole world is left
/// out of that epoch. No two ranks get the same sample in one epoch.
#[expect(clippy::cast_possible_truncation, reason = "a step within its epoch is below the number of images")]
pub(super) fn batch(seed: u64, steps_done: u64, place: &Place) -> Vec<usize> {
    let world_batch = place.world_size as usize * BATCH_PER_RANK;
    let steps_per_epoch = (IMAGES / world_batch) as u64;
    let (epoch, step_in_epoch) = (steps_done / steps_per_epoch, (steps_done % steps_per_epoch) as usize);

    let mut order: Vec<usize> = (0..IMAGES).collect();
    Rng::for_purpose(seed, SHUFFLE, epoch).shuffle(&mut order);
    let first = step_in_epoch * world_batch + place.rank as usize * BATCH_PER_RANK;
    order[first..first + BATCH_PER_RANK].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn place(rank: u32, world_size: u32) -> Place {
        Place { job: "test".into(), generation: 0, rank, world_size }
    }

    #[test]
    fn the_data_file_matches_its_readme() {
        assert_eq!(&FILE[..8], b"DIGITS01");
        assert_eq!(FILE[8..12], 1797_u32.to_le_bytes());
        assert!(FILE[HEADER..HEADER + IMAGES * PIXELS].iter().all(|&pixel| pixel <= 16));
        let mut of_class = [0; 10];
        for &label in Digits::load().labels {
            of_class[usize::from(label)] += 1;
        }
        assert_eq!(of_class, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
    }

    #[test]
    fn pixels_are_scaled_to_one() {
        let digits = Digits::load();
        // The first image is a zero: the corner is white, and column 4 of row 1 is almost black (15 of 16).
        let (image, label) = digits.sample(0);
        assert_eq!((label, image[0], image[11]), (0, 0.0, 15.0 / 16.0));
    }

    #[test]
    fn an_epoch_shows_no_sample_twice_and_leaves_out_less_than_one_batch() {
        let world_size = 4;
        let steps_per_epoch = (IMAGES / (BATCH_PER_RANK * 4)) as u64;
        for epoch in 0..3 {
            let mut seen = BTreeSet::new();
            for step in epoch * steps_per_epoch..(epoch + 1) * steps_per_epoch {
                for rank in 0..world_size {
                    let samples = batch(9, step, &place(rank, world_size));
                    assert_eq!(samples.len(), BATCH_PER_RANK);
                    assert!(samples.into_iter().all(|sample| seen.insert(sample)), "a sample was seen twice");
                }
            }
            assert_eq!(seen.len() as u64, steps_per_epoch * 64);
        }
    }

    #[test]
    fn batches_depend_on_seed_step_and_rank_and_on_nothing_else() {
        let here = place(1, 4);
        assert_eq!(batch(9, 500, &here), batch(9, 500, &Place { generation: 7, ..here.clone() }));
        assert_ne!(batch(9, 500, &here), batch(10, 500, &here));
        assert_ne!(batch(9, 500, &here), batch(9, 501, &here));
        assert_ne!(batch(9, 500, &here), batch(9, 500, &place(2, 4)));
    }
}

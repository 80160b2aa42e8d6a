//! The probe's counters.
//!
//! The module does not count; the other modules do.

/// Prefix of the text of the instant marker by which the probe reports that CUPTI is unavailable. The reason
/// follows the prefix.
pub const UNAVAILABLE: &str = "cupti is unavailable: ";

/// Names of the CUPTI probe's counters, in the order of [`Figures::values`].
pub const NAMES: [&str; 10] = [
    "cupti.records",
    "cupti.brought",
    "cupti.off",
    "cupti.unknown",
    "cupti.untimed",
    "cupti.unjoined",
    "cupti.dropped",
    "cupti.given_up",
    "cupti.refused_requests",
    "cupti.stand_in",
];

/// Counters of the CUPTI probe in a rank's process, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Number of CUPTI's records that the probe has read.
    pub records: u64,
    /// Number of records that the probe has imported into the trace recorder.
    pub brought: u64,
    /// Number of CUPTI's records that the probe discarded because recording of their kind was off when it read them.
    pub off: u64,
    /// Number of CUPTI's records that were truncated, or of a kind that the probe had not requested.
    pub unknown: u64,
    /// Number of CUPTI's records without a valid time.
    pub untimed: u64,
    /// Number of NVTX ranges whose start record or end record is missing.
    pub unjoined: u64,
    /// Number of records that CUPTI itself dropped, as it reports.
    pub dropped: u64,
    /// Number of records that the probe discarded at the end of the program because the trace recorder had no room.
    pub given_up: u64,
    /// Number of times that CUPTI requested a buffer and the probe had none free.
    pub refused_requests: u64,
    /// 1 if the CUPTI library is a stand-in without a GPU, otherwise 0.
    pub stand_in: u64,
}

impl Figures {
    /// Returns the values of the counters, in the order of `NAMES`.
    #[must_use]
    pub const fn values(&self) -> [u64; 10] {
        let Figures {
            records,
            brought,
            off,
            unknown,
            untimed,
            unjoined,
            dropped,
            given_up,
            refused_requests,
            stand_in,
        } = *self;
        [records, brought, off, unknown, untimed, unjoined, dropped, given_up, refused_requests, stand_in]
    }

    /// Returns the counters with their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); NAMES.len()] {
        let values = self.values();
        std::array::from_fn(|at| (NAMES[at], values[at] as f64))
    }
}

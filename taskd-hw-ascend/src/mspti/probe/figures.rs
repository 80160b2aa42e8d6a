//! The probe's counters.
//!
//! The module does not count; the other modules do.

/// Start of the text of the instant marker with which the probe reports that mspti is unavailable; the reason
/// follows this text.
pub const UNAVAILABLE: &str = "mspti is unavailable: ";

/// Counters of the mspti probe in a rank, since the start of the process unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    /// Number of mspti's records that the probe has read.
    pub records: u64,
    /// Number of records that the probe has imported into the trace recorder.
    pub brought: u64,
    /// Number of spans and instants that the probe discarded because their kind was switched off when they started.
    pub off: u64,
    /// Number of unpaired records: ends without a start, and starts that were dropped before their end.
    pub unjoined: u64,
    /// Number of mspti's buffers whose remainder could not be read because of a record of an unknown kind.
    pub cut_buffers: u64,
    /// Number of bytes that were not read in the buffers that `cut_buffers` counts.
    pub cut_bytes: u64,
    /// Number of mspti's requests for a buffer that failed because no buffer was free; mspti silently drops the records
    /// of that time.
    pub refused_requests: u64,
    /// Number of buffers that mspti currently has or that wait until the probe reads them.
    pub buffers_out: u64,
    /// CPU time of the probe's thread in milliseconds.
    pub busy_ms: f64,
    /// 1 if libmspti.so is a stand-in for machines without a device, otherwise 0.
    pub stand_in: u64,
}

impl Figures {
    /// Returns the values of the counters with their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 10] {
        [
            ("mspti.records", self.records as f64),
            ("mspti.brought", self.brought as f64),
            ("mspti.off", self.off as f64),
            ("mspti.unjoined", self.unjoined as f64),
            ("mspti.cut_buffers", self.cut_buffers as f64),
            ("mspti.cut_bytes", self.cut_bytes as f64),
            ("mspti.refused_requests", self.refused_requests as f64),
            ("mspti.buffers_out", self.buffers_out as f64),
            ("mspti.busy_ms", self.busy_ms),
            ("mspti.stand_in", self.stand_in as f64),
        ]
    }
}

//! Which card a device is: the index alone is another card's after a repair.
//!
//! Plain data.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use taskd_core::job::Name;
use taskd_core::trace::Extension;

/// Who a GPU is, as a fact about its [`Domain::Device`](taskd_core::job::Domain).
///
/// Told at the beginning, and again when the device answers after it did not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    /// The card's own name, the same in every machine: `GPU-...`.
    pub uuid: String,
    /// Where it sits: `0000:3b:00`.
    pub pci: String,
    /// What it is, such as `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// The driver's version.
    pub driver: String,
    /// The names of what the card or its driver does not measure: they are never told.
    pub not_measured: Vec<String>,
}

impl Extension for GpuIdentity {
    const NAME: Name = Name::new("cuda.gpu");

    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default() // strings always can
    }

    fn decode(body: &[u8]) -> Option<GpuIdentity> {
        serde_json::from_slice(body).ok()
    }
}

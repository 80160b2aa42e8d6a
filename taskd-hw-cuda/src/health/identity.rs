//! Identity of the card behind a device index, since after a repair the same index may be another card.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use taskd_core::job::Name;
use taskd_core::trace::Extension;

/// Identity of a GPU, as a fact about its [`Domain::Device`](taskd_core::job::Domain).
///
/// The NVML source reports the identity at the start, and when the device answers again after a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuIdentity {
    /// NVML's UUID of the card, the same in every machine: `GPU-...`.
    pub uuid: String,
    /// Address of the GPU on the PCI bus: `0000:3b:00`.
    pub pci: String,
    /// Model of the GPU, such as `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// Version of NVIDIA's driver.
    pub driver: String,
    /// Names of the metrics that the card or its driver does not support; they are never reported.
    pub not_measured: Vec<String>,
}

impl Extension for GpuIdentity {
    const NAME: Name = Name::new("cuda.gpu");

    fn encode(&self) -> Bytes {
        serde_json::to_vec(self).map(Bytes::from).unwrap_or_default() // strings always serialize
    }

    fn decode(body: &[u8]) -> Option<GpuIdentity> {
        serde_json::from_slice(body).ok()
    }
}

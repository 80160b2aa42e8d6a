//! What `nvml-wrapper` gives only raw: whether the library stands in for NVIDIA's, and which device a handle means.
//!
//! It calls nothing, and follows no pointer.

use nvml_wrapper::{Device, Nvml};

/// The data symbol by which a stand-in declares itself.
const SYMBOL: &[u8] = b"taskd_standin_nvml\0";

/// Whether the loaded library declares itself a stand-in.
pub(super) fn is_stand_in(nvml: &Nvml) -> bool {
    // SAFETY: only the symbol's address is asked for; it is neither read nor called, so its type does not matter.
    unsafe { nvml.lib().__library.get::<*const u8>(SYMBOL).is_ok() }
}

/// The handle of a device as a number, to compare it with: a device that is lost may not tell its name any more.
pub(super) fn handle(device: &Device<'_>) -> usize {
    // SAFETY: the handle is only compared; no second `Device` is made of it.
    unsafe { device.handle() as usize }
}

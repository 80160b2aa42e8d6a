//! Raw accesses to `nvml-wrapper`: detects a stand-in library, and maps handles to devices.
//!
//! The module calls no raw function and dereferences no pointer.

use nvml_wrapper::{Device, Nvml};

/// Data symbol by which a stand-in library declares itself.
const SYMBOL: &[u8] = b"taskd_standin_nvml\0";

/// Returns true if the loaded library declares itself a stand-in.
pub(super) fn is_stand_in(nvml: &Nvml) -> bool {
    // SAFETY: only the symbol's address is looked up; it is neither read nor called, so its type does not matter.
    unsafe { nvml.lib().__library.get::<*const u8>(SYMBOL).is_ok() }
}

/// Returns a device's handle as a number for comparison: a lost device may no longer report its name.
pub(super) fn handle(device: &Device<'_>) -> usize {
    // SAFETY: the handle is only compared; no second `Device` is made of it.
    unsafe { device.handle() as usize }
}

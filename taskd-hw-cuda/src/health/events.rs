//! The thread that waits for the driver's events: reports Xids at the moment they happen.
//!
//! If the driver delivers no events, the thread reports that once and ends.

use super::builder::Settings;
use super::codes::{NVML, XID_EVENTS_UNAVAILABLE, error};
use super::driver::Watched;
use super::news::{Outbox, Place, Via, What, Xid};
use super::raw;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, EventSet, Nvml};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taskd_core::job::Domain;
use taskd_core::trace::Fact;

/// Maximum duration of one wait for events, which bounds the delay until a dropped source is noticed.
const WAIT_MS: u32 = 500;

/// A wait that ends sooner without an event is followed by a pause, so that the driver is not queried in a busy loop.
const TOO_SOON: Duration = Duration::from_millis(50);

/// Number of waits that may fail in a row before the thread stops waiting for events.
const FAILURES_MAX: u32 = 20;

/// Number that NVML gives an Xid whose real number it does not know.
const NO_NUMBER: u32 = 999;

/// Devices whose events are awaited, with their NVML handles.
pub(super) struct Handles(Vec<(u16, usize)>);

impl Handles {
    pub(super) fn of(watched: &[Watched<'_>]) -> Handles {
        Handles(watched.iter().map(|w| (w.index, raw::handle(&w.device))).collect())
    }

    fn index(&self, device: &Device<'_>) -> Option<u16> {
        let handle = raw::handle(device);
        self.0.iter().find(|(_, known)| *known == handle).map(|(index, _)| *index)
    }
}

/// Runs until `over` is set, the source is dropped, or events become unavailable.
pub(super) fn run(settings: &Settings, outbox: &Outbox, nvml: &Nvml, handles: &Handles, over: &AtomicBool) {
    let set = match register(nvml, handles) {
        Ok(set) => set,
        Err(why) => return unavailable(settings, outbox, &why),
    };
    let mut failures = 0;
    while !over.load(Ordering::Acquire) && !outbox.stop.is_over() {
        let begun = Instant::now();
        match set.wait(WAIT_MS) {
            Ok(event) => {
                failures = 0;
                let Some(xid) = event.event_data else { continue };
                let code = match xid {
                    XidError::Value(value) => u32::try_from(value).unwrap_or(NO_NUMBER),
                    XidError::Unknown => NO_NUMBER,
                };
                let place = handles.index(&event.device).map_or(Place::Unknown, Place::Device);
                let text = "reported by an event of the driver, without text".to_owned();
                outbox.put(Instant::now(), What::Xid(Xid { via: Via::Nvml, place, code, text }));
            }
            Err(NvmlError::Timeout) => {
                failures = 0;
                if begun.elapsed() < TOO_SOON {
                    outbox.stop.wait(TOO_SOON);
                }
            }
            Err(error) => {
                failures += 1;
                if failures >= FAILURES_MAX {
                    return unavailable(settings, outbox, &error.to_string());
                }
                outbox.stop.wait(Duration::from_millis(u64::from(WAIT_MS)));
            }
        }
    }
}

/// Creates an event set of NVML with all devices that support Xid events.
fn register<'nvml>(nvml: &'nvml Nvml, handles: &Handles) -> Result<EventSet<'nvml>, String> {
    let fresh = || nvml.create_event_set().map_err(|error| error.to_string());
    let has_them = |index: &u16| {
        let types = nvml.device_by_index(u32::from(*index)).and_then(|device| device.supported_event_types());
        types.is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
    };
    let mut wanted: Vec<u16> = handles.0.iter().map(|(index, _)| *index).filter(has_them).collect();
    let mut why = "no device supports them".to_owned();
    'anew: while !wanted.is_empty() {
        let mut set = fresh()?;
        for (place, index) in wanted.iter().enumerate() {
            let Ok(device) = nvml.device_by_index(u32::from(*index)) else { continue };
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(same) => set = same,
                Err(error) => {
                    why = error.to_string();
                    wanted.remove(place); // the refused call has consumed the set
                    continue 'anew;
                }
            }
        }
        return Ok(set);
    }
    Err(why)
}

/// Reports that the driver delivers no events.
pub(super) fn unavailable(settings: &Settings, outbox: &Outbox, why: &str) {
    let text = format!("the driver sends no Xid events ({why}): Xids come from the kernel's log only");
    let fact = Fact::new(Domain::Node(settings.node.clone()), error(NVML, XID_EVENTS_UNAVAILABLE, text));
    outbox.put(Instant::now(), What::Facts(vec![fact]));
}

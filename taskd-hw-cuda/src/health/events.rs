//! The thread that waits for the driver's events: Xids, the moment they happen.
//!
//! It reads no figure. Where the driver gives no events, it says so once and ends.

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

/// How long one wait for events lasts at most; so late it is seen that the source was dropped.
const WAIT_MS: u32 = 500;

/// A wait that comes back sooner without an event is followed by a pause: the driver would be asked without end.
const TOO_SOON: Duration = Duration::from_millis(50);

/// So many waits may fail in a row before the events are given up.
const FAILURES_MAX: u32 = 20;

/// What NVML calls an Xid whose number it does not know.
const NO_NUMBER: u32 = 999;

/// The devices whose events are waited for, with their handles.
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

/// Runs until `over`, the end of the source, or that of the events.
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
                let text = "as the driver's event says, without its words".to_owned();
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

/// A set in which all devices are that have Xid events.
fn register<'nvml>(nvml: &'nvml Nvml, handles: &Handles) -> Result<EventSet<'nvml>, String> {
    let fresh = || nvml.create_event_set().map_err(|error| error.to_string());
    let has_them = |index: &u16| {
        let types = nvml.device_by_index(u32::from(*index)).and_then(|device| device.supported_event_types());
        types.is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
    };
    let mut wanted: Vec<u16> = handles.0.iter().map(|(index, _)| *index).filter(has_them).collect();
    let mut why = "no device has them".to_owned();
    'anew: while !wanted.is_empty() {
        let mut set = fresh()?;
        for (place, index) in wanted.iter().enumerate() {
            let Ok(device) = nvml.device_by_index(u32::from(*index)) else { continue };
            match device.register_events(EventTypes::CRITICAL_XID_ERROR, set) {
                Ok(same) => set = same,
                Err(error) => {
                    why = error.to_string();
                    wanted.remove(place); // the set is lost with the device that refuses
                    continue 'anew;
                }
            }
        }
        return Ok(set);
    }
    Err(why)
}

/// Says that the driver gives no events.
pub(super) fn unavailable(settings: &Settings, outbox: &Outbox, why: &str) {
    let text = format!("the driver gives no Xid events ({why}): Xids are known by the kernel's log only");
    let fact = Fact::new(Domain::Node(settings.node.clone()), error(NVML, XID_EVENTS_UNAVAILABLE, text));
    outbox.put(Instant::now(), What::Facts(vec![fact]));
}

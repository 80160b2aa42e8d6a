//! The thread that queries NVML. These calls may block, so the source itself makes none.
//!
//! The thread only reads. It opens NVML again after the driver went away.

use super::builder::{Settings, Unavailable};
use super::codes::{GPU_LOST, NVML, RESET_REQUIRED, error};
use super::events;
use super::identity::GpuIdentity;
use super::news::{Outbox, What};
use super::raw::is_stand_in;
use super::reading::{Memory, Mute, Trouble};
use super::source::DEVICES_MAX;
use crate::xid::PciAddress;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use taskd_core::job::Domain;
use taskd_core::trace::{Ext, Fact, Signal};
use tokio::sync::oneshot;

/// Time to wait before NVML is opened again.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Result of opening NVML for the first time.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) stand_in: bool,
    pub(super) devices: Vec<(u16, Option<PciAddress>)>,
}

/// One watched device.
pub(super) struct Watched<'nvml> {
    pub(super) index: u16,
    pub(super) device: Device<'nvml>,
    about: Domain,
    pci: Option<PciAddress>,
    memory: Memory,
    identity: Option<GpuIdentity>,
    mute: Option<Mute>,
}

/// Runs until the source is dropped.
pub(super) fn run(settings: &Settings, outbox: &Outbox, opened: oneshot::Sender<Result<Opened, Unavailable>>) {
    let mut first = Some(opened);
    while !outbox.stop.is_over() {
        outbox.doing("loading NVML".into());
        let why = match open(settings) {
            Err(why) => match first.take() {
                Some(opened) => return drop(opened.send(Err(why))), // `open` returns the error
                None => None,                                       // reported when the driver went away
            },
            Ok(nvml) => {
                let watched = watch(settings, &nvml);
                let devices = watched.iter().map(|w| (w.index, w.pci)).collect();
                match first.take() {
                    None => outbox.put(Instant::now(), What::Devices(devices)),
                    Some(opened) => {
                        let told = Opened { stand_in: is_stand_in(&nvml), devices };
                        if opened.send(Ok(told)).is_err() {
                            return;
                        }
                    }
                }
                session(settings, outbox, &nvml, watched)
            }
        };
        if let Some(why) = why {
            outbox.put(Instant::now(), What::Gone(why));
        }
        outbox.doing("waiting to try NVML again".into());
        let until = Instant::now() + AGAIN_AFTER.min(settings.interval * 4);
        while !outbox.stop.wait(until.saturating_duration_since(Instant::now()).min(settings.interval)) {
            outbox.offer(What::Beat);
            if Instant::now() >= until {
                break;
            }
        }
    }
}

fn open(settings: &Settings) -> Result<Nvml, Unavailable> {
    let mut builder = Nvml::builder();
    if let Some(path) = &settings.library {
        builder.lib_path(path.as_os_str());
    }
    let nvml = builder.init().map_err(|error| Unavailable::of(error, settings.library.as_deref()))?;
    let count = nvml.device_count().map_err(|error| Unavailable::of(error, settings.library.as_deref()))?;
    let wanted = |index: &u16| settings.devices.as_ref().is_none_or(|wanted| wanted.contains(index));
    if count == 0 || !indices(count).any(|index| wanted(&index)) {
        return Err(Unavailable::NoDevice { count });
    }
    Ok(nvml)
}

/// Returns the NVML indices of `count` devices, at most [`DEVICES_MAX`].
fn indices(count: u32) -> impl Iterator<Item = u16> {
    0..u16::try_from(count).unwrap_or(u16::MAX).min(DEVICES_MAX)
}

/// Reads all devices at every interval until NVML no longer works or the source is dropped. Returns the reason why NVML
/// no longer works, or `None` if the source was dropped.
fn session(settings: &Settings, outbox: &Outbox, nvml: &Nvml, mut watched: Vec<Watched<'_>>) -> Option<String> {
    let driver = nvml.sys_driver_version().unwrap_or_default();
    let (over, handles) = (AtomicBool::new(false), events::Handles::of(&watched));
    std::thread::scope(|scope| {
        if settings.events {
            let thread = std::thread::Builder::new().name("taskd-nvml-xid".into());
            let run = || events::run(settings, outbox, nvml, &handles, &over);
            if let Err(error) = thread.spawn_scoped(scope, run) {
                events::unavailable(settings, outbox, &format!("their thread cannot be started: {error}"));
            }
        }
        let why = rounds(settings, outbox, &mut watched, &driver);
        over.store(true, Ordering::Release);
        outbox.doing("leaving NVML".into());
        why
    })
}

fn watch<'nvml>(settings: &Settings, nvml: &'nvml Nvml) -> Vec<Watched<'nvml>> {
    let wanted = |index: &u16| settings.devices.as_ref().is_none_or(|wanted| wanted.contains(index));
    let count = nvml.device_count().unwrap_or(0);
    let mut watched = Vec::new();
    for index in indices(count).filter(wanted) {
        // A device that cannot be opened is not watched: its Xids are reported about the node, with its PCI address.
        let Ok(device) = nvml.device_by_index(u32::from(index)) else { continue };
        let pci = device.pci_info().ok().and_then(|pci| pci.bus_id.parse().ok());
        let about = Domain::Device(settings.node.clone(), index);
        watched.push(Watched { index, device, about, pci, memory: Memory::default(), identity: None, mute: None });
    }
    watched
}

fn rounds(settings: &Settings, outbox: &Outbox, watched: &mut [Watched<'_>], driver: &str) -> Option<String> {
    let mut next = Instant::now();
    loop {
        for device in watched.iter_mut() {
            outbox.doing(format!("reading device {}", device.index));
            match device.read(driver) {
                Ok(facts) if facts.is_empty() => {}
                Ok(facts) => {
                    if !outbox.offer(What::Facts(facts)) {
                        device.forget(); // report the changed values again when there is room
                    }
                }
                Err(why) => return Some(why),
            }
            if outbox.stop.is_over() {
                return None;
            }
        }
        outbox.offer(What::Beat);
        outbox.doing("waiting for the next reading".into());
        // A reading that takes longer than the interval is still followed by a pause.
        next = (next + settings.interval).max(Instant::now() + settings.interval / 4);
        if outbox.stop.wait(next.saturating_duration_since(Instant::now())) {
            return None;
        }
    }
}

impl Watched<'_> {
    fn forget(&mut self) {
        self.memory.forget();
        self.identity = None;
        self.mute = None;
    }

    /// Reads the device and returns the facts to report.
    ///
    /// # Errors
    /// The reason why NVML no longer works for any device.
    fn read(&mut self, driver: &str) -> Result<Vec<Fact>, String> {
        match self.memory.read(&self.device, &self.about) {
            Ok(mut facts) => {
                if let Some(identity) = self.who(driver) {
                    facts.insert(0, Fact::new(self.about.clone(), Signal::Ext(Box::new(Ext::of(&identity)))));
                    self.identity = Some(identity);
                }
                self.mute = None;
                Ok(facts)
            }
            Err(Trouble::Driver(why)) => Err(why),
            Err(Trouble::Device(mute)) if self.mute == Some(mute) => Ok(Vec::new()),
            Err(Trouble::Device(mute)) => {
                self.forget();
                self.mute = Some(mute);
                let (code, text) = match mute {
                    Mute::Lost => (GPU_LOST, NvmlError::GpuLost),
                    Mute::ResetRequired => (RESET_REQUIRED, NvmlError::ResetRequired),
                };
                Ok(vec![Fact::new(self.about.clone(), error(NVML, code, text.to_string()))])
            }
        }
    }

    /// Returns the identity of the device, if it has not been reported since the device last answered again.
    fn who(&self, driver: &str) -> Option<GpuIdentity> {
        if self.identity.is_some() {
            return None;
        }
        Some(GpuIdentity {
            uuid: self.device.uuid().unwrap_or_default(),
            pci: self.pci.map(|pci| pci.to_string()).unwrap_or_default(),
            model: self.device.name().unwrap_or_default(),
            driver: driver.to_owned(),
            not_measured: self.memory.missing.iter().map(|name| (*name).to_owned()).collect(),
        })
    }
}

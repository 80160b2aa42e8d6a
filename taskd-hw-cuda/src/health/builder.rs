//! Configuration of the NVML source, and its errors.
//!
//! The builder opens nothing before [`NvmlBuilder::open`].

use super::driver;
use super::kernel_log::{self, KMSG, KernelLog};
use super::news::Outbox;
use super::source::{DEVICES_MAX, NvmlSource};
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;
use taskd_core::job::NodeId;
use tokio::sync::oneshot;

/// Default interval between two readings of the GPUs through NVML.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Shortest accepted interval: reading one device takes milliseconds.
const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Reason why the health of GPUs cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// NVML, NVIDIA's management library, is not installed or cannot be loaded.
    #[error("NVML cannot be loaded ({library}: {why}): install NVIDIA's driver, or set the path of its library")]
    NoLibrary {
        /// Name or path of the library that the source tried to load.
        library: String,
        /// Error of the dynamic loader.
        why: String,
    },
    /// NVML is installed, but NVIDIA's driver is not loaded.
    #[error("NVIDIA's driver is not loaded: see nvidia-smi, and load it with modprobe nvidia")]
    NoDriver,
    /// The loaded driver and the NVML library have different versions.
    #[error("NVIDIA's driver and its library have different versions: load the driver again, or reboot the node")]
    VersionMismatch,
    /// NVIDIA's driver denies this process access to the GPUs.
    #[error("NVIDIA's driver refuses this user, or the container has no access to /dev/nvidia*")]
    NoPermission,
    /// The driver is loaded, but lists no device, or none of the devices set by
    /// [`with_devices`](NvmlBuilder::with_devices).
    #[error("NVIDIA's driver lists {count} devices, but none of those to watch")]
    NoDevice {
        /// Number of devices that the driver lists.
        count: u32,
    },
    /// NVML returned an error for which no other variant exists; the field is its text.
    #[error("NVML does not work: {0}")]
    Failed(String),
}

impl Unavailable {
    pub(super) fn of(error: NvmlError, library: Option<&OsStr>) -> Unavailable {
        let path = || library.map_or_else(|| "libnvidia-ml.so.1".into(), |path| path.to_string_lossy().into_owned());
        match error {
            NvmlError::LibloadingError(why) => Unavailable::NoLibrary { library: path(), why: why.to_string() },
            NvmlError::FailedToLoadSymbol(why) => Unavailable::NoLibrary { library: path(), why },
            NvmlError::DriverNotLoaded => Unavailable::NoDriver,
            NvmlError::LibRmVersionMismatch => Unavailable::VersionMismatch,
            NvmlError::NoPermission => Unavailable::NoPermission,
            other => Unavailable::Failed(other.to_string()),
        }
    }
}

/// Settings that the source's threads share.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) node: NodeId,
    pub(super) interval: Duration,
    pub(super) library: Option<OsString>,
    pub(super) devices: Option<BTreeSet<u16>>,
    pub(super) events: bool,
}

/// Builder of an [`NvmlSource`] (see [`NvmlSource::builder`]).
#[derive(Clone, Debug)]
pub struct NvmlBuilder {
    settings: Settings,
    kernel_log: Option<PathBuf>,
}

impl NvmlBuilder {
    pub(super) fn new(node: NodeId) -> NvmlBuilder {
        let settings = Settings { node, interval: INTERVAL, library: None, devices: None, events: true };
        NvmlBuilder { settings, kernel_log: Some(KMSG.into()) }
    }

    /// Sets the interval between two readings of the devices. Values below 20 ms are raised to 20 ms. Default:
    /// [`INTERVAL`].
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> NvmlBuilder {
        self.settings.interval = interval.max(INTERVAL_MIN);
        self
    }

    /// Sets the NVML library to load, as a path or as a name that the dynamic loader resolves. Default:
    /// `libnvidia-ml.so.1`.
    #[must_use]
    pub fn with_library(mut self, library: impl Into<OsString>) -> NvmlBuilder {
        self.settings.library = Some(library.into());
        self
    }

    /// Sets the devices to watch, by NVML index; those beyond the first [`DEVICES_MAX`] are ignored. NVML numbers
    /// devices in PCI bus order, which is CUDA's order only with `CUDA_DEVICE_ORDER=PCI_BUS_ID`. Default: the first
    /// [`DEVICES_MAX`] devices of the machine.
    #[must_use]
    pub fn with_devices(mut self, devices: impl IntoIterator<Item = u16>) -> NvmlBuilder {
        self.settings.devices = Some(devices.into_iter().take(usize::from(DEVICES_MAX)).collect());
        self
    }

    /// Sets the path of the Linux kernel's log, from which Xids are read: a log device, or a file to which log lines
    /// are appended. Default: `/dev/kmsg`.
    #[must_use]
    pub fn with_kernel_log(mut self, path: impl Into<PathBuf>) -> NvmlBuilder {
        self.kernel_log = Some(path.into());
        self
    }

    /// Disables reading of the Linux kernel's log: Xids then arrive through NVML only, without the process and the
    /// driver's text.
    #[must_use]
    pub fn without_kernel_log(mut self) -> NvmlBuilder {
        self.kernel_log = None;
        self
    }

    /// Disables the Xid events that the driver delivers through NVML: Xids then arrive through the Linux kernel's log
    /// only.
    #[must_use]
    pub fn without_events(mut self) -> NvmlBuilder {
        self.settings.events = false;
        self
    }

    /// Loads NVML and starts to watch the GPUs. The driver can take seconds to respond while no program uses a GPU.
    ///
    /// # Errors
    /// Returns [`Unavailable`] if NVML cannot be used or lists no device to watch; the message states what to do. A
    /// kernel log that cannot be read is no error; the source reports it as a fact.
    pub async fn open(self) -> Result<NvmlSource, Unavailable> {
        let NvmlBuilder { settings, kernel_log } = self;
        let (outbox, inbox) = Outbox::new(); // dropped with its threads if the caller drops this future
        let failed = |error: std::io::Error| Unavailable::Failed(format!("its thread cannot be started: {error}"));
        let (opened, answer) = oneshot::channel();
        let (for_thread, box_of_thread) = (settings.clone(), outbox.clone());
        let thread = std::thread::Builder::new().name("taskd-nvml".into());
        thread.spawn(move || driver::run(&for_thread, &box_of_thread, opened)).map_err(failed)?;
        let opened = answer.await.map_err(|_| Unavailable::Failed("its thread ended".into()))??;
        let mut first = Vec::new();
        let log = kernel_log.map(|path| KernelLog::open(&path));
        let log_is_read = matches!(log, Some(Ok(_)));
        match log {
            Some(Ok(log)) => {
                let (for_thread, box_of_thread) = (settings.clone(), outbox.clone());
                let thread = std::thread::Builder::new().name("taskd-kmsg".into());
                thread.spawn(move || kernel_log::run(&for_thread, &box_of_thread, &log)).map_err(failed)?;
            }
            Some(Err(why)) => first.push(kernel_log::unavailable(&settings, &why)),
            None => {}
        }
        Ok(NvmlSource::new(settings, opened, inbox, log_is_read, first))
    }
}

//! How the source is set, and why it cannot be had.
//!
//! It opens nothing but at [`NvmlBuilder::open`].

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

/// How often the devices are read, unless somebody says otherwise.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// The least interval: a reading of a device takes milliseconds.
const INTERVAL_MIN: Duration = Duration::from_millis(20);

/// Why the health of GPUs cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// There is no NVML.
    #[error("NVML cannot be loaded ({library}: {why}): install NVIDIA's driver, or say where its library is")]
    NoLibrary {
        /// What was looked for.
        library: String,
        /// What the loader says.
        why: String,
    },
    /// NVML is there and the driver is not.
    #[error("NVIDIA's driver is not loaded: nvidia-smi says more, and modprobe nvidia loads it")]
    NoDriver,
    /// Another version of the driver is loaded than of the library.
    #[error("NVIDIA's driver and its library have different versions: load the driver again, or reboot the node")]
    VersionMismatch,
    /// The driver refuses.
    #[error("NVIDIA's driver refuses this user, or the container has no access to /dev/nvidia*")]
    NoPermission,
    /// The driver is there, and none of the devices that are to be watched.
    #[error("NVIDIA's driver lists {count} devices, and none of those that are to be watched")]
    NoDevice {
        /// How many it lists.
        count: u32,
    },
    /// Something else.
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

/// What the threads are told.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) node: NodeId,
    pub(super) interval: Duration,
    pub(super) library: Option<OsString>,
    pub(super) devices: Option<BTreeSet<u16>>,
    pub(super) events: bool,
}

/// Makes an [`NvmlSource`] (see [`NvmlSource::builder`]).
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

    /// How often the devices are read; at least every 20 ms. Default: [`INTERVAL`].
    #[must_use]
    pub fn with_interval(mut self, interval: Duration) -> NvmlBuilder {
        self.settings.interval = interval.max(INTERVAL_MIN);
        self
    }

    /// The library to load, by path or by a name that the loader finds. Default: `libnvidia-ml.so.1`.
    #[must_use]
    pub fn with_library(mut self, library: impl Into<OsString>) -> NvmlBuilder {
        self.settings.library = Some(library.into());
        self
    }

    /// The devices to watch, by NVML's index: the order on the PCI bus, which is CUDA's only with
    /// `CUDA_DEVICE_ORDER=PCI_BUS_ID`. Default: all, at most [`DEVICES_MAX`].
    #[must_use]
    pub fn with_devices(mut self, devices: impl IntoIterator<Item = u16>) -> NvmlBuilder {
        self.settings.devices = Some(devices.into_iter().take(usize::from(DEVICES_MAX)).collect());
        self
    }

    /// Where the kernel's log is read: `/dev/kmsg` by default, or a file to which lines of it are appended.
    #[must_use]
    pub fn with_kernel_log(mut self, path: impl Into<PathBuf>) -> NvmlBuilder {
        self.kernel_log = Some(path.into());
        self
    }

    /// The kernel's log is not read: Xids come by NVML only, without process and words.
    #[must_use]
    pub fn without_kernel_log(mut self) -> NvmlBuilder {
        self.kernel_log = None;
        self
    }

    /// The driver's events are not waited for: Xids come by the kernel's log only.
    #[must_use]
    pub fn without_events(mut self) -> NvmlBuilder {
        self.settings.events = false;
        self
    }

    /// Loads NVML and begins to watch. It waits for the driver, which can take seconds when no program uses a GPU.
    ///
    /// # Errors
    /// [`Unavailable`]: why not, and what to do.
    pub async fn open(self) -> Result<NvmlSource, Unavailable> {
        let NvmlBuilder { settings, kernel_log } = self;
        let (outbox, inbox) = Outbox::new(); // dropped with its threads, whenever nobody waits for this any more
        let failed = |error: std::io::Error| Unavailable::Failed(format!("no thread for it: {error}"));
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

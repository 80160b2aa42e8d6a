//! One reading of one device: reads the values from NVML, and selects those to report.

use super::codes::{COUNTER_WENT_BACK, NVML, error};
use super::metric as m;
use nvml_wrapper::Device;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id as f;
use std::collections::{BTreeMap, BTreeSet};
use taskd_core::job::{Domain, Name};
use taskd_core::trace::{Fact, Signal};

/// Maximum number of NVLinks that are read per card.
const LINKS_MAX: u32 = 64;

/// How often a value is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The value is reported at every reading.
    Gauge,
    /// The value is reported when it changes. It decreases only after a reset of the device or a reload of the driver.
    Counter,
    /// The value is reported when it changes, in either direction.
    State,
}

/// Reason why a device does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mute {
    /// The device fell off the bus.
    Lost,
    /// The device needs a reset.
    ResetRequired,
}

/// Reason why a reading failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    Device(Mute),
    /// NVML itself no longer works; the field is the text of its error.
    Driver(String),
}

impl Trouble {
    /// Classifies an error: it affects the device, or all of NVML, or (`None`) a single value only.
    pub(super) fn of(error: &NvmlError) -> Option<Trouble> {
        match error {
            NvmlError::GpuLost => Some(Trouble::Device(Mute::Lost)),
            NvmlError::ResetRequired => Some(Trouble::Device(Mute::ResetRequired)),
            NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded
            | NvmlError::LibRmVersionMismatch
            | NvmlError::LibraryNotFound => Some(Trouble::Driver(error.to_string())),
            _ => None,
        }
    }
}

/// Result of one reading.
#[derive(Debug, Default)]
struct Found {
    values: Vec<(Name, Kind, f64)>,
    missing: BTreeSet<&'static str>,
    errors: u32,
    trouble: Option<Trouble>,
}

impl Found {
    fn take(&mut self, name: Name, kind: Kind, value: Result<f64, NvmlError>) {
        match value {
            Ok(value) => self.values.push((name, kind, value)),
            Err(error) => self.failed(name, &error),
        }
    }

    fn failed(&mut self, name: Name, error: &NvmlError) {
        match Trouble::of(error) {
            Some(trouble) => self.trouble = Some(trouble),
            // InvalidArg is how older drivers report that they do not know a sensor or a threshold.
            None if matches!(
                error,
                NvmlError::NotSupported
                    | NvmlError::FailedToLoadSymbol(_)
                    | NvmlError::FunctionNotFound
                    | NvmlError::InvalidArg
                    | NvmlError::NoPermission
            ) =>
            {
                if let Some(known) = m::ALL.iter().find(|known| **known == name) {
                    self.missing.insert(fixed(known));
                }
            }
            None => self.errors += 1,
        }
    }
}

/// Returns the text of a constant name.
fn fixed(name: &'static Name) -> &'static str {
    name.as_str()
}

/// Values that were last reported for a device.
#[derive(Debug, Default)]
pub(super) struct Memory {
    last: BTreeMap<Name, f64>,
    read_errors: u64,
    /// Metrics that the card does not support, as of the last reading.
    pub(super) missing: BTreeSet<&'static str>,
}

impl Memory {
    /// Forgets all reported values, so that the next reading reports everything.
    pub(super) fn forget(&mut self) {
        self.last.clear();
    }

    /// Reads the device and returns the facts to report.
    ///
    /// # Errors
    /// The reason why the device or NVML does not answer.
    pub(super) fn read(&mut self, device: &Device<'_>, about: &Domain) -> Result<Vec<Fact>, Trouble> {
        let mut found = Found::default();
        for part in [temperatures, power, clocks, memory, ecc, fields] {
            part(device, &mut found);
            if let Some(trouble) = found.trouble.take() {
                return Err(trouble);
            }
        }
        self.missing = found.missing.clone();
        self.read_errors += u64::from(found.errors);
        if self.read_errors > 0 {
            found.values.push((m::READ_ERRORS, Kind::Counter, self.read_errors as f64));
        }
        Ok(self.news(found.values, about))
    }

    /// Selects the values that have to be reported, and returns them as facts about the device.
    fn news(&mut self, values: Vec<(Name, Kind, f64)>, about: &Domain) -> Vec<Fact> {
        let mut facts = Vec::new();
        for (name, kind, value) in values {
            let before = self.last.insert(name.clone(), value);
            if kind == Kind::Counter && before.is_some_and(|before| value < before) {
                let before = before.unwrap_or_default();
                let text =
                    format!("{name} went from {before} to {value}: the GPU was reset, or the driver was reloaded");
                facts.push(Fact::new(about.clone(), error(NVML, COUNTER_WENT_BACK, text)));
            }
            if kind == Kind::Gauge || before != Some(value) {
                facts.push(Fact::new(about.clone(), Signal::Metric { name, value }));
            }
        }
        facts
    }
}

fn whole(value: u64) -> f64 {
    value as f64 // beyond 2^53 the lowest digits do not matter
}

fn temperatures(device: &Device<'_>, found: &mut Found) {
    let sensor = device.temperature(TemperatureSensor::Gpu).map(f64::from);
    found.take(m::TEMPERATURE, Kind::Gauge, sensor);
    for (name, threshold) in [
        (m::TEMPERATURE_SLOWDOWN, TemperatureThreshold::Slowdown),
        (m::TEMPERATURE_SHUTDOWN, TemperatureThreshold::Shutdown),
        (m::TEMPERATURE_MAX, TemperatureThreshold::GpuMax),
        (m::MEMORY_TEMPERATURE_MAX, TemperatureThreshold::MemoryMax),
    ] {
        found.take(name, Kind::State, device.temperature_threshold(threshold).map(f64::from));
    }
}

fn power(device: &Device<'_>, found: &mut Found) {
    let watts = |milliwatts: u32| f64::from(milliwatts) / 1e3;
    found.take(m::POWER, Kind::Gauge, device.power_usage().map(watts));
    found.take(m::POWER_LIMIT, Kind::State, device.enforced_power_limit().map(watts));
}

fn clocks(device: &Device<'_>, found: &mut Found) {
    let reasons = match device.current_throttle_reasons() {
        Ok(reasons) => reasons,
        Err(error) => return found.failed(m::THROTTLE_REASONS, &error),
    };
    found.take(m::THROTTLE_REASONS, Kind::State, Ok(whole(reasons.bits())));
    for (name, reason) in [
        (m::THROTTLE_IDLE, ThrottleReasons::GPU_IDLE),
        (m::THROTTLE_APPLICATION_CLOCKS, ThrottleReasons::APPLICATIONS_CLOCKS_SETTING),
        (m::THROTTLE_POWER_CAP, ThrottleReasons::SW_POWER_CAP),
        (m::THROTTLE_HW_SLOWDOWN, ThrottleReasons::HW_SLOWDOWN),
        (m::THROTTLE_SYNC_BOOST, ThrottleReasons::SYNC_BOOST),
        (m::THROTTLE_SW_THERMAL, ThrottleReasons::SW_THERMAL_SLOWDOWN),
        (m::THROTTLE_DISPLAY_CLOCKS, ThrottleReasons::DISPLAY_CLOCK_SETTING),
    ] {
        found.take(name, Kind::State, Ok(f64::from(u8::from(reasons.contains(reason)))));
    }
    // These two are judged by how long they last, so they are reported at every reading.
    for (name, reason) in [
        (m::THROTTLE_HW_THERMAL, ThrottleReasons::HW_THERMAL_SLOWDOWN),
        (m::THROTTLE_POWER_BRAKE, ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN),
    ] {
        found.take(name, Kind::Gauge, Ok(f64::from(u8::from(reasons.contains(reason)))));
    }
}

fn memory(device: &Device<'_>, found: &mut Found) {
    match device.utilization_rates() {
        Ok(rates) => {
            found.take(m::UTILIZATION, Kind::Gauge, Ok(f64::from(rates.gpu)));
            found.take(m::MEMORY_UTILIZATION, Kind::Gauge, Ok(f64::from(rates.memory)));
        }
        Err(error) => found.failed(m::UTILIZATION, &error),
    }
    match device.memory_info() {
        Ok(memory) => {
            found.take(m::MEMORY_USED, Kind::Gauge, Ok(whole(memory.used)));
            found.take(m::MEMORY_TOTAL, Kind::State, Ok(whole(memory.total)));
        }
        Err(error) => found.failed(m::MEMORY_USED, &error),
    }
    found.take(m::PCIE_REPLAY, Kind::Counter, device.pcie_replay_counter().map(f64::from));
}

fn ecc(device: &Device<'_>, found: &mut Found) {
    for (name, error, counter) in [
        (m::ECC_CORRECTED_VOLATILE, MemoryError::Corrected, EccCounter::Volatile),
        (m::ECC_UNCORRECTED_VOLATILE, MemoryError::Uncorrected, EccCounter::Volatile),
        (m::ECC_CORRECTED_AGGREGATE, MemoryError::Corrected, EccCounter::Aggregate),
        (m::ECC_UNCORRECTED_AGGREGATE, MemoryError::Uncorrected, EccCounter::Aggregate),
    ] {
        found.take(name, Kind::Counter, device.total_ecc_errors(error, counter).map(whole));
    }
}

/// Reads the values that NVML provides as numbered fields, without a function for each.
fn fields(device: &Device<'_>, found: &mut Found) {
    let fields = [
        (m::MEMORY_TEMPERATURE, Kind::Gauge, f::NVML_FI_DEV_MEMORY_TEMP),
        (m::RETIRED_PAGES_CORRECTED, Kind::Counter, f::NVML_FI_DEV_RETIRED_SBE),
        (m::RETIRED_PAGES_UNCORRECTED, Kind::Counter, f::NVML_FI_DEV_RETIRED_DBE),
        (m::RETIRED_PAGES_PENDING, Kind::State, f::NVML_FI_DEV_RETIRED_PENDING),
        (m::REMAPPED_ROWS_CORRECTED, Kind::Counter, f::NVML_FI_DEV_REMAPPED_COR),
        (m::REMAPPED_ROWS_UNCORRECTED, Kind::Counter, f::NVML_FI_DEV_REMAPPED_UNC),
        (m::ROW_REMAP_PENDING, Kind::State, f::NVML_FI_DEV_REMAPPED_PENDING),
        (m::ROW_REMAP_FAILED, Kind::State, f::NVML_FI_DEV_REMAPPED_FAILURE),
        (m::NVLINK_CRC_FLIT, Kind::Counter, f::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
        (m::NVLINK_CRC_DATA, Kind::Counter, f::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL),
        (m::NVLINK_REPLAY, Kind::Counter, f::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
        (m::NVLINK_RECOVERY, Kind::Counter, f::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
        (m::NVLINK_LINKS, Kind::State, f::NVML_FI_DEV_NVLINK_LINK_COUNT),
        (m::RECOVERY_ACTION, Kind::State, f::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION),
    ];
    let ids: Vec<FieldId> = fields.iter().map(|(.., id)| FieldId(*id)).collect();
    let samples = match device.field_values_for(&ids) {
        Ok(samples) => samples,
        Err(error) => return fields.into_iter().for_each(|(name, ..)| found.failed(name, &error)),
    };
    let mut links = 0;
    for ((name, kind, _), sample) in fields.into_iter().zip(samples) {
        let value = sample.and_then(|sample| sample.value).map(number);
        if let (true, Ok(count)) = (name == m::NVLINK_LINKS, &value) {
            links = (0..LINKS_MAX).find(|link| f64::from(*link) >= *count).unwrap_or(LINKS_MAX);
        }
        found.take(name, kind, value);
    }
    if links > 0 {
        let down = (0..links).filter(|link| matches!(device.link_wrapper_for(*link).is_active(), Ok(false))).count();
        found.take(m::NVLINK_DOWN, Kind::State, Ok(down as f64));
    }
}

fn number(value: SampleValue) -> f64 {
    match value {
        SampleValue::F64(value) => value,
        SampleValue::U32(value) => f64::from(value),
        SampleValue::U64(value) => whole(value),
        SampleValue::I64(value) => value as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskd_core::job::NodeId;

    fn reported(memory: &mut Memory, value: f64, kind: Kind) -> Vec<String> {
        let about = Domain::Device(NodeId(Name::new("n")), 0);
        let facts = memory.news(vec![(m::ECC_CORRECTED_VOLATILE, kind, value)], &about);
        facts.iter().map(|fact| format!("{:?}", fact.signal)).collect()
    }

    #[test]
    fn counters_are_reported_on_change_and_on_decrease() {
        let mut memory = Memory::default();
        assert_eq!(reported(&mut memory, 3.0, Kind::Counter).len(), 1);
        assert_eq!(reported(&mut memory, 3.0, Kind::Counter), Vec::<String>::new());
        assert_eq!(reported(&mut memory, 4.0, Kind::Counter).len(), 1);
        let back = reported(&mut memory, 0.0, Kind::Counter);
        assert!(back[0].contains("counter-went-back") && back[0].contains("went from 4 to 0"), "{back:?}");
        assert!(back[1].contains("value: 0"), "{back:?}");
        memory.forget();
        assert_eq!(reported(&mut memory, 0.0, Kind::Counter).len(), 1);
    }

    #[test]
    fn gauges_are_reported_every_time_and_states_on_change() {
        let mut memory = Memory::default();
        assert_eq!([0, 1, 2].map(|_| reported(&mut memory, 5.0, Kind::Gauge).len()), [1, 1, 1]);
        assert_eq!([0, 1, 2].map(|_| reported(&mut memory, 6.0, Kind::State).len()), [1, 0, 0]);
    }

    #[test]
    fn unsupported_metrics_are_omitted_and_failures_are_counted() {
        let mut found = Found::default();
        found.take(m::ECC_CORRECTED_VOLATILE, Kind::Counter, Err(NvmlError::NotSupported));
        found.take(m::POWER, Kind::Gauge, Err(NvmlError::Unknown));
        assert_eq!((found.values.len(), found.errors), (0, 1));
        assert_eq!(found.missing.iter().copied().collect::<Vec<_>>(), ["gpu.ecc_corrected_volatile_total"]);
        assert_eq!(found.trouble, None);
        found.take(m::POWER, Kind::Gauge, Err(NvmlError::GpuLost));
        assert_eq!(found.trouble, Some(Trouble::Device(Mute::Lost)));
    }
}

//! Names of the GPU metrics, each with its unit as the suffix. NVML's documentation defines the values.

use taskd_core::job::Name;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: Name = Name::new($text);)*

        /// Names of all GPU metrics.
        pub const ALL: &[Name] = &[$($name),*];
    };
}

names! {
    /// Temperature of the chip.
    TEMPERATURE = "gpu.temperature_c";
    /// Temperature of the memory.
    MEMORY_TEMPERATURE = "gpu.memory_temperature_c";
    /// Temperature at which the hardware slows its clocks down.
    TEMPERATURE_SLOWDOWN = "gpu.temperature_slowdown_c";
    /// Temperature at which the hardware shuts down.
    TEMPERATURE_SHUTDOWN = "gpu.temperature_shutdown_c";
    /// Temperature at which the driver slows the chip's clocks down.
    TEMPERATURE_MAX = "gpu.temperature_max_c";
    /// Temperature at which the driver slows the memory's clocks down.
    MEMORY_TEMPERATURE_MAX = "gpu.memory_temperature_max_c";
    /// Power drawn by the board.
    POWER = "gpu.power_w";
    /// Power limit in force.
    POWER_LIMIT = "gpu.power_limit_w";
    /// Share of the time since the previous reading in which at least one kernel ran.
    UTILIZATION = "gpu.utilization_percent";
    /// Share of the time since the previous reading in which memory was read or written.
    MEMORY_UTILIZATION = "gpu.memory_utilization_percent";
    /// Memory in use.
    MEMORY_USED = "gpu.memory_used_bytes";
    /// Memory installed.
    MEMORY_TOTAL = "gpu.memory_total_bytes";
    /// Reasons why the clocks are below their maximum, as NVML's bits.
    THROTTLE_REASONS = "gpu.throttle_reasons_bits";
    /// 1 while the GPU is idle.
    THROTTLE_IDLE = "gpu.throttle_idle_on";
    /// 1 while an application clock setting limits the clocks.
    THROTTLE_APPLICATION_CLOCKS = "gpu.throttle_application_clocks_on";
    /// 1 while the power limit limits the clocks.
    THROTTLE_POWER_CAP = "gpu.throttle_power_cap_on";
    /// 1 while the hardware slows the clocks down by half or more, for any reason.
    THROTTLE_HW_SLOWDOWN = "gpu.throttle_hw_slowdown_on";
    /// 1 while another GPU of the same sync boost group limits the clocks.
    THROTTLE_SYNC_BOOST = "gpu.throttle_sync_boost_on";
    /// 1 while the driver slows the clocks down because of the temperature.
    THROTTLE_SW_THERMAL = "gpu.throttle_sw_thermal_on";
    /// 1 while the hardware slows the clocks down by half or more because of the temperature.
    THROTTLE_HW_THERMAL = "gpu.throttle_hw_thermal_on";
    /// 1 while the hardware slows the clocks down by half or more because the power supply requests it.
    THROTTLE_POWER_BRAKE = "gpu.throttle_power_brake_on";
    /// 1 while a display clock setting limits the clocks.
    THROTTLE_DISPLAY_CLOCKS = "gpu.throttle_display_clocks_on";
    /// Corrected memory errors since the driver was loaded.
    ECC_CORRECTED_VOLATILE = "gpu.ecc_corrected_volatile_total";
    /// Uncorrected memory errors since the driver was loaded.
    ECC_UNCORRECTED_VOLATILE = "gpu.ecc_uncorrected_volatile_total";
    /// Corrected memory errors in the card's life.
    ECC_CORRECTED_AGGREGATE = "gpu.ecc_corrected_aggregate_total";
    /// Uncorrected memory errors in the card's life.
    ECC_UNCORRECTED_AGGREGATE = "gpu.ecc_uncorrected_aggregate_total";
    /// Pages retired because of repeated corrected errors (cards before Ampere).
    RETIRED_PAGES_CORRECTED = "gpu.retired_pages_corrected_total";
    /// Pages retired because of an uncorrected error (cards before Ampere).
    RETIRED_PAGES_UNCORRECTED = "gpu.retired_pages_uncorrected_total";
    /// 1 while pages are to be retired at the next start of the driver.
    RETIRED_PAGES_PENDING = "gpu.retired_pages_pending_on";
    /// Rows remapped because of corrected errors (Ampere and newer).
    REMAPPED_ROWS_CORRECTED = "gpu.remapped_rows_corrected_total";
    /// Rows remapped because of uncorrected errors (Ampere and newer).
    REMAPPED_ROWS_UNCORRECTED = "gpu.remapped_rows_uncorrected_total";
    /// 1 while rows are to be remapped at the next reset.
    ROW_REMAP_PENDING = "gpu.row_remap_pending_on";
    /// 1 after remapping failed: no spare rows are left.
    ROW_REMAP_FAILED = "gpu.row_remap_failed_on";
    /// Control packets with a wrong checksum, over all NVLinks.
    NVLINK_CRC_FLIT = "gpu.nvlink_crc_flit_errors_total";
    /// Data packets with a wrong checksum, over all NVLinks.
    NVLINK_CRC_DATA = "gpu.nvlink_crc_data_errors_total";
    /// Packets sent again, over all NVLinks.
    NVLINK_REPLAY = "gpu.nvlink_replays_total";
    /// Link recoveries, over all NVLinks.
    NVLINK_RECOVERY = "gpu.nvlink_recoveries_total";
    /// Number of NVLinks of the card.
    NVLINK_LINKS = "gpu.nvlink_links_count";
    /// Number of NVLinks that are not up.
    NVLINK_DOWN = "gpu.nvlink_links_down_count";
    /// Packets sent again over PCIe.
    PCIE_REPLAY = "gpu.pcie_replays_total";
    /// Number of the driver's recommended recovery action for the GPU; 0 for none (driver 570 and later).
    RECOVERY_ACTION = "gpu.recovery_action_code";
    /// Readings that failed for another reason than that the card does not support the metric.
    READ_ERRORS = "gpu.read_errors_total";
    /// Xids that repeated within moments and were not reported individually.
    XIDS_FOLDED = "gpu.xids_folded_total";
}

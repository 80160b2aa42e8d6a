//! The names of what is measured on a GPU, units last.
//!
//! Names only: what they mean is NVML's documentation.

use taskd_core::job::Name;

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)*) => {
        $($(#[$doc])* pub const $name: Name = Name::new($text);)*

        /// All names.
        pub const ALL: &[Name] = &[$($name),*];
    };
}

names! {
    /// Of the chip.
    TEMPERATURE = "gpu.temperature_c";
    /// Of the memory.
    MEMORY_TEMPERATURE = "gpu.memory_temperature_c";
    /// From here on the hardware slows its clocks down.
    TEMPERATURE_SLOWDOWN = "gpu.temperature_slowdown_c";
    /// From here on the hardware switches itself off.
    TEMPERATURE_SHUTDOWN = "gpu.temperature_shutdown_c";
    /// From here on the driver slows the chip's clocks down.
    TEMPERATURE_MAX = "gpu.temperature_max_c";
    /// From here on the driver slows the memory's clocks down.
    MEMORY_TEMPERATURE_MAX = "gpu.memory_temperature_max_c";
    /// Drawn by the board.
    POWER = "gpu.power_w";
    /// The limit in force.
    POWER_LIMIT = "gpu.power_limit_w";
    /// Of the time since the reading before, with at least one kernel.
    UTILIZATION = "gpu.utilization_percent";
    /// Of the time since the reading before, with memory being read or written.
    MEMORY_UTILIZATION = "gpu.memory_utilization_percent";
    /// In use.
    MEMORY_USED = "gpu.memory_used_bytes";
    /// Installed.
    MEMORY_TOTAL = "gpu.memory_total_bytes";
    /// Why clocks are not at their highest: NVML's bits.
    THROTTLE_REASONS = "gpu.throttle_reasons_bits";
    /// 1 while nothing runs.
    THROTTLE_IDLE = "gpu.throttle_idle_on";
    /// 1 while an application's clock setting limits.
    THROTTLE_APPLICATION_CLOCKS = "gpu.throttle_application_clocks_on";
    /// 1 while the power limit limits.
    THROTTLE_POWER_CAP = "gpu.throttle_power_cap_on";
    /// 1 while the hardware slows down by half or more, for whatever reason.
    THROTTLE_HW_SLOWDOWN = "gpu.throttle_hw_slowdown_on";
    /// 1 while another GPU of its group limits.
    THROTTLE_SYNC_BOOST = "gpu.throttle_sync_boost_on";
    /// 1 while the driver slows down for the temperature.
    THROTTLE_SW_THERMAL = "gpu.throttle_sw_thermal_on";
    /// 1 while the hardware slows down by half or more for the temperature.
    THROTTLE_HW_THERMAL = "gpu.throttle_hw_thermal_on";
    /// 1 while the hardware slows down by half or more because the power supply asks for it.
    THROTTLE_POWER_BRAKE = "gpu.throttle_power_brake_on";
    /// 1 while a display's clock setting limits.
    THROTTLE_DISPLAY_CLOCKS = "gpu.throttle_display_clocks_on";
    /// Memory errors that were corrected, since the driver was loaded.
    ECC_CORRECTED_VOLATILE = "gpu.ecc_corrected_volatile_total";
    /// Memory errors that were not, since the driver was loaded.
    ECC_UNCORRECTED_VOLATILE = "gpu.ecc_uncorrected_volatile_total";
    /// Memory errors that were corrected, in the card's life.
    ECC_CORRECTED_AGGREGATE = "gpu.ecc_corrected_aggregate_total";
    /// Memory errors that were not, in the card's life.
    ECC_UNCORRECTED_AGGREGATE = "gpu.ecc_uncorrected_aggregate_total";
    /// Pages retired for repeated corrected errors (cards before Ampere).
    RETIRED_PAGES_CORRECTED = "gpu.retired_pages_corrected_total";
    /// Pages retired for an uncorrected error (cards before Ampere).
    RETIRED_PAGES_UNCORRECTED = "gpu.retired_pages_uncorrected_total";
    /// 1 while pages wait for the next start of the driver to be retired.
    RETIRED_PAGES_PENDING = "gpu.retired_pages_pending_on";
    /// Rows remapped for corrected errors (Ampere and newer).
    REMAPPED_ROWS_CORRECTED = "gpu.remapped_rows_corrected_total";
    /// Rows remapped for uncorrected errors (Ampere and newer).
    REMAPPED_ROWS_UNCORRECTED = "gpu.remapped_rows_uncorrected_total";
    /// 1 while rows wait for the next reset to be remapped.
    ROW_REMAP_PENDING = "gpu.row_remap_pending_on";
    /// 1 once remapping failed: no spare rows are left.
    ROW_REMAP_FAILED = "gpu.row_remap_failed_on";
    /// Of all links, control packets with a wrong check sum.
    NVLINK_CRC_FLIT = "gpu.nvlink_crc_flit_errors_total";
    /// Of all links, data packets with a wrong check sum.
    NVLINK_CRC_DATA = "gpu.nvlink_crc_data_errors_total";
    /// Of all links, packets sent again.
    NVLINK_REPLAY = "gpu.nvlink_replays_total";
    /// Of all links, recoveries.
    NVLINK_RECOVERY = "gpu.nvlink_recoveries_total";
    /// Links that the card has.
    NVLINK_LINKS = "gpu.nvlink_links_count";
    /// Links that are not up.
    NVLINK_DOWN = "gpu.nvlink_links_down_count";
    /// Packets sent again over PCIe.
    PCIE_REPLAY = "gpu.pcie_replays_total";
    /// What the driver says is to be done about the GPU, by its number; 0 for nothing (drivers from 570 on).
    RECOVERY_ACTION = "gpu.recovery_action_code";
    /// Readings that failed for a reason other than that the card has no such thing.
    READ_ERRORS = "gpu.read_errors_total";
    /// Xids that came again within moments and are not told one by one.
    XIDS_FOLDED = "gpu.xids_folded_total";
}

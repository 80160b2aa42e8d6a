//! Memory of the device over time from `memory_record.csv`.

use super::Reading;
use std::collections::BTreeMap;
use std::fs::File;
use taskd_core::analysis::decimal::ns_from_us;

/// Components of which one has the memory of the whole program, the most complete first: PyTorch's allocator with the
/// graph engine, MindSpore's pool, PyTorch's allocator, the graph engine. `APP` is the whole process as the driver sees it,
/// with reservations only.
const COMPONENTS: [&str; 4] = ["PTA+GE", "MindSpore", "PTA", "GE"];
/// Bytes of the file's unit, MB.
const UNIT: f64 = 1_048_576.0;
/// Maximum number of rows that are kept of one component; further ones are counted, and reported as missing.
pub(super) const ROWS_MAX: usize = 4_000_000;

/// Reads the memory that is allocated over time into the rank's resources.
pub(super) fn read(reading: &mut Reading, file: File) -> Result<(), String> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(file);
    let header = reader.headers().map_err(|error| error.to_string())?.clone();
    let place = |name: &str| header.iter().position(|column| column.trim() == name);
    let must = |name: &str| place(name).ok_or_else(|| format!("it has no column {name}"));
    let (component, at, allocated) = (must("Component")?, must("Timestamp(us)")?, must("Total Allocated(MB)")?);
    let device = place("Device Type");
    let mut found: BTreeMap<usize, Vec<(i64, u64)>> = BTreeMap::new();
    let (mut row, mut unreadable, mut beyond) = (csv::StringRecord::new(), 0_u64, 0_u64);
    loop {
        match reader.read_record(&mut row) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) if error.is_io_error() => return Err(error.to_string()),
            Err(_) => {
                unreadable += 1;
                continue;
            }
        }
        let field = |place: usize| row.get(place).map(str::trim);
        let known = COMPONENTS.iter().position(|known| field(component) == Some(known));
        let is_host = device.and_then(field).is_some_and(|device| device.starts_with("CPU"));
        let Some(known) = known.filter(|_| !is_host) else { continue };
        let point = || Some((ns_from_us(field(at)?.as_bytes())?, bytes(field(allocated)?)?));
        let points = found.entry(known).or_default();
        match point() {
            Some(point) if points.len() < ROWS_MAX => points.push(point),
            Some(_) => beyond += 1,
            None => unreadable += 1,
        }
    }
    for (count, why) in [(unreadable, "they have no time or size"), (beyond, "the rank has too many")] {
        if count > 0 {
            reading.miss(format!("{count} lines of memory_record.csv were not read: {why}"));
        }
    }
    let mut memory = found.into_values().next().unwrap_or_default();
    memory.sort_unstable();
    let resources = &mut reading.trace.resources;
    resources.peak_memory_bytes = memory.iter().map(|(_, bytes)| *bytes).max();
    resources.memory = memory;
    Ok(())
}

/// Returns a size of the file in bytes; `None` if it is no size.
fn bytes(text: &str) -> Option<u64> {
    let size: f64 = text.parse().ok().filter(|size: &f64| size.is_finite() && *size >= 0.0)?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
    let bytes = (size * UNIT).round() as u64;
    Some(bytes)
}

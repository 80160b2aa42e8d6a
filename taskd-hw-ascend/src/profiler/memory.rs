//! Memory of the device over time from `memory_record.csv`.

use super::Reading;
use std::fs::File;
use taskd_core::analysis::decimal::ns_from_us;

/// Components of which one has the memory of the whole program, the most complete first. `APP` is the whole process as
/// the driver sees it, with reservations only.
const COMPONENTS: [&str; 5] = ["PTA+GE", "MindSpore+GE", "MindSpore", "PTA", "GE"];
/// Bytes of an MB in files of `torch_npu` (`KB_TO_MB` is 1024 there).
const MB_OF_TORCH: f64 = 1_048_576.0;
/// Bytes of an MB in files of MindSpore, which divides KiB by 1000 (`AscendMemoryViewer`).
const MB_OF_MINDSPORE: f64 = 1_024_000.0;
/// Maximum number of rows that are kept of one rank; further ones are counted, and reported as missing.
const ROWS_MAX: usize = 4_000_000;

/// Rows of one component.
#[derive(Default)]
struct Component {
    /// Time in nanoseconds since 1970, and allocated memory in MB.
    rows: Vec<(i64, f64)>,
    peak: f64,
    unreadable: u64,
    beyond: u64,
}

impl Component {
    fn add(&mut self, row: Option<(i64, f64)>) {
        let Some(row) = row else {
            self.unreadable += 1;
            return;
        };
        self.peak = self.peak.max(row.1);
        if self.rows.len() < ROWS_MAX {
            self.rows.push(row);
        } else {
            self.beyond += 1;
        }
    }
}

/// Reads the memory that is allocated over time into the rank's resources.
pub(super) fn read(reading: &mut Reading, file: File) -> Result<(), String> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(file);
    let header = reader.headers().map_err(|error| error.to_string())?.clone();
    let place = |name: &str| header.iter().position(|column| column.trim() == name);
    let must = |name: &str| place(name).ok_or_else(|| format!("it has no column {name}"));
    let (component, at, allocated) = (must("Component")?, must("Timestamp(us)")?, must("Total Allocated(MB)")?);
    let device = place("Device Type");
    let (mut best, mut found, mut is_mindspore) = (COMPONENTS.len(), Component::default(), false);
    let (mut row, mut damaged) = (csv::StringRecord::new(), 0_u64);
    loop {
        match reader.read_record(&mut row) {
            Ok(false) => break,
            Ok(true) => {}
            Err(error) if error.is_io_error() => return Err(error.to_string()),
            Err(_) => {
                damaged += 1;
                continue;
            }
        }
        let field = |place: usize| row.get(place).map(str::trim);
        let known = COMPONENTS.iter().position(|known| field(component) == Some(known));
        let is_host = device.and_then(field).is_some_and(|device| device.starts_with("CPU"));
        let Some(known) = known.filter(|_| !is_host) else { continue };
        is_mindspore |= COMPONENTS[known].starts_with("MindSpore");
        if known < best {
            (best, found) = (known, Component::default());
        }
        if known == best {
            found.add(field(at).and_then(|at| ns_from_us(at.as_bytes())).zip(field(allocated).and_then(size)));
        }
    }
    let unreadable = found.unreadable + damaged;
    for (count, why) in [(unreadable, "they are not readable"), (found.beyond, "the rank has too many")] {
        if count > 0 {
            reading.miss(format!("{count} lines of memory_record.csv were not read: {why}"));
        }
    }
    let unit = if is_mindspore { MB_OF_MINDSPORE } else { MB_OF_TORCH };
    found.rows.sort_by_key(|row| row.0);
    let resources = &mut reading.trace.resources;
    resources.peak_memory_bytes = (!found.rows.is_empty()).then(|| bytes(found.peak, unit));
    resources.memory = found.rows.into_iter().map(|(at, size)| (at, bytes(size, unit))).collect();
    Ok(())
}

/// Returns a size in MB; `None` if the text is no size.
fn size(text: &str) -> Option<f64> {
    text.parse().ok().filter(|size: &f64| size.is_finite() && *size >= 0.0)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn bytes(size: f64, unit: f64) -> u64 {
    (size * unit).round() as u64
}

//! Kernels from `kernel_details.csv`.

use super::communication::operation;
use super::{Reading, step_number};
use std::fs::File;
use taskd_core::analysis::decimal::ns_from_us;
use taskd_core::analysis::model::{Event, Kind};

/// Places of the columns that are read.
struct Columns {
    name: usize,
    start: usize,
    duration: usize,
    step: Option<usize>,
    stream: Option<usize>,
    accelerator: Option<usize>,
}

impl Columns {
    fn of(header: &csv::StringRecord) -> Result<Columns, String> {
        let place = |name: &str| header.iter().position(|column| column.trim() == name);
        let must = |name: &str| place(name).ok_or_else(|| format!("it has no column {name}"));
        Ok(Columns {
            name: must("Name")?,
            start: must("Start Time(us)")?,
            duration: must("Duration(us)")?,
            step: place("Step Id"),
            stream: place("Stream ID"),
            accelerator: place("Accelerator Core"),
        })
    }
}

/// Reads the kernels into the rank's trace. Kernels of communication are left out if `has_communication`:
/// `communication.json` has them with more details. Times are decimal microseconds since 1970, which may end with a
/// tabulator.
pub(super) fn read(reading: &mut Reading, file: File, has_communication: bool) -> Result<(), String> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).from_reader(file);
    let columns = Columns::of(reader.headers().map_err(|error| error.to_string())?)?;
    let mut row = csv::StringRecord::new();
    let mut unreadable = 0_u64;
    loop {
        match reader.read_record(&mut row) {
            Ok(false) => break,
            Ok(true) => unreadable += u64::from(kernel(reading, &columns, &row, has_communication).is_none()),
            Err(error) if error.is_io_error() => return Err(error.to_string()),
            Err(_) => unreadable += 1,
        }
    }
    if unreadable > 0 {
        reading.miss(format!("{unreadable} lines of kernel_details.csv were not read: they have no start or length"));
    }
    Ok(())
}

/// Adds one kernel; `None` if the line is not readable.
fn kernel(reading: &mut Reading, columns: &Columns, row: &csv::StringRecord, has_communication: bool) -> Option<()> {
    let field = |place: Option<usize>| place.and_then(|place| row.get(place)).map(str::trim);
    let text = field(Some(columns.name))?;
    let time = |place| ns_from_us(field(Some(place))?.as_bytes());
    let start_ns = time(columns.start)?;
    let duration_ns = u64::try_from(time(columns.duration)?).ok()?;
    let is_communication =
        matches!(field(columns.accelerator), Some("HCCL" | "COMMUNICATION")) || text.starts_with("hcom_");
    if is_communication && has_communication {
        return Some(());
    }
    let kind = if is_communication { operation(text).1 } else { Kind::Compute };
    let lane = field(columns.stream).and_then(|stream| stream.parse().ok()).unwrap_or(0);
    let name = reading.trace.names.intern(text);
    let step = field(columns.step).and_then(step_number);
    reading.add(Event { start_ns, duration_ns, kind, lane, name, communication: None }, step);
    Some(())
}

//! Imports records of a vendor's trace interface: converts the records of `taskd_import` into the recorder's types.
//!
//! The vendor's interface is called by the probe that calls this function.

use super::process::guarded;
use super::recorder::{
    Communication, DataType, Detail, DeviceCommunication, DeviceWork, Event, Imported, Kind, NameId, Op,
};
use super::thread::with_own;

/// A trace record to be imported, with the layout of the C struct `taskd_record` in `taskd.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RawRecord {
    unix_nanos: u64,
    /// Duration of a span in nanoseconds.
    nanos: u64,
    /// Value of a counter.
    value: f64,
    kind: u32,
    name: u32,
    event: u32,
    form: u32,
    thread: u32,
    device: u32,
    stream: u32,
    op: u32,
    data_type: u32,
    group: u32,
    peer: u32,
    reserved: u32,
    elements: u64,
    bytes: u64,
    /// The correlation of a device span, the number of a communication in its group, or the number of a step.
    number: u64,
}

const _: () = assert!(size_of::<RawRecord>() == 96);

/// Imports trace records that another component made into this process's recorder, as far as the recorder has room.
/// Returns the number of accepted records.
///
/// # Safety
/// `records` must point to `count` records.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taskd_import(records: *const RawRecord, count: usize) -> usize {
    if records.is_null() || count == 0 {
        return 0;
    }
    // SAFETY: as the caller has promised.
    let records = unsafe { std::slice::from_raw_parts(records, count) };
    guarded(|| with_own(|own| own.recorder().import(records.iter().map(RawRecord::imported))))
}

impl RawRecord {
    /// Converts a record. A record that is invalid in this version becomes an event of the user's last kind, so that it
    /// is visible and no consumer waits for it.
    #[inline]
    fn imported(&self) -> Imported {
        let kind = u8::try_from(self.kind).ok().and_then(Kind::of_number);
        let (Some(kind), Some(event), Some(detail)) = (kind, self.event(), self.detail()) else {
            return Imported {
                unix_nanos: self.unix_nanos,
                thread: self.thread,
                kind: Kind::User(u8::MAX),
                event: Event::Instant,
                name: NameId(self.name),
                detail: Detail::None,
            };
        };
        let (unix_nanos, thread, name) = (self.unix_nanos, self.thread, NameId(self.name));
        Imported { unix_nanos, thread, kind, event, name, detail }
    }

    #[inline]
    const fn event(&self) -> Option<Event> {
        Some(match self.event {
            1 => Event::Span { nanos: self.nanos },
            2 => Event::Instant,
            3 => Event::Counter { value: self.value },
            _ => return None,
        })
    }

    #[inline]
    fn detail(&self) -> Option<Detail> {
        let code = |number: u32| u8::try_from(number).unwrap_or(0);
        let (op, data_type) = (Op::of_code(code(self.op)), DataType::of_code(code(self.data_type)));
        let (group, peer) = (NameId(self.group), Some(self.peer).filter(|peer| *peer != u32::MAX));
        let RawRecord { device, stream, elements, bytes, number, .. } = *self;
        let work = DeviceWork { device, stream, correlation: number, bytes };
        Some(match self.form {
            0 => Detail::None,
            1 => Detail::Step { number, cpu_nanos: 0 },
            2 => {
                let sequence = Some(number).filter(|number| *number != u64::MAX);
                Detail::Communication(Communication { op, data_type, group, elements, bytes, peer, sequence })
            }
            3 => Detail::Device(work),
            4 => Detail::DeviceCommunication(DeviceCommunication { op, data_type, group, peer, work }),
            _ => return None,
        })
    }
}

//! The thread that reads the kernel log: `/dev/kmsg`, or a file to which another program writes the log.
//!
//! Reading starts at the end of the log, so earlier messages are not reported.

use super::builder::Settings;
use super::codes::{KERNEL_LOG_UNAVAILABLE, NVML, error};
use super::news::{Outbox, Place, Via, What, Xid};
use crate::xid::{Family, Line, Lines, Record};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::time::ClockId;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};
use taskd_core::job::{Domain, printable};
use taskd_core::trace::Fact;

/// Device through which Linux exposes its log.
pub(super) const KMSG: &str = "/dev/kmsg";

/// Size of the read buffer; a record of `/dev/kmsg` is always smaller.
const BUFFER_BYTES: usize = 16 << 10;

/// Bytes kept of one line; the driver's lines are shorter, so the cut part cannot matter.
const LINE_BYTES_MAX: usize = 8 << 10;

/// Maximum duration of one wait, which bounds the delay until a dropped source is noticed.
const WAIT: Duration = Duration::from_millis(250);

/// Pause after a record that could not be read, so that a broken device is not read in a busy loop.
const TOO_LATE: Duration = Duration::from_millis(1);

/// A record cannot be older than this, since reading starts at the log's end; a larger age from its time stamp is
/// ignored.
const AGE_MAX: Duration = Duration::from_secs(60);

/// An open kernel log.
pub(super) struct KernelLog {
    fd: OwnedFd,
    is_kmsg: bool,
}

impl KernelLog {
    /// Opens a log and moves to its end.
    pub(super) fn open(path: &Path) -> Result<KernelLog, String> {
        let told = |error: Errno| format!("{}: {error}", path.display());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(told)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd).map_err(told)?.st_mode);
        let is_kmsg = match kind {
            FileType::CharacterDevice => true,
            FileType::RegularFile | FileType::Fifo => false,
            _ => return Err(format!("{} is neither the kernel's log nor a file", path.display())),
        };
        if kind != FileType::Fifo {
            rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(told)?;
        }
        Ok(KernelLog { fd, is_kmsg })
    }
}

/// Builds the fact that the log cannot be read.
pub(super) fn unavailable(settings: &Settings, why: &str) -> Fact {
    let text = format!(
        "the kernel's log cannot be read ({why}): Xids come from NVML only, without process and text; run with \
         CAP_SYSLOG, give the container /dev/kmsg, or name a file with the log"
    );
    Fact::new(Domain::Node(settings.node.clone()), error(NVML, KERNEL_LOG_UNAVAILABLE, text))
}

/// Runs until the source is dropped.
pub(super) fn run(settings: &Settings, outbox: &Outbox, log: &KernelLog) {
    let told = match if log.is_kmsg { records(outbox, log) } else { lines(outbox, log) } {
        Ok(()) => return,
        Err(error) => error.to_string(),
    };
    outbox.put(Instant::now(), What::Facts(vec![unavailable(settings, &told)]));
}

/// Reads `/dev/kmsg`: each read returns one record.
fn records(outbox: &Outbox, log: &KernelLog) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut next, mut lines) = (None, Lines::default());
    while !outbox.stop.is_over() {
        let read = match rustix::io::read(&log.fd, &mut buffer[..]) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(Errno::AGAIN) => {
                let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(WAIT.subsec_nanos()) };
                match poll(&mut [PollFd::new(&log.fd, PollFlags::IN)], Some(&timeout)) {
                    Ok(_) | Err(Errno::INTR) => continue,
                    Err(error) => return Err(error),
                }
            }
            // Overwritten before it was read, or too long: the next record's sequence number shows how many were lost.
            Err(Errno::PIPE | Errno::INVAL) => {
                outbox.stop.wait(TOO_LATE);
                continue;
            }
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        };
        let text = String::from_utf8_lossy(&buffer[..read]);
        let Some(record) = Record::parse(&text) else { continue };
        let lost = next.map_or(0, |next| record.sequence.saturating_sub(next));
        if lost > 0 {
            outbox.put(Instant::now(), What::Lost(lost));
        }
        next = Some(record.sequence.saturating_add(1));
        if let Some(line) = lines.take(record.message) {
            outbox.put(seen_at(record.at_us), What::Xid(Xid::of(line)));
        }
    }
    Ok(())
}

/// Converts the time of a record, in microseconds of the monotonic clock, into an `Instant`.
fn seen_at(at_us: u64) -> Instant {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let now_us = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000)
        + u64::try_from(now.tv_nsec / 1000).unwrap_or(0);
    let age = Duration::from_micros(now_us.saturating_sub(at_us));
    let (now, age) = (Instant::now(), if age > AGE_MAX { Duration::ZERO } else { age });
    now.checked_sub(age).unwrap_or(now)
}

/// Reads the lines that are appended to a log file.
fn lines(outbox: &Outbox, log: &KernelLog) -> Result<(), Errno> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (mut splitter, mut lines) = (Splitter::default(), Lines::default());
    while !outbox.stop.is_over() {
        match rustix::io::read(&log.fd, &mut buffer[..]) {
            Ok(0) | Err(Errno::AGAIN) => {
                outbox.stop.wait(WAIT / 5);
            }
            Ok(read) => splitter.take(&buffer[..read], |text| {
                // A file may hold records in the format of /dev/kmsg, or lines in the format of syslog.
                let message = Record::parse(text).map_or(text, |record| record.message);
                if let Some(line) = lines.take(message) {
                    outbox.put(Instant::now(), What::Xid(Xid::of(line)));
                }
            }),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Splits a byte stream into lines, independent of how the reads divide it.
#[derive(Debug, Default)]
struct Splitter {
    begun: Vec<u8>,
}

impl Splitter {
    fn take(&mut self, bytes: &[u8], mut line: impl FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = LINE_BYTES_MAX.saturating_sub(self.begun.len());
            self.begun.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                line(String::from_utf8_lossy(&self.begun).trim_end());
                self.begun.clear();
            }
        }
    }
}

impl Xid {
    fn of(line: Line) -> Xid {
        let place = match (line.family, line.pci) {
            (Family::Sxid, pci) => Place::Switch(pci),
            (Family::Xid, Some(pci)) => Place::Pci(pci),
            (Family::Xid, None) => Place::Unknown,
        };
        Xid { via: Via::KernelLog, place, code: line.code, text: printable(&line.text).into_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<String> {
        let (mut splitter, mut lines) = (Splitter::default(), Vec::new());
        for piece in pieces {
            splitter.take(piece, |line| lines.push(line.to_owned()));
        }
        lines
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        assert_eq!(split(&[b"one\ntw", b"o\n", b"\nthr", b"ee\nrest"]), ["one", "two", "", "three"]);
        assert_eq!(split(&[b"\xff\xfe\n"]), ["\u{fffd}\u{fffd}"]);
        let long = vec![b'x'; LINE_BYTES_MAX * 3];
        let lines = split(&[&long, b"\n", b"next\n"]);
        assert_eq!((lines[0].len(), lines[1].as_str()), (LINE_BYTES_MAX, "next"));
    }

    #[test]
    fn a_record_of_long_ago_is_taken_for_new() {
        assert!(seen_at(0).elapsed() < Duration::from_secs(1));
        assert!(seen_at(u64::MAX).elapsed() < Duration::from_secs(1));
    }

    /// Reads this machine's kernel log, where that is permitted.
    #[test]
    fn every_record_of_a_real_log_is_read() {
        let Ok(log) = KernelLog::open(Path::new(KMSG)) else { return };
        rustix::fs::seek(&log.fd, SeekFrom::Start(0)).unwrap();
        let (mut buffer, mut next) = (vec![0; BUFFER_BYTES], None);
        for _ in 0..2000 {
            let Ok(read) = rustix::io::read(&log.fd, &mut buffer[..]) else { break };
            let text = String::from_utf8_lossy(&buffer[..read]);
            let record = Record::parse(&text).unwrap_or_else(|| panic!("{text}"));
            assert!(next.is_none_or(|next| record.sequence >= next), "{text}");
            next = Some(record.sequence + 1);
        }
    }

    #[test]
    fn kernel_log_at_an_invalid_path_is_refused_with_the_path() {
        let refused = |path: &str| KernelLog::open(Path::new(path)).map(|_| ()).expect_err("no log");
        assert!(refused("/no/such/log").contains("/no/such/log"));
        assert!(refused("/proc").contains("neither"));
    }
}

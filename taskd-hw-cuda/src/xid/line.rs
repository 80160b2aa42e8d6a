//! Parser for kernel log messages, of one line or several: extracts the Xid, the GPU and the process.
//!
//! Input is arbitrary text from other programs: a line is either an Xid error or none, and parsing never fails.

use std::fmt;
use std::str::FromStr;

/// Maximum length, in bytes, to which the text of a line of the Linux kernel's log is cut.
pub const LINE_TEXT_BYTES_MAX: usize = 512;

const MARK: &str = "Xid (";
const FALLEN: &str = "fallen off the bus";
/// Start of the driver's message when it spans three lines, the last of which contains [`FALLEN`].
const THE_GPU: &str = "NVRM: The NVIDIA GPU ";
/// Number of lines after which such a message counts as over.
const MESSAGE_LINES_MAX: usize = 8;
/// Escaped line breaks inside of a message: `/dev/kmsg` writes the first form, rsyslog the second.
const ENDS: [&str; 2] = ["\\x0a", "#012"];
/// Maximum length of a process name in bytes (`TASK_COMM_LEN` without its NUL).
const PROCESS_BYTES_MAX: usize = 15;

/// Family of errors in the kernel log, named after the kind of device that reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// Xid errors, which a GPU reports.
    Xid,
    /// SXid errors, which an NVSwitch reports.
    Sxid,
}

/// Address of a device on the PCI bus, without the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Number of the PCI domain.
    pub domain: u32,
    /// Number of the bus in its domain.
    pub bus: u8,
    /// Number of the device on its bus.
    pub device: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

/// Error for a text that is no PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI address: write domain, bus and device in hexadecimal, such as 0000:3b:00")]
pub struct NoAddress;

impl FromStr for PciAddress {
    type Err = NoAddress;

    /// Parses an address such as `0000:3b:00`, also with a longer domain (`00000000:3B:00`) or a function at the end.
    fn from_str(text: &str) -> Result<PciAddress, NoAddress> {
        let mut parts = text.splitn(3, ':');
        let mut next = || parts.next().filter(|part| !part.is_empty()).ok_or(NoAddress);
        let (domain, bus, rest) = (next()?, next()?, next()?);
        let device = match rest.split_once('.') {
            Some((device, function)) if function.bytes().all(|b| b.is_ascii_hexdigit()) => device,
            Some(_) => return Err(NoAddress),
            None => rest,
        };
        let hex = |part: &str| {
            // `from_str_radix` accepts a sign, which an address does not have
            if part.bytes().all(|b| b.is_ascii_hexdigit()) { u32::from_str_radix(part, 16).ok() } else { None }
        };
        let byte = |part: &str| hex(part).and_then(|n| u8::try_from(n).ok());
        Ok(PciAddress {
            domain: hex(domain).ok_or(NoAddress)?,
            bus: byte(bus).ok_or(NoAddress)?,
            device: byte(device).ok_or(NoAddress)?,
        })
    }
}

/// An Xid or SXid error, as parsed from a line of the kernel log.
///
/// ```
/// use taskd_hw_cuda::xid::Line;
///
/// let line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python3, GPU has fallen off the bus.";
/// let xid = Line::parse(line).expect("an Xid error");
/// assert_eq!((xid.code, xid.pid, xid.process.as_deref()), (79, Some(4711), Some("python3")));
/// assert_eq!(xid.pci.map(|pci| pci.to_string()).as_deref(), Some("0000:3b:00"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Family of the error, which names the kind of device that reports it.
    pub family: Family,
    /// Address of the device, if the line has one in a known format.
    pub pci: Option<PciAddress>,
    /// Number of the Xid or SXid. It is 79 for the driver's messages about a lost GPU that contain no number.
    pub code: u32,
    /// Id of the process for which the driver was working, if the line names one. The id is that of the initial pid
    /// namespace of Linux; inside of a container the process may have another pid.
    pub pid: Option<u32>,
    /// Name of the process for which the driver was working, if the line names one.
    pub process: Option<String>,
    /// Text of the line after the error number, at most [`LINE_TEXT_BYTES_MAX`] bytes, without control characters.
    pub text: String,
}

impl Line {
    /// Parses the first Xid or SXid in a message of the kernel log; returns `None` if the message contains no such
    /// error. Text before `NVRM:` is skipped, so lines of `dmesg`, syslog and the journal are accepted. A message may
    /// span several lines, with real or escaped line breaks. For messages whose lines arrive one by one see [`Lines`].
    #[must_use]
    pub fn parse(message: &str) -> Option<Line> {
        let mut lines = Lines::default();
        let parts = message.lines().flat_map(|line| line.split(ENDS[0])).flat_map(|line| line.split(ENDS[1]));
        parts.into_iter().find_map(|line| lines.one(line))
    }

    fn of_one(line: &str) -> Option<Line> {
        let Some(at) = line.find(MARK) else { return Line::fallen(line) };
        let before = &line[..at];
        let family = match before.strip_suffix('S') {
            Some(before) if before.contains("nvswitch") => Family::Sxid,
            None if before.contains("NVRM:") => Family::Xid,
            _ => return None,
        };
        let (place, rest) = line[at + MARK.len()..].split_once(')')?;
        let rest = rest.strip_prefix(':')?.trim_start();
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let code = rest[..digits].parse().ok()?;
        let text = tidy(rest[digits..].trim_start_matches([',', ' ']));
        let (pid, process) = who(&text);
        Some(Line { family, pci: address(place), code, pid, process, text })
    }

    /// Parses the driver's messages about a lost GPU that contain no Xid number.
    fn fallen(line: &str) -> Option<Line> {
        let (_, said) = line.split_once("NVRM: ")?;
        if !said.contains(FALLEN) {
            return None;
        }
        let pci = said.split_whitespace().find_map(|word| address(word.trim_end_matches(':')));
        // Without an address, only the last line of a multi-line message qualifies; its first line has the address.
        if pci.is_none() && !said.starts_with(FALLEN) {
            return None;
        }
        let text = tidy(said);
        let (pid, process) = who(&text);
        Some(Line { family: Family::Xid, pci, code: 79, pid, process, text })
    }

    /// Extracts the process id from the text of a line ([`Line::text`]); `None` if the text contains none.
    #[must_use]
    pub fn pid_in(text: &str) -> Option<u32> {
        who(text).0
    }

    /// Extracts the number of the driver's recommended recovery action from the text of Xid 154, such as `... to 0x2
    /// (Node Reboot Required)`; `None` if the text contains none. [`Action::of_driver`](super::Action::of_driver)
    /// converts the number.
    #[must_use]
    pub fn recovery_action_in(text: &str) -> Option<u32> {
        let (_, to) = text.rsplit_once(" to 0x")?;
        let digits = to.bytes().take_while(u8::is_ascii_hexdigit).count();
        u32::from_str_radix(&to[..digits], 16).ok()
    }
}

/// Parser for messages of the kernel log that arrive line by line. For a GPU that has fallen off the bus, the
/// driver may write a message of three lines; only the first contains the GPU's address.
///
/// ```
/// use taskd_hw_cuda::xid::Lines;
///
/// let mut lines = Lines::default();
/// assert_eq!(lines.take("[1712.3] NVRM: The NVIDIA GPU 0000:b3:00.0"), None);
/// assert_eq!(lines.take("         NVRM: (PCI ID: 10de:26b5) installed in this system has"), None);
/// let xid = lines.take("         NVRM: fallen off the bus and is not responding to commands.").expect("an Xid error");
/// assert_eq!((xid.code, xid.pci.map(|pci| pci.to_string()).as_deref()), (79, Some("0000:b3:00")));
/// ```
#[derive(Debug, Default)]
pub struct Lines {
    /// Address of the GPU in a message of several lines that has begun, and the number of lines since then.
    begun: Option<(PciAddress, usize)>,
}

impl Lines {
    /// Parses the next line or message, and returns the first Xid that ends in it. The message of an Xid may begin in
    /// earlier lines; if these were not passed to this parser, the address of the Xid's GPU is `None`.
    pub fn take(&mut self, message: &str) -> Option<Line> {
        let parts = message.lines().flat_map(|line| line.split(ENDS[0])).flat_map(|line| line.split(ENDS[1]));
        let mut found = None;
        for line in parts {
            found = found.or(self.one(line));
        }
        found
    }

    fn one(&mut self, line: &str) -> Option<Line> {
        if let Some((_, rest)) = line.split_once(THE_GPU) {
            self.begun = rest.split_whitespace().next().and_then(address).map(|pci| (pci, 0));
        }
        let mut line = Line::of_one(line);
        if let Some((pci, lines)) = &mut self.begun {
            *lines += 1;
            let is_its_end = line.as_ref().is_some_and(|line| line.code == 79 && line.pci.is_none());
            if is_its_end && let Some(line) = &mut line {
                line.pci = Some(*pci);
            }
            if is_its_end || *lines >= MESSAGE_LINES_MAX {
                self.begun = None;
            }
        }
        line
    }
}

/// Parses the PCI address at the start of the text inside the brackets, such as `PCI:0000:3b:00` or
/// `PCI:0000:3b:00 GPU-I:02` (an instance).
fn address(place: &str) -> Option<PciAddress> {
    let word = place.split_whitespace().next()?;
    word.strip_prefix("PCI:").unwrap_or(word).parse().ok()
}

fn who(text: &str) -> (Option<u32>, Option<String>) {
    let behind = |name: &str| {
        let start = text.find(name).filter(|at| *at == 0 || text.as_bytes()[at - 1] == b' ')? + name.len();
        Some(&text[start..])
    };
    let known = |value: &'_ str| {
        let value = value.trim().trim_matches('\'');
        (!value.is_empty() && value != "<unknown>").then(|| value.to_owned())
    };
    let number = behind("pid=").and_then(|rest| known(rest.split(',').next()?));
    let digits = |value: &String| value.bytes().all(|b| b.is_ascii_digit());
    (number.filter(digits).and_then(|value| value.parse().ok()), behind("name=").and_then(|rest| known(process(rest))))
}

/// Returns the process name at the start of the text after `name=`. The name may contain commas followed by white
/// space. It ends where the driver's own text follows, which starts with a capital letter or a digit.
fn process(rest: &str) -> &str {
    let begins =
        |text: &str| text.is_empty() || text.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit());
    let mut ends = rest.match_indices(", ").filter(|(at, _)| *at <= PROCESS_BYTES_MAX);
    let end = ends.clone().find(|(at, comma)| begins(&rest[at + comma.len()..])).or_else(|| ends.next());
    match end {
        Some((at, _)) => &rest[..at],
        None => rest.split_once(", ").map_or(rest.trim_end_matches(','), |(name, _)| name),
    }
}

/// Removes control characters and line breaks, and cuts the text at [`LINE_TEXT_BYTES_MAX`] bytes.
pub(crate) fn tidy(text: &str) -> String {
    let mut kept = String::new();
    for c in text.trim().chars() {
        let c = if c.is_control() { ' ' } else { c };
        if kept.len() + c.len_utf8() > LINE_TEXT_BYTES_MAX {
            break;
        }
        kept.push(c);
    }
    kept
}

/// One record of `/dev/kmsg`, the kernel log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Sequence number of the record in the kernel log.
    pub sequence: u64,
    /// Time of the record, in microseconds of the system's monotonic clock.
    pub at_us: u64,
    /// First line of the record's text.
    pub message: &'a str,
}

impl<'a> Record<'a> {
    /// Parses a record of `/dev/kmsg`, `level,sequence,microseconds,flags;message`; further lines may follow the
    /// message. Returns `None` if the text has another format.
    #[must_use]
    pub fn parse(record: &'a str) -> Option<Record<'a>> {
        let (head, rest) = record.split_once(';')?;
        let mut fields = head.split(',');
        let mut number = || fields.next().filter(|f| f.bytes().all(|b| b.is_ascii_digit()))?.parse::<u64>().ok();
        let (_level, sequence, at_us) = (number()?, number()?, number()?);
        Some(Record { sequence, at_us, message: rest.lines().next().unwrap_or_default() })
    }
}

#[cfg(test)]
mod tests;

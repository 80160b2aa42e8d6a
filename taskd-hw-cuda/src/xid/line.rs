//! Messages of the kernel's log, in one line or several: which Xid, of which GPU, by which process.
//!
//! It takes what other programs wrote: every line is an Xid error or none, and no line is an error of ours.

use std::fmt;
use std::str::FromStr;

/// Most bytes of a line's own words that are kept.
pub const LINE_TEXT_BYTES_MAX: usize = 512;

const MARK: &str = "Xid (";
const FALLEN: &str = "fallen off the bus";
/// How the driver begins when it says so over three lines, of which the last one is [`FALLEN`] and more.
const THE_GPU: &str = "NVRM: The NVIDIA GPU ";
/// So many lines after that the message is over, whatever they were.
const MESSAGE_LINES_MAX: usize = 8;
/// How a line's end within a message is written where one has to fit into a line: by `/dev/kmsg`, and by rsyslog.
const ENDS: [&str; 2] = ["\\x0a", "#012"];
/// Longest name of a process in bytes (`TASK_COMM_LEN` without its NUL).
const PROCESS_BYTES_MAX: usize = 15;

/// Who reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// A GPU.
    Xid,
    /// An NVSwitch.
    Sxid,
}

/// Where a device sits on the PCI bus, without its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// The PCI domain.
    pub domain: u32,
    /// The bus in the domain.
    pub bus: u8,
    /// The device on the bus.
    pub device: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}", self.domain, self.bus, self.device)
    }
}

/// A text that is no address on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no address on the PCI bus: write domain, bus and device in hexadecimal, such as 0000:3b:00")]
pub struct NoAddress;

impl FromStr for PciAddress {
    type Err = NoAddress;

    /// Takes `0000:3b:00` and longer domains (`00000000:3B:00`), with a function behind it or without.
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
            // `from_str_radix` takes a sign, which is none of an address
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

/// What one line of the kernel's log says.
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
    /// Who reports.
    pub family: Family,
    /// Where it sits, where the line says so in a form that is known.
    pub pci: Option<PciAddress>,
    /// The number of the error.
    pub code: u32,
    /// The process that the driver was working for, in the namespace of the kernel: in a container it may have another one.
    pub pid: Option<u32>,
    /// That process's name.
    pub process: Option<String>,
    /// What stands behind the number, at most [`LINE_TEXT_BYTES_MAX`] bytes, without control characters.
    pub text: String,
}

impl Line {
    /// Reads one message; `None` for one that says nothing of an Xid. What stands before `NVRM:` is skipped, so lines of
    /// `dmesg`, of syslog and of the journal will do. A message may span several lines, with real ends or escaped ones: what is
    /// said first counts. For one of which the lines come one by one see [`Lines`].
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

    /// The driver says this also without a number, in words of its own.
    fn fallen(line: &str) -> Option<Line> {
        let (_, said) = line.split_once("NVRM: ")?;
        if !said.contains(FALLEN) {
            return None;
        }
        let pci = said.split_whitespace().find_map(|word| address(word.trim_end_matches(':')));
        // Without an address it is the driver's only where it is the end of a message whose beginning has it.
        if pci.is_none() && !said.starts_with(FALLEN) {
            return None;
        }
        let text = tidy(said);
        let (pid, process) = who(&text);
        Some(Line { family: Family::Xid, pci, code: 79, pid, process, text })
    }

    /// The process in the words behind a number ([`Line::text`]).
    #[must_use]
    pub fn pid_in(text: &str) -> Option<u32> {
        who(text).0
    }

    /// What Xid 154 says is to be done now: the number of the driver's recovery action, from `... to 0x2 (Node Reboot
    /// Required)`.
    #[must_use]
    pub fn recovery_action_in(text: &str) -> Option<u32> {
        let (_, to) = text.rsplit_once(" to 0x")?;
        let digits = to.bytes().take_while(u8::is_ascii_hexdigit).count();
        u32::from_str_radix(&to[..digits], 16).ok()
    }
}

/// Puts together what comes line by line: the driver says that a GPU has fallen off the bus over three lines as well, of which the
/// first one says which.
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
    /// Which GPU a message is about that has begun, and how many lines ago.
    begun: Option<(PciAddress, usize)>,
}

impl Lines {
    /// The next line or message; what it says of an Xid, together with those before it. Of a message that began ahead of the first
    /// line that is read here nobody knows which GPU it is about.
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

/// The first word of what stands in the brackets, such as `PCI:0000:3b:00` or `PCI:0000:3b:00 GPU-I:02` (an instance).
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

/// The name of a process, of what stands behind `name=`. It may have commas in it, and white space behind them: it is over where the
/// driver's own words follow, which begin in capitals or with a number.
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

/// One line, no control characters, no longer than is kept.
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

/// One record of `/dev/kmsg`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its number in the kernel's log.
    pub sequence: u64,
    /// When it was written, in microseconds of the system's monotonic clock.
    pub at_us: u64,
    /// The line.
    pub message: &'a str,
}

impl<'a> Record<'a> {
    /// Reads a record, `level,sequence,microseconds,flags;message` with further lines behind it. `None`: it is none.
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

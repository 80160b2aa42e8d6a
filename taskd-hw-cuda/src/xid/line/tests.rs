use super::*;

fn pci(text: &str) -> Option<PciAddress> {
    Some(text.parse().expect("an address"))
}

type Form<'a> = (&'a str, &'a str, u32, Option<u32>, Option<&'a str>);

/// Prefix before the driver's text, expected meaning, and the text.
const FORMS: [(Form<'_>, &str); 17] = [
    (
        ("NVRM: Xid (PCI:0000:3b:00): 79, ", "0000:3b:00", 79, Some(4711), Some("python3")),
        "pid=4711, name=python3, GPU has fallen off the bus.",
    ),
    (
        ("NVRM: Xid (PCI:0000:05:00): 79, ", "0000:05:00", 79, None, None),
        "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    ),
    (("NVRM: Xid (PCI:0000:01:00): 79, ", "0000:01:00", 79, None, None), "GPU has fallen off the bus."),
    (("[...] NVRM: Xid (0000:03:00): 14, ", "0000:03:00", 14, None, None), "Channel 00000001"),
    (
        ("May  6 00:38:27 host kernel: [ 4909.922970] NVRM: Xid (0000:01:00): 13, ", "0000:01:00", 13, None, None),
        "0005 00000000 0000502d",
    ),
    (
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, ", "0000:01:00", 94, Some(7194), None),
        "pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
    ),
    (
        ("NVRM: Xid (PCI:0018:01:00): 154, ", "0018:01:00", 154, None, None),
        "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    ),
    (
        ("NVRM: Xid (PCI:0000:9b:00): 119, ", "0000:9b:00", 119, Some(1234), Some("nvidia-smi")),
        "pid=1234, name=nvidia-smi, Timeout after 6s of waiting for RPC response",
    ),
    (
        ("NVRM: Xid (PCI:0000:10:1c): 63, ", "0000:10:1c", 63, Some(1896), None),
        "pid=1896, Row Remapper: New row marked for remapping",
    ),
    (
        ("NVRM: Xid (PCI:00010000:3B:00.0): 31, ", "10000:3b:00", 31, Some(12), Some("a b")),
        "pid=12, name=a b, Ch 00000008",
    ),
    (("NVRM: Xid (PCI:0000:3b:00): 61", "0000:3b:00", 61, None, None), ""),
    (("NVRM: Xid (PCI:0000:3b:00): 31, ", "0000:3b:00", 31, Some(12), Some("a,b")), "pid=12, name=a,b, Ch 00000008"),
    (
        ("NVRM: Xid (PCI:0000:3b:00): 13, ", "0000:3b:00", 13, Some(12), Some("pt, data")),
        "pid=12, name=pt, data, Graphics Exception: ESR 0x505648=0x1",
    ),
    (
        ("NVRM: Xid (PCI:0000:3b:00): 43, ", "0000:3b:00", 43, Some(12), Some("sh")),
        "pid=12, name=sh, Ch 00000008, intr 1",
    ),
    (
        ("NVRM: Xid (PCI:0000:3b:00): 45, ", "0000:3b:00", 45, Some(12), Some("python")),
        "pid=12, name=python, channel 00000008, Ch",
    ),
    (("NVRM: Xid (PCI:0000:3b:00): 45, ", "0000:3b:00", 45, Some(12), Some("a,b")), "pid=12, name=a,b"),
    (("NVRM: ", "0000:01:00", 79, None, None), "GPU at 0000:01:00.0 has fallen off the bus."),
];

#[test]
fn every_published_form_is_read() {
    for ((before, place, code, pid, process), text) in FORMS {
        let process = process.map(str::to_owned);
        let expected = Line { family: Family::Xid, pci: pci(place), code, pid, process, text: text.into() };
        assert_eq!(Line::parse(&format!("{before}{text}")), Some(expected), "{before}{text}");
    }
    let switch = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)";
    let text = "Non-fatal, Link 46 MC TS crumbstore MCTO (First)".into();
    let expected = Line { family: Family::Sxid, pci: pci("0000:c1:00"), code: 28006, pid: None, process: None, text };
    assert_eq!(Line::parse(switch), Some(expected));
}

/// A message over three lines, with the prefix that a log reader adds to each.
fn fallen(before: [&str; 3]) -> Vec<String> {
    let texts = [
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    ];
    before.into_iter().zip(texts).map(|(before, text)| format!("{before}{text}")).collect()
}

#[test]
fn a_message_over_several_lines_is_one_however_it_comes() {
    let expected = Line {
        family: Family::Xid,
        pci: pci("0000:b3:00"),
        code: 79,
        pid: None,
        process: None,
        text: "fallen off the bus and is not responding to commands.".into(),
    };
    // As shown by dmesg and journalctl, as three lines of the kernel's or syslog's log, and inside of one line.
    let stamped = "May  6 00:38:27 host kernel: [ 1712.308145] ";
    for before in [["[ 1712.308145] ", "               ", "               "], ["[ 1712.308145] "; 3], [stamped; 3]] {
        let (message, mut lines) = (fallen(before), Lines::default());
        let found: Vec<_> = message.iter().map(|line| lines.take(line)).collect();
        assert_eq!(found, [None, None, Some(expected.clone())]);
        assert_eq!(Line::parse(&message.join("\n")), Some(expected.clone()));
    }
    for end in ["\\x0a", "#012", "\r\n"] {
        let record = format!("3,1042,1712308145,-;{}", fallen([""; 3]).join(end));
        let message = if end == "\r\n" { &record[20..] } else { Record::parse(&record).unwrap().message };
        assert_eq!(Line::parse(message), Some(expected.clone()), "{end:?}");
        assert_eq!(Lines::default().take(message), Some(expected.clone()), "{end:?}");
    }
}

#[test]
fn a_gpu_of_another_message_or_of_long_ago_is_not_blamed() {
    let message = fallen([""; 3]);
    let mut lines = Lines::default();
    assert_eq!(lines.take(&message[2]).map(|line| line.pci), Some(None), "its beginning was not read");
    assert_eq!(lines.take(&message[0]), None);
    let other = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=a, GPU has fallen off the bus.";
    assert_eq!(lines.take(other).unwrap().pci, pci("0000:3b:00"), "the line names its own GPU");
    assert_eq!(lines.take(&message[2]).unwrap().pci, pci("0000:b3:00"));
    assert_eq!(lines.take(&message[2]).unwrap().pci, None, "each beginning has one end");
    lines.take(&message[0]);
    (0..MESSAGE_LINES_MAX).for_each(|_| drop(lines.take("usb 1-1: new device")));
    assert_eq!(lines.take(&message[2]).unwrap().pci, None);
}

#[test]
fn lines_without_a_valid_xid_are_ignored() {
    for line in [
        "",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05",
        "NVRM: Xid error: xyz, invalid data",
        "Xid (PCI:0000:3b:00): 79, quoted in another text",
        "NVRM: Xid (PCI:0000:3b:00) 79",
        "NVRM: Xid (PCI:0000:3b:00): , nothing",
        "NVRM: Xid (PCI:0000:3b:00): 99999999999999999999, too much",
        "NVRM: Xid (PCI:0000:3b:00: 79, no end",
        "a GPU has fallen off the bus",
        "NVRM: something has fallen off the bus", // the device is unknown
    ] {
        assert_eq!(Line::parse(line), None, "{line}");
    }
}

#[test]
fn a_place_in_a_form_that_is_not_known_leaves_the_rest() {
    let line = Line::parse("NVRM: Xid (somewhere else): 48, DBE").unwrap();
    assert_eq!((line.pci, line.code), (None, 48));
}

#[test]
fn the_new_recovery_action_is_read() {
    let action = |text| Line::recovery_action_in(text);
    assert_eq!(action("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"), Some(2));
    assert_eq!(action("GPU recovery action changed from 0x4 (Drain and Reset) to 0x0 (None)"), Some(0));
    assert_eq!(action("GPU recovery action changed from 0x0 (None) to 0x"), None);
    assert_eq!(action("to nowhere"), None);
}

#[test]
fn long_lines_and_control_characters_are_tidied() {
    let line = format!("NVRM: Xid (PCI:0000:3b:00): 13, \u{1b}[31m{}", "ü".repeat(1000));
    let text = Line::parse(&line).unwrap().text;
    assert!(text.len() <= LINE_TEXT_BYTES_MAX && text.len() > LINE_TEXT_BYTES_MAX - 2);
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn records_of_the_kernels_log_are_read() {
    let record = "4,1042,5140900123,-;NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n";
    let read = Record::parse(record).unwrap();
    assert_eq!((read.sequence, read.at_us), (1042, 5_140_900_123));
    assert_eq!(Line::parse(read.message).unwrap().code, 79);
    assert_eq!(Record::parse("6,1,2,c,caller=T1;a; b").unwrap().message, "a; b");
    for none in ["", "6,1", "6,1,-2,-;x", ";", "6,,3,-;x", "a,b,c,-;x", "6,18446744073709551616,3,-;x"] {
        assert_eq!(Record::parse(none), None, "{none}");
    }
}

#[test]
fn addresses_are_read_and_shown_the_same() {
    for text in ["0000:3b:00", "10000:ff:1f"] {
        assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
    }
    for none in ["", "3b:00", "0000:3b:", "0000:1ff:00", "+000:3b:00", "0000:3b:00.x", "fffffffff:00:00", "a:b:c:d"] {
        assert_eq!(none.parse::<PciAddress>(), Err(NoAddress), "{none}");
    }
}

//! Tests with the states in which platforms, editors and accidents leave the file.

use super::*;
use crate::trace::switches::{Mode, Switch};
use std::fs::{self, File, FileTimes};
use std::os::unix::fs::symlink;
use tempfile::TempDir;

const STEPS: Requested = Requested { step: Switch::On, ..Requested::NONE };
const LOADER: Requested = Requested { data_loader: Switch::On, ..Requested::NONE };

/// A follower of a file in a directory of its own, with a manual clock.
struct Bench {
    dir: TempDir,
    follower: Follower,
    now: Instant,
}

impl Bench {
    fn new() -> Bench {
        let dir = tempfile::tempdir().expect("a directory");
        let control = TraceControl::new(Mode::Native);
        let follower = Follower::new(dir.path().join("profilingSwitch"), control);
        Bench { dir, follower, now: Instant::now() }
    }

    fn path(&self) -> &Path {
        &self.follower.path
    }

    fn write(&self, document: impl AsRef<[u8]>) {
        fs::write(self.path(), document).expect("it can be written");
    }

    /// Returns the request in force after the next read.
    fn look(&mut self) -> Option<Requested> {
        self.now += LOOK_EVERY;
        self.follower.look(self.now);
        self.follower.control.requested()
    }

    fn look_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.look();
        }
    }

    fn status(&self) -> FileStatus {
        self.follower.control.status().file.expect("a file is followed")
    }

    fn trouble(&mut self) -> String {
        let before = self.follower.control.requested();
        assert_eq!(self.look(), before, "what cannot be read switches nothing");
        self.status().trouble.unwrap_or_default()
    }
}

fn document(requested: &Requested) -> String {
    serde_json::to_string(requested).expect("it has a form")
}

#[test]
fn the_kubelets_swap_of_a_link_to_a_directory_is_followed() {
    let mut bench = Bench::new();
    let dir = bench.dir.path().to_owned();
    let publish = |version: &str, requested: &Requested| {
        fs::create_dir(dir.join(version)).expect("made");
        fs::write(dir.join(version).join("profilingSwitch"), document(requested)).expect("written");
        symlink(version, dir.join("..data_tmp")).expect("linked");
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).expect("swapped");
    };
    publish("..2026_11_22_01", &STEPS);
    symlink("..data/profilingSwitch", dir.join("profilingSwitch")).expect("linked");
    assert_eq!(bench.look(), Some(STEPS));
    publish("..2026_11_22_02", &LOADER);
    fs::remove_dir_all(dir.join("..2026_11_22_01")).expect("removed");
    assert_eq!(bench.look(), Some(LOADER));
    assert_eq!((bench.status().switched, bench.status().refused, bench.status().absent), (2, 0, 0));
}

#[test]
fn a_file_that_takes_the_place_of_another_is_followed() {
    let mut bench = Bench::new();
    bench.write(document(&STEPS));
    assert_eq!(bench.look(), Some(STEPS));
    let other = bench.dir.path().join("new");
    fs::write(&other, document(&LOADER)).expect("written");
    fs::rename(&other, bench.path()).expect("renamed");
    assert_eq!(bench.look(), Some(LOADER));
}

#[test]
fn a_file_that_comes_late_and_goes_again_leaves_everything_as_it_is() {
    let mut bench = Bench::new();
    assert_eq!((bench.look(), bench.status().absent), (None, 1));
    assert_eq!(bench.trouble(), "it does not exist: create it to switch recording");
    bench.write(document(&STEPS));
    assert_eq!((bench.look(), bench.status().trouble), (Some(STEPS), None));
    fs::remove_file(bench.path()).expect("removed");
    assert_eq!((bench.look(), bench.status().absent), (Some(STEPS), 3));
    bench.write(document(&LOADER));
    assert_eq!(bench.look(), Some(LOADER));
}

#[test]
fn an_unchanged_file_does_not_undo_a_later_switch_by_an_operator() {
    let mut bench = Bench::new();
    bench.write(document(&STEPS));
    bench.look();
    bench.follower.control.switch(LOADER, "ann");
    bench.write(document(&STEPS) + "\n"); // different bytes, the same request
    assert_eq!(bench.look(), Some(LOADER));
    fs::remove_file(bench.path()).expect("removed");
    bench.look();
    bench.write(document(&STEPS));
    assert_eq!((bench.look(), bench.status().switched), (Some(LOADER), 1));
    bench.write(document(&Requested::USUAL));
    assert_eq!((bench.look(), bench.status().switched), (Some(Requested::USUAL), 2), "what is new does");
}

#[test]
fn half_a_file_switches_nothing_whichever_half_it_is() {
    let mut bench = Bench::new();
    bench.write(document(&STEPS));
    bench.look();
    let whole = document(&LOADER);
    for length in 0..whole.len() {
        bench.write(&whole[..length]);
        assert!(bench.trouble().starts_with("it is not a JSON object"), "{length} bytes: {}", bench.trouble());
    }
    assert_eq!(bench.status().refused, whole.len() as u64);
    bench.write(&whole);
    assert_eq!(bench.look(), Some(LOADER));
}

#[test]
fn a_file_that_is_written_over_is_seen_though_size_and_time_stay_the_same() {
    let mut bench = Bench::new();
    bench.write(document(&STEPS));
    let time = fs::metadata(bench.path()).and_then(|m| m.modified()).expect("a time");
    bench.look();
    bench.write(document(&LOADER));
    let file = File::options().write(true).open(bench.path()).expect("it is there");
    file.set_times(FileTimes::new().set_modified(time)).expect("set");
    assert_eq!((document(&STEPS).len(), bench.look()), (document(&LOADER).len(), Some(LOADER)));
}

#[test]
fn an_unreadable_switch_file_is_refused_with_its_reason() {
    let mut bench = Bench::new();
    bench.write(vec![b' '; FILE_BYTES_MAX + 1]);
    assert_eq!(bench.trouble(), "it cannot be read: it is longer than 65536 bytes");
    bench.write([0xff, 0xfe, 0]);
    assert!(
        bench.trouble().starts_with("it is not a JSON object (it begins with a byte-order mark"),
        "{}",
        bench.trouble()
    );
    fs::remove_file(bench.path()).expect("removed");
    fs::create_dir(bench.path()).expect("made");
    assert_eq!(bench.trouble(), "it cannot be read: it is not a regular file");
    fs::remove_dir(bench.path()).expect("removed");
    rustix::fs::mknodat(rustix::fs::CWD, bench.path(), rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("made");
    assert_eq!(
        bench.trouble(),
        "it cannot be read: it is not a regular file",
        "a pipe without a writer blocks no process"
    );
    fs::remove_file(bench.path()).expect("removed");
    symlink("profilingSwitch", bench.path()).expect("linked");
    assert!(bench.trouble().starts_with("it cannot be read: Too many levels"), "{}", bench.trouble());
}

#[test]
fn an_unknown_key_is_reported_and_the_known_kinds_are_switched() {
    let mut bench = Bench::new();
    bench.write(document(&STEPS).replace('{', "{\"Kernels\":\"on\","));
    assert_eq!(bench.look(), Some(STEPS));
    let words = "1 of its keys are unknown (Kernels): check them for misspelt kinds";
    assert_eq!((bench.status().trouble.as_deref(), bench.status().refused), (Some(words), 0));
}

#[test]
fn a_trouble_is_logged_once_and_changes_at_most_every_30_seconds() {
    let mut bench = Bench::new();
    bench.look_for(Duration::from_secs(90));
    assert_eq!((bench.status().messages, bench.status().absent), (1, 1800), "the same again is not news");
    for round in 0..600_u32 {
        bench.write(if round % 2 == 0 { "{" } else { "[]" });
        bench.look();
    }
    assert_eq!(bench.status().messages, 2, "30 seconds of this and that");
    bench.look_for(Duration::from_secs(1));
    assert_eq!(bench.status().messages, 3);
    bench.write(document(&STEPS));
    bench.look_for(Duration::from_secs(28));
    bench.write("[]");
    bench.look();
    assert_eq!(bench.status().messages, 3, "all was well meanwhile, and yet");
    bench.look_for(Duration::from_secs(2));
    assert_eq!(bench.status().messages, 4, "what was over and comes again is news");
}

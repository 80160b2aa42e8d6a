//! Tables that stand in Python, in C and in Rust, and must be equal: kinds, operations, types, exit codes, names of
//! variables.
//!
//! Tables of which Rust's side is not public are compared beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use taskd_core::kernel::Outcome;
use taskd_core::launch::python::NEUTRAL_FILES;
use taskd_core::runtime::exit_code;
use taskd_core::testing::python::evaluated;
use taskd_core::trace::recorder::{DataType, Kind, Op, USER_KINDS_MAX};

#[test]
fn kinds_of_records_have_the_same_numbers_in_python() {
    let program = "from taskd._kinds import *\n\
         print(json.dumps([STEP, DATA_LOADER, SAVE_CHECKPOINT, FORWARD, COMMUNICATION, USER, LAST]))";
    let kinds = [Kind::Step, Kind::DataLoader, Kind::SaveCheckpoint, Kind::Forward, Kind::Communication, Kind::User(0)];
    let ours: Vec<u8> = kinds.into_iter().chain([Kind::User(USER_KINDS_MAX - 1)]).map(Kind::number).collect();
    assert_eq!(evaluated(&[], program), json!(ours));
}

/// The constants of an enum in the header whose first one is this.
fn constants(first: &str) -> BTreeMap<String, u8> {
    let header = include_str!("../../runtime/include/taskd.h");
    let of =
        header.split("enum {").find(|text| text.trim_start().starts_with(first)).unwrap_or_else(|| panic!("{first}"));
    let of = of.split('}').next().unwrap();
    let lines = of.lines().filter_map(|line| {
        let (name, rest) = line.trim().split_once(" = ")?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Some((name.strip_prefix("TASKD_")?.to_lowercase(), digits.parse().unwrap()))
    });
    lines.collect()
}

#[test]
fn the_header_has_the_numbers_of_kinds_operations_and_types() {
    let by_name = |names: Vec<(&str, u8)>| -> BTreeMap<String, u8> {
        names.into_iter().map(|(name, number)| (name.to_owned(), number)).collect()
    };
    let ops = (1..=u8::MAX).map(Op::of_code).filter(|op| *op != Op::Other).map(|op| (op.name(), op.code()));
    assert_eq!(constants("TASKD_OTHER_OP"), by_name(ops.chain([("other_op", 0)]).collect()));
    let types = (1..=u8::MAX).map(DataType::of_code).filter(|one| *one != DataType::Other);
    let types = types.map(|one| (one.name(), one.code())).chain([("other_type", 0)]);
    assert_eq!(constants("TASKD_OTHER_TYPE"), by_name(types.collect()));
    let kinds = constants("TASKD_STEP");
    let ours = [
        ("step", Kind::Step),
        ("dataloader", Kind::DataLoader),
        ("save_checkpoint", Kind::SaveCheckpoint),
        ("forward", Kind::Forward),
        ("communication", Kind::Communication),
        ("kernel", Kind::Kernel),
        ("copy", Kind::Copy),
        ("api", Kind::Api),
        ("marker", Kind::Marker),
        ("user", Kind::User(0)),
        ("user_last", Kind::User(USER_KINDS_MAX - 1)),
    ];
    assert_eq!(kinds, by_name(ours.map(|(name, kind)| (name, kind.number())).into()));
    assert_eq!((0..16).filter_map(Kind::of_number).count(), ours.len() - 2, "a kind that is not in this list");
}

#[test]
fn rank_exit_code_after_a_stop_request_is_that_of_a_stopped_job() {
    let code = evaluated(&[], "from taskd._shutdown import CODE\nprint(CODE)");
    assert_eq!(code, json!(exit_code::STOPPED));
}

/// The codes of a table's first column.
fn codes(page: &str) -> BTreeSet<u8> {
    let cell =
        |line: &str| line.trim_start_matches("//!").trim().strip_prefix('|')?.split('|').next().map(str::to_owned);
    let digits = |cell: String| cell.chars().filter(char::is_ascii_digit).collect::<String>().parse().ok();
    page.lines().filter_map(cell).filter_map(digits).collect()
}

#[test]
fn exit_code_pages_list_the_codes_of_the_program() {
    let outcomes = [
        Outcome::Completed,
        Outcome::Failed,
        Outcome::Stopped,
        Outcome::Detached,
        Outcome::Superseded,
        Outcome::Running,
    ];
    let all: BTreeSet<u8> =
        outcomes.map(Outcome::exit_code).into_iter().chain([exit_code::USAGE, exit_code::UNAVAILABLE]).collect();
    assert_eq!(codes(include_str!("../../kernel/src/kernel/exit_code.rs")), all);
    let guide = include_str!("../../src/guide/exit_codes.md");
    let set = |name: &str| -> BTreeSet<u8> {
        let line = guide.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}"));
        line.split(' ').map(|code| code.parse().unwrap()).collect()
    };
    let never_again = [exit_code::FAILED, exit_code::USAGE, exit_code::UNAVAILABLE, exit_code::TAKEN_OVER];
    assert_eq!(set("RestartPreventExitStatus="), never_again.into());
    assert_eq!(set("SuccessExitStatus="), [exit_code::STOPPED].into());
}

/// All files below a directory whose names end so.
fn files(directory: &Path, end: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, end, found);
        } else if path.to_str().is_some_and(|name| name.ends_with(end)) {
            found.push(path);
        }
    }
}

/// Variables of ours that a text names.
fn variables(text: &str) -> BTreeSet<String> {
    let is_of_a_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let words =
        text.split(|c: char| !is_of_a_name(c)).filter(|word| word.starts_with("TASKD_") && !word.ends_with('_'));
    words.map(str::to_owned).collect()
}

#[test]
fn every_variable_that_a_rank_reads_is_one_that_is_set_somewhere() {
    let mut sources = Vec::new();
    for package in ["kernel/src", "runtime/src"] {
        files(&Path::new(env!("CARGO_MANIFEST_DIR")).join(package), ".rs", &mut sources);
    }
    let set: BTreeSet<String> = sources.iter().flat_map(|path| variables(&fs::read_to_string(path).unwrap())).collect();
    for file in NEUTRAL_FILES {
        // The first two leave a choice to tests and measurements, the third to operators of a host; the last one ranks
        // set.
        let left = ["TASKD_NATIVE", "TASKD_STATE_TRANSFER", "TASKD_HOST", "TASKD_RANK_PID"];
        let unknown: Vec<String> =
            variables(file.text).into_iter().filter(|name| !set.contains(name) && !left.contains(&&**name)).collect();
        assert_eq!(unknown, [""; 0], "{}: nothing here sets these", file.path);
    }
}

/// Nothing sets TASKD_HOST: what a rank then reports as its host has to be an address that other hosts reach.
#[test]
fn a_rank_gives_others_the_address_that_its_host_has_on_the_way_to_them() {
    let program = "import os\nfrom taskd import _copy\n\
         def of(meeting):\n    os.environ['MASTER_ADDR'] = meeting\n    return _copy.own_host()\n\
         own = of('198.51.100.1')\n\
         print(json.dumps([own, of(own), of('127.0.0.1'), of('localhost'), of('fd00::1'), of('')]))";
    let found = evaluated(&[], program);
    let own = found[0].as_str().unwrap(); // that of the way out, where there is one
    assert_eq!(found, json!([own, own, "127.0.0.1", "127.0.0.1", "127.0.0.1", "127.0.0.1"]));
    let has_way_out = fs::read_to_string("/proc/net/route").is_ok_and(|table| table.contains("\t00000000\t"));
    assert_eq!(own != "127.0.0.1", has_way_out);
}

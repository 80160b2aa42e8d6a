//! Tables as files.

use crate::read;
use crate::samples::{V1_0, V2_0};
use std::fs;
use taskd_hw_ascend::ranktable::RankTable;

#[test]
fn a_table_is_replaced_in_one_go_and_the_number_beside_it_after_that() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hccl.json");
    read(V1_0).write(&path, 1).unwrap();
    let open = fs::File::open(&path).unwrap(); // who has begun to read it
    read(V2_0).write(&path, 2).unwrap();
    assert_eq!(RankTable::read(&path).unwrap(), read(V2_0));
    assert_eq!(std::io::read_to_string(open).unwrap(), read(V1_0).to_json(), "reads on in the old one");
    assert_eq!(fs::read_to_string(dir.path().join("version")).unwrap(), "2");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing else is left there");
}

#[test]
fn read_and_write_errors_name_the_file_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hccl.json");
    let missing = RankTable::read(&path).expect_err("it is not there").to_string();
    let shown = path.display();
    assert_eq!(missing, format!("the rank table {shown} cannot be read: No such file or directory (os error 2)"));
    fs::write(&path, r#"{"status": "done"}"#).unwrap();
    let wrong = RankTable::read(&path).expect_err("no such status").to_string();
    let what = r#"$.status is "done", but must be completed or initializing"#;
    assert_eq!(wrong, format!("the rank table {shown} cannot be used: {what}"));
    fs::create_dir(dir.path().join("version")).unwrap();
    let half = read(V1_0).write(&path, 3).expect_err("a directory is there").to_string();
    assert!(
        half.starts_with(&format!("the rank table {} cannot be written", dir.path().join("version").display())),
        "{half}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing half is left there");
}

#[test]
fn concurrent_writers_never_expose_a_partial_rank_table() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hccl.json");
    let tables = [read(V1_0), read(V2_0)];
    std::thread::scope(|threads| {
        for table in &tables {
            threads.spawn(|| {
                for version in 0..200 {
                    table.write(&path, version).unwrap();
                    let seen = RankTable::read(&path).unwrap();
                    assert!(tables.contains(&seen), "{seen:?}");
                }
            });
        }
    });
}

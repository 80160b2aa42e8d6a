use super::*;

#[test]
fn the_built_in_table_is_sound_and_knows_every_number_of_the_catalog() {
    let document: Document = serde_json::from_str(BUILT_IN).expect("a table");
    assert_eq!(check(&document.xids), []);
    let numbers: Vec<u32> = document.xids.iter().map(|entry| entry.xid).collect();
    assert_eq!(numbers, (1..=172).collect::<Vec<_>>());
    let table = XidTable::built_in();
    assert_eq!(table.iter().count(), 172);
    assert!(table.source().contains("Xid catalog"));
}

/// The catalog's immediate actions, as grouped by another collection of them (Ampere and newer).
#[test]
fn actions_are_those_of_the_catalog() {
    let table = XidTable::built_in();
    let with = |action: Action| -> Vec<u32> {
        table.iter().filter(|entry| entry.action == action).map(|entry| entry.xid).collect()
    };
    let ranges = |text: &str| -> Vec<u32> {
        let part = |part: &str| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            from.parse().unwrap()..=to.parse::<u32>().unwrap()
        };
        text.split(' ').flat_map(part).collect()
    };
    let restart = "8 11 13 25 31-32 39-41 60 68-72 75-77 80 82-86 88-89 94 96-105 126-135 139";
    assert_eq!(with(Action::RestartApp), ranges(restart));
    assert_eq!(with(Action::ResetGpu), ranges("46 62 64 95 109-110 119-120 136 140 143 155-156 158"));
    let ignore = "14 37-38 43-44 63 66-67 92-93 106-108 121 137 141 152-153 157 160-161";
    assert_eq!(with(Action::Ignore), ranges(ignore));
    assert_eq!(with(Action::RebootNode), [79]);
    assert_eq!(with(Action::DrainAndReset), [48]);
    assert_eq!(with(Action::CheckFabric), ranges("74 144-150"));
    assert_eq!(with(Action::RecoveryAction), [154]);
    assert_eq!(with(Action::RestartVm), [151]);
    assert_eq!(with(Action::FollowOther), [45, 171, 172]);
}

#[test]
fn application_xid_never_removes_a_gpu() {
    let table = XidTable::built_in();
    for xid in [11, 13, 25, 31, 32, 43, 45, 69, 80] {
        let entry = table.get(xid).unwrap();
        assert!(entry.application && !entry.action.takes_the_gpu(), "{entry:?}");
    }
}

#[test]
fn a_users_entries_replace_and_add_or_nothing_is_taken() {
    let mut table = XidTable::built_in();
    let before = table.fingerprint();
    let mine = r#"{"xids": [{"xid": 79, "name": "gone", "action": "ignore"}, {"xid": 9999, "name": "new", "action": "reset-gpu"}]}"#;
    table.extend_from(mine).unwrap();
    assert_eq!(table.get(79).unwrap().action, Action::Ignore);
    assert_eq!(table.get(9999).unwrap().name, "new");
    assert_ne!(table.fingerprint(), before);
    let held = table.clone();
    let wrong =
        r#"{"xids": [{"xid": 1, "name": "fine", "action": "ignore"}, {"xid": 0, "name": " ", "action": "ignore"}]}"#;
    let Err(TableError::Entries(problems)) = table.extend_from(wrong) else { panic!("it must be refused") };
    let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
    assert_eq!(paths, ["$.xids[1].xid", "$.xids[1].name"]);
    assert_eq!(table, held);
}

#[test]
fn invalid_entries_are_refused_with_their_location() {
    let refused = |entries: &str| {
        let error = XidTable::empty().extend_from(&format!("{{\"xids\": [{entries}]}}")).expect_err("refused");
        error.to_string()
    };
    let two = r#"{"xid": 5, "name": "a", "action": "ignore"}, {"xid": 5, "name": "b", "action": "ignore"}"#;
    assert!(refused(two).contains("$.xids[1].xid: Xid 5 is already at $.xids[0]"));
    assert!(refused(r#"{"xid": 5, "name": "a", "action": "pray"}"#).contains("unknown variant `pray`"));
    assert!(refused(r#"{"xid": 5, "name": "a", "action": "ignore", "notes": ""}"#).contains("unknown field `notes`"));
    let contradiction = r#"{"xid": 5, "name": "a", "action": "reset-gpu", "application": true}"#;
    assert!(refused(contradiction).contains("$.xids[0].application"));
    assert!(refused(r#"{"xid": 5, "name": "a", "action": "ignore", "unless": 5}"#).contains("$.xids[0].unless"));
}

#[test]
fn table_beyond_entry_or_size_bounds_is_refused() {
    let many: Vec<String> =
        (1..=ENTRIES_MAX + 1).map(|xid| format!(r#"{{"xid":{xid},"name":"n","action":"ignore"}}"#)).collect();
    let error = XidTable::empty().extend_from(&format!("{{\"xids\":[{}]}}", many.join(","))).unwrap_err();
    assert!(error.to_string().contains("more than 4096 entries"), "{error}");
    let error = XidTable::empty().extend_from(&" ".repeat(BYTES_MAX + 1)).unwrap_err();
    assert!(error.to_string().contains("at most"), "{error}");
}

#[test]
fn a_file_is_a_table_too() {
    let mut table = XidTable::empty();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, BUILT_IN).unwrap();
    table.extend_from_file(file.path()).unwrap();
    assert_eq!(table, XidTable::built_in());
    let error = table.extend_from_file(std::path::Path::new("/no/such/table")).unwrap_err();
    assert!(error.to_string().contains("/no/such/table"), "{error}");
}

#[test]
fn an_empty_table_and_a_byte_order_mark_are_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display();
    let mark = "begins with a byte-order mark of UTF-8: save it as UTF-8 without one";
    for (text, why) in [("", "is empty"), ("\u{feff}{}", mark)] {
        std::fs::write(&file, text).unwrap();
        let error = XidTable::empty().extend_from_file(file.path()).unwrap_err().to_string();
        assert_eq!(error, format!("no table of Xids: {path} {why}"));
        let error = XidTable::empty().extend_from(text).unwrap_err().to_string();
        assert_eq!(error, format!("no table of Xids: it {why}"));
    }
}

//! Every value of a valid table is changed, one at a time: the table is refused with its path, or taken for a stated reason.

use crate::samples::ALL;
use crate::{json, problems, read};
use serde_json::{Value, json};
use taskd_hw_ascend::ranktable::RankTable;

/// Fields that may hold anything, and why.
const FREE: [(&str, &str); 20] = [
    ("host_ip", "for people and the platform; HCCL does not read it"),
    ("container_ip", "as host_ip"),
    ("hardware_type", "of inference jobs only"),
    ("note", "unknown: kept"),
    ("data_version", "the platform's own: kept"),
    ("device_port", "optional, and without a documented range"),
    ("host_port", "as device_port"),
    ("deploy_mode", "of the older form, without a rule"),
    ("board_id", "as deploy_mode"),
    ("chip_info", "as deploy_mode"),
    ("para_plane_nic_location", "as deploy_mode"),
    ("para_plane_nic_num", "as deploy_mode"),
    ("rack", "unknown: kept"),
    ("hall", "unknown: kept"),
    ("host", "unknown: kept"),
    ("net_attr", "without a documented form"),
    ("plane_id", "without a documented form"),
    ("para_plane_nic_name", "of the older form, without a rule"),
    ("pod_name", "a name"),
    ("status", "of version 2.0 only: it need not be there"),
];

/// Fields that may hold another value of their kind, and why. (Another kind of value is refused.)
const ANY_OF_ITS_KIND: [(&str, &str); 13] = [
    ("server_id", "a name, as long as it is the only one"),
    ("super_pod_id", "a name, as long as it is the only one"),
    ("device_id", "a number, as long as it is the server's only one"),
    ("super_device_id", "a number, as long as it is the super pod's only one"),
    ("local_id", "a number"),
    ("net_layer", "another layer"),
    ("net_instance_id", "a name"),
    ("net_type", "the other type"),
    ("addr", "another address"),
    ("ports", "another port, or none"),
    ("group_name", "a name"),
    ("level_list", "a rank need not be on every level"),
    ("rank_addr_list", "a rank may have any number of addresses"),
];

/// What may be left out, by a part of its pointer, and why.
const OPTIONAL: [(&str, &str); 6] = [
    ("/ports/", "an address may have any number of ports"),
    ("/rank_addr_list/", "a rank may have any number of addresses"),
    ("/level_list/", "a rank need not be on every level"),
    ("/device_count", "it only repeats what stands below"),
    ("/device_num", "the same"),
    ("/server_num", "the same"),
];

/// The pointers to all values inside of a value.
fn pointers(value: &Value, at: &str, all: &mut Vec<String>) {
    let steps: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(items) => items.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect(),
        _ => Vec::new(),
    };
    for (step, value) in steps {
        let pointer = format!("{at}/{step}");
        all.push(pointer.clone());
        pointers(value, &pointer, all);
    }
}

/// A pointer such as `/server_list/3/device` as the path that people are shown.
fn shown(pointer: &str) -> String {
    pointer.split('/').skip(1).fold("$".to_owned(), |path, step| match step.parse::<usize>() {
        Ok(index) => format!("{path}[{index}]"),
        Err(_) => format!("{path}.{step}"),
    })
}

/// The field that a value is, or is in.
fn field(pointer: &str) -> &str {
    pointer.rsplit('/').find(|step| step.parse::<usize>().is_err()).unwrap_or_default()
}

/// What is made of a table by one change to the value at `pointer`, and what the change was.
fn changes(valid: &Value, pointer: &str) -> Vec<(String, Change, Value)> {
    let others = [
        json!(null),
        json!(true),
        json!(7),
        json!(-1),
        json!(1.5),
        json!("7"),
        json!("x"),
        json!(""),
        json!([]),
        json!({}),
    ];
    let was = valid.pointer(pointer).unwrap();
    let mut all = Vec::new();
    for other in others.iter().filter(|other| *other != was) {
        let mut changed = valid.clone();
        *changed.pointer_mut(pointer).unwrap() = other.clone();
        let same_kind = std::mem::discriminant(was) == std::mem::discriminant(other);
        all.push((
            format!("{pointer} = {other}"),
            if same_kind { Change::SameKind } else { Change::OtherKind },
            changed,
        ));
    }
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let mut without = valid.clone();
    match without.pointer_mut(parent).unwrap() {
        Value::Object(map) => drop(map.remove(last)),
        Value::Array(items) => drop(items.remove(last.parse().unwrap())),
        _ => unreachable!("it has something in it"),
    }
    all.push((format!("{pointer} removed"), Change::Removed, without));
    all
}

#[derive(Clone, Copy, PartialEq)]
enum Change {
    SameKind,
    OtherKind,
    Removed,
}

/// Why a table is valid with that change; `None` where nothing says why.
fn reason(pointer: &str, change: Change) -> Option<&'static str> {
    let of =
        |reasons: &[(&str, &'static str)], name: &str| reasons.iter().find(|(of, _)| *of == name).map(|(_, why)| *why);
    let free = pointer.split('/').find_map(|step| of(&FREE, step));
    let other_value = of(&ANY_OF_ITS_KIND, field(pointer)).filter(|_| change == Change::SameKind);
    let left_out = OPTIONAL.iter().find(|(part, _)| pointer.contains(part)).map(|(_, why)| *why);
    free.or(other_value).or(left_out.filter(|_| change == Change::Removed))
}

#[test]
fn single_change_is_refused_at_its_path_or_accepted_for_a_reason() {
    let (mut taken, mut refused) = (0, 0);
    for (form, sample) in ALL {
        let valid = json(sample);
        let mut all = Vec::new();
        pointers(&valid, "", &mut all);
        for pointer in all {
            for (what, change, changed) in changes(&valid, &pointer) {
                if let Ok(table) = RankTable::from_json(&changed.to_string()) {
                    taken += 1;
                    assert!(reason(&pointer, change).is_some(), "{form} {what}: taken, and nothing says why");
                    assert_eq!(read(&table.to_json()), table, "{form} {what}");
                } else {
                    refused += 1;
                    let told = problems(&changed);
                    assert!(told.iter().any(|line| is_about(line, &pointer)), "{form} {what}: {told:#?}");
                }
            }
        }
    }
    assert!(taken > 200 && refused > 800, "{taken} taken, {refused} refused");
}

/// Whether a line is about the changed value, about the list that it was in, or about a value that a rule binds to it: counts
/// and their lists, names and who refers to them, and ranks, of which one is wrong when another one is missing.
fn is_about(line: &str, pointer: &str) -> bool {
    let path = line.split(' ').next().unwrap_or_default();
    let (at, is) = (shown(pointer), |field: &str| path.ends_with(&format!(".{field}")));
    if path.starts_with(&at) || path != "$" && at.starts_with(path) {
        return true;
    }
    match field(pointer) {
        "server_list" => is("server_count") || is("server_id"),
        "device" | "devices" => is("rank_id") || is("device_count") || is("device_num"),
        "rank_list" => is("rank_count"),
        "group_list" => is("group_count") || is("version"),
        "instance_list" => is("instance_count") || is("device_count") || is("device_num") || is("rank_id"),
        "server_id" | "super_pod_list" => is("server_id") || is("server_num"),
        "version" => is("super_pod_list") || is("rank_list") || is("server_count"),
        _ => false,
    }
}

//! Tables that are made, changed, and wrong in one way or several.

use crate::samples::{ALL, GROUPS, LAB, V1_0, V1_2, V2_0, V2_0_IP};
use crate::{json, problems, read};
use proptest::prelude::*;
use serde_json::json;
use taskd_hw_ascend::ranktable::*;

#[test]
fn rank_table_that_was_read_is_written_unchanged() {
    for (form, text) in ALL {
        assert_eq!(json(&read(text).to_json()), json(text), "{form}");
    }
}

#[test]
fn a_table_that_is_not_whole_is_kept_and_not_checked() {
    let text = r#"{"status": "initializing", "server_list": 5, "version": "1.0"}"#;
    let table = read(text);
    assert!(matches!(table, RankTable::Initializing(_)) && table.ranks().is_none());
    assert_eq!(json(&table.to_json()), json(text));
}

#[test]
fn all_problems_of_a_table_are_reported_at_once() {
    let mut table = json(V1_2);
    table["server_list"][0]["device"][0]["device_ip"] = json!("ERR_NO_IP");
    table["server_list"][0]["device"][1]["rank_id"] = json!("9");
    table["server_list"][1]["server_id"] = json!("a");
    let expected = [
        r#"$.server_list[0].device[0].device_ip is "ERR_NO_IP", which is no IP address"#,
        "$.server_list[0].device[1].rank_id is 9, but the ranks of 3 devices are 0 to 2",
        "$.server_list[1].server_id is a, the same as $.server_list[0].server_id",
        r#"$.super_pod_list[1].server_list[0].server_id is "b", which is no server of server_list"#,
    ];
    assert_eq!(problems(&table), expected);
    assert_eq!(problems(&json!([])), ["$ is a list, but must be an object"]);
    assert_eq!(problems(&json!({"version": "1.0"})), ["$.status is missing"]);
    let many = json!({"status": "completed", "version": "1.0", "server_count": "1", "server_list": [
        {"server_id": "a", "device": vec![json!({}); 200]}]});
    let problems = RankTable::from_json(&many.to_string()).expect_err("nothing is there");
    assert_eq!((problems.all.len(), problems.more), (100, 300));
}

#[test]
fn devices_in_one_super_pod_need_no_address() {
    let mut table = json(V1_2);
    table["super_pod_list"] = json!([{"super_pod_id": "0", "server_list": [{"server_id": "a"}, {"server_id": "b"}]}]);
    table["server_list"][0]["device"][0]["device_ip"] = json!("");
    assert_eq!(
        problems(&table),
        ["$.server_list[1].device[0].super_device_id is 0, the same as $.server_list[0].device[0].super_device_id"]
    );
    table["server_list"][1]["device"][0]["super_device_id"] = json!("2");
    assert_eq!(json(&read(&table.to_string()).to_json()), table);
}

#[test]
fn replaced_server_leaves_other_ranks_unchanged() {
    let RankTable::Servers(table) = read(V1_2) else { panic!() };
    let device = |device_id, super_device_id| NewDevice {
        device_id,
        device_ip: Some(format!("10.20.1.{device_id}")),
        super_device_id: Some(super_device_id),
    };
    let spare =
        NewServer { server_id: "spare".into(), devices: vec![device(6, 8), device(7, 9)], ..NewServer::default() };
    let patched = table.replaced("a", spare.clone()).unwrap();
    let ranks = |table: &ServerTable| -> Vec<(String, u32, u32)> {
        let of = |server: &Server| -> Vec<_> {
            server.devices.iter().map(|device| (server.server_id.clone(), device.device_id, device.rank_id)).collect()
        };
        table.servers.iter().flat_map(of).collect()
    };
    assert_eq!(ranks(&patched), [("spare".into(), 6, 1), ("spare".into(), 7, 0), ("b".into(), 0, 2)]);
    assert_eq!(patched.super_pods[0].servers[0].0, "spare");
    let moved =
        table.replaced("b", NewServer { devices: vec![device(0, 5)], super_pod_id: Some("0".into()), ..spare.clone() });
    assert_eq!(moved.unwrap().super_pods.len(), 1, "a super pod without a server is none");
    let why = table.replaced("b", spare.clone()).expect_err("two devices for one").to_string();
    assert_eq!(why, r#"$.server_list[1].device has 1 devices, but its replacement "spare" has 2"#);
    let why = table.replaced("c", spare.clone()).expect_err("it is not there").to_string();
    assert_eq!(why, r#"$.server_list has no server "c""#);
    let twice = NewServer { server_id: "b".into(), ..spare };
    assert!(table.replaced("a", twice).is_err(), "b is there already");
}

#[test]
fn table_conversion_succeeds_if_required_fields_are_present() {
    let RankTable::Servers(super_pods) = read(V1_2) else { panic!() };
    let plain = super_pods.converted(Version::V1_0).unwrap();
    assert_eq!((plain.version, plain.super_pods.len()), (Version::V1_0, 0));
    assert_eq!(plain.servers[0].devices[0].other["super_device_id"], "0");
    assert_eq!(plain.converted(Version::V1_2).unwrap(), super_pods, "nothing is lost");
    let RankTable::Servers(servers) = read(V1_0) else { panic!() };
    let why = servers.converted(Version::V1_2).expect_err("it has no super pods").to_string();
    assert_eq!(why, "$.super_pod_list is missing");
}

#[test]
fn groups_become_servers_where_nothing_is_lost() {
    let RankTable::Groups(groups) = read(GROUPS) else { panic!() };
    let ranks: Vec<_> = groups.devices().map(|(server, device)| (server, device.device_id)).collect();
    assert_eq!(ranks, [("10.0.0.5", 4), ("10.0.0.5", 5), ("10.0.0.6", 4)]);
    let servers = groups.to_servers().unwrap();
    assert_eq!((servers.version, servers.servers[1].devices[0].rank_id), (Version::V1_0, 2));
    assert_eq!(servers.servers[0].other["pod_name"], "job-worker-0");
    assert_eq!(servers.other["group_name"], "job-worker");
    assert_eq!(read(&RankTable::Servers(servers.clone()).to_json()), RankTable::Servers(servers));
    let mut shared = groups;
    shared.groups[0].instances[1].server_id = "10.0.0.5".into();
    let why = shared.to_servers().expect_err("two pods on one server").to_string();
    assert!(why.starts_with("$.group_list[0].instance_list[1].server_id is 10.0.0.5 a second time"), "{why}");
}

#[test]
fn explicit_group_ranks_override_the_order_of_the_list() {
    let RankTable::Groups(groups) = read(LAB) else { panic!() };
    let ranks = |groups: &GroupTable| -> Vec<_> {
        groups.devices().map(|(server, device)| (server.to_owned(), device.device_id)).collect()
    };
    let expected = [("192.168.3.6", 0), ("192.168.3.6", 1), ("192.168.3.2", 0)];
    assert_eq!(ranks(&groups), expected.map(|(server, device)| (server.to_owned(), device)));
    let servers = groups.to_servers().unwrap();
    let of: Vec<_> = servers
        .servers
        .iter()
        .flat_map(|server| server.devices.iter().map(|one| (&*server.server_id, one.device_id, one.rank_id)))
        .collect();
    assert_eq!(of, [("192.168.3.2", 0, 2), ("192.168.3.6", 1, 1), ("192.168.3.6", 0, 0)]);
    // The same of ranks that stand beside devices.
    let mut table = json(LAB);
    for instance in table["group_list"][0]["instance_list"].as_array_mut().unwrap() {
        let rank = instance.as_object_mut().unwrap().remove("rank_id").unwrap();
        instance["devices"][0]["rank_id"] = rank;
    }
    let RankTable::Groups(beside) = read(&table.to_string()) else { panic!() };
    assert_eq!(ranks(&beside), ranks(&groups));
    assert_eq!(beside.to_servers().unwrap(), servers);
}

#[test]
fn group_ranks_must_be_complete_unique_and_of_one_device_each() {
    let mut table = json(LAB);
    let list = "$.group_list[0].instance_list";
    table["group_list"][0]["instance_list"][0].as_object_mut().unwrap().remove("rank_id");
    assert_eq!(problems(&table), [format!("{list}[0].rank_id is missing, but other devices have one")]);
    let mut table = json(LAB);
    table["group_list"][0]["instance_list"][0]["rank_id"] = json!("1");
    assert_eq!(problems(&table), [format!("{list}[1].rank_id is 1, which occurs twice")]);
    let mut table = json(GROUPS);
    table["group_list"][0]["instance_list"][0]["rank_id"] = json!("0");
    table["group_list"][0]["instance_list"][1]["rank_id"] = json!("1");
    let told = problems(&table);
    assert_eq!(told[0], format!("{list}[0].rank_id is the rank of one device, but there are 2"));
}

#[test]
fn a_server_alone_needs_no_addresses() {
    let mut table = json(V1_0);
    table["server_list"].as_array_mut().unwrap().pop();
    table["server_count"] = json!("1");
    for (change, told) in [
        (None, vec![]),
        (Some(""), vec![]),
        (Some("none"), vec![r#"$.server_list[0].device[0].device_ip is "none", which is no IP address"#]),
    ] {
        let device = table["server_list"][0]["device"][0].as_object_mut().unwrap();
        match change {
            None => drop(device.remove("device_ip")),
            Some(ip) => drop(device.insert("device_ip".into(), json!(ip))),
        }
        let found = RankTable::from_json(&table.to_string())
            .map_or_else(|why| why.all.iter().map(ToString::to_string).collect(), |_| Vec::new());
        assert_eq!(found, told);
    }
}

#[test]
fn addresses_and_ports_outside_the_hccl_format_are_refused() {
    let at = "$.rank_list[0].level_list[2].rank_addr_list[0]";
    let changed = |field: &str, value: &str| {
        let mut table = json(V2_0_IP);
        table["rank_list"][0]["level_list"][2]["rank_addr_list"][0][field] = json!(value);
        problems(&table)
    };
    assert_eq!(changed("addr", "fd00::3"), [format!(r#"{at}.addr is "fd00::3", which is no IPv4 address"#)]);
    assert_eq!(changed("addr_type", "IPV6"), [format!(r#"{at}.addr is "192.168.1.101", which is no IPv6 address"#)]);
    let known = "but must be EID or IPV4 or IPV6 or IP, in capitals";
    assert_eq!(changed("addr_type", "IPv4"), [format!(r#"{at}.addr_type is "IPv4", {known}"#)]);
    for ports in ["", "0/", "/1", "0/1,", "0-1", "2h", "0/1,0/2,0/3,0/4,0/5,0/6,0/7,0/8,0/9"] {
        let mut table = json(V2_0_IP);
        table["rank_list"][0]["level_list"][2]["rank_addr_list"][0]["ports"] = json!([ports]);
        let expected =
            format!(r#"{at}.ports[0] is {ports:?}, but must be a port such as "1/0", or a host's such as "d2h""#);
        assert_eq!(problems(&table), [expected]);
    }
    let mut table = json(V2_0_IP);
    table["rank_list"][0]["level_list"][1]["net_type"] = json!("CLOSE");
    table["rank_list"][0]["level_list"][2]["net_layer"] = json!(8);
    assert_eq!(problems(&table).len(), 2);
}

#[test]
fn ranks_are_in_order_whatever_the_order_in_the_file() {
    let mut table = json(V2_0);
    table["rank_list"].as_array_mut().unwrap().reverse();
    assert_eq!(read(&table.to_string()), read(V2_0));
}

#[test]
fn ranks_get_other_devices_when_their_node_is_replaced() {
    let RankTable::Ranks(table) = read(V2_0) else { panic!() };
    assert_eq!(RankList::new(table.ranks.iter().rev().cloned()).unwrap().ranks, table.ranks);
    let other = RankEntry { device_id: 7, ..table.ranks[1].clone() };
    let patched = table.replaced([other.clone()]).unwrap();
    assert_eq!((&patched.ranks[0], &patched.ranks[1]), (&table.ranks[0], &other));
    let why = table.replaced([RankEntry { rank_id: 2, ..other }]).expect_err("there are two").to_string();
    assert_eq!(why, "$.rank_list has no rank 2");
}

#[test]
fn compressed_tables_are_read_like_others() {
    for (form, text) in ALL {
        let table = read(text);
        assert_eq!(RankTable::from_bytes(table.to_packed().as_bytes()).as_ref(), Ok(&table), "{form}");
        assert_eq!(RankTable::from_bytes(format!(" {text}\n").as_bytes()).as_ref(), Ok(&table), "{form}");
    }
    for (bytes, why) in [
        ("eyJzdGF0dXMiOiAiY29tcGxldGVkIn0=", "$ neither JSON nor gzip in base64: invalid gzip header"),
        ("nothing!", "$ neither JSON nor gzip in base64: Invalid symbol 33, offset 7."),
        ("${RANK_TABLE}", "$ a template that was not rendered: name the file submitted to the cluster"),
        ("{{ .Values.table }}", "$ a template that was not rendered: name the file submitted to the cluster"),
        ("", "$ is empty"),
        (" \n", "$ is empty"),
        ("\u{feff}{}", "$ begins with a byte-order mark of UTF-8: save it as UTF-8 without one"),
    ] {
        let told = RankTable::from_bytes(bytes.as_bytes()).expect_err("no table").to_string();
        assert!(told.starts_with(why), "{told}");
    }
    let utf16: Vec<u8> = format!("\u{feff}{V1_0}").encode_utf16().flat_map(u16::to_le_bytes).collect();
    let told = RankTable::from_bytes(&utf16).expect_err("no table").to_string();
    assert_eq!(told, "$ begins with a byte-order mark of UTF-16: save it as UTF-8 without one");
    assert_eq!(RankTable::from_json("").expect_err("no table").to_string(), "$ is empty");
}

#[test]
fn a_table_that_was_changed_by_hand_is_checked_again() {
    let RankTable::Servers(mut table) = read(V1_0) else { panic!() };
    table.servers[0].devices[0].rank_id = 2;
    let why = RankTable::Servers(table).check().expect_err("rank 2 is there twice").to_string();
    assert_eq!(why, "$.server_list[1].device[0].rank_id is 2, which occurs twice");
}

/// Servers of a random cluster; with super pods, if they are asked for.
fn servers(version: Version) -> impl Strategy<Value = Vec<NewServer>> {
    prop::collection::vec((1..9u32, 0..4u32), 1..20).prop_map(move |sizes| {
        let is_pods = version == Version::V1_2;
        let server = |(index, (devices, pod)): (u32, (u32, u32))| NewServer {
            server_id: format!("server-{index}"),
            devices: (0..devices)
                .map(|device_id| NewDevice {
                    device_id,
                    device_ip: Some(format!("10.{}.{}.{device_id}", index / 256, index % 256)),
                    super_device_id: is_pods.then_some(index * 8 + device_id),
                })
                .collect(),
            super_pod_id: is_pods.then(|| pod.to_string()),
            other: [("host_ip".to_owned(), json!(format!("host-{index}")))].into_iter().collect(),
        };
        (0..).zip(sizes).map(server).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn server_table_made_from_servers_is_valid_and_reads_back(
        (version, servers) in prop::sample::select(vec![Version::V1_0, Version::V1_2])
            .prop_flat_map(|version| (Just(version), servers(version)))
    ) {
        let devices: usize = servers.iter().map(|server| server.devices.len()).sum();
        let table = RankTable::Servers(ServerTable::new(version, servers).map_err(|problems| TestCaseError::fail(problems.to_string()))?);
        prop_assert_eq!(table.ranks(), Some(devices));
        prop_assert_eq!(read(&table.to_json()), table);
    }
}

#[test]
fn tens_of_thousands_of_devices_are_one_table_like_another() {
    let server = |index: u32| NewServer {
        server_id: format!("server-{index}"),
        devices: (0..16)
            .map(|device_id| NewDevice {
                device_id,
                device_ip: Some(format!("10.{}.{}.{device_id}", index / 256, index % 256)),
                super_device_id: Some(index % 24 * 16 + device_id),
            })
            .collect(),
        super_pod_id: Some((index / 24).to_string()),
        other: Other::new(),
    };
    let table = ServerTable::new(Version::V1_2, (0..4096).map(server)).unwrap();
    let table = RankTable::Servers(table);
    assert_eq!(table.ranks(), Some(65_536));
    assert_eq!(read(&table.to_json()), table);
}

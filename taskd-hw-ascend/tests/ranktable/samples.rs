//! A table of each form, with fields that have no rule in every object. Written after the documented examples; the addresses
//! and names are made up.

/// Version 1.0.
pub(crate) const V1_0: &str = r#"{
    "status": "completed",
    "server_list": [
        {"device": [
            {"device_id": "0", "device_ip": "10.20.0.2", "rank_id": "0"},
            {"device_id": "1", "device_ip": "10.20.0.3", "rank_id": "1", "note": [1, 2.5]}],
         "server_id": "10.0.0.5", "host_ip": "10.0.0.5", "container_ip": "192.168.1.9", "hardware_type": "800I-A2-32G"},
        {"device": [{"device_id": "0", "device_ip": "fd00::2", "rank_id": "2"}], "server_id": "node-b"}],
    "server_count": "2", "version": "1.0", "data_version": {"of": "the cluster"}}"#;

/// Version 1.2: two super pods, so that devices need addresses.
pub(crate) const V1_2: &str = r#"{
    "status": "completed",
    "server_list": [
        {"device": [
            {"device_id": "0", "device_ip": "10.20.0.2", "rank_id": "1", "super_device_id": "0", "device_port": "16666"},
            {"device_id": "1", "device_ip": "10.20.0.3", "rank_id": "0", "super_device_id": "1"}], "server_id": "a"},
        {"device": [{"device_id": "0", "device_ip": "10.20.0.4", "rank_id": "2", "super_device_id": "0"}], "server_id": "b"}],
    "server_count": "2", "version": "1.2",
    "super_pod_list": [
        {"super_pod_id": "0", "server_list": [{"server_id": "a", "rack": 7}], "hall": "east"},
        {"super_pod_id": "1", "server_list": [{"server_id": "b"}]}]}"#;

/// Version 2.0.
pub(crate) const V2_0: &str = r#"{
    "status": "completed", "version": "2.0", "rank_count": 2, "data_version": "7", "rank_list": [
        {"rank_id": 0, "local_id": 0, "device_id": 4, "host": "a", "level_list": [
            {"net_layer": 0, "net_instance_id": "sp0-r0", "net_type": "TOPO_FILE_DESC", "net_attr": "", "rank_addr_list": [
                {"addr_type": "EID", "addr": "0001", "ports": ["1/0"], "plane_id": "0"}]},
            {"net_layer": 3, "net_instance_id": "cluster", "net_type": "CLOS", "net_attr": "", "rank_addr_list": [
                {"addr_type": "IP", "addr": "10.20.0.2", "ports": ["2/0", "2/1"], "plane_id": "1"}]}]},
        {"rank_id": 1, "local_id": 1, "device_id": 5, "level_list": [
            {"net_layer": 1, "net_instance_id": "", "net_type": "", "net_attr": "", "rank_addr_list": []}]}]}"#;

/// The older form.
pub(crate) const GROUPS: &str = r#"{
    "status": "completed", "group_count": "1", "para_plane_nic_name": ["eth0"], "group_list": [
        {"group_name": "job-worker", "device_count": "3", "instance_count": "2", "instance_list": [
            {"pod_name": "job-worker-0", "server_id": "10.0.0.5", "devices": [
                {"device_id": "4", "device_ip": "192.1.10.254"}, {"device_id": "5", "device_ip": "192.1.10.253"}]},
            {"pod_name": "job-worker-1", "server_id": "10.0.0.6", "devices": [
                {"device_id": "4", "device_ip": "192.1.10.252"}]}]}]}"#;

/// The older form as HCCL reads it of a lab: an instance for each device, with its rank, in another order than they stand.
pub(crate) const LAB: &str = r#"{
    "status": "completed", "deploy_mode": "lab", "board_id": "0x0020", "chip_info": "910", "group_count": "1",
    "para_plane_nic_location": "device", "para_plane_nic_name": ["eth0", "eth1"], "para_plane_nic_num": "2", "group_list": [
        {"device_num": "3", "server_num": "2", "group_name": "", "instance_count": "3", "instance_list": [
            {"devices": [{"device_id": "0", "device_ip": "192.168.10.3"}], "rank_id": "2", "server_id": "192.168.3.2"},
            {"devices": [{"device_id": "1", "device_ip": "192.168.20.1"}], "rank_id": "1", "server_id": "192.168.3.6"},
            {"devices": [{"device_id": "0", "device_ip": "192.168.10.1"}], "rank_id": "0", "server_id": "192.168.3.6"}]}]}"#;

/// Version 2.0 as HCCL's own examples have it, with addresses of every kind.
pub(crate) const V2_0_IP: &str = r#"{
    "status": "completed", "version": "2.0", "rank_count": 1, "rank_list": [
        {"rank_id": 0, "local_id": 0, "device_id": 0, "device_port": 16666, "host_port": 60001, "level_list": [
            {"net_layer": 0, "net_instance_id": "az0-rack0", "net_type": "1DMESH", "net_attr": "", "rank_addr_list": [
                {"addr_type": "EID", "addr": "000000000000002000100000dfdf1200", "ports": ["0/0,0/1"], "plane_id": "0"}]},
            {"net_layer": 2, "net_instance_id": "0", "net_type": "OXC_Mesh", "net_attr": "", "rank_addr_list": [
                {"addr_type": "IPV6", "addr": "fd00::2", "ports": ["2/1"], "plane_id": "planeA"}]},
            {"net_layer": 3, "net_instance_id": "cluster", "net_type": "CLOS", "net_attr": "", "rank_addr_list": [
                {"addr_type": "IPV4", "addr": "192.168.1.101", "ports": ["d2h"], "plane_id": "planeA"}]}]}]}"#;

/// All of them.
pub(crate) const ALL: [(&str, &str); 6] = [
    ("1.0", V1_0),
    ("1.2", V1_2),
    ("2.0", V2_0),
    ("2.0 with addresses of every kind", V2_0_IP),
    ("group_list", GROUPS),
    ("group_list with ranks", LAB),
];

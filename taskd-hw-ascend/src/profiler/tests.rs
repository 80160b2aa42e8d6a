use super::*;
use std::fs::{create_dir_all, write};
use std::path::PathBuf;
use taskd_core::analysis::model::{GroupRole, Kind, LinkKind, LinkTransfer};

const COMMUNICATOR: &str = "10.0.0.1%enp_60000_0";
const KERNELS: &str =
    "Step Id,Device_id,Model ID,Task ID,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us)
1,0,4294967295,1,2,aclnnMatmul,MatMul,AI_CORE,1718000000000100.125\t,50.5
1,0,4294967295,2,9,hcom_allReduce__721_0_1,hcom_allReduce_,COMMUNICATION,1718000000000160.0\t,20.0
2,0,4294967295,3,2,\"aclnnMatmul,2\",MatMul,AI_CORE,1718000000000300.0\t,50.0
2,0,4294967295,4,2,broken,MatMul,AI_CORE,N/A,50.0
";

/// Writes the profile of one rank, and returns its directory.
fn profile(root: &Path, rank: u32, time: &str) -> PathBuf {
    let dir = root.join(format!("node-1_{}_{time}_ascend_pt", 1000 + rank));
    let output = dir.join("ASCEND_PROFILER_OUTPUT");
    create_dir_all(&output).expect("a directory");
    let put = |path: PathBuf, text: &str| write(path, text).expect("a file");
    put(dir.join(format!("profiler_info_{rank}.json")), "{}");
    let groups = format!(
        r#"{{"parallel_group_info":{{"{COMMUNICATOR}":{{"group_name":"dp","group_rank":{rank},"global_ranks":[0,1]}}}}}}"#
    );
    put(dir.join("profiler_metadata.json"), &groups);
    put(output.join("kernel_details.csv"), KERNELS);
    let hash = metadata::group_hash(COMMUNICATOR);
    let times = r#"{"Start Timestamp(us)":1718000000000160.250,"Elapse Time(ms)":0.0205,"Transit Time(ms)":0.005,"Wait Time(ms)":0.0155}"#;
    let bandwidth = r#"{"HCCS":{"Transit Size(MB)":1.5,"Transit Time(ms)":0.005},"SDMA":{"Transit Size(MB)":0.5}}"#;
    let total = r#"{"Communication Time Info":{"Elapse Time(ms)":0.0205}}"#;
    let operator = format!(
        r#"{{"step1":{{"p2p":{{}},"collective":{{"hcom_allReduce__721_0_1@{hash}":{{"Communication Time Info":{times},
        "Communication Bandwidth Info":{bandwidth}}},"Total Op Info":{total}}}}}}}"#
    );
    put(output.join("communication.json"), &operator);
    let link = r#"{"Transport Type":"HCCS","Transit Size(MB)":2.0,"Transit Time(ms)":0.004,"Op Name":"x"}"#;
    let matrix = format!(
        r#"{{"step1":{{"collective":{{"allreduce-top1@{hash}":{{}},"allreduce-total@{hash}":{{"0-1":{link}}}}}}}}}"#
    );
    put(output.join("communication_matrix.json"), &matrix);
    let times = "Device_id,Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble\n\
                 0,1,50.5,20.5,0,20.5,9.7,200.0,0\n";
    put(output.join("step_trace_time.csv"), &times.replace("200.0", &format!("{}.0", 200 + rank)));
    dir
}

#[test]
fn a_profile_becomes_kernels_and_collectives_of_its_steps() {
    let root = tempfile::tempdir().expect("a directory");
    profile(root.path(), 0, "20260101000000000");
    profile(root.path(), 1, "20260101000000000");
    let trace = read(root.path()).expect("it can be listed");
    assert_eq!(trace.began_unix_ns, Some(1_718_000_000_000_100_125));
    let rank = &trace.ranks[&1];
    let events: Vec<_> =
        rank.events.iter().map(|e| (rank.names.get(e.name), e.kind, e.start_ns, e.duration_ns)).collect();
    let expected = [
        ("aclnnMatmul", Kind::Compute, 0, 50_500),
        ("hcom_allReduce__721_0_1", Kind::Collective, 60_125, 20_500),
        ("aclnnMatmul,2", Kind::Compute, 199_875, 50_000),
    ];
    assert_eq!(events, expected, "the collective is read from communication.json, once");
    let steps: Vec<_> = rank.steps.iter().map(|s| (s.number, s.start_ns, s.duration_ns)).collect();
    assert_eq!(steps, [(1, 0, 199_875), (2, 199_875, 50_000)]);
    let details = &rank.communications[0];
    assert_eq!((details.bytes, details.wait_ns, details.transit_ns), (2_000_000, Some(15_500), Some(5_000)));
    let link = LinkTransfer { source: 0, destination: 1, link: LinkKind::Hccs, bytes: 2_000_000, transit_ns: 4_000 };
    assert_eq!(details.links, [link]);
    let group = &rank.groups[details.group.expect("it has one") as usize];
    assert_eq!((group.role, &*group.members), (GroupRole::Data, &[0, 1][..]));
    let missing: Vec<_> = trace.missing.iter().map(|missing| &*missing.what).collect();
    assert_eq!(missing.len(), 2, "{missing:?}");
    assert!(missing[0].starts_with("rank 0: 1 lines of kernel_details.csv were not read"), "{missing:?}");
}

#[test]
fn links_belong_to_the_step_under_which_the_file_lists_them() {
    let root = tempfile::tempdir().expect("a directory");
    let output = profile(root.path(), 0, "20260101000000000").join("ASCEND_PROFILER_OUTPUT");
    let hash = metadata::group_hash(COMMUNICATOR);
    let operators = |first_us: u64| {
        let operator = |at: u64| {
            let start = format!(r#""Start Timestamp(us)":17180000000{:05}.0"#, first_us + 10 * at);
            format!(
                r#""hcom_allReduce__721_{at}_1@{hash}":{{"Communication Time Info":{{{start},"Elapse Time(ms)":0.005}}}}"#
            )
        };
        format!(r#"{{"collective":{{{},{}}}}}"#, operator(0), operator(1))
    };
    let text = format!(r#"{{"step1":{},"step2":{}}}"#, operators(100), operators(300));
    write(output.join("communication.json"), text).expect("a file");
    let link = |mb: u32| format!(r#"{{"Transport Type":"HCCS","Transit Size(MB)":{mb},"Transit Time(ms)":1}}"#);
    let of_step = |mb| format!(r#"{{"collective":{{"allreduce-total@{hash}":{{"0-1":{}}}}}}}"#, link(mb));
    let text = format!(r#"{{"step1":{},"step2":{}}}"#, of_step(1), of_step(2));
    write(output.join("communication_matrix.json"), text).expect("a file");
    let trace = read(root.path()).expect("it can be listed");
    let bytes: Vec<Option<u64>> =
        trace.ranks[&0].communications.iter().map(|c| c.links.first().map(|link| link.bytes)).collect();
    assert_eq!(bytes, [Some(1_000_000), None, Some(2_000_000), None]);
}

#[test]
fn the_newest_profile_of_a_rank_counts_and_damaged_files_are_named() {
    let root = tempfile::tempdir().expect("a directory");
    let older = profile(root.path(), 0, "20260101000000000");
    let newer = profile(root.path(), 0, "20260102000000000");
    let output = newer.join("ASCEND_PROFILER_OUTPUT");
    write(output.join("communication.json"), "{\"step1\": [").expect("a file");
    std::fs::remove_file(output.join("communication_matrix.json")).expect("it exists");
    let lost = profile(root.path(), 7, "20260101000000000");
    std::fs::remove_file(lost.join("profiler_info_7.json")).expect("it exists");
    let trace = read(root.path()).expect("it can be listed");
    assert_eq!(trace.ranks.keys().collect::<Vec<_>>(), [&0]);
    let rank = &trace.ranks[&0];
    assert_eq!(rank.events.iter().filter(|event| event.kind == Kind::Collective).count(), 1, "from the kernels");
    let missing = trace.missing.iter().map(|missing| &*missing.what).collect::<Vec<_>>().join("\n");
    for what in [
        &*format!("rank 0: {} was not read, because", older.display()),
        &*format!("{} has no profiler_info_RANK.json", lost.display()),
        "communication.json was not read: ",
        "communication_matrix.json was not read: No such file",
    ] {
        assert!(missing.contains(what), "{what}: {missing}");
    }
}

#[test]
fn the_table_of_all_ranks_has_the_maxima_of_the_stages() {
    let root = tempfile::tempdir().expect("a directory");
    let mut ranks = BTreeMap::new();
    for rank in [0, 1] {
        let path = profile(root.path(), rank, "20260101000000000").join("ASCEND_PROFILER_OUTPUT/step_trace_time.csv");
        let (columns, rows) = read_step_trace(&path).expect("it can be read");
        assert_eq!((columns.len(), &*columns[5]), (7, "Stage"));
        ranks.insert(rank, rows);
    }
    let table = cluster_step_trace(&ranks, &[vec![0, 1]]);
    let stage_time: Vec<_> = table.iter().map(|row| (&*row.ranks, row.is_stage, row.values[5])).collect();
    assert_eq!(stage_time, [(&[0][..], false, 200.0), (&[1], false, 201.0), (&[0, 1], true, 201.0)]);
}

#[test]
fn steps_have_numbers_with_or_without_a_word() {
    assert_eq!(["3", "step3", "Step 12", "", "-"].map(step_number), [Some(3), Some(3), Some(12), None, None]);
}

#[test]
fn group_hashes_are_those_of_msprof_analyze() {
    // python: msprof_analyze.cluster_analyse.common_func.utils.double_hash("10.0.0.1%enp_60000_0")
    assert_eq!(metadata::group_hash("10.0.0.1%enp_60000_0"), 1_104_940_366_048_820_960);
}

#[test]
fn memory_is_that_of_the_most_complete_component() {
    let root = tempfile::tempdir().expect("a directory");
    let output = profile(root.path(), 0, "20260101000000000").join("ASCEND_PROFILER_OUTPUT");
    let rows = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Stream Ptr,Device Type\n\
                PTA,1718000000000100.125\t,900.0,900.0,900.0,0,NPU:0\n\
                APP,1718000000000100.125\t,,4096.0,,,NPU:0\n\
                PTA+GE,1718000000000200.125\t,3.5,8.0,3.5,0,NPU:0\n\
                PTA+GE,1718000000000150.125\t,1.0,8.0,1.0,0,NPU:0\n\
                PTA+GE,1718000000000150.125\t,77.0,80.0,77.0,0,CPU\n\
                PTA+GE,N/A,1.0,8.0,1.0,0,NPU:0\n";
    write(output.join("memory_record.csv"), rows).expect("a file");
    let trace = read(root.path()).expect("it can be listed");
    let resources = &trace.ranks[&0].resources;
    assert_eq!(resources.memory, [(50_000, 1 << 20), (100_000, 7 << 19)], "from the first event on, in nanoseconds");
    assert_eq!(resources.peak_memory_bytes, Some(7 << 19));
    let missing = trace.missing.iter().filter(|missing| missing.what.contains("memory_record.csv"));
    let missing: Vec<&str> = missing.map(|missing| missing.what.as_str()).collect();
    assert_eq!(missing, ["rank 0: 1 lines of memory_record.csv were not read: they are not readable"]);
}

#[test]
fn memory_of_mindspore_has_the_units_of_its_viewer() {
    let root = tempfile::tempdir().expect("a directory");
    let output = profile(root.path(), 0, "20260101000000000").join("ASCEND_PROFILER_OUTPUT");
    let rows = "Component,Timestamp(us),Total Allocated(MB),Total Reserved(MB),Total Active(MB),Device Type\n\
                MindSpore,1718000000000100.125\t,1.0,2.0,1.0,NPU:0\n\
                MindSpore+GE,1718000000000100.125\t,2.5,2.5,2.5,NPU:0\n";
    write(output.join("memory_record.csv"), rows).expect("a file");
    let trace = read(root.path()).expect("it can be listed");
    assert_eq!(trace.ranks[&0].resources.memory, [(0, 2_560_000)], "2.5 times 1000 KiB");
}

#[test]
fn a_memory_file_of_other_columns_is_reported() {
    let root = tempfile::tempdir().expect("a directory");
    let output = profile(root.path(), 0, "20260101000000000").join("ASCEND_PROFILER_OUTPUT");
    write(output.join("memory_record.csv"), "Device_id,Component\n").expect("a file");
    let trace = read(root.path()).expect("it can be listed");
    let named = trace.missing.iter().any(|missing| missing.what.ends_with("it has no column Timestamp(us)"));
    assert!(named, "{:?}", trace.missing);
}

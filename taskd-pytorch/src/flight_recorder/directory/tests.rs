use super::*;

#[test]
fn the_rank_is_the_number_at_the_end_of_the_name() {
    let cases =
        [("comm_lib_trace_rank_12", Some(12)), ("nccl2_dump_3.json", Some(3)), ("7", Some(7)), ("x.pickle", None)];
    for (name, rank) in cases {
        assert_eq!(rank_of(name), rank, "{name}");
    }
    assert_eq!(rank_of("dump_99999999999"), None, "no rank is that large");
}

#[test]
fn files_that_are_no_dump_are_reported_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let dump = r#"{"version": "2.10", "entries": []}"#;
    let files =
        [("a_0", dump), ("b_0", dump), ("dump_1", "{\"version\": \"3.0\"}"), ("dump_2", "{"), ("notes.txt", "")];
    for (name, content) in files {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    let read = read_directory(directory.path()).unwrap();
    assert_eq!(read.dumps.iter().map(|dump| dump.rank).collect::<Vec<_>>(), [0]);
    let problems: Vec<String> = read.problems.iter().map(DirectoryProblem::to_string).collect();
    assert_eq!(problems[0], "b_0 was not read: another file is the dump of rank 0, too");
    let version = "dump_1, the dump of rank 1, is not readable: this is no flight-recorder dump of version 2: its version \
                   is \"3.0\"";
    assert_eq!(problems[1], version);
    assert!(problems[2].starts_with("dump_2, the dump of rank 2, is not readable: byte 1 of"), "{}", problems[2]);
    assert_eq!(problems[3], "notes.txt was not read: its name does not end in a rank");
}

#[test]
fn directories_of_hosts_are_read_together_and_those_of_other_runs_are_not() {
    let root = tempfile::tempdir().unwrap();
    let put = |path: &str| {
        let path = root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, r#"{"version": "2.10", "entries": []}"#).unwrap();
    };
    let read = |names: &[&str]| {
        let paths: Vec<PathBuf> = names.iter().map(|name| root.path().join(name)).collect();
        let read = read_directories(paths.iter().map(PathBuf::as_path)).unwrap();
        let problems: Vec<String> = read.problems.iter().map(DirectoryProblem::to_string).collect();
        (read.dumps.iter().map(|dump| dump.rank).collect::<Vec<_>>(), problems)
    };
    ["a/dump_0", "a/dump_1", "b/dump_2", "later/dump_0", "later/dump_1", "later/dump_2"]
        .iter()
        .for_each(|path| put(path));
    assert_eq!(read(&["b", "a"]), (vec![0, 1, 2], vec![]));
    std::fs::write(root.path().join("a/log.1"), "no dump").unwrap();
    std::fs::write(root.path().join("b/log.1"), "no dump").unwrap();
    let (ranks, problems) = read(&["later", "b", "a"]);
    assert_eq!(ranks, [0, 1, 2]);
    let problems: Vec<String> = problems.into_iter().filter(|problem| !problem.contains("log.1")).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0]
            .ends_with("later was not read: it has dumps of the same ranks, so it is of another run; give it alone")
    );
}

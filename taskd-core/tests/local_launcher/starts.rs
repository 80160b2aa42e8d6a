//! Starts: what a process is started with, and that it is started once.

use crate::job::*;
use crate::support::*;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use taskd_core::job::*;
use taskd_core::launch::*;

/// What of an environment is the launcher's own.
fn own(printed: &str) -> Vec<(String, String)> {
    let lines = printed.lines().filter_map(|line| line.split_once('='));
    lines.filter(|(name, _)| name.starts_with("TASKD_")).map(|(n, v)| (n.to_owned(), v.to_owned())).collect()
}

#[tokio::test]
async fn a_rank_receives_its_identity_in_its_environment() {
    let job = Job::with(|builder| builder.job_name("mnist").beat_every(Duration::from_millis(250))).await;
    job.start([sleeper(), sh("env | sort; echo end")]).await;
    let printed = job.printed("rank-1.1/stdout.log", "end\n").await;
    let mut own = own(&printed);
    let marker = own.remove(own.iter().position(|(name, _)| name == "TASKD_JOB").unwrap()).1;
    assert!(marker.len() == 32 && marker.bytes().all(|b| b.is_ascii_hexdigit()));
    let page = own.remove(own.iter().position(|(name, _)| name == "TASKD_LIFELINE").unwrap()).1;
    assert!(page.starts_with(&format!("/proc/{}/fd/", job.guard_pid())));
    let control = own.remove(own.iter().position(|(name, _)| name == "TASKD_CONTROL").unwrap()).1;
    assert!(
        control.starts_with(&format!("/proc/{}/fd/", job.guard_pid())) && Path::new(&control).exists(),
        "{control}"
    );
    let keep = own.remove(own.iter().position(|(name, _)| name == "TASKD_HANDOFF").unwrap()).1;
    assert!(keep.starts_with(&format!("/proc/{}/fd/", job.guard_pid())), "{keep}");
    let library = own.remove(own.iter().position(|(name, _)| name == "TASKD_LIB").unwrap()).1;
    assert_eq!(library, taskd_core::worker::library::unpack().unwrap().to_str().unwrap());
    let run_dir = job.dir.path().display().to_string();
    let expected = [
        ("TASKD_GENERATION", "1"),
        ("TASKD_HEARTBEAT_INTERVAL_MS", "250"),
        ("TASKD_INCARNATION", "1"),
        ("TASKD_JOB_NAME", "mnist"),
        ("TASKD_LOCAL_RANK", "1"),
        ("TASKD_LOCAL_WORLD_SIZE", "2"),
        ("TASKD_PROC", "rank-1.1"),
        ("TASKD_RANK", "1"),
        ("TASKD_RESTARTS", "0"),
        ("TASKD_RUN_DIR", &run_dir),
        ("TASKD_WORLD_SIZE", "2"),
    ];
    assert_eq!(own, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    assert!(printed.contains("\nPATH="), "the rest is inherited");
    job.end().await;
}

#[tokio::test]
async fn environment_directory_niceness_and_processors_are_as_ordered() {
    let job = Job::new().await;
    let only = InheritEnv::Only(BTreeSet::from(["PATH".to_owned()]));
    let spec =
        sh("pwd; nice; grep Cpus_allowed_list /proc/self/status; echo $HOME,$A; ls /proc/self/fd; cat; echo end")
            .with_inherit(only)
            .with_env("A", "b c")
            .with_cwd("/usr")
            .with_nice(5)
            .with_affinity(Affinity::Cpus(BTreeSet::from([0])));
    let proc = job.start_one(spec).await;
    assert_eq!(job.exit_of(&proc).await.how, Termination::Code(0));
    let printed = job.printed("rank-0.1/stdout.log", "end\n").await;
    // `ls` has one descriptor of its own, for the directory.
    assert_eq!(printed, "/usr\n5\nCpus_allowed_list:\t0\n,b c\n0\n1\n2\n3\nend\n");
    job.end().await;
}

#[tokio::test]
async fn a_process_is_started_once() {
    let job = Job::new().await;
    let orders = batch(1, [sh("echo started >&2; exit 3")]);
    let proc = orders.starts[0].proc.clone();
    let launcher = &job.launcher;
    launcher.start(&orders).await.unwrap();
    launcher.start(&orders).await.unwrap();
    let exit = job.exit_of(&proc).await;
    launcher.start(&orders).await.unwrap();
    launcher.acknowledge(std::slice::from_ref(&proc)).await.unwrap();
    launcher.acknowledge(std::slice::from_ref(&proc)).await.unwrap();
    launcher.start(&orders).await.unwrap();
    assert!(launcher.list().await.unwrap().procs.is_empty());
    assert_eq!(exit.stderr_tail, "started\n");
    assert_eq!(launcher.counters().await.unwrap().guard.started, 1);
    job.end().await;
}

#[tokio::test]
async fn a_new_incarnation_never_meets_what_is_left_of_the_last() {
    let job = Job::new().await;
    // A grandchild in a session of its own, with memory that takes the kernel a while to tear down.
    let hog = "import time; x = bytearray(200 << 20); open(\"hog\", \"w\").write(str(__import__(\"os\").getpid())); time.sleep(1000)";
    let leaver = sh(&format!("setsid python3 -c '{hog}' & while [ ! -s hog ]; do sleep 0.01; done; exit 1"));
    let first = job.start_one(leaver.with_cwd(job.dir.path())).await;
    job.exit_of(&first).await;
    let hog: u32 = std::fs::read_to_string(job.dir.path().join("hog")).unwrap().parse().unwrap();
    job.launcher.start(&batch(2, [sleeper()])).await.unwrap();
    assert!(!is_alive(hog), "it was still there when the next incarnation had been started");
    job.end().await;
}

#[tokio::test]
async fn a_start_that_waits_can_be_stopped() {
    let job = Job::new().await;
    job.start_one(sleeper()).await;
    let second = batch(2, [sleeper()]);
    let proc = second.starts[0].proc.clone();
    let waits = job.launcher.start(&second);
    let stops = async {
        // Calls are carried out in their order: this one comes after the start.
        job.launcher.stop(std::slice::from_ref(&proc), Duration::ZERO).await.unwrap();
    };
    let (started, ()) = tokio::join!(waits, stops);
    assert!(matches!(&started, Err(LaunchError::Refused(why)) if why.contains("rank 0#2")), "{started:?}");
    assert_eq!(job.launcher.list().await.unwrap().procs.len(), 1);
    job.end().await;
}

#[tokio::test]
async fn a_start_that_waits_for_its_predecessors_end_has_the_ranks_own_memory() {
    let job = Job::new().await;
    let first = job.start_one(sleeper().with_env(IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, "100")).await; // it writes nothing there
    let prints = sh("readlink $TASKD_HANDOFF; readlink $TASKD_IN_MEMORY_CHECKPOINT; echo end")
        .with_env(IN_MEMORY_CHECKPOINT_EVERY_VARIABLE, "100");
    let second = batch(2, [prints]);
    let waits = job.launcher.start(&second);
    let stops = async {
        // Calls are carried out in their order: this one comes after the start.
        job.launcher.stop(std::slice::from_ref(&first), Duration::ZERO).await.unwrap();
    };
    let (started, ()) = tokio::join!(waits, stops);
    started.unwrap();
    let printed = job.printed("rank-0.2/stdout.log", "end\n").await;
    assert_eq!(printed, "/memfd:taskd-keep-0 (deleted)\n/memfd:taskd-state-0 (deleted)\nend\n");
    job.end().await;
}

#[tokio::test]
async fn orders_for_another_host_are_refused() {
    let job = Job::with(|builder| builder.node(NodeId(Name::new("a")))).await;
    let mut elsewhere = batch(1, [sleeper()]);
    elsewhere.starts[0].place = Place::On(NodeId(Name::new("b")));
    let mut anywhere_else = batch(1, [sleeper()]);
    anywhere_else.starts[0].place = Place::AnyBut(BTreeSet::from([NodeId(Name::new("a"))]));
    for orders in [elsewhere, anywhere_else] {
        let refused = job.launcher.start(&orders).await;
        assert!(matches!(&refused, Err(LaunchError::Refused(why)) if why.contains("only node a")), "{refused:?}");
    }
    job.end().await;
}

//! Real processes that somebody else has started are watched: found, told with how they ended, and left alone.

use async_trait::async_trait;
use rustix::process::{Pid, Signal as Sent, kill_process, kill_process_group};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use taskd_core::detect::{ExitDetector, SilenceDetector, StallDetector};
use taskd_core::job::{Domain, Exit, JobSpec, Mode, Name, Policy, ProcId, Rank, Role, Termination, WorkerSpec};
use taskd_core::kernel::{Decision, Event, Held};
use taskd_core::launch::{
    ForeignCounts, ForeignError, ForeignProcs, LaunchError, Launcher, Phase, Place, ProcStatus, StartBatch, StartOrder,
    StepPattern,
};
use taskd_core::recover::{ExitStrategy, Restart};
use taskd_core::runtime::{Announcement, Runtime};
use taskd_core::testing::conformance;
use taskd_core::trace::{Ask, Exhibit, Fact, PROCESS_STATE, Signal, SourceError, SourceInfo, TraceBatch, TraceSource};
use tokio::sync::{Notify, broadcast};
use tokio::time::timeout;

/// How long is waited for what must come.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(20);
const KILLED: Termination = Termination::Signal { number: 9, core_dumped: false };

/// In a script: waits until the test says [`Job::go_on`].
const WAIT: &str = r#"while [ ! -e "$GO" ]; do sleep 0.02; done"#;

/// A job of shell processes; ended with everything in it when dropped.
struct Job {
    root: Child,
    go: tempfile::TempDir,
}

impl Job {
    /// Runs `script`, which stands for a launcher of ranks.
    fn run(script: &str) -> Job {
        Job::with_output(script, Stdio::null(), Stdio::null())
    }

    fn with_output(script: &str, out: Stdio, err: Stdio) -> Job {
        let go = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sh");
        command.args(["-c", script]).env_remove("RANK").env("GO", go.path().join("go")).process_group(0);
        let root = command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("a shell");
        Job { root, go }
    }

    /// Lets those go on that [`WAIT`].
    fn go_on(&self) {
        File::create(self.go.path().join("go")).expect("a file");
    }

    async fn watched(&self) -> ForeignProcs {
        ForeignProcs::below(self.root.id()).look_every(LOOK_EVERY).attach().await.expect("it runs")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.root);
        let _ = kill_process_group(group, Sent::KILL); // what it is has ended already
        let _ = self.root.wait();
    }
}

/// Waits until what is listed is as it should be.
async fn until<T>(foreign: &ForeignProcs, find: impl Fn(&[ProcStatus]) -> Option<T>) -> T {
    let mut listing = foreign.list().await.expect("it can be listed");
    let looking = async {
        loop {
            if let Some(found) = find(&listing.procs) {
                return found;
            }
            foreign.watch(listing.revision).await.expect("its history is kept");
            listing = foreign.list().await.expect("it can be listed");
        }
    };
    timeout(PATIENCE, looking).await.expect("it comes about")
}

/// The number of a process that runs.
async fn pid(foreign: &ForeignProcs, proc: ProcId) -> Pid {
    let runs = |status: &&ProcStatus| status.proc == proc && status.phase == Phase::Running;
    let pid = until(foreign, |procs| procs.iter().find(runs)?.pid).await;
    pid.try_into().ok().and_then(Pid::from_raw).expect("a number")
}

/// How a process has ended.
async fn exit(foreign: &ForeignProcs, proc: ProcId) -> Exit {
    until(foreign, |procs| {
        let status = procs.iter().find(|status| status.proc == proc)?;
        if let Phase::Exited(exit) = &status.phase { Some((**exit).clone()) } else { None }
    })
    .await
}

/// Linux keeps how a process ended for others than its parent.
fn kernel_keeps_ends() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").expect("it is there");
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 15)
}

/// What is to be told of an end that the parent takes at once: the truth, or where the kernel is too old, that or nothing.
fn assert_ended(how: Termination, truth: Termination) {
    assert!(how == truth || (how == Termination::Unknown && !kernel_keeps_ends()), "{how} is not {truth}");
}

#[tokio::test]
async fn the_topmost_carrier_of_a_rank_is_the_rank() {
    let job = Job::run("RANK=1 sh -c 'sleep 600 & sleep 600 & wait' & (RANK=0 sleep 600) & sleep 600 & wait");
    let foreign = job.watched().await;
    let (zero, one) = (pid(&foreign, ProcId::rank(0, 1)).await, pid(&foreign, ProcId::rank(1, 1)).await);
    let name = |pid: Pid| fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap();
    assert_eq!((name(zero).trim(), name(one).trim()), ("sleep", "sh"));
    assert_eq!(foreign.list().await.unwrap().procs.len(), 2);
    assert_eq!(foreign.counts().doubles, 0);
}

#[tokio::test]
async fn ends_are_told_with_code_and_signal() {
    let job = Job::run(&format!("RANK=0 sh -c '{WAIT}; exit 7' & RANK=1 sleep 600 & wait; sleep 600"));
    let foreign = job.watched().await;
    pid(&foreign, ProcId::rank(0, 1)).await;
    job.go_on();
    kill_process(pid(&foreign, ProcId::rank(1, 1)).await, Sent::KILL).unwrap();
    assert_ended(exit(&foreign, ProcId::rank(1, 1)).await.how, KILLED);
    assert_ended(exit(&foreign, ProcId::rank(0, 1)).await.how, Termination::Code(7));
    foreign.acknowledge(&[ProcId::rank(0, 1), ProcId::rank(1, 1)]).await.unwrap();
    assert_eq!(foreign.list().await.unwrap().procs, []);
}

#[tokio::test]
async fn a_process_that_nobody_reaps_is_told_with_its_end_all_the_same() {
    let job = Job::run("RANK=3 sleep 600 & exec sleep 601"); // its parent does not wait for it
    let foreign = job.watched().await;
    kill_process(pid(&foreign, ProcId::rank(3, 1)).await, Sent::KILL).unwrap();
    assert_eq!(exit(&foreign, ProcId::rank(3, 1)).await.how, KILLED);
}

#[tokio::test]
async fn another_process_of_a_rank_is_its_next_incarnation() {
    let job = Job::run("while :; do RANK=0 sleep 600; done");
    let foreign = job.watched().await;
    for incarnation in 1..4 {
        let proc = ProcId::rank(0, incarnation);
        kill_process(pid(&foreign, proc.clone()).await, Sent::KILL).unwrap();
        assert_ended(exit(&foreign, proc).await.how, KILLED);
    }
    assert_eq!(foreign.counts().doubles, 0);
}

#[tokio::test]
async fn who_is_stopped_after_another_has_failed_is_a_consequence() {
    let job = Job::run("for r in 0 1 2; do RANK=$r sleep 600 & done; exec sleep 601");
    let foreign = job.watched().await;
    let mut pids = Vec::new();
    for rank in 0..3 {
        pids.push(pid(&foreign, ProcId::rank(rank, 1)).await);
    }
    kill_process(pids[1], Sent::TERM).unwrap(); // the fault itself may be a SIGTERM, too
    assert_eq!(exit(&foreign, ProcId::rank(1, 1)).await.error, None);
    kill_process(pids[0], Sent::TERM).unwrap();
    kill_process(pids[2], Sent::KILL).unwrap();
    for rank in [0, 2] {
        let error = exit(&foreign, ProcId::rank(rank, 1)).await.error.expect("an explanation");
        assert!(error.follow_up && error.text.contains("after rank 1 had failed"), "{error:?}");
    }
}

#[tokio::test]
async fn given_processes_are_watched_and_no_others() {
    let mut sleepers: Vec<Child> = (0..2).map(|_| Command::new("sleep").arg("600").spawn().unwrap()).collect();
    let given = sleepers.iter().enumerate().map(|(rank, child)| (Rank(rank.try_into().unwrap()), child.id()));
    let foreign = ForeignProcs::of(given).look_every(LOOK_EVERY).attach().await.unwrap();
    assert_eq!(foreign.list().await.unwrap().procs.len(), 2);
    for (rank, child) in sleepers.iter_mut().enumerate() {
        child.kill().unwrap();
        let proc = ProcId::rank(rank.try_into().unwrap(), 1);
        assert_eq!(exit(&foreign, proc).await.how, KILLED);
        child.wait().unwrap();
    }
    timeout(PATIENCE, foreign.ended()).await.expect("all of them are gone");
}

/// A cgroup of its own; `None` where this user may make none.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make() -> Option<Cgroup> {
        let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/freezer"];
        let made = roots.iter().map(|root| PathBuf::from(root).join(format!("taskd-test-{}", std::process::id())));
        made.into_iter().find(|dir| fs::create_dir(dir).is_ok() && dir.join("cgroup.procs").exists()).map(Cgroup)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0); // fails only while something of the test still runs in it
    }
}

#[tokio::test]
async fn the_ranks_of_a_cgroup_are_watched_until_it_is_empty() {
    let Some(cgroup) = Cgroup::make() else {
        return eprintln!("left out: this user may make no cgroup");
    };
    let enter = format!("echo $$ > {}/cgroup.procs", cgroup.0.display());
    let job = Job::run(&format!("{enter}; RANK=0 sh -c 'sleep 600 & wait' & RANK=1 sleep 600 & wait"));
    let foreign = ForeignProcs::in_cgroup(&cgroup.0).look_every(LOOK_EVERY).attach().await.unwrap();
    kill_process(pid(&foreign, ProcId::rank(1, 1)).await, Sent::KILL).unwrap();
    assert_ended(exit(&foreign, ProcId::rank(1, 1)).await.how, KILLED);
    assert!(timeout(3 * LOOK_EVERY, foreign.ended()).await.is_err(), "rank 0 is still there");
    drop(job);
    timeout(PATIENCE, foreign.ended()).await.expect("nothing is left in it");
    assert_ended(exit(&foreign, ProcId::rank(0, 1)).await.how, KILLED);
}

#[tokio::test]
async fn the_job_has_ended_when_its_root_is_gone_and_its_ranks_are_told() {
    let job = Job::run(&format!("RANK=0 sh -c '{WAIT}'; exit 3"));
    let foreign = job.watched().await;
    pid(&foreign, ProcId::rank(0, 1)).await;
    job.go_on();
    timeout(PATIENCE, foreign.ended()).await.expect("the shell has ended");
    let listed = foreign.list().await.unwrap().procs;
    assert!(listed.iter().all(|status| status.phase.is_exited()) && listed.len() == 1, "{listed:?}");
}

#[tokio::test]
async fn nothing_is_started_or_stopped() {
    let job = Job::run("RANK=0 sleep 600 & wait");
    let foreign = job.watched().await;
    let running = pid(&foreign, ProcId::rank(0, 1)).await;
    let refusal = |error: LaunchError| if let LaunchError::Refused(why) = error { why } else { panic!("{error}") };
    let stop = foreign.stop(&[ProcId::rank(0, 1)], Duration::ZERO).await.map_err(refusal);
    assert_eq!(stop, Err("rank 0#1 is not stopped: this launcher only watches what others have started".into()));
    assert_eq!(foreign.stop(&[ProcId::rank(7, 1)], Duration::ZERO).await, Ok(()));

    let spec = JobSpec::new("job", 1, WorkerSpec::new(["true"]));
    let order = StartOrder { proc: ProcId::rank(0, 2), place: Place::anywhere(), spec: Arc::clone(&spec.worker) };
    let start = foreign.start(&StartBatch { world: Arc::new(spec.first_world()), orders: vec![order] }).await;
    let why = "rank 0#2 is not started: this launcher only watches what others have started";
    assert_eq!(start.map_err(refusal), Err(why.into()));
    assert_eq!(pid(&foreign, ProcId::rank(0, 1)).await, running);
}

#[tokio::test]
async fn what_cannot_be_watched_is_named() {
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    for pid in [gone.id(), 0, u32::MAX] {
        let error = ForeignProcs::below(pid).attach().await.unwrap_err();
        assert!(matches!(error, ForeignError::NoProcess { pid: named } if named == pid), "{error}");
    }
    let error = ForeignProcs::of([]).attach().await.unwrap_err();
    assert_eq!(error.to_string(), "no process was given: name at least one rank with its process");
    let error = ForeignProcs::below(1).rank_variable("A=B").attach().await.unwrap_err();
    assert!(error.to_string().starts_with("\"A=B\" cannot be the name of an environment variable"), "{error}");
    let error = ForeignProcs::in_cgroup("/nonexistent").attach().await.unwrap_err();
    assert!(error.to_string().starts_with("the processes to be watched cannot be listed"), "{error}");
}

#[tokio::test]
async fn bounds_hold_and_are_counted() {
    let job = Job::run("for r in 0 1 2 3; do RANK=$r sleep 600 & done; wait");
    let foreign = ForeignProcs::below(job.root.id()).look_every(LOOK_EVERY).ranks_max(2).attach().await.unwrap();
    pid(&foreign, ProcId::rank(0, 1)).await;
    pid(&foreign, ProcId::rank(1, 1)).await;
    counted(&foreign, |counts| counts.ranks_out_of_bounds == 2).await;
    let foreign = ForeignProcs::below(job.root.id()).look_every(LOOK_EVERY).processes_max(2).attach().await.unwrap();
    until(&foreign, |procs| (!procs.is_empty()).then_some(())).await;
    assert!(foreign.list().await.unwrap().procs.len() < 4);
    counted(&foreign, |counts| counts.passed_over > 0).await;
}

/// Waits until it was counted.
async fn counted(foreign: &ForeignProcs, enough: impl Fn(ForeignCounts) -> bool) {
    let counting = async {
        while !enough(foreign.counts()) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    timeout(PATIENCE, counting).await.expect("it is counted");
}

/// The answer to the question for a rank's state.
async fn state(source: &mut impl TraceSource, rank: u32) -> Exhibit {
    let about = Domain::Process(Role::Rank(Rank(rank)));
    let by = Name::new("test");
    let ask = Ask { by, tag: 1, what: PROCESS_STATE, about: vec![about.clone()], within: Duration::from_secs(1) };
    source.collect(&ask, &about).await.expect("an answer")
}

/// Reads facts until there is one like this.
async fn fact(source: &mut impl TraceSource, like: impl Fn(&Fact) -> bool) -> Fact {
    let reading = async {
        loop {
            let batch = source.next().await.expect("it goes on").expect("a batch");
            if let Some(fact) = batch.facts.into_iter().find(&like) {
                return fact;
            }
        }
    };
    timeout(PATIENCE, reading).await.expect("it is told")
}

#[tokio::test]
async fn a_stopped_process_gives_no_sign_of_life_until_it_goes_on() {
    let job = Job::run("RANK=0 sleep 600 & RANK=1 sleep 600 & wait");
    let foreign = job.watched().await;
    let frozen = pid(&foreign, ProcId::rank(1, 1)).await;
    pid(&foreign, ProcId::rank(0, 1)).await;
    let mut states = foreign.states(LOOK_EVERY);
    let beats = |rank: u32| move |fact: &Fact| fact.about == Domain::Process(Role::Rank(Rank(rank)));
    fact(&mut states, beats(1)).await;

    kill_process(frozen, Sent::STOP).unwrap();
    let stopped = async {
        while !matches!(state(&mut states, 1).await, Exhibit::Text(text) if text.starts_with("state=T ")) {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    timeout(PATIENCE, stopped).await.expect("it stops");
    for _ in 0..5 {
        let batch = states.next().await.unwrap().unwrap();
        assert!(batch.facts.iter().any(beats(0)) && !batch.facts.iter().any(beats(1)), "{batch:?}");
    }
    kill_process(frozen, Sent::CONT).unwrap();
    let again = fact(&mut states, beats(1)).await;
    assert_eq!((again.signal, again.incarnation.map(|i| i.0)), (Signal::Heartbeat, Some(1)));
}

#[tokio::test]
async fn steps_and_last_words_are_read_where_output_goes_to_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| File::create(dir.path().join(name)).unwrap();
    let script =
        "RANK=0 sh -c 'echo step 1; sleep 0.2; echo step 2; sleep 0.2; echo ValueError: boom >&2; exit 1'; sleep 600";
    let job = Job::with_output(script, file("out").into(), file("err").into());
    let foreign = job.watched().await;
    let mut steps = foreign.steps(StepPattern::after("step "), LOOK_EVERY);
    let second = fact(&mut steps, |fact| fact.signal == Signal::Progress { step: 2 }).await;
    assert_eq!(second.about, Domain::Process(Role::Rank(Rank(0))));
    job.go_on();
    let exit = exit(&foreign, ProcId::rank(0, 1)).await;
    assert_eq!(exit.stderr_tail, "ValueError: boom\n");
}

#[tokio::test]
async fn what_several_ranks_write_to_is_nobodys_last_words() {
    let dir = tempfile::tempdir().unwrap();
    let both = || File::options().create(true).append(true).open(dir.path().join("both")).unwrap();
    let script = format!("for r in 0 1; do RANK=$r sh -c '{WAIT}; echo boom >&2; exit 1' & done; wait; sleep 600");
    let job = Job::with_output(&script, both().into(), both().into());
    let foreign = job.watched().await;
    for rank in [0, 1] {
        pid(&foreign, ProcId::rank(rank, 1)).await;
    }
    job.go_on();
    assert_eq!(exit(&foreign, ProcId::rank(0, 1)).await.stderr_tail, "");
}

#[tokio::test]
async fn the_sources_keep_their_contract() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("metrics");
    let job = Job::run("RANK=0 sleep 600 & wait");
    let foreign = Arc::new(job.watched().await);
    pid(&foreign, ProcId::rank(0, 1)).await;
    conformance::trace_source(async || foreign.states(LOOK_EVERY)).assert().await;

    let written = log.clone();
    let number = |fact: &Fact| if let Signal::Progress { step } = fact.signal { Some(step) } else { None };
    let make = async || {
        let _ = fs::remove_file(&log);
        foreign.steps(StepPattern::after("step "), Duration::from_millis(2)).also_in(Rank(0), &log)
    };
    let write = move |step: u64| {
        use std::io::Write;
        let mut file = File::options().create(true).append(true).open(&written).unwrap();
        writeln!(file, "step {step}").unwrap();
    };
    conformance::trace_source(make).with_numbers(number).with_stimulus(write).assert().await;
}

#[tokio::test]
async fn sources_end_with_their_launcher() {
    let job = Job::run("RANK=0 sleep 600 & wait");
    let foreign = job.watched().await;
    let (mut states, mut steps) = (foreign.states(LOOK_EVERY), foreign.steps(StepPattern::after("step "), LOOK_EVERY));
    drop(foreign);
    let ended = async { states.next().await.is_none() && steps.next().await.is_none() };
    assert!(timeout(PATIENCE, ended).await.expect("they end"));
}

/// A source that says when it has told a heartbeat of every rank.
struct Tapped<S> {
    inner: S,
    silent: BTreeSet<Domain>,
    heard: Arc<Notify>,
}

#[async_trait]
impl<S: TraceSource> TraceSource for Tapped<S> {
    fn info(&self) -> SourceInfo {
        self.inner.info()
    }
    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        let batch = self.inner.next().await;
        for fact in batch.iter().flatten().flat_map(|batch| &batch.facts) {
            self.silent.remove(&fact.about);
        }
        if self.silent.is_empty() {
            self.heard.notify_one();
        }
        batch
    }
    async fn collect(&mut self, ask: &Ask, about: &Domain) -> Result<Exhibit, SourceError> {
        self.inner.collect(ask, about).await
    }
}

/// A job of `ranks` that is only observed, with limits short enough for a test; and who waits until all were heard.
fn observed(foreign: &Arc<ForeignProcs>, ranks: u32) -> (Runtime, Arc<Notify>) {
    let (inner, heard) = (foreign.states(LOOK_EVERY), Arc::new(Notify::new()));
    let silent = (0..ranks).map(|rank| Domain::Process(Role::Rank(Rank(rank)))).collect();
    let states = Tapped { inner, silent, heard: Arc::clone(&heard) };
    let mut policy = Policy::default();
    policy.mode = Mode::Observe;
    let runtime = Runtime::builder()
        .job(JobSpec::new("observed", ranks, WorkerSpec::new(["somebody-else"])).with_policy(policy))
        .source(states)
        .source(foreign.steps(StepPattern::after("step "), LOOK_EVERY))
        .detector(ExitDetector::new())
        .detector(SilenceDetector::after(Duration::from_millis(300)))
        .detector(StallDetector::after(Duration::from_millis(1500)))
        .strategy(Restart::new())
        .strategy(ExitStrategy::new())
        .launcher(Arc::clone(foreign))
        .build();
    (runtime.expect("nothing is missing"), heard)
}

/// Waits for a decision; what is decided of whom.
async fn decision(events: &mut broadcast::Receiver<Arc<Announcement>>) -> Box<Decision> {
    let listening = async {
        loop {
            if let Event::Decided(decision) = events.recv().await.expect("it runs").event.clone() {
                return decision;
            }
        }
    };
    timeout(PATIENCE, listening).await.expect("it is decided")
}

#[tokio::test]
async fn an_observed_job_is_judged_and_left_alone() {
    let job = Job::run("for r in 0 1 2; do RANK=$r sleep 600 & done; wait");
    let foreign = Arc::new(job.watched().await);
    let mut pids = Vec::new();
    for rank in 0..3 {
        pids.push(pid(&foreign, ProcId::rank(rank, 1)).await);
    }
    let (runtime, heard) = observed(&foreign, 3);
    let (handle, mut events) = (runtime.handle(), runtime.handle().events());
    let running = tokio::spawn(runtime.run());

    timeout(PATIENCE, heard.notified()).await.expect("who was never heard is not missed");
    kill_process(pids[1], Sent::STOP).unwrap();
    let frozen = decision(&mut events).await;
    assert_eq!((frozen.held, frozen.incident.root().unwrap().by.as_str()), (Some(Held::Observing), "silence"));
    kill_process(pids[1], Sent::CONT).unwrap();
    let closed = async { while !matches!(events.recv().await.unwrap().event, Event::Closed { .. }) {} };
    timeout(PATIENCE, closed).await.expect("the rank goes on");

    kill_process(pids[2], Sent::KILL).unwrap();
    assert_eq!(decision(&mut events).await.held, Some(Held::Observing));
    handle.stop("seen enough").await;
    let report = running.await.unwrap();
    let told: Vec<_> = report.incidents.iter().map(|i| (i.blamed.clone(), i.strategy.clone(), i.held)).collect();
    let would = Some(Name::new("restart"));
    let held = Some(Held::Observing);
    assert_eq!(told, [(vec![Rank(1)], would.clone(), held), (vec![Rank(2)], would, held)]);
    for rank in [0, 1] {
        assert_eq!(pid(&foreign, ProcId::rank(rank, 1)).await, pids[rank as usize], "still there, also after the stop");
    }
}

#[tokio::test]
async fn a_job_in_which_nobody_gets_on_and_nobody_is_stopped_stalls_without_a_culprit() {
    let dir = tempfile::tempdir().unwrap();
    let out = File::options().create(true).append(true).open(dir.path().join("out")).unwrap();
    let job = Job::with_output(
        "for r in 0 1; do RANK=$r sh -c 'echo step 3; exec sleep 600' & done; wait",
        out.into(),
        Stdio::null(),
    );
    let foreign = Arc::new(job.watched().await);
    for rank in [0, 1] {
        pid(&foreign, ProcId::rank(rank, 1)).await;
    }
    let (runtime, _) = observed(&foreign, 2);
    let (handle, mut events) = (runtime.handle(), runtime.handle().events());
    let running = tokio::spawn(runtime.run());
    decision(&mut events).await;
    handle.stop("seen enough").await;
    let report = running.await.unwrap();
    let told: Vec<_> =
        report.incidents.iter().map(|i| (i.class.to_string(), i.domain.clone(), i.blamed.len())).collect();
    assert_eq!(told, [("stall".to_owned(), Domain::Job, 0)]);
}

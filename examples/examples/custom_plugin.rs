//! A team brings its own detector (a closure), its own strategy and its own launcher, and lets taskd do the rest.
//!
//! `cargo run --release --example custom_plugin`: two shell scripts are the ranks; rank 1 loses its licence server in
//! the middle and exits with the team's code 7, which the team's detector takes as a request to restart this rank
//! alone.

use clap::Parser;
use std::collections::BTreeMap;
use std::process::{ExitCode, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use taskd_core::detect::{Damage, Evidence, Fault, FaultClass, Health, Suspect, detector_fn};
use taskd_core::job::{Counted, Domain, Exit, JobSpec, Name, ProcId, Ready, Termination};
use taskd_core::launch::*;
use taskd_core::recover::{Action, Cost, ExitStrategy, Incident, Proposal, RecoveryStrategy, RefusalError, Stage};
use taskd_core::runtime::Runtime;
use taskd_core::state::View;
use taskd_core::trace::Signal;
use taskd_examples::account::{Account, Injections, Listener};
use taskd_examples::program::{self, Failure};
use taskd_examples::shards::{NO_LICENCE, RANKS, STEPS, Shards};
use tokio::sync::Notify;

/// Launcher that starts plain child processes. It declares what it does not support.
struct Children {
    log: Arc<ChangeLog>,
    stops: Mutex<BTreeMap<ProcId, Arc<Notify>>>,
}

fn status(proc: &ProcId, pid: Option<u32>, phase: Phase) -> ProcStatus {
    ProcStatus::new(proc.clone(), "child", phase).with_pid(pid)
}

#[async_trait::async_trait]
impl Launcher for Children {
    fn info(&self) -> LauncherInfo {
        LauncherInfo::new("acme.children").with_limitation("if this program is killed, its ranks are left behind")
    }
    async fn start(&self, batch: &StartBatch) -> Result<(), LaunchError> {
        for order in &batch.starts {
            let (log, proc, stop) = (Arc::clone(&self.log), order.proc.clone(), Arc::new(Notify::new()));
            if log.admit([status(&proc, None, Phase::Pending("starting".into()))]).is_empty() {
                continue; // already reported
            }
            self.stops.lock().unwrap_or_else(PoisonError::into_inner).insert(proc.clone(), Arc::clone(&stop));
            let mut command = tokio::process::Command::new(&order.spec.argv[0]);
            command.args(&order.spec.argv[1..]).env("PROC", proc.to_string()).stdin(Stdio::null()).kill_on_drop(true);
            tokio::spawn(async move {
                let how = match command.spawn() {
                    Ok(mut child) => {
                        log.push(Change::Proc(status(&proc, child.id(), Phase::Running)));
                        let ended = tokio::select! { end = child.wait() => end.ok(), () = stop.notified() => None };
                        let _ = child.kill().await; // it has ended already, or ends now
                        ended.and_then(|e| e.code()).map_or(Termination::Unknown, Termination::Code)
                    }
                    Err(_) => Termination::Unknown,
                };
                log.push(Change::Proc(status(&proc, None, Phase::Exited(Box::new(Exit::new(how))))));
            });
        }
        Ok(())
    }
    async fn stop(&self, procs: &[ProcId], _grace: Duration) -> Result<(), LaunchError> {
        let stops = self.stops.lock().unwrap_or_else(PoisonError::into_inner);
        procs.iter().filter_map(|p| stops.get(p)).for_each(|stop| stop.notify_one());
        Ok(())
    }
    async fn list(&self) -> Result<Listing, LaunchError> {
        Ok(self.log.listing())
    }
    async fn watch(&self, from: Revision) -> Result<(Vec<Change>, Revision), LaunchError> {
        self.log.after(from).await
    }
    async fn acknowledge(&self, exits: &[ProcId]) -> Result<(), LaunchError> {
        self.log.acknowledge(exits);
        Ok(())
    }
}

/// Strategy that starts only what was lost; the other ranks keep running.
struct StartAlone;

impl RecoveryStrategy for StartAlone {
    fn name(&self) -> Name {
        Name::new("acme.start-alone")
    }
    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        let lost = incident.lost_ranks(view);
        if incident.faults.iter().any(|f| f.primary_suspect().damage.state != Health::Healthy) {
            return Err("only for ranks that keep no state".into());
        }
        let world = Arc::new(view.world.successor(Counted::Yes, |members| {
            for (rank, member) in members.iter_mut().filter(|(rank, _)| lost.contains(rank)) {
                member.incarnation = view.next_incarnation(&taskd_core::job::Role::Rank(*rank));
            }
        }));
        let order = |proc| StartOrder::new(proc, Place::anywhere(), Arc::clone(&view.spec.worker));
        let orders = lost.iter().filter_map(|rank| world.proc(*rank)).map(order).collect();
        let start = Action::Start { batch: StartBatch::new(Arc::clone(&world), orders), until: Ready::Running };
        Ok(Proposal::new(
            vec![Stage::new("start", Duration::from_secs(10), vec![Action::Enter(world), start])],
            lost.iter().map(|rank| Domain::Process(taskd_core::job::Role::Rank(*rank))).collect(),
            Cost::downtime(Duration::from_millis(10)),
            Counted::Yes,
            format!("{} rank(s) without state can start again alone", lost.len()),
        ))
    }
}

/// Runs two shell scripts under a custom detector, strategy and launcher.
#[derive(Debug, Parser)]
struct Options {
    /// Prints the account as one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let options: Options = program::options();
    program::run("custom_plugin", async move {
        run().await?.print(options.json);
        Ok(())
    })
}

async fn run() -> Result<Account, Failure> {
    let licence = detector_fn("acme.licence", |o, view, out| {
        let (Signal::Phase(Phase::Exited(exit)), true) = (&o.signal, view.proc_of(&o.about).is_some_and(|p| p.wanted))
        else {
            return;
        };
        if exit.how == Termination::Code(NO_LICENCE) {
            let damage = Damage { process: Health::Faulty, state: Health::Healthy, ..Damage::default() };
            let suspect = Suspect::certain(o.about.clone(), FaultClass::Other(Name::new("licence")), damage);
            let clue = Evidence::text("exit_code", "exit code 7: the licence server was lost");
            out.blame(Fault::new(Name::new("acme.licence"), o.at, suspect).with_evidence(clue));
        }
    });
    let dir = tempfile::Builder::new().prefix("taskd-custom-plugin-").tempdir()?;
    let (reference, job) = (Shards::new(&dir.path().join("reference"))?, Shards::new(&dir.path().join("job"))?);
    reference.undisturbed().await?;
    let runtime = Runtime::builder()
        .job(JobSpec::new("custom", RANKS, job.worker()))
        .detector(licence)
        .strategy(StartAlone)
        .strategy(ExitStrategy::new())
        .launcher(Children { log: Arc::new(ChangeLog::new(1)), stops: Mutex::default() })
        .build()?;
    let listener = Listener::start(&runtime.handle(), |line| eprintln!("{line}"));
    let injections = Injections::default();
    let (target, injected) = (job.clone(), injections.clone());
    let injector = tokio::spawn(async move { target.lose_licence(1, STEPS / 3, &injected).await });
    let report = runtime.run().await;
    injector.abort();
    program::completed(&report)?;
    let mut account = Account::of(&report, listener.rows(&report, &injections).await);
    job.report(&mut account, &reference);
    Ok(account)
}

use super::super::checkpoint_shards::{Share, plan};
use super::super::replicas;
use super::super::tests::{directives, frozen, incident, killed, link, linked, names, state};
use super::*;
use crate::detect::fixture::{Scene, rank_domain};
use crate::detect::{Damage, Fault, FaultClass, OPERATOR, Suspect};
use crate::job::{GroupId, GroupKind, JobSpec, JobTime};
use crate::recover::{ExitStrategy, Recover};
use crate::state::{DirectiveReply, LoopPosition, NodeState, StateDigest, Window, WorkerState};
use proptest::prelude::*;

/// A scene whose ranks can receive directives and whose job names a checkpoint directory.
fn saving(scene: Scene) -> Scene {
    let mut scene = linked(scene);
    let mut spec = JobSpec::clone(&scene.view.spec);
    spec.policy.checkpoint_dir = Some("/dumps".into());
    scene.view.spec = Arc::new(spec);
    scene
}

fn asked() -> Fault {
    let suspect = Suspect::certain(Domain::Job, FaultClass::Leave, Damage::default());
    let mut fault = Fault::new(OPERATOR, JobTime::START, suspect);
    fault.advice = Some(DUMP);
    fault
}

/// A run as the kernel carries it out: the test gives the reply of each rank, and then calls `advance`.
struct Played {
    scene: Scene,
    strategy: EmergencyCheckpoint,
    run: PlanExecution,
}

impl Played {
    fn of(strategy: EmergencyCheckpoint, scene: Scene, faults: Vec<Fault>) -> Played {
        let proposal = strategy.propose(&incident(faults), &scene.view).expect("a proposal");
        let run =
            PlanExecution { strategy: strategy.name(), proposal, stage: 0, done: Vec::new(), began: JobTime::START };
        Played { scene, strategy, run }
    }

    /// Ends the stage and returns the result of `advance`.
    fn ends(&mut self, answer: impl Fn(Rank, &Directive) -> Result<DirectiveReply, Failure>) -> Advance {
        let stage = self.run.proposal.stages[self.run.stage].clone();
        let mut done = Vec::new();
        for action in stage.actions {
            if let Action::Enter(world) = &action {
                self.scene.view.world = Arc::clone(world);
            }
            let Action::SendDirectives(batch) = &action else { continue };
            let answered = |(proc, what): &(ProcId, Directive)| {
                let rank = proc.role.rank().expect("a rank");
                let result = answer(rank, what).map(|answered| TargetReply::Directive(Box::new(answered)));
                (Domain::Process(proc.role.clone()), result)
            };
            let results = batch.directives.iter().map(answered).collect();
            done.push(CommandOutcome { action, results });
        }
        self.run.done.push(done);
        self.run.stage += 1;
        let next = self.strategy.advance(&self.run, &self.scene.view);
        if let Advance::ReplaceRest(rest) = &next {
            self.run.proposal.stages.truncate(self.run.stage);
            self.run.proposal.stages.extend(rest.clone());
        }
        next
    }

    fn next_stage(&self) -> &Stage {
        &self.run.proposal.stages[self.run.stage]
    }

    fn rest(&self) -> Vec<&str> {
        names(&self.run.proposal).split_off(self.run.stage)
    }
}

fn stands(state: WorkerState) -> Result<DirectiveReply, Failure> {
    Ok(DirectiveReply { state: Some(state), ..DirectiveReply::default() })
}

fn wrote(rank: Rank, what: &Directive) -> Result<DirectiveReply, Failure> {
    let Directive::WriteShard { part, of, .. } = what else { return Ok(DirectiveReply::default()) };
    let file = format!("rank-{}.part-{part}-of-{of}.pt", rank.0);
    Ok(DirectiveReply {
        shard: Some(CheckpointShard { file, bytes: 9, sha256: "0".repeat(64) }),
        ..DirectiveReply::default()
    })
}

/// Python looks for checkpoints by their names (`taskd/_emergency_checkpoint.py`).
#[test]
#[allow(clippy::disallowed_methods, clippy::disallowed_types)] // a test may start Python
fn the_name_of_a_checkpoint_is_one_that_python_looks_for() {
    let names = [
        name_of(0, Generation(1), 0),
        name_of(5, Generation(2), 70_500),
        name_of(u64::MAX / 2, Generation(u64::from(u32::MAX)), 1 << 50),
    ];
    let program = format!(
        "import json\nfrom taskd._emergency_checkpoint import NAME\n\
         print(json.dumps([NAME.match(name).groups() for name in {names:?}]))"
    );
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../runtime/python");
    let mut python = std::process::Command::new("python3");
    let output = python.args(["-B", "-c", &program]).env("PYTHONPATH", tree).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let numbers: Vec<Vec<u64>> = serde_json::from_slice::<Vec<Vec<String>>>(&output.stdout)
        .unwrap()
        .into_iter()
        .map(|name| name.iter().map(|number| number.parse().unwrap()).collect())
        .collect();
    assert_eq!(numbers, [[0, 1, 0], [5, 2, 70_500], [u64::MAX / 2, u64::from(u32::MAX), 1 << 50]]);
}

#[test]
fn survivors_save_before_everybody_starts_again() {
    let mut scene = saving(Scene::of(3));
    scene.view.now = JobTime::START + Duration::from_millis(70_500);
    let faults = vec![killed(&mut scene, 1)];
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), scene, faults);
    assert_eq!(played.rest(), ["abort", "stop", "start"]);
    let told: Vec<_> = directives(played.next_stage()).into_iter().map(|(proc, what)| (proc, what.name())).collect();
    assert_eq!(told, [(ProcId::rank(0, 1), "abort"), (ProcId::rank(2, 1), "abort")]);
    played.ends(|_, _| stands(state(5, Some(4), Window::Before)));
    assert_eq!(played.rest(), ["write-shard", "stop", "start"]);
    assert_eq!(played.next_stage().quorum, Quorum::All);
    let orders = directives(played.next_stage());
    let expected = |part| Directive::WriteShard {
        dir: "/dumps/step-000000000005-world-2-70500".into(),
        step: 5,
        part,
        of: 2,
        without: vec![Rank(1)],
    };
    assert_eq!(orders, [(ProcId::rank(0, 1), &expected(0)), (ProcId::rank(2, 1), &expected(1))]);
    played.ends(wrote);
    assert_eq!(played.rest(), ["write-manifest", "stop", "start"]);
    let seals = directives(played.next_stage());
    let [(sealer, Directive::WriteManifest { dir, manifest })] = seals.as_slice() else { panic!("{seals:?}") };
    assert_eq!((sealer, dir.to_str()), (&ProcId::rank(0, 1), Some("/dumps/step-000000000005-world-2-70500")));
    assert_eq!((manifest.step, manifest.size, manifest.generation.0), (5, 3, 2));
    assert_eq!(manifest.sets, [BTreeSet::from([0, 1, 2].map(Rank))]);
    assert_eq!(manifest.shards.keys().copied().collect::<Vec<_>>(), [0, 2].map(Rank));
    assert_eq!(played.ends(wrote), Advance::Continue);
    assert_eq!(played.rest(), ["stop", "start"]);
}

#[test]
fn emergency_checkpoint_costs_less_than_restart_and_counts_once() {
    let mut scene = saving(Scene::of(3));
    let faults = incident(vec![killed(&mut scene, 1)]);
    let cost = |strategy: &dyn RecoveryStrategy| strategy.propose(&faults, &scene.view).expect("a proposal").cost;
    let (recover, restart) = (cost(&Recover::in_place()), cost(&Restart::new()));
    let (dump, exit) = (cost(&EmergencyCheckpoint::then_restart()), cost(&ExitStrategy::new()));
    assert!(recover < dump && dump < restart && restart < exit, "{recover}, {dump}, {restart}, {exit}");
    assert_eq!(cost(&EmergencyCheckpoint::then_exit()), exit, "it comes first in the list");
    let proposal = EmergencyCheckpoint::then_restart().propose(&faults, &scene.view).expect("a proposal");
    let worlds = proposal.stages.iter().flat_map(|stage| &stage.actions).filter_map(|action| match action {
        Action::Enter(world) => Some((world.generation().0, world.restarts())),
        _ => None,
    });
    assert_eq!(worlds.collect::<Vec<_>>(), [(2, 1), (3, 1)]);
}

#[test]
fn only_ranks_with_the_newest_step_write_the_checkpoint() {
    let mut scene = saving(Scene::of(4));
    let faults = vec![killed(&mut scene, 3)];
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), scene, faults);
    played.ends(|rank, _| match rank.0 {
        0 => stands(state(5, Some(4), Window::Before)),
        1 => stands(state(6, Some(5), Window::Before)),
        _ => stands(state(5, Some(4), Window::Torn)),
    });
    let orders = directives(played.next_stage());
    let [(proc, Directive::WriteShard { step: 6, part: 0, of: 1, without, .. })] = orders.as_slice() else {
        panic!("{orders:?}")
    };
    assert_eq!((proc, without.as_slice()), (&ProcId::rank(1, 1), [0, 2, 3].map(Rank).as_slice()));
}

#[test]
fn emergency_checkpoint_fails_if_a_state_or_a_shard_is_missing() {
    let gives_up = |next: Advance, why: &str| match next {
        Advance::Fail(told) => assert!(told.contains(why), "{told}"),
        other => panic!("{other:?}"),
    };
    let mut scene = saving(Scene::of(3));
    let faults = vec![killed(&mut scene, 1)];
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), scene, faults.clone());
    gives_up(played.ends(|_, _| stands(state(5, Some(4), Window::Torn))), "interrupted in its commit window");
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), saving(Scene::of(3)), vec![frozen(1)]);
    gives_up(played.ends(|_, _| Err(Failure::TimedOut)), "no replica of rank 0");
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), saving(Scene::of(3)), vec![frozen(1)]);
    played.ends(|_, _| stands(state(5, Some(4), Window::Before)));
    gives_up(played.ends(|_, _| Ok(DirectiveReply::default())), "rank 0 has not reported its shard");
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), saving(Scene::of(3)), vec![frozen(1)]);
    let sharded = WorkerState { sharded: vec!["optimizer".into()], ..state(5, Some(4), Window::Before) };
    let why = "optimizer is sharded, and the shard of rank 1 is lost";
    gives_up(played.ends(|_, _| stands(sharded.clone())), why);
}

#[test]
fn parts_of_ranks_that_hold_different_state_make_no_checkpoint() {
    let digest = |digest: &str, what| DirectiveReply {
        digest: Some(StateDigest {
            loop_number: 1,
            step: 5,
            digest: digest.into(),
            group: None,
            took_us: 1,
            first_of_kind: false,
        }),
        ..what
    };
    for (theirs, is_sealed) in [("a", true), ("b", false)] {
        let mut played = Played::of(EmergencyCheckpoint::then_restart(), saving(Scene::of(3)), vec![frozen(1)]);
        played.ends(|_, _| stands(state(5, Some(4), Window::Before)));
        let next = played.ends(|rank, what| Ok(digest(if rank == Rank(0) { "a" } else { theirs }, wrote(rank, what)?)));
        match next {
            Advance::ReplaceRest(_) => assert!(is_sealed, "they differ"),
            Advance::Fail(why) => assert!(!is_sealed && why.starts_with("rank 0 and rank 2 hold different"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn each_refusal_of_an_emergency_checkpoint_gives_its_reason() {
    let refusal = |scene: &Scene, faults: Vec<Fault>| {
        EmergencyCheckpoint::then_restart()
            .propose(&incident(faults), &scene.view)
            .map(drop)
            .expect_err("a refusal")
            .reason
    };
    let mut scene = linked(Scene::of(3));
    let fault = killed(&mut scene, 1);
    assert_eq!(
        refusal(&scene, vec![fault.clone()]),
        "the job names no directory for checkpoints (policy.checkpoint_dir)"
    );
    let mut alone = saving(Scene::of(2));
    for rank in 0..2 {
        alone.proc(rank).link = Some(link(LoopPosition::BeforeLoop));
    }
    assert!(refusal(&alone, vec![frozen(0)]).contains("no replica is left that can save a checkpoint: rank 0 is lost"));
    let mut nowhere = saving(Scene::on(4, &[("a", 4)]));
    let fault = killed(&mut nowhere, 1);
    nowhere.set_node("a", NodeState::Left);
    assert!(refusal(&nowhere, vec![fault.clone()]).contains("no other host has room"));
    let ends = EmergencyCheckpoint::then_exit()
        .propose(&incident(vec![fault]), &nowhere.view)
        .expect("the job ends, and leaves a checkpoint");
    assert_eq!(names(&ends), ["abort", "stop", "finish"]);
    let group = |index, ranks: [u32; 2]| (GroupId { kind: GroupKind::Dp, index }, ranks.map(Rank).to_vec());
    let mut grouped = saving(Scene::of(4));
    let faults = vec![killed(&mut grouped, 1), killed(&mut grouped, 3)];
    let groups = [group(0, [0, 2]), group(1, [1, 3])].into();
    grouped.view.world = Arc::new(World::clone(&grouped.view.world).with_groups(groups));
    assert!(refusal(&grouped, faults).contains("no replica is left that can save a checkpoint: rank 1 is lost"));
    let mut sharded = saving(Scene::of(3));
    let fault = killed(&mut sharded, 1);
    sharded.proc(2).link.as_mut().expect("a link").sharded = vec!["optimizer".into()];
    assert_eq!(
        refusal(&sharded, vec![fault]),
        "optimizer is sharded over the ranks, or was created inside the step loop: rank 1 is lost"
    );
    let damaged = Suspect::certain(
        rank_domain(0),
        FaultClass::Other(Name::new("nan")),
        Damage { process: Health::Healthy, state: Health::Faulty, ..Damage::default() },
    );
    let damaged = Fault::new(Name::new("test"), JobTime::START, damaged);
    let mut two = saving(Scene::of(2));
    let fault = killed(&mut two, 1);
    assert!(refusal(&two, vec![damaged, fault]).contains("the state of rank 0 is reported as damaged"));
}

#[test]
fn an_operators_checkpoint_costs_no_process_and_no_step() {
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), saving(Scene::of(2)), vec![asked()]);
    assert_eq!((played.rest(), played.run.proposal.counted), (vec!["abort", "join"], Counted::No));
    played.ends(|_, _| stands(state(5, Some(4), Window::Before)));
    assert_eq!(played.rest(), ["write-shard", "join"]);
    played.ends(wrote);
    assert_eq!(played.rest(), ["write-manifest", "join"]);
    played.ends(wrote);
    played.ends(wrote);
    assert_eq!(played.rest(), ["sync-state", "resume"]);
    assert_eq!(played.ends(wrote), Advance::Continue);
    assert_eq!(played.ends(wrote), Advance::Continue);
}

#[test]
fn sharded_state_is_saved_by_each_rank_and_the_job_continues() {
    let mut played = Played::of(EmergencyCheckpoint::then_restart(), saving(Scene::of(3)), vec![asked()]);
    let sharded = |rank: Rank| WorkerState {
        layout: format!("the part of {rank}"),
        sharded: vec!["optimizer".into()],
        ..state(5, Some(4), Window::Before)
    };
    played.ends(|rank, _| stands(sharded(rank)));
    assert_eq!(played.rest(), ["write-shard", "join"]);
    let whole = |what: &Directive| matches!(what, Directive::WriteShard { step: 5, part: 0, of: 1, .. });
    let orders = directives(played.next_stage());
    assert!(orders.len() == 3 && orders.iter().all(|(_, what)| whole(what)), "{orders:?}");
    played.ends(wrote);
    let seals = directives(played.next_stage());
    let [(_, Directive::WriteManifest { manifest, .. })] = seals.as_slice() else { panic!("{seals:?}") };
    assert_eq!(manifest.sets, [0, 1, 2].map(|rank| BTreeSet::from([Rank(rank)])));
    played.ends(wrote);
    played.ends(wrote);
    assert_eq!(played.rest(), ["sync-state", "resume"]);
    let copies = |what: &Directive| !matches!(what, Directive::SyncState { from, to, rollback: true, .. } if from.is_empty() && to.is_empty());
    assert!(!directives(played.next_stage()).iter().any(|(_, what)| copies(what)));
    assert_eq!((played.ends(wrote), played.ends(wrote)), (Advance::Continue, Advance::Continue));
}

#[test]
fn a_failed_checkpoint_order_is_reported_when_the_job_continues() {
    let full = |what: &Directive| Failure::Refused(format!("{}: no space left on device", what.name()));
    let undone = |next: Advance, why: &str| match next {
        Advance::RolledBack(told) => assert!(told.contains("the job continues") && told.contains(why), "{told}"),
        other => panic!("{other:?}"),
    };
    for failing in ["write-shard", "write-manifest"] {
        let mut played = Played::of(EmergencyCheckpoint::then_restart(), saving(Scene::of(2)), vec![asked()]);
        let answer = |rank: Rank, what: &Directive| match what {
            Directive::Abort {} => stands(state(5, Some(4), Window::Before)),
            what if what.name() == failing && rank == Rank(0) => Err(full(what)),
            what => wrote(rank, what),
        };
        let mut last = Advance::Continue;
        while played.run.stage < played.run.proposal.stages.len() {
            assert!(!matches!(last, Advance::Fail(_) | Advance::RolledBack(_)), "{failing}: {last:?}");
            last = played.ends(answer);
        }
        undone(last, &format!("{failing}: no space left"));
    }
    let scene = saving(Scene::of(2));
    let mut again = incident(vec![asked()]);
    again.attempts.push((DUMP, "the disk is full".into()));
    assert_eq!(
        EmergencyCheckpoint::then_restart().propose(&again, &scene.view).expect_err("once is enough").reason,
        "the disk is full"
    );
}

#[test]
fn an_operators_checkpoint_in_which_a_rank_was_lost_is_a_dying_one() {
    let mut scene = saving(Scene::on(2, &[("a", 4)]));
    let fault = killed(&mut scene, 1);
    let played = Played::of(EmergencyCheckpoint::then_restart(), scene, vec![asked(), fault]);
    assert_eq!(played.rest(), ["abort", "stop", "start"]);
}

fn any_state() -> impl Strategy<Value = WorkerState> {
    (1..4_u64, any::<bool>()).prop_map(|(step, torn)| {
        let window = if torn { Window::Torn } else { Window::Before };
        state(step, Some(step - 1), window)
    })
}

proptest! {
    #[test]
    fn emergency_checkpoint_plan_saves_the_newest_whole_state(
        states in prop::collection::vec(prop::option::of(any_state()), 4),
        grouped in any::<bool>(),
    ) {
        let group = |index, ranks: [u32; 2]| (GroupId { kind: GroupKind::Dp, index }, ranks.map(Rank).to_vec());
        let groups = if grouped { [group(0, [0, 2]), group(1, [1, 3])].into() } else { BTreeMap::new() };
        let world = World::clone(&Scene::of(4).view.world).with_groups(groups);
        let known: BTreeMap<Rank, WorkerState> =
            states.iter().zip(0..).filter_map(|(s, rank)| Some((Rank(rank), s.clone()?))).collect();
        let has = |rank: &Rank, step: u64| known.get(rank).is_some_and(|s| s.is_whole() && s.next_step() == step);
        let sets = replicas::replica_sets(&world, false);
        let best = (1..4).rfind(|step| sets.iter().all(|set| set.iter().any(|rank| has(rank, *step))));
        let planned = plan(&known, sets.clone());
        prop_assert_eq!(planned.as_ref().ok().map(|shares| shares.step), best);
        let Ok(Shares { step, sets, writers }) = planned else { return Ok(()) };
        prop_assert!(writers.keys().all(|rank| has(rank, step)));
        for set in sets {
            let shares: Vec<Share> = writers.iter().filter(|(rank, _)| set.contains(*rank)).map(|(_, s)| *s).collect();
            let parts: Vec<u32> = shares.iter().map(|share| share.part).collect();
            prop_assert_eq!(parts, (0..u32::try_from(shares.len()).unwrap()).collect::<Vec<_>>());
            prop_assert!(!shares.is_empty() && shares.iter().all(|share| share.of as usize == shares.len()));
        }
    }
}

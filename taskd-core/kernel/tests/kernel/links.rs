//! Control links: what the kernel believes of them, and which ranks it waits for.

use crate::bench::*;
use taskd_kernel::job::*;
use taskd_kernel::kernel::*;
use taskd_kernel::recover::{Action, RecoveryStrategy, RecoveryStrategyExt as _, Restart, Shrink};
use taskd_kernel::state::*;

/// All ranks are of one data-parallel group.
fn digest_at(step: u64, digest: &str) -> StateDigest {
    StateDigest {
        loop_number: 1,
        step,
        digest: digest.into(),
        group: Some("dp".into()),
        took_us: 1,
        first_of_kind: false,
    }
}

pub(crate) fn link(rank: u32, incarnation: u32, at: Option<LoopPosition>) -> Input {
    let linked = at.map(|at| {
        ControlLink::new(Generation(1), "test", at)
            .with_capabilities(["abort", "join", "sync-state", "resume"].map(Name::new).into())
            .with_digest((at == LoopPosition::InLoop).then(|| Box::new(digest_at(0, "equal"))))
    });
    Input::Changed(Change::Link(LinkStatus::new(ProcId::rank(rank, incarnation), linked)))
}

fn running(rank: u32) -> ProcStatus {
    ProcStatus::new(ProcId::rank(rank, 1), "i", Phase::Running).with_pid(1)
}

fn has_link(bench: &Bench, rank: u32) -> bool {
    bench.kernel.view().proc(&Role::Rank(Rank(rank))).is_some_and(|proc| proc.link.is_some())
}

#[test]
fn a_link_that_is_not_in_a_listing_is_not_there() {
    let mut bench = Bench::new(2, |_| ()).up();
    bench.give(link(0, 1, Some(LoopPosition::InLoop)));
    bench.give(link(1, 1, Some(LoopPosition::InLoop)));
    assert!(has_link(&bench, 0) && has_link(&bench, 1));
    let Input::Changed(Change::Link(first)) = link(0, 1, Some(LoopPosition::InLoop)) else { panic!("a link") };
    let procs = vec![running(0), running(1)];
    bench.give(Input::Listed(Listing::default().with_procs(procs).with_links(vec![first])));
    assert!(has_link(&bench, 0), "it is listed");
    assert!(!has_link(&bench, 1), "as after the death of the supervisor: no rank can be reached over it");
}

fn with_links(points: [LoopPosition; 3]) -> Bench {
    linked(Bench::new(3, |_| ()).up(), points)
}

fn linked(mut bench: Bench, points: [LoopPosition; 3]) -> Bench {
    for (rank, at) in (0..).zip(points) {
        bench.give(link(rank, 1, Some(at)));
    }
    bench.now = 100 * MS;
    bench
}

fn is_decided(commands: &[Command]) -> bool {
    events(commands).iter().any(|event| matches!(event, Event::Decided(_)))
}

#[test]
fn a_killed_rank_is_decided_at_once_if_all_others_are_in_loops() {
    let mut bench = with_links([LoopPosition::InLoop; 3]);
    assert!(is_decided(&bench.set_phase(1, 1, killed())));

    let mut bench = with_links([LoopPosition::BeforeLoop, LoopPosition::InLoop, LoopPosition::InLoop]);
    assert!(!is_decided(&bench.set_phase(1, 1, killed())), "rank 0 cannot be reached, and may be about to end");
    assert!(is_decided(&bench.at(120)));

    let mut bench = Bench::new(1, |_| ()).up();
    bench.now = 100 * MS;
    assert!(!is_decided(&bench.set_phase(0, 1, killed())), "there is no rank to keep");
}

#[test]
fn with_the_second_rank_that_was_killed_more_are_waited_for() {
    let mut bench = with_links([LoopPosition::InLoop; 3]);
    assert!(is_decided(&bench.set_phase(1, 1, killed())));
    assert!(!is_decided(&bench.set_phase(2, 1, killed())));
    assert!(is_decided(&bench.at(120)));
}

#[test]
fn ranks_lost_with_a_host_are_decided_when_none_runs_there() {
    let gone = || Phase::Exited(Box::new(Exit::new(Termination::Unknown)));
    let two_hosts = |points| linked(Bench::new(3, |_| ()).up_on(&["a", "b", "b"]), points);
    let mut bench = two_hosts([LoopPosition::InLoop; 3]);
    assert!(!is_decided(&bench.set_phase_on("b", 1, gone())), "rank 2 was there, too");
    let decided = bench.set_phase_on("b", 2, gone());
    assert!(is_decided(&decided), "all of it is known");
    assert_eq!(
        stopped(&decided),
        [1, 2].map(|rank| ProcId::rank(rank, 1)),
        "both are in the one plan, and rank 0 trains on"
    );

    let mut bench = two_hosts([LoopPosition::BeforeLoop, LoopPosition::InLoop, LoopPosition::InLoop]);
    for rank in [1, 2] {
        assert!(!is_decided(&bench.set_phase_on("b", rank, gone())), "rank 0 may be about to end");
    }
    assert!(is_decided(&bench.at(120)));

    let mut bench = two_hosts([LoopPosition::InLoop; 3]);
    assert!(!is_decided(&bench.set_phase_on("b", 1, gone())));
    assert!(is_decided(&bench.at(120)), "what is not reported in time is waited for no longer");
}

#[test]
fn ranks_of_a_host_that_die_after_their_links_are_one_fault() {
    let mut bench = linked(Bench::new(3, |_| ()).up_on(&["a", "b", "b"]), [LoopPosition::InLoop; 3]);
    bench.give(link(1, 1, None));
    bench.give(link(2, 1, None));
    assert!(!is_decided(&bench.set_phase_on("b", 1, killed())));
    let decided = bench.set_phase_on("b", 2, killed());
    assert!(is_decided(&decided), "nothing is left to wait for");
    assert_eq!(stopped(&decided), [1, 2].map(|rank| ProcId::rank(rank, 1)), "both in one plan, and rank 0 trains on");
}

#[test]
fn report_of_a_rank_without_a_link_is_waited_for_briefly() {
    let cut = || {
        let mut bench = linked(Bench::new(3, |_| ()).up(), [LoopPosition::InLoop; 3]);
        bench.give(link(2, 1, None));
        assert!(!is_decided(&bench.set_phase(1, 1, killed())), "rank 2 may be gone as well");
        assert!(!is_decided(&bench.at(120)), "the window is over, and rank 2 cannot be reached");
        bench
    };
    let mut bench = cut();
    bench.now = 150 * MS;
    let decided = bench.set_phase(2, 1, killed());
    assert_eq!(stopped(&decided), [1, 2].map(|rank| ProcId::rank(rank, 1)), "it was: one recovery for both");

    let mut bench = cut();
    bench.now = 150 * MS;
    assert!(is_decided(&bench.give(link(2, 1, Some(LoopPosition::InLoop)))), "it lives, and can be reached");

    let mut bench = cut();
    assert!(!is_decided(&bench.at(1_119)));
    assert!(is_decided(&bench.at(1_120)), "there is no word of it");
    assert_eq!(taken(&bench, Branch::AwaitedWord), 1);
}

/// Every rank carries out its directives, until no rank receives one any more.
fn obey(bench: &mut Bench, commands: Vec<Command>) {
    obey_with(bench, commands, |_| "repaired");
}

/// The same, where these are the checksums of the ranks' states after a repair. Returns what was commanded meanwhile.
fn obey_with(bench: &mut Bench, commands: Vec<Command>, repaired: impl Fn(u32) -> &'static str) -> Vec<Command> {
    let mut open = commands;
    let mut all = Vec::new();
    while let Some(command) = open.pop() {
        all.push(command.clone());
        let Effect::Act(Action::SendDirectives(batch)) = &command.effect else { continue };
        for (proc, directive) in &batch.directives {
            let state = WorkerState {
                step: 5,
                committed: Some(4),
                window: Window::Before,
                layout: String::new(),
                buckets: Vec::new(),
                bytes: 1,
                sharded: Vec::new(),
            };
            let state = matches!(directive, Directive::Abort {}).then_some(state);
            let digest = proc.role.rank().filter(|_| matches!(directive, Directive::SyncState { .. }));
            let digest = digest.map(|rank| digest_at(5, repaired(rank.0)));
            let result = Ok(Box::new(DirectiveReply::default().with_state(state).with_digest(digest)));
            let event = WorkerEvent::new(proc.clone(), WorkerMessage::Reply { id: command.id, result });
            open.extend(bench.give(Input::Changed(Change::Worker(event))));
        }
    }
    all
}

fn shrinking() -> Bench {
    shrinking_or(Box::new(Replace))
}

fn shrinking_or(other: Box<dyn RecoveryStrategy>) -> Bench {
    let strategies = vec![Shrink::new().before_restart().boxed(), other];
    let plugins = Plugins { detectors: vec![exits()], strategies };
    let mut bench = Bench::with(3, |policy| policy.min_ranks = 1, plugins).up();
    for rank in 0..3 {
        bench.give(link(rank, 1, Some(LoopPosition::InLoop)));
    }
    bench.now = 100 * MS;
    bench
}

#[test]
fn replicas_that_differ_after_a_repair_make_all_ranks_restart() {
    let mut bench = shrinking_or(Restart::new().boxed());
    let commands = bench.set_phase(1, 1, killed());
    let commands = obey_with(&mut bench, commands, |rank| if rank == 0 { "this" } else { "that" });
    let resumes = |command: &Command| matches!(&command.effect, Effect::Act(Action::SendDirectives(batch)) if batch.directives.iter().any(|(_, what)| what.name() == "resume"));
    assert!(!commands.iter().any(resumes), "none of them trains on");
    let failed = |commands: &[Command]| {
        events(commands).into_iter().find_map(|event| match event {
            Event::Failed { reason, .. } => Some(reason.clone()),
            _ => None,
        })
    };
    let why = failed(&commands).expect("the recovery fails");
    assert!(why.contains("rank 0 and rank 2 have different checksums"), "{why}");
    let commands = bench.at(130);
    let decided = events(&commands).into_iter().find_map(|event| match event {
        Event::Decided(decision) => Some(decision.clone()),
        _ => None,
    });
    let decided = decided.expect("a decision");
    assert_eq!(decided.chosen.map(|chosen| chosen.strategy), Some(Name::new("restart")), "{:?}", decided.refused);
}

#[test]
fn ranks_whose_checksums_differ_are_no_replicas_of_a_lost_one() {
    let mut bench = shrinking();
    for (rank, state) in [(0, "stage 0"), (1, "stage 1"), (2, "stage 0")] {
        let Input::Changed(Change::Link(mut status)) = link(rank, 1, Some(LoopPosition::InLoop)) else {
            panic!("a link")
        };
        status.link.as_mut().expect("it is there").digest = Some(Box::new(digest_at(1, state)));
        bench.give(Input::Changed(Change::Link(status)));
    }
    let status = bench.kernel.status();
    assert!(
        status
            .unproven
            .is_some_and(|why| why.contains("no replica of rank 1 is proven: no other rank has the checksum"))
    );
    assert_eq!(status.replicas.map(|figures| (figures.checks, figures.took_us)), Some((6, 6)));
    let commands = bench.set_phase(1, 1, killed());
    let decided = events(&commands).into_iter().find_map(|event| match event {
        Event::Decided(decision) => Some(decision.clone()),
        _ => None,
    });
    let decided = decided.expect("a decision");
    assert_eq!(decided.chosen.map(|chosen| chosen.strategy), Some(Name::new("replace")));
    assert!(decided.refused[0].reason.contains("no replica of rank 1 is proven"), "{:?}", decided.refused);
}

#[test]
fn a_late_exit_of_a_rank_that_left_the_world_is_dropped() {
    let mut bench = shrinking();
    let commands = bench.set_phase(1, 1, Phase::Dead(Termination::Signal { number: 9, core_dumped: false }));
    obey(&mut bench, commands);
    let world = &bench.kernel.view().world;
    assert_eq!((world.size(), world.absent().len(), taken(&bench, Branch::Recovered)), (2, 1, 1));
    bench.now = 300 * MS;
    let commands = bench.set_phase(1, 1, killed());
    assert!(events(&commands).is_empty(), "{commands:?}");
    assert_eq!(count(&bench, DropReason::OutdatedFault), 1);
    assert_eq!(bench.kernel.status().absent, [Rank(1)]);
    let order = Order::Restart { ranks: [Rank(1)].into() };
    let wish = OrderEnvelope { id: OrderId(1), by: Name::new("ann"), reason: "to see".into(), order };
    let commands = bench.give(Input::Ordered(Box::new(wish)));
    let names_it = |denial: &OrderRejected| denial.to_string().contains("rank 1 is absent");
    let denied = |c: &Command| matches!(&c.effect, Effect::Reply { result: Err(why), .. } if names_it(why));
    assert!(commands.iter().any(denied), "{commands:?}");
    assert!(!is_decided(&bench.at(400)));
    assert!(
        is_decided(&bench.set_phase(0, 1, killed())) || is_decided(&bench.at(500)),
        "the ranks that are left are missed"
    );
}

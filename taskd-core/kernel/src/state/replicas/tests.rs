use super::*;
use crate::job::{Counted, Incarnation, World};

fn of(loop_number: u64, step: u64, digest: &str) -> StateDigest {
    StateDigest { loop_number, step, digest: digest.into(), group: None, took_us: 7, first_of_kind: false }
}

fn say(replicas: &mut Replicas, step: u64, digests: &[(u32, &str)]) {
    for (rank, digest) in digests {
        replicas.hear(Rank(*rank), &of(1, step, digest), &BTreeMap::new());
    }
}

/// Reports checksums as the first after a step of a new kind.
fn say_of_new_kind(replicas: &mut Replicas, step: u64, digests: &[(u32, &str)]) {
    for (rank, digest) in digests {
        let state = StateDigest { first_of_kind: true, ..of(1, step, digest) };
        replicas.hear(Rank(*rank), &state, &BTreeMap::new());
    }
}

fn declare(replicas: &mut Replicas, step: u64, digests: &[(u32, &str, &str)]) {
    for (rank, digest, group) in digests {
        let state = StateDigest { group: Some((*group).to_owned()), ..of(1, step, digest) };
        replicas.hear(Rank(*rank), &state, &BTreeMap::new());
    }
}

fn sets(replicas: &Replicas, ranks: u32) -> Vec<Vec<u32>> {
    let sets = replicas.split(&(0..ranks).map(Rank).collect());
    let mut sets: Vec<Vec<u32>> = sets.into_iter().map(|set| set.into_iter().map(|rank| rank.0).collect()).collect();
    sets.sort();
    sets
}

#[test]
fn without_a_checksum_no_rank_has_a_replica() {
    let replicas = Replicas::default();
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
    assert!(replicas.why_alone(Rank(1)).contains("it has reported no checksum"));
    assert_eq!(replicas.figures(), None);
}

#[test]
fn members_of_one_group_with_equal_checksums_are_replicas_at_once() {
    let mut replicas = Replicas::default();
    declare(&mut replicas, 0, &[(0, "a", "dp"), (1, "a", "dp"), (2, "b", "dp")]);
    assert_eq!(sets(&replicas, 3), [vec![0, 1], vec![2]]);
    assert!(replicas.why_alone(Rank(2)).contains("no other rank has the checksum of its state at step 0"));
}

#[test]
fn stages_that_were_initialized_alike_are_no_replicas() {
    let mut replicas = Replicas::default();
    say(&mut replicas, 0, &[(0, "same"), (1, "same")]);
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
    assert!(replicas.why_alone(Rank(0)).contains("no training step has followed"));
    say(&mut replicas, 1, &[(0, "first"), (1, "second")]);
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
    say(&mut replicas, 2, &[(0, "x"), (1, "y")]);
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
}

#[test]
fn a_rank_that_has_not_reported_since_the_first_round_is_nobodys_replica() {
    let mut replicas = Replicas::default();
    say(&mut replicas, 0, &[(0, "same"), (1, "same")]);
    say(&mut replicas, 1, &[(0, "first")]);
    assert_eq!(sets(&replicas, 2), [[0], [1]], "it was lost in its first step, and may be another stage");
    say(&mut replicas, 2, &[(0, "x")]);
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
    say(&mut replicas, 3, &[(0, "y"), (1, "y")]);
    assert_eq!(sets(&replicas, 2), [[0, 1]], "all of them have come to the same");
}

#[test]
fn a_report_of_an_older_loop_is_late() {
    let mut replicas = Replicas::default();
    replicas.hear(Rank(0), &of(2, 0, "a"), &BTreeMap::new());
    replicas.hear(Rank(1), &of(2, 0, "a"), &BTreeMap::new());
    replicas.hear(Rank(0), &of(1, 9, "z"), &BTreeMap::new());
    replicas.hear(Rank(1), &of(1, 9, "z"), &BTreeMap::new());
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
    assert_eq!(replicas.figures().map(|figures| figures.late), Some(2));
}

#[test]
fn equal_checksums_that_have_changed_prove_replicas_without_a_group() {
    let mut replicas = Replicas::default();
    say(&mut replicas, 0, &[(0, "a"), (1, "a"), (2, "a"), (3, "a")]);
    say(&mut replicas, 1, &[(0, "b"), (1, "c"), (2, "b"), (3, "c")]); // two stages of two replicas each
    assert_eq!(sets(&replicas, 4), [[0], [1], [2], [3]], "their classes are new");
    say(&mut replicas, 2, &[(0, "d"), (1, "e"), (2, "d"), (3, "e")]);
    assert_eq!(sets(&replicas, 4), [[0, 2], [1, 3]]);
}

#[test]
fn a_lost_rank_retains_its_class_while_its_replicas_agree() {
    let mut replicas = Replicas::default();
    for (step, digest) in (0..20).zip("abcdefghijklmnopqrst".chars()) {
        let digest = digest.to_string();
        let all = [(0, &*digest), (1, &*digest), (2, &*digest)];
        say(&mut replicas, step, if step < 3 { &all } else { &all[1..] });
    }
    assert_eq!(sets(&replicas, 3), [[0, 1, 2]]);
    say(&mut replicas, 20, &[(1, "x"), (2, "y")]);
    assert_eq!(sets(&replicas, 3), [[0], [1], [2]], "of which of the two it was a replica is unknown");
}

#[test]
fn replicas_that_have_differed_are_none_until_all_start_again() {
    let mut replicas = Replicas::default();
    say(&mut replicas, 0, &[(0, "a"), (1, "a"), (2, "a")]);
    say(&mut replicas, 1, &[(0, "b"), (1, "b"), (2, "b")]);
    assert_eq!(sets(&replicas, 3), [[0, 1, 2]]);
    say(&mut replicas, 2, &[(0, "c"), (1, "other"), (2, "c")]);
    for step in 3..12 {
        let digest = step.to_string();
        say(&mut replicas, step, &[(0, &digest), (1, &digest), (2, &digest)]);
        assert_eq!(sets(&replicas, 3), [vec![0, 2], vec![1]], "step {step}");
    }
    let why =
        "no replica of rank 1 is proven: its checksum and that of rank 0 were equal at step 11, but have differed";
    assert!(replicas.why_alone(Rank(1)).starts_with(why), "{}", replicas.why_alone(Rank(1)));
    replicas.start_again();
    say(&mut replicas, 12, &[(0, "a"), (1, "a")]);
    say(&mut replicas, 13, &[(0, "b"), (1, "b")]);
    assert_eq!(sets(&replicas, 2), [[0, 1]]);
}

#[test]
fn parameters_that_are_averaged_from_time_to_time_make_no_replicas() {
    let mut replicas = Replicas::default();
    declare(&mut replicas, 0, &[(0, "a", "dp"), (1, "a", "dp")]);
    declare(&mut replicas, 1, &[(0, "b", "dp"), (1, "c", "dp")]);
    for step in [2, 4, 8, 16, 32] {
        let digest = step.to_string();
        declare(&mut replicas, step, &[(0, &digest, "dp"), (1, &digest, "dp")]);
        assert_eq!(sets(&replicas, 2), [[0], [1]], "step {step}");
    }
}

#[test]
fn ranks_that_become_equal_in_their_first_step_are_replicas() {
    let mut replicas = Replicas::default();
    for (step, digests) in [["a", "z"], ["b", "b"], ["c", "c"]].into_iter().enumerate() {
        say(&mut replicas, step as u64, &[(0, digests[0]), (1, digests[1])]);
    }
    assert_eq!(sets(&replicas, 2), [[0, 1]]);
}

#[test]
fn a_step_of_a_new_kind_proves_no_rank_without_a_later_report() {
    let mut replicas = Replicas::default();
    declare(&mut replicas, 0, &[(0, "a", "dp"), (1, "a", "dp"), (2, "a", "dp")]);
    say(&mut replicas, 64, &[(0, "b"), (1, "b"), (2, "b")]);
    say_of_new_kind(&mut replicas, 71, &[(0, "c"), (2, "c")]);
    assert_eq!(sets(&replicas, 3), [vec![0, 2], vec![1]], "it was lost ahead of its report");
    assert!(replicas.lacks_report(Rank(1)) && !replicas.lacks_report(Rank(0)) && !replicas.lacks_report(Rank(7)));
    let why = "no replica of rank 1 is proven: it has reported no checksum after a step whose collective operations \
               differ from those of earlier steps";
    assert_eq!(replicas.why_alone(Rank(1)), why);
    say_of_new_kind(&mut replicas, 71, &[(1, "c")]);
    assert_eq!(sets(&replicas, 3), [[0, 1, 2]], "the report was under way");
    assert!(!replicas.lacks_report(Rank(1)));
}

#[test]
fn an_absent_rank_retains_its_class_after_steps_of_a_new_kind() {
    let world = World::first(
        (0..3).map(|rank| (Rank(rank), Member { incarnation: Incarnation(1), node: None, device: None })).collect(),
    );
    let smaller = world.successor(Counted::No, |members| _ = members.remove(&Rank(2)));
    let mut replicas = Replicas::default();
    say(&mut replicas, 0, &[(0, "a"), (1, "a"), (2, "a")]);
    say(&mut replicas, 1, &[(0, "b"), (1, "b"), (2, "b")]);
    let behind = |replicas: &mut Replicas, step, digest, rank| {
        let state = StateDigest { first_of_kind: true, ..of(1, step, digest) };
        replicas.hear(Rank(rank), &state, smaller.absent());
    };
    for rank in [0, 1] {
        behind(&mut replicas, 9, "c", rank);
    }
    assert_eq!(sets(&replicas, 3), [[0, 1, 2]], "it trains nothing, and comes back to what the others have");
    for (rank, digest) in [(0, "d"), (1, "other")] {
        behind(&mut replicas, 10, digest, rank);
    }
    assert_eq!(sets(&replicas, 3), [[0], [1], [2]], "of which of the two it was a replica is unknown");
}

#[test]
fn a_rank_whose_proof_has_ended_parts_as_any_other_where_it_differs() {
    let mut replicas = Replicas::default();
    for (step, digest) in ["a", "b"].into_iter().enumerate() {
        say(&mut replicas, step as u64, &[(0, digest), (1, digest)]);
    }
    say_of_new_kind(&mut replicas, 9, &[(0, "c")]);
    say_of_new_kind(&mut replicas, 10, &[(0, "d"), (1, "other")]);
    for step in 11..14 {
        let digest = step.to_string();
        declare(&mut replicas, step, &[(0, &digest, "dp"), (1, &digest, "dp")]);
        assert_eq!(sets(&replicas, 2), [[0], [1]], "step {step}: an average proves nothing of the steps between");
    }
}

#[test]
fn another_loop_and_a_start_of_all_ranks_begin_without_a_proof() {
    let mut replicas = Replicas::proven([Rank(0), Rank(1)]);
    assert_eq!(sets(&replicas, 2), [[0, 1]]);
    replicas.hear(Rank(0), &of(2, 0, "z"), &BTreeMap::new());
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
    let mut replicas = Replicas::proven([Rank(0), Rank(1)]);
    replicas.start_again();
    assert_eq!(sets(&replicas, 2), [[0], [1]]);
    assert_eq!(replicas.figures().map(|figures| figures.checks), Some(2), "what it has cost stays");
}

#[test]
fn a_repeated_checksum_counts_once_and_a_late_one_as_late() {
    let mut replicas = Replicas::default();
    for step in 0..10 {
        say(&mut replicas, step, &[(0, "a"), (0, "a")]);
    }
    say(&mut replicas, 2, &[(1, "a")]);
    let figures = replicas.figures().expect("there were some");
    assert_eq!((figures.checks, figures.took_us, figures.late), (11, 77, 1));
}

fn members(number: u32) -> BTreeMap<Rank, Member> {
    let member = Member { incarnation: Incarnation(1), node: None, device: None };
    (0..number).map(|rank| (Rank(rank), member.clone())).collect()
}

#[test]
fn a_proof_holds_for_ranks_that_cannot_report_again() {
    let mut replicas = Replicas::default();
    declare(&mut replicas, 0, &[(0, "a", "dp"), (1, "a", "dp"), (2, "b", "pp"), (3, "b", "pp")]);
    assert_eq!(
        sets(&Replicas::of_proof(&replicas.proof(&members(4)).expect("all have reported")), 4),
        [[0, 1], [2, 3]]
    );
    say(&mut replicas, 1, &[(0, "c"), (1, "c"), (2, "d")]);
    assert_eq!(replicas.proof(&members(4)), None, "rank 3 has not reported");
    say(&mut replicas, 1, &[(3, "d")]);
    let proof = replicas.proof(&members(4)).expect("all have reported");
    let mut later = Replicas::of_proof(&proof);
    say(&mut later, 1, &[(0, "c")]); // a link that is listed again
    say(&mut later, 4, &[(0, "e"), (2, "e")]);
    assert_eq!(sets(&later, 4), [[0, 1], [2, 3]], "two sets stay apart, and keep their silent members");
    say_of_new_kind(&mut later, 5, &[(0, "f"), (2, "g")]);
    assert_eq!(sets(&later, 4), [[0], [1], [2], [3]], "nothing is known of steps of that kind");
}

#[test]
fn a_proof_adds_something_with_other_sets_or_a_new_kind_of_step() {
    let mut replicas = Replicas::default();
    say(&mut replicas, 0, &[(0, "a"), (1, "a")]);
    let first = replicas.proof(&members(2)).expect("both have reported");
    assert!(first.sets.is_empty() && !first.adds_to(&ReplicaProof::default()));
    say(&mut replicas, 1, &[(0, "b"), (1, "b")]);
    let second = replicas.proof(&members(2)).expect("both have reported");
    assert!(second.adds_to(&first));
    say(&mut replicas, 2, &[(0, "c"), (1, "c")]);
    assert!(!replicas.proof(&members(2)).expect("both have reported").adds_to(&second));
    say_of_new_kind(&mut replicas, 3, &[(0, "d"), (1, "d")]);
    assert!(replicas.proof(&members(2)).expect("both have reported").adds_to(&second));
}

#[test]
fn ranks_that_have_never_trained_belong_to_the_others_if_these_are_replicas() {
    let member = Member { incarnation: Incarnation(0), node: None, device: None };
    let mut replicas = Replicas::default();
    // Ranks 2 and 3 are absent until they report.
    let say = |replicas: &mut Replicas, step, digests: &[(u32, &str)]| {
        let is_absent = |rank: &u32| digests.iter().all(|(other, _)| other != rank);
        let absent = [2, 3].into_iter().filter(is_absent).map(|rank| (Rank(rank), member.clone())).collect();
        for (rank, digest) in digests {
            replicas.hear(Rank(*rank), &of(1, step, digest), &absent);
        }
    };
    say(&mut replicas, 0, &[(0, "a"), (1, "a")]);
    assert_eq!(sets(&replicas, 4), [[0], [1], [2], [3]], "nothing is proven yet");
    say(&mut replicas, 1, &[(0, "b"), (1, "b")]);
    assert_eq!(sets(&replicas, 4), [[0, 1, 2, 3]]);
    say(&mut replicas, 2, &[(0, "c"), (1, "c"), (2, "c")]);
    assert_eq!(sets(&replicas, 4), [[0, 1, 2, 3]], "rank 2 has joined");
    say(&mut replicas, 3, &[(0, "d"), (1, "x"), (2, "d")]);
    assert_eq!(sets(&replicas, 4), [[0], [1], [2], [3]], "nothing is proven of the parts of a class that has split");
    say(&mut replicas, 4, &[(0, "e"), (1, "y"), (2, "e")]);
    assert_eq!(sets(&replicas, 4), [vec![0, 2], vec![1], vec![3]], "it is open which of them rank 3 would follow");
}

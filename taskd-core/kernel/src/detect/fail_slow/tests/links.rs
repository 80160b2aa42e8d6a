//! Slow links, and longer waits that are none.

use super::*;

#[test]
fn longer_transfers_of_a_group_or_a_pair_are_slow_links() {
    let found = run(GRID, |_, place, row| {
        if (place.stage, place.replica) == (1, 3) {
            row[Series::Transfer as usize] *= 2.0;
        }
    });
    let id = GroupId { kind: GroupKind::Tp, index: 11 };
    assert_eq!(named(&found), [(Component::Group(id), Cause::SlowLink)]);
    let found = run(GRID, |rank, _, row| {
        if rank == 3 || rank == 19 {
            row[Series::Send as usize] *= 3.0;
        }
    });
    assert_eq!(named(&found), [(Component::Link(3, 19), Cause::SlowLink)]);
    let found = run(GRID, |rank, _, row| {
        if rank == 19 {
            row[Series::Send as usize] *= 3.0;
        }
    });
    assert_eq!(named(&found), [], "the transfers of its neighbours are as usual");
}

/// Runs a job; from step 60 on the factors lengthen its computation, waits and transfers.
fn run_slower(compute: f32, waits: f32, transfers: Option<f32>) -> Vec<Cause> {
    let layout = Layout::grid(GRID);
    let mut engine = FailSlow::new(layout.clone());
    let mut found = Vec::new();
    for step in 1..=100_u64 {
        let later = |factor: f32| if step >= 60 { factor } else { 1.0 };
        let noise = 1.0 + 0.002 * f32::from(u8::try_from(step * 7 % 11).unwrap_or_default());
        let transfer = transfers.map_or(f32::NAN, |factor| 20.0 * later(factor) * noise);
        let (compute, wait) = (100.0 * later(compute) * noise, 30.0 * later(waits) * noise);
        let row = [compute, wait, transfer, f32::NAN, 2.0, 1.0, 33.0, 90.0];
        found.extend(engine.step(step, &vec![row; layout.len()]));
    }
    let named = named(&found);
    assert!(named.iter().all(|(component, _)| *component == Component::Job), "{named:?}");
    let mut causes: Vec<Cause> = named.into_iter().map(|(_, cause)| cause).collect();
    causes.sort();
    causes
}

#[test]
fn longer_waits_among_ranks_that_all_compute_longer_are_no_slow_link() {
    let (slower, both) = ([Cause::GlobalSlowdown], [Cause::SlowLink, Cause::GlobalSlowdown]);
    assert_eq!(run_slower(1.4, 1.4, None), slower);
    assert_eq!(run_slower(3.0, 7.0, None), slower, "three times the computation explains waits that are much longer");
    assert_eq!(run_slower(1.4, 4.0, None), both, "more than the computation explains");
    assert_eq!(run_slower(1.4, 1.0, Some(1.4)), both, "transfers that were measured");
}

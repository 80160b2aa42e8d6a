//! Operations without sense: a model is built or refused, and nothing panics.

use proptest::prelude::*;
use taskd_analysis::what_if::{Model, Operation, OperationKind, Worker, attribute};

fn operation() -> impl Strategy<Value = Operation> {
    let kinds: Vec<OperationKind> = OperationKind::all().collect();
    let time =
        prop_oneof![8 => 0.0..10.0, 1 => Just(0.0), 1 => prop_oneof![Just(f64::NAN), Just(-1.0), Just(f64::MAX)]];
    let number = || proptest::option::of(0..3_u32);
    let place = (0..3_u32, 0..3_u32, 0..2_u32, 0..9_u32);
    (place, 0..4_u64, proptest::sample::select(kinds), -1.0..10.0, time, 0..4_u32, number(), number(), number())
        .prop_map(
            |((data, stage, tensor, rank), step, kind, start, duration, sequence, chunk, global_chunk, micro_batch)| {
                let worker = Worker { data, stage, tensor, rank };
                Operation { worker, step, kind, start, duration, sequence, chunk, global_chunk, micro_batch }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn senseless_operations_are_attributed_or_refused(operations in proptest::collection::vec(operation(), 0..120)) {
        if let Ok(model) = Model::new(operations) {
            let findings = attribute(&model);
            prop_assert!(findings.what_if.scenarios.iter().all(|scenario| (0.0..=1.0).contains(&scenario.share)));
        }
    }

    #[test]
    fn senseless_passes_without_invalid_times_are_attributed(
        operations in proptest::collection::vec(operation(), 1..60),
    ) {
        let valid = |operation: &Operation| (0.0..=10.0).contains(&operation.duration);
        let passes = operations.into_iter().filter(valid).map(|operation| {
            let kind = if operation.sequence < 2 { OperationKind::Forward } else { OperationKind::Backward };
            Operation { kind, ..operation }
        });
        let passes: Vec<Operation> = passes.collect();
        prop_assume!(!passes.is_empty());
        let findings = attribute(&Model::new(passes).unwrap());
        prop_assert!(!findings.verdict.sentence.is_empty());
    }
}

//! The limits that the reference tools publish, and whether they apply to a report.

use crate::document::{Analysis, Limit};
use crate::index::CELLS_MAX;
use crate::timeline::SPANS_MAX;

/// Returns the limits.
pub(crate) fn limits(analysis: &Analysis) -> Vec<Limit> {
    let steps = analysis.steps.len() as u64;
    let collected = analysis.communication.steps;
    let limit = |limit: &str, applies: bool, note: String| Limit { limit: limit.to_owned(), applies, note };
    let communication = if collected < steps {
        format!("Communication was collected for {collected} of {steps} steps: the trace does not have more.")
    } else {
        "All communication of the trace is analyzed; no number of files is fixed.".to_owned()
    };
    let timeline = if analysis.timeline.left_out > 0 {
        format!(
            "All ranks are shown; {} short spans are merged or left out, at most {SPANS_MAX} are kept.",
            analysis.timeline.left_out
        )
    } else {
        "All ranks and spans are shown.".to_owned()
    };
    let has_flop = analysis.ranks.iter().any(|rank| rank.flop_per_step.is_some());
    vec![
        limit("At most 500 files of communication", collected < steps, communication),
        limit(
            "At most 10 steps in the timeline",
            false,
            format!("All {steps} steps are shown; a table holds at most {CELLS_MAX} ranks times steps."),
        ),
        limit("At most 8 devices in the timeline", false, timeline),
        limit(
            "No support of PyNative mode",
            false,
            "Events are used as recorded: no view needs the graph of a compiler.".to_owned(),
        ),
        limit(
            "Static shapes only",
            false,
            "Operations are matched by sequence number or by order in the step, not by shape.".to_owned(),
        ),
        limit("One kind of device in a job", false, "Ranks are compared inside of their stage only.".to_owned()),
        limit(
            "Traces are collected with sshpass and passwords",
            false,
            "The report reads files that are already in one directory, and needs no password.".to_owned(),
        ),
        limit(
            "FLOPs need the operator counters of the vendor's profiler",
            !has_flop,
            if has_flop { "The trace has them." } else { "The trace has no FLOPs: their views are empty." }.to_owned(),
        ),
        limit(
            "The strategy view needs dumps of the compiler's graph",
            true,
            "Traces do not contain the graph: there is no strategy view.".to_owned(),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use crate::analyze;
    use crate::synthetic::{Job, trace};

    #[test]
    fn only_limits_of_the_trace_apply_to_a_complete_one() {
        let analysis = analyze(&trace(&Job { steps: 2, ..Job::default() }, 1), &Default::default());
        let applies: Vec<&str> =
            analysis.limits.iter().filter(|limit| limit.applies).map(|limit| limit.limit.as_str()).collect();
        assert_eq!(applies, ["The strategy view needs dumps of the compiler's graph"]);
    }

    #[test]
    fn steps_without_communication_are_stated() {
        let mut trace = trace(&Job { steps: 4, clock_offset_ns: 0, ..Job::default() }, 1);
        for rank in trace.ranks.values_mut() {
            let from = rank.steps[2].start_ns;
            rank.events.retain(|event| event.start_ns < from || !event.kind.is_communication());
        }
        let analysis = analyze(&trace, &Default::default());
        assert!(analysis.limits[0].applies);
        assert!(analysis.limits[0].note.contains("2 of 4 steps"), "{}", analysis.limits[0].note);
        assert!(analysis.missing.iter().any(|text| text.contains("2 of 4 steps")), "{:?}", analysis.missing);
    }
}

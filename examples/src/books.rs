//! A training program's own metrics: its steps with their times and generations. The cost of a restart follows from
//! them.

/// One completed step, as the program's rank 0 recorded it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLine {
    /// The generation of the world that completed it.
    pub generation: u64,
    /// Its number.
    pub step: u64,
    /// Its loss.
    pub loss: f64,
    /// When it was completed, in milliseconds of a monotonic clock.
    pub at_ms: f64,
}

/// Returns, for each restart, how many steps were repeated.
#[must_use]
pub fn steps_lost(lines: &[StepLine]) -> Vec<u64> {
    let restarts = lines.windows(2).filter(|w| w[0].generation != w[1].generation);
    restarts.map(|w| (w[0].step + 1).saturating_sub(w[1].step)).collect()
}

/// Returns the share of the time from the first step to the last that went into steps whose results were kept, at the
/// pace of the median step.
#[must_use]
pub fn goodput(lines: &[StepLine]) -> Option<f64> {
    let (first, last) = (lines.first()?, lines.last()?);
    let mut paces: Vec<f64> =
        lines.windows(2).filter(|w| w[0].generation == w[1].generation).map(|w| w[1].at_ms - w[0].at_ms).collect();
    paces.sort_by(f64::total_cmp);
    let median_ms = paces.get(paces.len() / 2)?;
    let kept = last.step.saturating_sub(first.step) as f64;
    Some((kept * median_ms / (last.at_ms - first.at_ms)).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(generation: u64, step: u64, at_ms: f64) -> StepLine {
        StepLine { generation, step, loss: 1.0, at_ms }
    }

    #[test]
    fn a_restart_costs_the_steps_that_are_done_again_and_the_time_until_then() {
        let lines = [line(1, 1, 0.0), line(1, 2, 10.0), line(1, 3, 20.0), line(2, 2, 50.0), line(2, 3, 60.0)];
        assert_eq!(steps_lost(&lines), [2]);
        let goodput = goodput(&lines).unwrap();
        assert!((goodput - 20.0 / 60.0).abs() < 1e-9, "{goodput}"); // steps 2 and 3 were kept, 10 ms each, of 60 ms
    }

    #[test]
    fn no_steps_no_goodput() {
        assert_eq!(goodput(&[]), None);
        assert_eq!(steps_lost(&[]), Vec::<u64>::new());
    }
}

//! What an engineer on call does next, by the cause of a slow component.

/// Returns the next actions for a cause, the first one first; none for a cause without known ones.
pub(super) fn actions(cause: &str) -> &'static [&'static str] {
    match cause {
        "slow-rank" => &[
            "Look at the clock, temperature, power limit and error counters of the rank's device, and at other processes on \
             its cores.",
            "Compare the timelines of the slowest and the fastest rank at the onset: equal kernels that take longer mean a \
             slow device, gaps between kernels a slow host.",
            "If the device stays slow, cordon its host and restart from the last checkpoint.",
        ],
        "slow-host" => &[
            "Look at power, temperature, memory errors and other processes of the host.",
            "If the host stays slow, cordon it and restart from the last checkpoint.",
        ],
        "slow-link" => &[
            "Look at cable, port and error counters of the link, and at other traffic on its switch.",
            "See the link among its peers in the view of communication.",
        ],
        "slow-input" => &[
            "Look at the data loader's workers and the CPU load of the host, and at the storage that the rank reads.",
            "Add workers or prefetching if the loader computes, a cache if it reads.",
        ],
        "slow-checkpoint" => &[
            "Look at the throughput and the free space of the storage to which the rank writes.",
            "Write checkpoints asynchronously or less often until it is mended.",
        ],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::actions;
    use taskd_kernel::detect::fail_slow::Cause;

    #[test]
    fn each_cause_that_blames_has_a_next_action() {
        let blames = [Cause::SlowRank, Cause::SlowHost, Cause::SlowLink, Cause::SlowInput, Cause::SlowCheckpoint];
        assert!(blames.iter().all(|cause| cause.is_blame() && !actions(cause.name()).is_empty()));
        assert!(actions(Cause::GlobalSlowdown.name()).is_empty());
    }
}

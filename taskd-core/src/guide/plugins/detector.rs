use std::time::Duration;
use taskd_core::{detect::*, job::*, state::View, trace::*};

/// Reports a faulty training state when the loss is not a number, and a stall of the job when no more losses arrive.
pub struct LossDetector {
    pub quiet_max: Duration,
    pub due: Option<JobTime>,
}

impl FaultDetector for LossDetector {
    fn name(&self) -> Name {
        Name::new("acme.loss")
    }
    fn config(&self) -> String {
        format!("quiet_max_ms={}", self.quiet_max.as_millis())
    }
    fn observe(&mut self, seen: &Observation, view: &View, out: &mut Findings) {
        match &seen.signal {
            Signal::Metric { name, value } if *name == "loss" => {
                self.due = Some(view.now + self.quiet_max);
                if value.is_nan() {
                    let lost = Damage { state: Health::Faulty, ..Damage::default() };
                    let suspect = Suspect::certain(Domain::Job, FaultClass::Program, lost);
                    let evidence = Evidence::text("loss", "the loss is not a number");
                    out.blame(Fault::new(self.name(), seen.at, suspect).with_evidence(evidence));
                }
            }
            Signal::SupervisorSlept { .. } => self.due = self.due.map(|_| view.now + self.quiet_max),
            _ => {}
        }
    }
    fn deadline(&self) -> Option<JobTime> {
        self.due
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        self.due = None; // the next loss sets it again
        let job = Suspect::victim(Domain::Job, FaultClass::Stall, Damage::default());
        let evidence = Evidence::text("loss", "no more losses arrive");
        out.blame(Fault::new(self.name(), view.now, job).with_evidence(evidence));
    }
}

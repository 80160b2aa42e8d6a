use std::time::Duration;
use taskd_core::{detect::*, job::*, kernel::View, trace::*};

/// Blames the training state when the loss is not a number, and nobody in particular when no loss comes any more.
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
                    let lost = Damage { state: Sound::No, ..Damage::default() };
                    let suspect = Suspect::certain(Domain::Job, FaultClass::Program, lost);
                    out.blame(Fault::new(self.name(), seen.at, suspect).because(Clue::text("loss", "it is no number")));
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
        self.due = None; // moved on; the next loss arms it again
        let nobody = Suspect::victim(Domain::Job, FaultClass::Stall, Damage::default());
        out.blame(Fault::new(self.name(), view.now, nobody).because(Clue::text("loss", "none comes any more")));
    }
}

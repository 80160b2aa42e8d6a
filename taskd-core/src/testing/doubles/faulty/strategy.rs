use super::Faulty;
use crate::job::Name;
use crate::kernel::View;
use crate::recover::{Beforehand, Incident, Next, Proposal, RecoveryStrategy, Run, Stage};

#[deny(clippy::missing_trait_methods)]
impl<S: RecoveryStrategy> RecoveryStrategy for Faulty<S> {
    fn name(&self) -> Name {
        self.inner.name()
    }
    fn version(&self) -> Name {
        self.inner.version()
    }
    fn config(&self) -> String {
        self.inner.config()
    }
    fn cannot(&self, job: &Beforehand) -> Option<String> {
        self.inner.cannot(job)
    }

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, String> {
        self.work();
        if self.call() {
            return Err("a double fails as it was told to".into());
        }
        let mut proposal = self.inner.propose(incident, view)?;
        if self.repeats() {
            let twice = |stage: Stage| [stage.clone(), stage];
            proposal.stages = proposal.stages.into_iter().flat_map(twice).collect();
        }
        Ok(proposal)
    }
    fn advance(&self, run: &Run, view: &View) -> Next {
        self.inner.advance(run, view)
    }
}

use super::Faulty;
use crate::recover::{Incident, Proposal, RecoveryStrategy, RefusalError, Stage};
use crate::state::View;

impl<S: RecoveryStrategy> RecoveryStrategy for Faulty<S> {
    crate::delegate!(RecoveryStrategy to |this| this.inner, except propose);

    fn propose(&self, incident: &Incident, view: &View) -> Result<Proposal, RefusalError> {
        self.work();
        if self.call() {
            return Err("a double fails as scripted".into());
        }
        let mut proposal = self.inner.propose(incident, view)?;
        if self.repeats() {
            let twice = |stage: Stage| [stage.clone(), stage];
            proposal.stages = proposal.stages.into_iter().flat_map(twice).collect();
        }
        Ok(proposal)
    }
}

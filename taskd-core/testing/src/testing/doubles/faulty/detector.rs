use super::Faulty;
use crate::detect::{FaultDetector, Findings};
use crate::state::View;
use crate::trace::{DecodeError, Observation};
use bytes::Bytes;

impl<D: FaultDetector> FaultDetector for Faulty<D> {
    crate::delegate!(FaultDetector to |this| this.inner, except observe, expire, snapshot, restore);

    fn observe(&mut self, observation: &Observation, view: &View, out: &mut Findings) {
        self.work();
        if self.call() {
            return;
        }
        let mut found = Findings::default();
        self.inner.observe(observation, view, &mut found);
        self.say(found, out);
    }
    fn expire(&mut self, view: &View, out: &mut Findings) {
        let mut found = Findings::default();
        self.inner.expire(view, &mut found);
        self.say(found, out);
    }
    fn snapshot(&self) -> Option<Bytes> {
        None // it would not contain the number of calls
    }
    fn restore(&mut self, _saved: &[u8]) -> Result<(), DecodeError> {
        Err(DecodeError)
    }
}

impl<D> Faulty<D> {
    fn say(&self, mut found: Findings, out: &mut Findings) {
        for finding in found.drain() {
            if self.repeats() {
                out.push(finding.clone());
            }
            out.push(finding);
        }
    }
}

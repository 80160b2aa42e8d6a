use super::Faulty;
use crate::job::Domain;
use crate::trace::{Probe, ProbeResult, SourceError, TraceBatch, TraceSource};
use async_trait::async_trait;
use tokio::time::sleep;

#[async_trait]
impl<S: TraceSource> TraceSource for Faulty<S> {
    crate::delegate!(TraceSource to |this| this.inner, except next, collect);

    async fn next(&mut self) -> Option<Result<TraceBatch, SourceError>> {
        if self.held.is_empty() {
            tokio::task::yield_now().await; // an error must not be returned before an await
            if self.call() {
                return Some(Err(SourceError::Failed("a double fails as scripted".into())));
            }
            let next = self.inner.next().await;
            if self.repeats() {
                self.held.push_back(next.clone());
            }
            self.held.push_back(next);
        }
        sleep(self.delay()).await; // the held batches survive a dropped call
        self.held.pop_front().flatten()
    }

    async fn collect(&mut self, ask: &Probe, about: &Domain) -> Result<ProbeResult, SourceError> {
        sleep(self.delay()).await;
        self.inner.collect(ask, about).await
    }
}

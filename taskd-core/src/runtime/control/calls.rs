//! What a request asks of the handle.
//!
//! It reads and writes no connection.

use super::protocol::{Call, LogsStatus, Reply, Request, Said, StatusReply, Trouble, TroubleKind};
use super::report::FaultReport;
use super::serve::Server;
use crate::job::Name;
use crate::kernel::Taken;
use crate::runtime::ControlError;

/// Who asks, where a request does not say.
const SOMEBODY: Name = Name::new("socket");

impl Server {
    pub(super) async fn answer(&self, request: Request) -> Said {
        let by = request.by.unwrap_or(SOMEBODY);
        match self.carry_out(by, request.call).await {
            Ok(reply) => Said::Ok(reply),
            Err(trouble) => Said::Error(trouble),
        }
    }

    async fn carry_out(&self, by: Name, call: Call) -> Result<Reply, Trouble> {
        let handle = self.handle.clone().acting_as(by);
        match call {
            Call::Status {} => self.status().await,
            Call::Explain { incident } => {
                let explanation = handle.explain(incident).await?;
                Ok(Reply::Explanation(Box::new(explanation)))
            }
            Call::Events {} => Ok(Reply::Done {}), // the connection listens
            Call::ReportFault { fault } => self.report(*fault).await,
            Call::Drain { node, reason } => taken(handle.drain(node, reason).await),
            Call::Readmit { node, reason } => taken(handle.readmit(node, reason).await),
            Call::Restart { ranks, reason } => taken(handle.restart(ranks, reason).await),
            Call::DumpNow { reason } => taken(handle.dump_now(reason).await),
            Call::Allow { strategies, reason } => taken(handle.allow(strategies, reason).await),
            Call::Pause { reason } => taken(handle.pause(reason).await),
            Call::Resume { reason } => taken(handle.resume(reason).await),
            Call::Approve { incident, reason } => taken(handle.approve(incident, reason).await),
            Call::Decline { incident, reason } => taken(handle.decline(incident, reason).await),
            Call::SwitchTrace { kinds, .. } if kinds.is_empty() => {
                Err(Trouble::bad("\"kinds\" names no kind: give one at least, such as {\"Step\":\"on\"}"))
            }
            Call::SwitchTrace { kinds, reason } => {
                let kinds = kinds.over(handle.trace_in_force()?);
                taken(handle.switch_trace(kinds, reason).await)
            }
            Call::TraceStatus {} => Ok(Reply::Trace(Box::new(handle.trace_status()?))),
            Call::Stop { reason, now } => {
                handle.status().await?; // a job that is over is not stopped
                match now {
                    true => handle.stop_now(reason).await,
                    false => handle.stop(reason).await,
                }
                Ok(Reply::Done {})
            }
            Call::Detach { keep } => {
                handle.detach(keep).await?;
                Ok(Reply::Done {})
            }
        }
    }

    async fn status(&self) -> Result<Reply, Trouble> {
        let job = self.handle.status().await?;
        let logs = self.handle.logs().map(|monitor| LogsStatus {
            trouble: monitor.health().borrow().trouble().map(|(log, reason)| format!("{log}: {reason}")),
            counts: monitor.counts(),
        });
        Ok(Reply::Status(Box::new(StatusReply { job, socket: self.counts(), logs })))
    }

    async fn report(&self, report: FaultReport) -> Result<Reply, Trouble> {
        let job = self.handle.status().await?;
        let fault = report.fault(&job)?;
        if !self.admit_fault() {
            let most = self.limits.faults_per_s_max;
            let text = format!("more than {most} faults a second: report what is new, and try again later");
            return Err(Trouble::new(TroubleKind::Busy, text));
        }
        self.handle.report_fault(fault).await?;
        Ok(Reply::Done {})
    }
}

fn taken(answer: Result<Taken, ControlError>) -> Result<Reply, Trouble> {
    Ok(Reply::Taken(answer?))
}

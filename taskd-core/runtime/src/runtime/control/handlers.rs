//! Request handlers: carry out each request through the runtime handle.
//!
//! Reading and writing connections is the job of `serve`.

use super::order_call::OrderCall;
use super::protocol::{
    Call, ControlErrorBody, ControlErrorKind, LogsStatus, Reply, Request, ResponseBody, RuntimeCall, StatusReply,
};
use super::report::FaultReport;
use super::serve::Server;
use crate::job::Name;

/// Actor of a request that names none.
const SOMEBODY: Name = Name::new("socket");

impl Server {
    pub(super) async fn answer(&self, request: Request) -> ResponseBody {
        let by = request.by.unwrap_or(SOMEBODY);
        match self.carry_out(by, request.call).await {
            Ok(reply) => ResponseBody::Ok(reply),
            Err(trouble) => ResponseBody::Error(trouble),
        }
    }

    async fn carry_out(&self, by: Name, call: Call) -> Result<Reply, ControlErrorBody> {
        let handle = self.handle.clone().with_actor(by);
        let call = match call {
            Call::Order(OrderCall { order, reason }) => return Ok(Reply::Accepted(handle.order(order, reason).await?)),
            Call::Runtime(call) => call,
        };
        match call {
            RuntimeCall::Status {} => self.status().await,
            RuntimeCall::Explain { incident } => {
                let explanation = handle.explain(incident).await?;
                Ok(Reply::Explanation(Box::new(explanation)))
            }
            RuntimeCall::Events {} => Ok(Reply::Done {}), // the connection subscribes
            RuntimeCall::ReportFault { fault } => self.report(*fault).await,
            RuntimeCall::SwitchTrace { kinds, .. } if kinds.is_empty() => {
                Err(ControlErrorBody::bad("\"kinds\" names no kind: give one at least, such as {\"Step\":\"on\"}"))
            }
            RuntimeCall::SwitchTrace { kinds, reason } => {
                let kinds = kinds.over(handle.trace_in_force()?);
                Ok(Reply::Accepted(handle.switch_trace(kinds, reason).await?))
            }
            RuntimeCall::TraceStatus {} => Ok(Reply::Trace(Box::new(handle.trace_status()?))),
            RuntimeCall::Detach { keep } => {
                handle.detach(keep).await?;
                Ok(Reply::Done {})
            }
        }
    }

    async fn status(&self) -> Result<Reply, ControlErrorBody> {
        let job = self.handle.status().await?;
        let logs = self.handle.logs().map(|monitor| LogsStatus {
            trouble: monitor.health().borrow().trouble().map(|(log, reason)| format!("{log}: {reason}")),
            counts: monitor.counts(),
        });
        Ok(Reply::Status(Box::new(StatusReply { job, socket: self.counts(), logs })))
    }

    async fn report(&self, report: FaultReport) -> Result<Reply, ControlErrorBody> {
        let job = self.handle.status().await?;
        let fault = report.fault(&job)?;
        if !self.admit_fault() {
            let most = self.limits.faults_per_s_max;
            let text = format!("more than {most} faults a second: report what is new, and try again later");
            return Err(ControlErrorBody::new(ControlErrorKind::Busy, text));
        }
        self.handle.report_fault(fault).await?;
        Ok(Reply::Done {})
    }
}

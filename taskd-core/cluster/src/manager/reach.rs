//! Whether other hosts can reach the address that an agent states for itself.

use super::Inner;
use super::service::Greeting;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tonic::Status;

impl Inner {
    /// Verifies that the address of a new host can be connected to from here: ranks of other hosts may need it later. The
    /// address that the manager sees by itself needs no check, and an agent that an earlier manager has admitted gets none:
    /// its lease must not end while it waits.
    ///
    /// # Errors
    /// The agent gets the reason, and tries again.
    pub(super) async fn check_reach(&self, greeting: &Greeting) -> Result<(), Status> {
        let stated = &greeting.hello.peer_address;
        let is_new = greeting.hello.epoch == 0 && !self.lock().contains_key(&greeting.host);
        if !is_new || stated.is_empty() || stated.starts_with(':') {
            return Ok(());
        }
        let within = self.settings.connect_within;
        let why = match timeout(within, TcpStream::connect(stated.as_str())).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {within:?}"),
        };
        Err(Status::unavailable(format!(
            "{} states the address {stated}, and the manager cannot connect to it ({why}): state one that other hosts \
             reach (--address), and open its port",
            greeting.host
        )))
    }
}

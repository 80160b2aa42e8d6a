//! The job's store as a service of the job, and how it receives a generation. The module `store` implements its
//! protocol with ranks.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use taskd_core::job::{Generation, JobSpec, Name, WorkerSpec};
use taskd_core::launch::python::Rendezvous;

use crate::store::{self, ControlError, StoreControl, StoreProgram};

/// Name of the service in which the job's rendezvous store runs.
pub const STORE: Name = Name::new("store");

/// Returns the job with a rendezvous store: a process that the guard starts and watches, in place of rank 0's store.
///
/// The death of a rank does not end the store. Each generation has its own port and keys in the store. The death of the
/// store is handled as any other fault: ranks in a taskd step loop join a new store, and no rank is restarted. A script
/// without a step loop continues to train, and is restarted once it sends a request to the dead store.
///
/// The store runs on the launcher's host. Ranks on other hosts reach it by the name of the first rank's host, so
/// the launcher must run on that host.
///
/// With [`StoreProgram::ReexecSelf`] the calling program's `main` must call [`store::init`] first; otherwise
/// [`RuntimeBuilder::build`](taskd_core::runtime::RuntimeBuilder::build) fails for the job.
///
/// # Errors
/// Returns an error if the path of the store's program is unknown or is not UTF-8.
pub fn with_store(mut spec: JobSpec, program: &StoreProgram) -> io::Result<JobSpec> {
    spec.services.insert(STORE, Arc::new(WorkerSpec::new(program.command(None)?)));
    spec.rendezvous_service = Some(STORE);
    Ok(spec)
}

/// The rendezvous that registers each generation with the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreMeeting;

#[async_trait]
impl Rendezvous for StoreMeeting {
    fn service(&self) -> Name {
        STORE
    }

    fn uninitialised(&self) -> Option<(String, String)> {
        let missing = || (store::BECOME.to_owned(), "taskd_pytorch::store::init()".to_owned());
        (!store::init_was_called()).then(missing)
    }

    async fn open(&self, control: &Path, generation: Generation, listener: TcpListener) -> Result<(), String> {
        serve(control, generation, listener).await.map_err(|error| error.to_string())
    }
}

async fn serve(control: &Path, generation: Generation, listener: TcpListener) -> Result<(), ControlError> {
    let mut store = StoreControl::connect(control).await?;
    store.serve(generation, listener).await?;
    let known = store.stats().await?.generations;
    for earlier in known.iter().map(|known| known.generation).filter(|known| *known < generation) {
        store.retire(earlier).await?;
    }
    Ok(())
}

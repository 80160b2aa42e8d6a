//! The job's store: a service of the job, and how it is told of a generation.
//!
//! What it speaks with ranks is `store`'s.

use std::io;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use taskd_core::job::{Generation, JobSpec, Name, WorkerSpec};
use taskd_core::launch::python::Meeting;

use crate::store::{self, ControlError, StoreControl, StoreProgram};

/// The service that is the job's store.
pub const STORE: Name = Name::new("store");

/// The job with a store of its own, a process that the guard starts and watches, in the place of rank 0's.
///
/// No rank's death takes it along; each generation has a port and keys of its own in it. Its own death is a fault like another:
/// ranks in a step loop of taskd's join anew, with a new store, and none is started again; a script without one trains on, and
/// is started again when it asks the store that is gone.
///
/// The store runs where the launcher is: ranks on other hosts reach it by the first rank's host, so the launcher must be there.
///
/// With [`StoreProgram::ReexecSelf`] this program's `main` calls [`store::init`] first; where it has not, no runtime is
/// [built](taskd_core::runtime::RuntimeBuilder::build) for the job.
///
/// # Errors
/// The store's program has no name that can be given.
pub fn with_store(mut spec: JobSpec, program: &StoreProgram) -> io::Result<JobSpec> {
    spec.services.insert(STORE, Arc::new(WorkerSpec::new(program.command(None)?)));
    spec.meeting = Some(STORE);
    Ok(spec)
}

/// How the store is told of a generation.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreMeeting;

#[async_trait]
impl Meeting for StoreMeeting {
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

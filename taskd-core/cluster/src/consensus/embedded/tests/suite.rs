//! The test suite of the Raft engine for stores and state machines.

use super::world::memory;
use crate::consensus::embedded::machine::Machine;
use crate::consensus::embedded::store::{self, LogStore};
use crate::consensus::embedded::types::{StorageError, StorageIoError, Types};
use openraft::AnyError;
use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

struct Builder;

impl StoreBuilder<Types, LogStore, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError> {
        let dir = memory();
        let opened = store::open(dir.path(), "job", "boot", &store::Simulated::default())
            .map_err(|error| StorageIoError::write(AnyError::new(&error)))?;
        let machine = Machine::new(opened.store.clone(), opened.snapshot)?;
        Ok((dir, opened.store, machine))
    }
}

#[test]
fn store_and_machine_pass_the_suite_of_the_engine() {
    Suite::test_all(Builder).expect("the suite");
}

//! The file of a voter's store: a redb database. Everything here blocks.

use super::machine::StoredSnapshot;
use super::types::{Entry, LogId, Vote};
use redb::{Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, TableDefinition};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use taskd_runtime::__private::{create_private_file, make_private_dir};

/// Name of the store in a voter's directory.
const FILE: &str = "voter.redb";
/// Name of the last store that was discarded: one is kept, for an examination.
const DISCARDED: &str = "voter.redb.discarded";
/// Name of a store that is being created.
const NEW: &str = "voter.redb.new";
/// Version of what the tables contain.
const FORMAT: u32 = 1;

const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const LOG: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("log");

/// The voter to which a store belongs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    format: u32,
    pub(super) job: String,
    pub(super) voter: u64,
    /// Boot of the machine in which the store was created.
    boot: String,
    /// True if a store was discarded before this one: the voter joins by admission only, and forms no job.
    pub(super) rejoins: bool,
}

/// What a store contains when it is opened.
#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) vote: Option<Vote>,
    pub(super) committed: Option<LogId>,
    pub(super) purged: Option<LogId>,
    pub(super) log: BTreeMap<u64, Entry>,
    pub(super) snapshot: Option<StoredSnapshot>,
}

impl Contents {
    fn is_pristine(&self) -> bool {
        self.log.is_empty() && self.purged.is_none() && self.snapshot.is_none()
    }
}

/// An open store.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) database: Database,
    pub(super) identity: Identity,
    /// Reason for which an earlier store was discarded.
    pub(super) discarded: Option<String>,
}

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    #[error("the store {0} is in use by another process: stop that voter first")]
    InUse(PathBuf),
    #[error("the store {0} belongs to the job `{1}`: give this job another directory")]
    OtherJob(PathBuf, String),
    #[error("{action} the store {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the store {0}: {1}")]
    Engine(PathBuf, Box<redb::Error>),
    /// Not shown: the store is discarded.
    #[error("{0}")]
    Damaged(String),
}

/// Opens the store in `dir`, or creates it. A store of another boot of the machine, and a damaged one, is discarded:
/// what was written before a power cut may be lost, and a voter that forgot its vote must not vote again under the same
/// identifier. A new store is that of `voter`, or of a random identifier.
pub(super) fn open(dir: &Path, job: &str, boot: &str, voter: Option<u64>) -> Result<(Disk, Contents), DiskError> {
    let path = dir.join(FILE);
    let io = |action: &'static str| {
        let path = path.clone();
        move |source| DiskError::Io { action, path, source }
    };
    // The record contains the secret by which the job's ranks authenticate each other.
    make_private_dir(dir).map_err(io("creating the directory of"))?;
    let (mut discarded, mut rejoins) = (None, false);
    if path.try_exists().map_err(io("looking for"))? {
        match read_guarded(&path) {
            Ok((_, identity, _)) if identity.job != job => return Err(DiskError::OtherJob(path, identity.job)),
            Ok((database, identity, contents)) if identity.boot == boot => {
                return Ok((Disk { database, identity, discarded: None }, contents));
            }
            Ok((_, identity, contents)) => {
                // A voter that never had a log is as good as new.
                rejoins = identity.rejoins || !contents.is_pristine();
                discarded = Some("the machine was booted again".to_owned());
            }
            Err(DiskError::Damaged(reason)) => (discarded, rejoins) = (Some(reason), true),
            Err(error) => return Err(error),
        }
        fs::rename(&path, dir.join(DISCARDED)).map_err(io("renaming"))?;
    }
    let voter = voter.map_or_else(random_id, Ok).map_err(io("choosing an identifier for"))?;
    let identity = Identity { format: FORMAT, job: job.to_owned(), voter, boot: boot.to_owned(), rejoins };
    // Renamed when it is complete: a store that cannot be read was one that a voter used.
    let new = dir.join(NEW);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(io("removing an incomplete copy of")(error)),
        _ => {}
    }
    drop(create_private_file(&new).map_err(io("creating"))?);
    let database = create(&new, &identity).map_err(|error| DiskError::Engine(new.clone(), Box::new(error)))?;
    fs::rename(&new, &path).map_err(io("renaming"))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("flushing the directory of"))?;
    Ok((Disk { database, identity, discarded }, Contents::default()))
}

type Read = (Database, Identity, Contents);

/// Reads a store. The database can panic on a file that was changed by anything else: that ends a thread of its own,
/// and counts as damage.
fn read_guarded(path: &Path) -> Result<Read, DiskError> {
    let owned = path.to_owned();
    let thread = std::thread::Builder::new().name("voter-open".into()).spawn(move || read(&owned));
    let thread = thread.map_err(|source| DiskError::Io { action: "opening", path: path.to_owned(), source })?;
    thread.join().unwrap_or_else(|_| Err(DiskError::Damaged("its structure is damaged".into())))
}

fn read(path: &Path) -> Result<Read, DiskError> {
    let damage = |text: String| DiskError::Damaged(text);
    let engine = |error: redb::Error| classify(path, error);
    let mut database = match Database::open(path) {
        Err(DatabaseError::DatabaseAlreadyOpen) => return Err(DiskError::InUse(path.to_owned())),
        Err(DatabaseError::UpgradeRequired(version)) => return Err(damage(format!("it has file format {version}"))),
        Err(DatabaseError::RepairAborted) => return Err(damage("it cannot be repaired".into())),
        opened => opened.map_err(|error| engine(error.into()))?,
    };
    // Verifies the checksum of every page.
    database.check_integrity().map_err(|error| engine(error.into()))?;
    let read = database.begin_read().map_err(|error| engine(error.into()))?;
    let missing = |error: redb::TableError| match error {
        redb::TableError::Storage(error) => engine(error.into()),
        other => damage(other.to_string()),
    };
    let meta = read.open_table(META).map_err(missing)?;
    let get = |key: &str| meta.get(key).map_err(|error| engine(error.into()));
    let identity: Identity = match get("identity")? {
        Some(bytes) => decode("identity", bytes.value())?,
        None => return Err(damage("it has no identity".into())),
    };
    if identity.format != FORMAT {
        return Err(damage(format!("its tables have version {}, and {FORMAT} is read", identity.format)));
    }
    let mut contents = Contents::default();
    if let Some(bytes) = get("vote")? {
        contents.vote = decode("vote", bytes.value())?;
    }
    if let Some(bytes) = get("committed")? {
        contents.committed = decode("committed", bytes.value())?;
    }
    if let Some(bytes) = get("purged")? {
        contents.purged = decode("purged", bytes.value())?;
    }
    if let Some(bytes) = get("snapshot")? {
        contents.snapshot = decode("snapshot", bytes.value())?;
    }
    let log = read.open_table(LOG).map_err(missing)?;
    for item in log.iter().map_err(|error| engine(error.into()))? {
        let (index, bytes) = item.map_err(|error| engine(error.into()))?;
        contents.log.insert(index.value(), decode("log", bytes.value())?);
    }
    drop((meta, log, read));
    Ok((database, identity, contents))
}

fn decode<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T, DiskError> {
    crate::wire::decode(bytes).map_err(|error| DiskError::Damaged(format!("its {what} cannot be read: {error}")))
}

/// Separates damage from errors of the file system, which leave the store as it is.
fn classify(path: &Path, error: redb::Error) -> DiskError {
    match error {
        redb::Error::Corrupted(text) => DiskError::Damaged(text),
        redb::Error::Io(error) if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) => {
            DiskError::Damaged(error.to_string())
        }
        other => DiskError::Engine(path.to_owned(), Box::new(other)),
    }
}

fn create(path: &Path, identity: &Identity) -> Result<Database, redb::Error> {
    let database = Database::create(path)?;
    let bytes = encode(identity)?;
    write(&database, |meta, _| {
        meta.insert("identity", bytes.as_slice())?;
        Ok(())
    })?;
    Ok(database)
}

/// The tables of one write.
type Meta<'a> = redb::Table<'a, &'static str, &'static [u8]>;
type Log<'a> = redb::Table<'a, u64, &'static [u8]>;

/// Writes in one step, and returns when the step is on the disk.
pub(super) fn write(
    database: &Database,
    change: impl FnOnce(&mut Meta<'_>, &mut Log<'_>) -> Result<(), redb::Error>,
) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    change(&mut transaction.open_table(META)?, &mut transaction.open_table(LOG)?)?;
    Ok(transaction.commit()?)
}

/// Encodes a value of the store.
pub(super) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, redb::Error> {
    rmp_serde::to_vec_named(value).map_err(|error| redb::Error::Io(io::Error::new(ErrorKind::InvalidInput, error)))
}

/// Returns a random identifier other than 0, from the kernel.
fn random_id() -> io::Result<u64> {
    loop {
        let uuid = fs::read_to_string("/proc/sys/kernel/random/uuid")?;
        // Digits of a random UUID other than those of its version and variant (RFC 9562, section 5.4).
        let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
        let chosen: String =
            digits.chars().enumerate().filter(|(at, _)| ![12, 16].contains(at)).map(|c| c.1).take(16).collect();
        match u64::from_str_radix(&chosen, 16) {
            Ok(0) => {}
            Ok(id) => return Ok(id),
            Err(error) => return Err(io::Error::new(ErrorKind::InvalidData, error)),
        }
    }
}

/// Returns the identifier of the machine's boot.
pub(super) fn boot_id() -> Result<String, DiskError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let read = fs::read_to_string(path);
    read.map(|text| text.trim().to_owned()).map_err(|source| DiskError::Io {
        action: "reading the boot identifier for",
        path: path.to_owned(),
        source,
    })
}

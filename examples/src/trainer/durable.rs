//! Files that are complete or do not exist.
//!
//! A file is written under another name, synced, and only then renamed. A reader gets the old content or the new
//! content, also after a kill or a power cut at any moment. This module does not know what the files contain.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::error::TrainerError;

/// Extension of a file that is being written; one that a kill leaves behind keeps it.
const PARTIAL: &str = "partial";

/// Writes `content` to `path`. On failure `path` is unchanged, and the temporary file is deleted.
///
/// The temporary name contains `generation`: if the writer of an older generation still runs, the two do not write to
/// one file.
pub(super) fn write(path: &Path, generation: u64, content: &[u8]) -> io::Result<()> {
    let mut partial = path.as_os_str().to_owned();
    partial.push(format!(".g{generation}.{PARTIAL}"));
    let partial = PathBuf::from(partial);
    let written = write_and_sync(&partial, content).and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // Frees the space if the disk is full. If this fails too, the next generation deletes the file.
        let _ = fs::remove_file(&partial);
    }
    written?;
    // The rename itself must reach the disk, too.
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn write_and_sync(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Creates `directory` if necessary, and deletes the unfinished files of earlier generations.
pub(super) fn prepare(directory: &Path) -> Result<(), TrainerError> {
    let named = |doing: &str| format!("{doing} directory {}", directory.display());
    fs::create_dir_all(directory).map_err(TrainerError::io(named("make")))?;
    for path in list(directory).map_err(TrainerError::io(named("read")))? {
        if path.extension() == Some(OsStr::new(PARTIAL)) {
            // A failure is harmless: no process reads the file.
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Returns the paths of all entries of `directory`, in no particular order.
pub(super) fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_the_old_content_as_a_whole_and_leaves_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, 0, b"a long first content").unwrap();
        write(&path, 1, b"second").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"second");
        assert_eq!(list(dir.path()).unwrap(), [path]);
    }

    #[test]
    fn a_failed_write_leaves_the_old_file_and_no_partial_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("occupied");
        // A directory that is not empty cannot be replaced by a rename, not even by root.
        fs::create_dir_all(path.join("something")).unwrap();
        assert!(write(&path, 0, b"content").is_err());
        assert_eq!(list(dir.path()).unwrap(), [path]);
    }

    #[test]
    fn preparing_clears_what_a_kill_left_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let [torn, whole] = ["step-20.ckpt.g0.partial", "step-10.ckpt"].map(|name| dir.path().join(name));
        fs::write(&torn, b"half").unwrap();
        fs::write(&whole, b"whole").unwrap();
        prepare(dir.path()).unwrap();
        assert_eq!(list(dir.path()).unwrap(), [whole]);
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        let error = prepare(&file.join("below")).unwrap_err();
        assert!(error.to_string().contains("file/below"), "{error}");
    }
}

//! Names of stored files, and listing of their directories.
//!
//! Symbolic links below the root are not followed, and files without a name of this scheme are never opened.
//!
//! ```text
//! <root>/<task>/<rank>/<unix seconds>          the compatible format
//! <root>/<task>/<rank>/<unix seconds>.taskd    the native one
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Maximum length, in bytes, of the path of a file that a trace store writes.
pub const PATH_BYTES_MAX: usize = 1024;

/// Seconds in a file's name have ten digits, until the year 2286.
const SECONDS_MIN: u64 = 1_000_000_000;
const SECONDS_MAX: u64 = 9_999_999_999;

/// Format of a file in which a trace store keeps records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Binary blocks, a few bytes per record: see [`native`](super::native).
    Native,
    /// One JSON object per line, which existing tools can read: see [`compatible`](super::compatible).
    Compatible,
}

impl Format {
    /// Both formats of stored files, native and compatible.
    pub const ALL: [Format; 2] = [Format::Native, Format::Compatible];

    /// Returns the part of a file's name behind the seconds.
    const fn suffix(self) -> &'static str {
        match self {
            Format::Native => ".taskd",
            Format::Compatible => "",
        }
    }

    /// Returns a file's name.
    pub(super) fn name(self, seconds: u64) -> String {
        format!("{seconds:010}{}", self.suffix())
    }

    /// Parses a name into seconds and format; `None` for a name that is not of this scheme.
    pub(super) fn of_name(name: &str) -> Option<(u64, Format)> {
        let (digits, suffix) = name.split_at_checked(10)?;
        let format = Format::ALL.into_iter().find(|format| format.suffix() == suffix)?;
        let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        all_digits.then(|| Some((digits.parse().ok()?, format)))?
    }
}

/// Returns the seconds for a new file: the current time, but more than the last file has, even if the clock was set
/// back. `None` if no such number is left.
pub(super) fn next_seconds(now: u64, last: Option<u64>) -> Option<u64> {
    let next = now.max(SECONDS_MIN).max(last.map_or(0, |last| last + 1));
    Some(next).filter(|next| *next <= SECONDS_MAX)
}

/// Creates a directory if it does not exist. Its parent must exist, so that nothing is created in place of an unmounted
/// volume.
pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    if path.as_os_str().len() + "/9999999999.taskd".len() > PATH_BYTES_MAX {
        let why = format!("the path {} is longer than {PATH_BYTES_MAX} bytes", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidFilename, why));
    }
    match DirBuilder::new().mode(0o755).create(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    if std::fs::symlink_metadata(path)?.is_dir() {
        return Ok(());
    }
    let why = format!("{} is not a directory: symbolic links are not followed here", path.display());
    Err(io::Error::new(io::ErrorKind::NotADirectory, why))
}

/// Opens a file for appending; with `is_new` it must not exist yet.
pub(super) fn open_to_append(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).read(true).create_new(is_new).mode(0o644).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options.open(path)
}

/// Opens a file for reading.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// File with stored records of one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredFile {
    /// Time at which the file was begun, in seconds since 1970, as in its name; not less than that of earlier files.
    pub seconds: u64,
    /// Format of the file's records.
    pub format: Format,
    /// Path of the file.
    pub path: PathBuf,
}

/// Contents of the directory in which a trace store keeps the files of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFiles {
    /// Files with records, oldest first.
    pub files: Vec<StoredFile>,
    /// Names of the directory's entries other than record files: the first [`OTHERS_MAX`] that were found.
    pub others: Vec<String>,
    /// Number of all entries of the directory other than record files, including those that `others` does not list.
    pub others_count: u64,
}

/// Maximum number of entries other than record files that [`RankFiles::others`] lists. Further entries are only
/// counted.
pub const OTHERS_MAX: usize = 16;

impl RankFiles {
    /// Lists the files in a rank's directory.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be read.
    pub fn list(dir: &Path) -> io::Result<RankFiles> {
        let mut found = RankFiles::default();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
            match name.to_str().and_then(Format::of_name).filter(|_| is_file) {
                Some((seconds, format)) => found.files.push(StoredFile { seconds, format, path: entry.path() }),
                None => {
                    found.others_count += 1;
                    if found.others.len() < OTHERS_MAX {
                        found.others.push(name.to_string_lossy().into_owned());
                    }
                }
            }
        }
        found.files.sort();
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_ten_digits_are_ours() {
        assert_eq!(Format::of_name("1718000000"), Some((1_718_000_000, Format::Compatible)));
        assert_eq!(Format::of_name("1718000000.taskd"), Some((1_718_000_000, Format::Native)));
        let others =
            ["", "171800000", "17180000000", "1718000000.bak", "171800000x", "+718000000", "parallel_group.json"];
        assert!(others.iter().all(|name| Format::of_name(name).is_none()));
        assert_eq!(Format::of_name("ééééé"), None, "ten bytes, and no digit");
        for format in Format::ALL {
            assert_eq!(Format::of_name(&format.name(1_718_000_000)), Some((1_718_000_000, format)));
        }
    }

    #[test]
    fn seconds_never_go_back() {
        assert_eq!(next_seconds(1_718_000_000, None), Some(1_718_000_000));
        assert_eq!(next_seconds(1_718_000_000, Some(1_718_000_000)), Some(1_718_000_001));
        assert_eq!(next_seconds(1_718_000_000, Some(1_800_000_000)), Some(1_800_000_001), "the clock was set back");
        assert_eq!(next_seconds(12, None), Some(SECONDS_MIN), "the clock was never set");
        assert_eq!(next_seconds(12, Some(SECONDS_MAX)), None);
    }
}

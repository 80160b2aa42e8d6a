//! Names of stored files, and what lies in their directories.
//!
//! It follows no symbolic link below the root, and never opens what is not named as one of ours.
//!
//! ```text
//! <root>/<task>/<rank>/<unix seconds>          the compatible format
//! <root>/<task>/<rank>/<unix seconds>.taskd    the native one
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of a path, at most.
pub const PATH_BYTES_MAX: usize = 1024;
/// The variable that names the task.
pub const TASK_VARIABLE: &str = "MINDX_TASK_ID";

/// Seconds in a file's name have ten digits, until the year 2286.
const SECONDS_MIN: u64 = 1_000_000_000;
const SECONDS_MAX: u64 = 9_999_999_999;

/// How a file holds its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Blocks of a few bytes a record: see [`native`](super::native).
    Native,
    /// A JSON object a line, as others read it: see [`compatible`](super::compatible).
    Compatible,
}

impl Format {
    /// Both.
    pub const ALL: [Format; 2] = [Format::Native, Format::Compatible];

    /// What stands behind the seconds in a file's name.
    const fn suffix(self) -> &'static str {
        match self {
            Format::Native => ".taskd",
            Format::Compatible => "",
        }
    }

    /// A file's name.
    pub(super) fn name(self, seconds: u64) -> String {
        format!("{seconds:010}{}", self.suffix())
    }

    /// Seconds and format of a name; `None` for one that no file of ours has.
    pub(super) fn of_name(name: &str) -> Option<(u64, Format)> {
        let (digits, suffix) = name.split_at_checked(10)?;
        let format = Format::ALL.into_iter().find(|format| format.suffix() == suffix)?;
        let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
        all_digits.then(|| Some((digits.parse().ok()?, format)))?
    }
}

/// The name of a task's directory: the variable's value, or one made of the time where there is none.
#[must_use]
pub fn task_of(variable: Option<String>, unix_seconds: u64) -> String {
    variable.filter(|task| !task.is_empty()).unwrap_or_else(|| format!("default_task_id_{unix_seconds}"))
}

/// The seconds for a new file: those of now, but above those of every file before, whatever became of the clock. `None` when
/// there are no such seconds.
pub(super) fn next_seconds(now: u64, last: Option<u64>) -> Option<u64> {
    let next = now.max(SECONDS_MIN).max(last.map_or(0, |last| last + 1));
    Some(next).filter(|next| *next <= SECONDS_MAX)
}

/// Makes a directory that is not there. Its parent must be: in the place of a volume that is not mounted nothing is made.
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
    let why = format!("{} is no directory: symbolic links are not followed here", path.display());
    Err(io::Error::new(io::ErrorKind::NotADirectory, why))
}

/// Opens a file to append to it; with `is_new` there must be none.
pub(super) fn open_to_append(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).read(true).create_new(is_new).mode(0o644).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
    options.open(path)
}

/// Opens a file to read it.
pub(super) fn open_to_read(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// A file of a rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredFile {
    /// When it was begun, in seconds since 1970; not below those of files before.
    pub seconds: u64,
    /// How it holds its records.
    pub format: Format,
    /// Where it is.
    pub path: PathBuf,
}

/// What lies in a rank's directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFiles {
    /// Files of records, oldest first.
    pub files: Vec<StoredFile>,
    /// Names of others, the first [`OTHERS_MAX`] that were met.
    pub others: Vec<String>,
    /// How many others there are.
    pub others_count: u64,
}

/// So many names of other files are told.
pub const OTHERS_MAX: usize = 16;

impl RankFiles {
    /// Lists a rank's directory.
    ///
    /// # Errors
    /// When it cannot be read.
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

    #[test]
    fn a_task_without_a_name_is_named_by_the_time() {
        assert_eq!(task_of(Some("t-1".into()), 5), "t-1");
        assert_eq!(task_of(None, 5), "default_task_id_5");
        assert_eq!(task_of(Some(String::new()), 5), "default_task_id_5");
    }
}

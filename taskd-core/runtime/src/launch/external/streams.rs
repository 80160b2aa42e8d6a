//! Output files of an external process, from which the end of its stderr and its progress are read.
//!
//! Only regular files are read: opening a pipe or a terminal could take data from it, or block.

use crate::job::printable;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Identity of a file: device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileId(u64, u64);

impl FileId {
    pub(super) fn of(metadata: &Metadata) -> FileId {
        FileId(metadata.dev(), metadata.ino())
    }
}

/// A file to which a process writes its output.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) id: FileId,
    pub(super) file: File,
}

impl Stream {
    /// Opens the file behind a descriptor of a process, if it is a readable regular file.
    pub(super) fn of(pid: i32, fd: u32) -> Option<Stream> {
        let path = format!("/proc/{pid}/fd/{fd}");
        let named = fs::metadata(&path).ok().filter(Metadata::is_file)?;
        let file = File::open(path).ok()?;
        let opened = file.metadata().ok()?;
        (FileId::of(&opened) == FileId::of(&named)).then_some(Stream { id: FileId::of(&opened), file })
    }

    /// Returns the end of the file: whole characters, at most `bytes` bytes.
    pub(super) fn tail(&self, bytes: usize) -> io::Result<String> {
        let from = self.file.metadata()?.len().saturating_sub(bytes as u64);
        let mut buffer = vec![0; bytes];
        let read = read_at(&self.file, from, &mut buffer)?;
        let text = String::from_utf8_lossy(&buffer[..read]);
        let text = printable(&text);
        let text = text.trim_start_matches(char::REPLACEMENT_CHARACTER); // the first character may have been cut
        let excess = text.len().saturating_sub(bytes);
        let start = text.char_indices().map(|(at, _)| at).find(|at| *at >= excess).unwrap_or(text.len());
        Ok(text[start..].to_owned())
    }
}

/// Reads from an offset in a file until the buffer is full or the file ends.
pub(super) fn read_at(file: &File, from: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], from + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_file_behind_a_stream_is_found_and_a_pipe_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("err");
        let mut child = Command::new("sh")
            .args(["-c", "echo there >&2; echo ready; exec sleep 600"])
            .stdout(Stdio::piped())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        // Until then its streams may still be its parent's.
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let pid = child.id().try_into().unwrap();
        assert!(Stream::of(pid, 1).is_none());
        let stream = Stream::of(pid, 2).unwrap();
        assert_eq!(stream.id, FileId::of(&fs::metadata(&log).unwrap()));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_tail_is_whole_characters_within_its_bound() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        write!(file, "{}end", "ü".repeat(100)).unwrap();
        let stream = Stream { id: FileId(0, 0), file: File::open(file.path()).unwrap() };
        assert_eq!(stream.tail(8).unwrap(), "üüend"); // 8 bytes: half a character is left out
        assert_eq!(stream.tail(4096).unwrap().len(), 203);
        file.write_all(b"\xff\xff\xff\xff").unwrap();
        assert!(stream.tail(6).unwrap().len() <= 6);
    }
}

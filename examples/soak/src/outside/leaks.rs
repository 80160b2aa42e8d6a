//! Files that a run leaves outside of its directory, from listings before and after the run.
//!
//! Other programs use these directories, too: only files with the run's mark or one of its process ids in their names
//! count.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

/// The entries of the directories in which programs leave files: the temporary directory, shared memory, and the user's
/// cache of this project.
#[derive(Debug)]
pub(crate) struct Listing(BTreeSet<PathBuf>);

impl Listing {
    /// Lists the present entries.
    pub(crate) fn take() -> Listing {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
        let places = [Some(std::env::temp_dir()), Some(PathBuf::from("/dev/shm")), cache.map(|c| c.join("taskd"))];
        let entries = places.into_iter().flatten().filter_map(|place| fs::read_dir(place).ok()).flatten();
        Listing(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
    }

    /// Returns the new entries that belong to the run.
    pub(crate) fn new_since(&self, before: &Listing, mark: &str, pids: impl Iterator<Item = i32>) -> Vec<String> {
        let pids: BTreeSet<String> = pids.map(|pid| pid.to_string()).collect();
        let is_ours = |name: &str| {
            name.contains(mark) || name.split(|c: char| !c.is_ascii_alphanumeric()).any(|number| pids.contains(number))
        };
        let new = self.0.difference(&before.0);
        let named = new.filter(|path| path.file_name().is_some_and(|name| is_ours(&name.to_string_lossy())));
        named.map(|path| path.display().to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_and_ours_is_a_leak() {
        let listing = |paths: &[&str]| Listing(paths.iter().map(PathBuf::from).collect());
        let before = listing(&["/dev/shm/torch_77_1", "/tmp/x"]);
        let after = listing(&[
            "/dev/shm/torch_77_1",
            "/dev/shm/torch_77_2",
            "/dev/shm/torch_778",
            "/tmp/run-mark",
            "/tmp/y",
            "/tmp/tmp6pi77vr",
        ]);
        let leaks = after.new_since(&before, "mark", [77].into_iter());
        assert_eq!(leaks, ["/dev/shm/torch_77_2", "/tmp/run-mark"]);
    }
}

//! The Python files of a crate, for tests that compare them with the list of those that are embedded.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Returns the paths of all Python files below a directory, relative to it. Folders without Python files do not count.
#[must_use]
pub fn python_files_below(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            found.extend(python_files_below(&path).into_iter().map(|below| format!("{name}/{below}")));
        } else if name.ends_with(".py") {
            found.insert(name.to_owned());
        }
    }
    found
}

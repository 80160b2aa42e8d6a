//! What of the helper is MindSpore's: the Python files that travel in the program itself.

use taskd_core::launch::python::PythonFile;

macro_rules! python_files {
    ($($path:literal)*) => {
        [$(PythonFile { path: $path, text: include_str!(concat!("../../python/", $path)) }),*]
    };
}

/// MindSpore's part of the helper, for those who put it on PYTHONPATH themselves
/// ([`write_helper`](taskd_core::launch::python::write_helper)).
pub const PYTHON_FILES: [PythonFile; 5] = python_files! {
    "_taskd_framework.py"
    "taskd/_collectives.py"
    "taskd/_framework.py"
    "taskd/_mstx.py"
    "taskd/_waits.py"
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_carried_is_all_that_lies_there() {
        let dir = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/taskd")).unwrap();
        let names = dir.map(|entry| format!("taskd/{}", entry.unwrap().file_name().display()));
        let names: BTreeSet<String> = names.filter(|name| name.ends_with(".py")).collect();
        let known = PYTHON_FILES.iter().map(|file| file.path.to_owned()).filter(|path| path.contains('/')).collect();
        assert_eq!(names, known, "a file that is not carried is missing where the program runs");
    }
}

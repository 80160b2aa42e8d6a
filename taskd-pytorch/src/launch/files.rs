//! What of the helper is PyTorch's: the Python files that travel in the program itself.

use taskd_core::launch::python::PythonFile;

macro_rules! python_files {
    ($($path:literal)*) => {
        [$(PythonFile { path: $path, text: include_str!(concat!("../../python/", $path)) }),*]
    };
}

/// PyTorch's part of the helper, for those who put it on PYTHONPATH themselves
/// ([`write_helper`](taskd_core::launch::python::write_helper)).
pub const PYTHON_FILES: [PythonFile; 58] = python_files! {
    "_taskd_framework.py"
    "_taskd_warm.py"
    "taskd/_accelerate.py"
    "taskd/_alone.py"
    "taskd/_begin_alone.py"
    "taskd/_buffers.py"
    "taskd/_completer.py"
    "taskd/_copied.py"
    "taskd/_data.py"
    "taskd/_dial.py"
    "taskd/_digest.py"
    "taskd/_dump.py"
    "taskd/_engine.py"
    "taskd/_forward.py"
    "taskd/_framework.py"
    "taskd/_fsdp.py"
    "taskd/_gloo.py"
    "taskd/_group_calls.py"
    "taskd/_group_ends.py"
    "taskd/_group_names.py"
    "taskd/_group_recorder.py"
    "taskd/_groups.py"
    "taskd/_groups_anew.py"
    "taskd/_guards.py"
    "taskd/_kept.py"
    "taskd/_late.py"
    "taskd/_latest.py"
    "taskd/_load_dump.py"
    "taskd/_loader.py"
    "taskd/_made.py"
    "taskd/_meeting.py"
    "taskd/_nccl.py"
    "taskd/_newcomer.py"
    "taskd/_noted.py"
    "taskd/_notes.py"
    "taskd/_optimizers.py"
    "taskd/_passing.py"
    "taskd/_random.py"
    "taskd/_recoverable.py"
    "taskd/_reducers.py"
    "taskd/_save.py"
    "taskd/_sockets.py"
    "taskd/_sources.py"
    "taskd/_state.py"
    "taskd/_step_kinds.py"
    "taskd/_store.py"
    "taskd/_tape.py"
    "taskd/_tracing.py"
    "taskd/_transfer.py"
    "taskd/_types.py"
    "taskd/_under_way.py"
    "taskd/_undo.py"
    "taskd/_unfinished.py"
    "taskd/_unsupported.py"
    "taskd/_until_exit.py"
    "taskd/_values.py"
    "taskd/_workers.py"
    "taskd/_zeroing.py"
};

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use taskd_core::launch::python::NEUTRAL_FILES;

    use super::*;

    #[test]
    fn what_is_carried_is_all_that_lies_there() {
        let list = |dir: &str| fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python").join(dir)).unwrap();
        let names = list("taskd").map(|entry| format!("taskd/{}", entry.unwrap().file_name().display()));
        let names: BTreeSet<String> = names.filter(|name| name.ends_with(".py")).collect();
        let known = PYTHON_FILES.iter().map(|file| file.path.to_owned()).filter(|path| path.contains('/')).collect();
        assert_eq!(names, known, "a file that is not carried is missing where the program runs");
        assert!(!NEUTRAL_FILES.iter().any(|neutral| PYTHON_FILES.iter().any(|file| file.path == neutral.path)));
    }
}

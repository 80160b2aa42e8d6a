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

    /// Operations and types have the numbers of the recorder.
    #[test]
    fn tables_are_those_of_the_core() {
        use taskd_core::trace::recorder::{DataType, Op};
        let ops: Vec<Op> = (1..=u8::MAX).map(Op::of_code).filter(|op| *op != Op::Other).collect();
        let names: Vec<String> = ops.iter().map(|op| op.name().to_uppercase()).collect();
        let program = format!(
            "from taskd import _collectives as c\n\
             print(json.dumps([[getattr(c, name) for name in {names:?}], c.TYPES, c.OTHER_TYPE]))"
        );
        let types = (1..=u8::MAX).map(DataType::of_code).filter(|one| *one != DataType::Other);
        let in_mindspore =
            |name: &str| match name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len())) {
                ("f", bits) => format!("Float{bits}"),
                ("bf", bits) => format!("BFloat{bits}"),
                ("i", bits) => format!("Int{bits}"),
                ("u", bits) => format!("UInt{bits}"),
                _ => "Bool".to_owned(),
            };
        let types: std::collections::BTreeMap<String, u8> =
            types.map(|one| (in_mindspore(one.name()), one.code())).collect();
        let codes: Vec<u8> = ops.iter().map(|op| op.code()).collect();
        let theirs = taskd_core::testing::python::evaluated(&PYTHON_FILES, &program);
        assert_eq!(theirs, serde_json::json!([codes, types, DataType::Other.code()]));
    }

    #[test]
    fn what_is_carried_is_all_that_lies_there() {
        let dir = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("python/taskd")).unwrap();
        let names = dir.map(|entry| format!("taskd/{}", entry.unwrap().file_name().display()));
        let names: BTreeSet<String> = names.filter(|name| name.ends_with(".py")).collect();
        let known = PYTHON_FILES.iter().map(|file| file.path.to_owned()).filter(|path| path.contains('/')).collect();
        assert_eq!(names, known, "a file that is not carried is missing where the program runs");
    }
}

//! MindSpore's part of the helper: the Python files that are embedded in the program.

use taskd_core::launch::python::PythonFile;

macro_rules! python_files {
    ($($path:literal)*) => {
        [$(PythonFile { path: $path, text: include_str!(concat!("../../python/", $path)) }),*]
    };
}

/// The files of taskd's Python helper that are specific to MindSpore.
/// [`MindSporeLauncher`](crate::MindSporeLauncher) writes them itself; other programs pass them to
/// [`write_helper`](taskd_core::launch::python::write_helper).
pub const PYTHON_FILES: &[PythonFile] = &python_files! {
    "_taskd_framework.py"
    "taskd/mindspore/__init__.py"
    "taskd/mindspore/collectives.py"
    "taskd/mindspore/framework.py"
    "taskd/mindspore/mstx.py"
    "taskd/mindspore/waits.py"
};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use taskd_core::testing::python::python_files_below;

    use super::*;

    /// Checks that Python's numbers of operations and data types are the recorder's.
    #[test]
    fn tables_are_those_of_the_core() {
        use taskd_core::trace::recorder::{DataType, Op};
        let ops: Vec<Op> = (1..=u8::MAX).map(Op::of_code).filter(|op| *op != Op::Other).collect();
        let names: Vec<String> = ops.iter().map(|op| op.name().to_uppercase()).collect();
        let program = format!(
            "from taskd.mindspore import collectives as c\n\
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
        let theirs = taskd_core::testing::python::evaluated(PYTHON_FILES, &program);
        assert_eq!(theirs, serde_json::json!([codes, types, DataType::Other.code()]));
    }

    #[test]
    fn embedded_files_are_all_python_files() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
        let known = PYTHON_FILES.iter().map(|file| file.path.to_owned()).collect();
        assert_eq!(python_files_below(&dir), known, "a file that is not embedded is missing where the program runs");
    }
}

//! Tests that tables in this crate's Python equal those of the core: operations, types, kinds of failures.

use serde_json::json;
use taskd_core::launch::FailureKind;
use taskd_core::launch::python::NEUTRAL_FILES;
use taskd_core::testing::python::{evaluated, variants};
use taskd_core::trace::recorder::{DataType, Op};

use super::files::PYTHON_FILES;

/// An empty module in place of torch: only tables are read.
const WITHOUT_TORCH: &str = "import sys, types\nsys.modules['torch'] = types.ModuleType('torch')\n";

#[test]
fn operations_and_types_have_the_numbers_of_the_recorder() {
    let ops: Vec<Op> = (0..=u8::MAX).map(Op::of_code).filter(|op| *op != Op::Other).collect();
    let names: Vec<String> = ops.iter().map(|op| op.name().to_uppercase()).collect();
    let program = format!(
        "{WITHOUT_TORCH}from taskd.torch.process_group import operations as g\n\
         print(json.dumps([[getattr(g, name) for name in {names:?}], g.TYPE_NAMES, list(g.WIDTHS), g.OTHER_TYPE]))"
    );
    let types: Vec<DataType> = (1..=u8::MAX).map(DataType::of_code).filter(|one| *one != DataType::Other).collect();
    let by_width =
        |name: &str| name.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<u32>().map_or(1, |bits| bits / 8);
    let in_torch = |name: &str| match name.split_at(name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len())) {
        ("f", bits) => format!("float{bits}"),
        ("bf", bits) => format!("bfloat{bits}"),
        ("i", bits) => format!("int{bits}"),
        ("u", bits) => format!("uint{bits}"),
        (name, _) => name.to_owned(),
    };
    assert_eq!(
        evaluated(PYTHON_FILES, &program),
        json!([
            ops.iter().map(|op| op.code()).collect::<Vec<_>>(),
            types.iter().map(|one| in_torch(one.name())).collect::<Vec<_>>(),
            types.iter().map(|one| by_width(one.name())).collect::<Vec<_>>(),
            DataType::Other.code(),
        ])
    );
}

#[test]
fn failure_kinds_sent_by_ranks_are_known_to_the_supervisor() {
    let kinds = variants::<FailureKind>();
    let mut found = 0;
    for file in NEUTRAL_FILES.iter().chain(PYTHON_FILES) {
        for at in file.text.split("session.failed(\"").skip(1) {
            let kind = at.split('"').next().unwrap_or_default();
            assert!(kinds.contains(kind), "{}: {kind} is none of {kinds:?}", file.path);
            found += 1;
        }
    }
    assert!(found >= 3, "{found}");
}

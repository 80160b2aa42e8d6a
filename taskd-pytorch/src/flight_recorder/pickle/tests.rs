use super::*;

fn error(bytes: &[u8]) -> String {
    read(bytes).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn plain_values_of_all_protocols_are_read() {
    // pickle.dumps({"a": [1, -2, 300, 2**40, 1.5], "b": (None, True, "x")}, protocol)
    let two = b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffM,\x01\x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00bq\x03N\x88X\x01\x00\x00\x00xq\x04\x87q\x05u.";
    let five = b"\x80\x05\x95>\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffM,\x01\x8a\x06\x00\x00\x00\x00\x00\x01G?\xf8\x00\x00\x00\x00\x00\x00e\x8c\x01b\x94N\x88\x8c\x01x\x94\x87\x94u.";
    for bytes in [&two[..], five] {
        let (values, top) = read(bytes).unwrap();
        let numbers: Vec<&Value> = values.list(values.field(top, "a")).iter().map(|at| values.get(*at)).collect();
        let expected = [Value::Int(1), Value::Int(-2), Value::Int(300), Value::Int(1 << 40), Value::Float(1.5)];
        assert_eq!(numbers, expected.iter().collect::<Vec<_>>());
        let others = values.list(values.field(top, "b"));
        assert_eq!((values.bool(Some(others[1])), values.text(Some(others[2])).as_deref()), (Some(true), Some("x")));
    }
}

#[test]
fn a_pickle_that_calls_a_function_is_refused_with_its_place() {
    let call = b"\x80\x02cposix\nsystem\nX\x02\x00\x00\x00id\x85R.";
    assert_eq!(error(call), "byte 2 of the dump is not readable: opcode c creates more than a plain value");
    assert_eq!(
        error(b"\x80\x04\x8c\x02os\x8c\x06system\x93."),
        "byte 14 of the dump is not readable: opcode \\x93 creates more than a plain value"
    );
    assert!(error(b"\x80\x02C\x01x.").contains("opcode C"), "bytes are no plain value either");
}

#[test]
fn malformed_pickles_are_refused() {
    let cases: [(&[u8], &str); 8] = [
        (b"\x80\x02}", "the dump ends too early"),
        (b"\x80\x02X\xff\xff\xff\xffa", "the dump ends too early"),
        (b"\x80\x02.", "a value is missing"),
        (b"\x80\x02h\x07.", "a value that was never stored"),
        (b"\x80\x02u.", "a mark is missing"),
        (b"\x80\x02K\x01K\x02a.", "elements for something that cannot hold them"),
        (b"\x80\x02\x8a\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01.", "a number of more than 64 bits"),
        (b"\x80\x09N.", "a pickle of protocol 9"),
    ];
    for (bytes, why) in cases {
        assert!(error(bytes).ends_with(why), "{}", error(bytes));
    }
}

#[test]
fn a_list_that_contains_itself_is_read_without_recursion() {
    let (values, top) = read(b"\x80\x02]q\x00h\x00a.").unwrap();
    assert_eq!(values.list(Some(top)), [top]);
}

#[test]
fn a_pickle_that_only_opens_marks_is_refused_at_the_limit() {
    let mut bytes = b"\x80\x02".to_vec();
    bytes.resize(VALUES_MAX + 8, b'(');
    assert!(error(&bytes).starts_with("the dump has more than 8388608"), "{}", error(&bytes));
}

//! What the names of markers say.

use super::own::texts::{Communication, Said, op_of, said, step};
use std::borrow::Cow;

#[test]
fn names_of_the_default_domain_are_steps_and_the_like() {
    let of = |text: &'static str| said(text.as_bytes(), b"default");
    assert_eq!(of("step 12"), Said::Step(12));
    for (text, kind) in [("dataloader", 2), ("save_checkpoint", 3), ("forward", 4)] {
        assert_eq!(of(text), Said::Kind(kind));
        assert_eq!(said(text.as_bytes(), b""), Said::Kind(kind), "a domain that is not told is the default one");
        assert_eq!(said(text.as_bytes(), b"NULL"), Said::Kind(kind));
        assert_eq!(said(text.as_bytes(), b"mine"), Said::Marker(Cow::Borrowed(text)));
    }
    for text in ["step", "step ", "step 1a", "step -1", "step 99999999999999999999", "steps 1", ""] {
        assert_eq!(of(text), Said::Marker(Cow::Borrowed(text)));
        assert_eq!(step(text.as_bytes()), None);
    }
}

#[test]
fn both_published_texts_of_communications_are_understood() {
    let of = |text: &'static str| said(text.as_bytes(), b"communication");
    let all_reduce = Communication {
        name: "HcclAllReduce".into(),
        op: 1,
        data_type: 3,
        group: "group_name_12".into(),
        elements: 1024,
        bytes: 2048,
        peer: None,
    };
    let json =
        r#"{"streamId":"7","count":"1024","dataType":"bfp16","opName":"HcclAllReduce","groupName":"group_name_12"}"#;
    assert_eq!(of(json), Said::Communication(all_reduce.clone()));
    assert_eq!(of("comm:HcclAllReduce,group_name_12,bfp16,1024"), Said::Communication(all_reduce.clone()));
    let with_commas = Communication { group: "tp,0,1".into(), ..all_reduce };
    assert_eq!(of("comm:HcclAllReduce,tp,0,1,bfp16,1024"), Said::Communication(with_commas));
    let send = Communication {
        name: "HcclSend".into(),
        op: 10,
        data_type: 0,
        group: "a \"g\" é".into(),
        elements: 0,
        bytes: 0,
        peer: Some(5),
    };
    let json = r#" { "opName" : "HcclSend" , "groupName":"a \"g\" \u00e9", "count":"na","dataType":"na","srcRank":"3","destRank":5 } "#;
    assert_eq!(of(json), Said::Communication(send));
    for text in
        ["{", "{}x", "[]", "{\"a\"}", "{\"a\":\"b\"", "{\"a\":{}}", "comm:HcclSend,g", "allreduce", "{\"a\":\"\\x\"}"]
    {
        assert_eq!(of(text), Said::Marker(Cow::Borrowed(text)));
    }
    assert!(matches!(of("{}"), Said::Communication(told) if told == Communication::default()));
}

#[test]
fn operations_are_known_by_every_spelling() {
    let known = [
        ("HcclAllReduce", 1),
        ("hcom_allReduce__123_0", 1),
        ("HcclAllGather", 2),
        ("HcclReduceScatter", 3),
        ("HcclBroadcast", 4),
        ("HcclReduce", 5),
        ("HcclScatter", 7),
        ("hcom_gather__1_2", 6),
        ("HcclAlltoAll", 8),
        ("HcclAlltoAllV", 8),
        ("HcclBarrier", 9),
        ("HcclSend", 10),
        ("HcclRecv", 11),
        ("hcclreceive", 11),
        ("HcclBatchSendRecv", 0),
        ("", 0),
    ];
    for (name, op) in known {
        assert_eq!(op_of(name), op, "{name}");
    }
}

use super::*;

#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
enum Earlier<F> {
    Repair { step: u64, from: F, to: Vec<Rank>, put_back: bool },
}

/// Reads what an earlier version wrote, in the log's form and on the link.
fn read<F: Serialize>(from: F) -> Vec<Directive> {
    let earlier = Earlier::Repair { step: 6, from, to: vec![Rank(1)], put_back: true };
    let mut logged = Vec::new();
    earlier.serialize(&mut rmp_serde::Serializer::new(&mut logged).with_struct_map()).expect("it can be written");
    let told = serde_json::to_string(&earlier).expect("it can be written");
    vec![rmp_serde::from_slice(&logged).expect("a directive"), serde_json::from_str(&told).expect("a directive")]
}

#[test]
fn a_repair_names_one_source_or_none_in_older_logs_and_a_list_since() {
    let peer = |rank| Peer { rank: Rank(rank), pid: Some(7) };
    let repair = |from| Directive::SyncState { step: 6, from, to: vec![Rank(1)], rollback: true, buckets: None };
    assert!(read(None::<Peer>).iter().all(|read| *read == repair(vec![])));
    assert!(read(Some(peer(2))).iter().all(|read| *read == repair(vec![peer(2)])));
    let both = vec![peer(2), peer(3)];
    assert!(read(&both).iter().all(|read| *read == repair(both.clone())));
    let text = serde_json::to_string(&repair(both)).expect("it can be written");
    assert!(text.contains(r#""from":[{"rank":2,"pid":7},{"rank":3,"pid":7}]"#), "{text}");
}

//! What is left of recoveries that end in their middle. The programs are those of `halves.py`.

use serde_json::json;

use super::{findings, is_exact};

#[test]
fn rank_with_a_partial_copy_is_torn_until_a_copy_completes() {
    let test = "rank_with_a_partial_copy_is_torn_until_a_copy_completes";
    let Some(found) = findings(test, "half_copied") else { return };
    let failed = &found["failed"];
    assert!(failed[0].as_str().is_some_and(|why| why.contains("closed the connection in the middle")), "{found:#}");
    assert_eq!(failed[1], "given up", "{found:#}");
    let torn = json!({"step": 10, "window": "torn"});
    assert_eq!(
        found["reported"],
        json!([torn, torn]),
        "after the copy, and after a step by itself that was broken off"
    );
    assert!(is_exact(&found), "{found:#}");
}

#[test]
fn running_means_that_no_rank_copies_from_another_are_put_back() {
    let Some(found) = findings("running_means_that_no_rank_copies_from_another_are_put_back", "own_buffers") else {
        return;
    };
    assert!(is_exact(&found), "{found:#}");
}

#[test]
fn buffers_that_are_more_than_a_store_takes_are_copied_like_all_else() {
    let Some(found) = findings("buffers_that_are_more_than_a_store_takes_are_copied_like_all_else", "large_buffers")
    else {
        return;
    };
    assert!(is_exact(&found), "{found:#}");
    assert!(found["phases"][0]["copied"].as_u64() >= Some(1), "{found:#}"); // others may be behind as well
}

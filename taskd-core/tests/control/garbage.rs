//! Anything at all as a line: an answer, never a panic.

use crate::support::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use taskd_core::runtime::control::{ControlErrorKind, Request};
use tokio::io::AsyncWriteExt;

/// Good lines, of every call.
fn good() -> Vec<String> {
    let recorded = include_str!("../recorded/control-requests-1.jsonl");
    recorded.lines().map(str::to_owned).collect()
}

/// A good line with accidents: bytes changed, lost, repeated, put in; the ends of two lines exchanged.
fn mutated(good: &[String], dice: &mut StdRng) -> Vec<u8> {
    let mut line = good[dice.random_range(0..good.len())].clone().into_bytes();
    for _ in 0..dice.random_range(1..4) {
        let at = dice.random_range(0..line.len().max(1)).min(line.len());
        let to = (at + dice.random_range(0..20)).min(line.len());
        match dice.random_range(0..6) {
            0 if at < line.len() => line[at] = dice.random_range(0..=255),
            1 => drop(line.drain(at..to)),
            2 => {
                let again = line[at..to].to_vec();
                line.splice(at..at, again);
            }
            3 => {
                let words = ["null", "-1", "1e999", "\"\\ud800\"", "[[[[", "{\"v\":", "18446744073709551616", "\0"];
                line.splice(at..at, words[dice.random_range(0..words.len())].bytes());
            }
            4 => line.truncate(at),
            _ => {
                let other = good[dice.random_range(0..good.len())].as_bytes();
                line.truncate(at);
                line.extend_from_slice(&other[dice.random_range(0..other.len())..]);
            }
        }
    }
    line.retain(|byte| *byte != b'\n');
    line
}

#[test]
fn a_hundred_thousand_mutated_lines_are_read_or_refused() {
    let (good, mut dice) = (good(), StdRng::seed_from_u64(7));
    let (mut read, mut refused) = (0, 0);
    for _ in 0..100_000 {
        let line = mutated(&good, &mut dice);
        match Request::parse(&line) {
            Ok(request) => {
                read += 1;
                let again = serde_json::to_vec(&request).unwrap();
                assert_eq!(Request::parse(&again).unwrap(), request, "{}", String::from_utf8_lossy(&line));
            }
            Err((_, trouble)) => {
                refused += 1;
                assert!(!trouble.text.is_empty());
                assert!(matches!(trouble.kind, ControlErrorKind::BadRequest | ControlErrorKind::Version));
            }
        }
    }
    assert!(read > 1000 && refused > 50_000, "{read} read, {refused} refused: some of both");
}

#[test]
fn malformed_lines_and_other_versions_are_refused_with_reasons() {
    for (line, kind, sentence) in [
        (r#"{"v":3,"do":"fly"}"#, ControlErrorKind::Version, "speaks version 2 of the protocol, not 3"),
        (r#"{"v":"1","do":"status"}"#, ControlErrorKind::Version, "not \"1\""),
        (r#"{"do":"status"}"#, ControlErrorKind::BadRequest, "\"v\" is missing: begin with {\"v\":2,\"do\":…}"),
        (
            r#"{"v":2,"do":"fly"}"#,
            ControlErrorKind::BadRequest,
            "unknown variant `fly`, expected one of `status`, `explain`",
        ),
        (r#"{"v":2}"#, ControlErrorKind::BadRequest, "missing field `do`"),
        (r#"{"v":2,"do":"status","x":1}"#, ControlErrorKind::BadRequest, "unknown field `x`"),
        (r#"{"v":2,"id":-1,"do":"status"}"#, ControlErrorKind::BadRequest, "the id -1 is not a number from 0 on"),
        (r#"{"v":2,"by":"","do":"status"}"#, ControlErrorKind::BadRequest, "\"by\" must be a text of 1 to 64 bytes"),
        ("[1]", ControlErrorKind::BadRequest, "the line is not a JSON object"),
        ("GET / HTTP/1.1", ControlErrorKind::BadRequest, "the line is not a JSON object"),
    ] {
        let (_, trouble) = Request::parse(line.as_bytes()).unwrap_err();
        assert_eq!(trouble.kind, kind, "{trouble:?}");
        assert!(trouble.text.contains(sentence), "{line}: {}", trouble.text);
    }
    assert_eq!(Request::parse(br#"{"v":9,"id":12}"#).unwrap_err().0, Some(12), "the id comes back all the same");
}

#[tokio::test]
async fn garbage_lines_are_each_answered_and_the_runtime_continues() {
    let limits = taskd_core::runtime::control::SocketLimits::default();
    let served = Served::with(limits, |builder| builder).await;
    let (good, mut dice) = (good(), StdRng::seed_from_u64(8));
    let mut client = served.client().await;
    let mut sent = 0;
    while sent < 300 {
        let line = mutated(&good, &mut dice);
        if Request::parse(&line).is_ok() || line.iter().all(u8::is_ascii_whitespace) {
            continue; // a good one might stop the job
        }
        client.to.write_all(&[&line[..], b"\n"].concat()).await.unwrap();
        assert!(client.line().await.unwrap()["error"]["kind"].is_string());
        sent += 1;
    }
    let status = client.ok(json!({"do": "status"})).await;
    assert_eq!(status["socket"]["bad_lines"], sent);
    assert_eq!(status["job"]["life"], "training");
}

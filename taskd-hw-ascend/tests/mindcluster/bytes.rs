//! Whatever stands in a file or a value, reading it ends, without a panic.
//!
//! `TASKD_SOAK=1` runs a million cases each.

use super::{noted, sources, spec};
use proptest::prelude::*;
use taskd_core::job::Name;
use taskd_hw_ascend::mindcluster::{Framework, Key};

const SAMPLE: &str = "metadata: &m\n  labels: {fault-scheduling: \"grace\", process-recover-enable: 'on'}\n  annotations:\n    \
                      recover-strategy: retry,dump\nspec:\n  - <<: *m\n    containers:\n    - env:\n      - {name: MS_ENABLE_TFT, value: \
                      '{TTP:1, HCCE:1}'}\n      args: [\"--max_restarts\", '3']\n      text: |\n        a\n---\nother: !!str >-\n  b\n";
const DOWNWARD: &str = "fault-scheduling=\"gr\\u00e4ce\"\nrecover-strategy=\"retry,\\\"dump\\\"\"\nzone=\"\\x41\"\n";

fn config() -> ProptestConfig {
    let cases = if std::env::var("TASKD_SOAK").is_ok_and(|soak| soak == "1") { 1_000_000 } else { 5_000 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// A sample with a few pieces of it replaced, moved or left out; one in ten is no sample at all.
fn mutated(sample: &'static str) -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("\"".to_owned()),
        Just("{".to_owned()),
        Just("]".to_owned()),
        Just("- - - ? ".to_owned()),
        Just("&a *a <<: ".to_owned()),
        Just("\n\t\r".to_owned()),
        Just("!!x |+2\n %".to_owned()),
        Just("\\u\\U\\x".to_owned()),
        any::<String>().prop_map(|text| text.chars().take(6).collect()),
    ];
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..24_usize, piece), 0..5);
    let changed = edits.prop_map(move |edits| {
        let mut chars: Vec<char> = sample.chars().collect();
        for (at, length, piece) in edits {
            let from = at.index(chars.len().max(1)).min(chars.len());
            let to = (from + length).min(chars.len());
            chars.splice(from..to, piece.chars());
        }
        chars.into_iter().collect()
    });
    prop_oneof![9 => changed, 1 => any::<String>()]
}

#[test]
fn a_file_of_nothing_but_beginnings_is_read_to_its_end() {
    for piece in [
        "[",
        "{",
        "- ",
        "? ",
        "a: [",
        "{a: ",
        "&a ",
        "*a ",
        "!",
        "\"",
        "a:\n",
        "- a\n",
        "---\n- \n",
        "a: &a b\n",
        "%",
        "|\n",
        "'",
        "#",
    ] {
        let text = piece.repeat((1 << 20) / piece.len());
        assert!(sources(&spec()).job_text("job.yaml", &text).is_err(), "{piece:?}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_job_file_of_whatever_text_is_read_or_refused(text in mutated(SAMPLE)) {
        if let Ok(sources) = sources(&spec()).job_text("job.yaml", &text) {
            let mut job = spec();
            sources.configured().apply(&mut job);
            prop_assert_eq!(job.problems(), []);
        }
    }

    #[test]
    fn a_downward_file_of_whatever_text_is_read_or_refused(text in mutated(DOWNWARD), key in prop::sample::select(Key::ALL.to_vec())) {
        for name in ["labels", key.name()] {
            if let Ok(sources) = sources(&spec()).downward_text(name, &text) {
                let _ = sources.configured();
            }
        }
    }

    #[test]
    fn arbitrary_values_never_forbid_exit(
        values in prop::collection::btree_map(
            prop::sample::select(Key::ALL.to_vec()),
            prop_oneof![
                any::<String>(),
                Just("{TTP:1}\0,retry".to_owned()),
                prop::sample::select(vec!["on", "off", "retry,x", "{TTP:1, ARF:0}", "L1:1", "MaxCnt:2", "99999999999", "1e400"])
                    .prop_map(str::to_owned),
            ],
            0..8,
        ),
        torch in any::<bool>(),
    ) {
        let pairs: Vec<(&str, &str)> = values.iter().map(|(key, value)| (key.name(), value.as_str())).collect();
        let mut job = noted(&pairs);
        let framework = if torch { Framework::PyTorch } else { Framework::MindSpore };
        let configured = sources(&job).framework(framework).configured();
        configured.apply(&mut job);
        prop_assert!(configured.forbids(&Name::new("exit")).is_none());
        prop_assert_eq!(job.problems(), []);
    }
}

//! The report as text. `.ci/report-pages` opens the pages in a browser.

mod support;

use super::{RunEntry, html, index, json};
use crate::document::Analysis;
use std::fs;
use std::path::PathBuf;
use support::document;

/// Returns the content of a script element of the page by its identifier.
fn element(page: &str, id: &str) -> String {
    let (_, after) = page.split_once(&format!("id=\"{id}\">")).unwrap();
    after.split_once("</script>").unwrap().0.to_owned()
}

/// Writes the pages of the sizes that `.ci/report-pages` opens, into the directory that `TASKD_REPORT_PAGES` names.
#[test]
fn pages_of_all_sizes_are_written_for_the_browser() {
    let Some(directory) = std::env::var_os("TASKD_REPORT_PAGES").map(PathBuf::from) else { return };
    fs::create_dir_all(&directory).unwrap();
    let write = |name: &str, content: String| fs::write(directory.join(name), content).unwrap();
    let mut runs = Vec::new();
    for (ranks, steps) in [(4, 12), (64, 40), (1_024, 100)] {
        let analysis = document(ranks, steps);
        write(&format!("{ranks}.json"), json(&analysis));
        write(&format!("{ranks}.html"), html(&analysis));
        runs.push(RunEntry::new(&format!("{ranks}.html"), &analysis));
    }
    write("empty.html", html(&Analysis::default()));
    write("index.html", index(&runs));
}

#[test]
fn page_has_all_figures_of_the_document() {
    let analysis = document(4, 6);
    let page = html(&analysis);
    let mut shown: serde_json::Value = serde_json::from_str(&element(&page, "analysis")).unwrap();
    shown["timeline"] = serde_json::from_str(&element(&page, "timeline-data")).unwrap();
    let written: serde_json::Value = serde_json::from_str(&json(&analysis)).unwrap();
    assert!(shown == written, "the page has other figures than the JSON");
}

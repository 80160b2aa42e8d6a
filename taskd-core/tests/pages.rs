//! What the pages state of the code: names of plugins, links, and programs. A page that differs is wrong.

#![allow(clippy::unwrap_used)] // helpers of tests are tests

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use taskd_core::{detect, recover};

const PAGES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "BENCHMARKS.md", "CHANGELOG.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The pages of the guide, as they stand in the repository.
fn guide() -> Vec<(String, String)> {
    let dir = root().join("taskd-core/src/guide");
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let pages = files.filter(|path| path.extension().is_some_and(|ext| ext == "md"));
    pages.map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap())).collect()
}

/// The line of a page that begins so.
fn row(page: &str, begins: &str) -> String {
    let text = read(page);
    text.lines()
        .map(str::trim)
        .find(|line| line.starts_with(begins))
        .unwrap_or_else(|| panic!("{page} has no {begins:?}"))
        .to_owned()
}

/// A name as a sentence has it: `failed-step` is "failed step", `shrunk` qualifies the world.
fn in_words(name: &str) -> String {
    name.replace('-', " ")
}

#[test]
fn every_page_that_lists_the_default_detectors_lists_all_of_them() {
    let names: Vec<String> = detect::defaults().iter().map(|detector| in_words(detector.name().as_str())).collect();
    let places = [
        row("README.md", "| `FaultDetector`"),
        row("README.md", ".detectors(detect::defaults())"),
        row("ARCHITECTURE.md", "| `taskd-core` | `Heartbeats`"),
        row("taskd-core/src/lib.rs", "//! | is something wrong?"),
    ];
    for place in places {
        let missing: Vec<&String> = names.iter().filter(|name| !place.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?} are missing in {place:?}");
    }
}

#[test]
fn every_page_that_lists_the_default_strategies_lists_all_of_them() {
    let names: Vec<String> = recover::defaults().iter().map(|strategy| strategy.name().to_string()).collect();
    let guide = read("taskd-core/src/guide/recovering.md");
    let table: String = guide.lines().filter(|line| line.starts_with("| `")).collect();
    let places =
        [row("README.md", "| `RecoveryStrategy`"), row("taskd-core/src/lib.rs", "//! | what would repair it?"), table];
    for place in places {
        let missing: Vec<&String> = names.iter().filter(|name| !place.contains(name.as_str())).collect();
        assert!(missing.is_empty(), "{missing:?} are missing in {place:?}");
    }
}

/// What stands in the brackets of links, code left out.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        if in_code {
            continue;
        }
        links.extend(line.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())));
    }
    links
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        kept.chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .collect::<String>()
            .replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_within_the_repository_leads_somewhere() {
    for page in PAGES {
        for link in links(&read(page)).iter().filter(|link| !link.starts_with("http")) {
            let (file, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(file, anchor)| (file, Some(anchor)));
            let file = if file.is_empty() { page } else { file };
            assert!(root().join(file).exists(), "{page} links to {link}, which is not there");
            let there = anchor.is_none_or(|anchor| anchors(&read(file)).contains(anchor));
            assert!(there, "{page} links to {link}, and there is no such heading");
        }
    }
}

/// The crates are in no registry yet, so no page of theirs is on docs.rs.
#[test]
fn no_page_links_to_documentation_that_is_not_published() {
    let pages = PAGES.map(|page| (page.to_owned(), read(page)));
    for (page, text) in pages.into_iter().chain(guide()) {
        let dead: Vec<String> = links(&text).into_iter().filter(|link| link.contains("docs.rs/taskd")).collect();
        assert!(dead.is_empty(), "{page}: {dead:?}");
    }
}

/// A `main` that returns an error prints it as Debug and ends with 1, which means that the job has failed.
/// One without a result is a test's, which may panic.
#[test]
fn no_program_of_a_page_ends_with_an_error_as_debug() {
    let pages = PAGES.map(|page| (page.to_owned(), read(page)));
    let program = ("recovering.rs".to_owned(), read("taskd-core/src/guide/programs/recovering.rs"));
    let mut mains = 0;
    for (page, text) in pages.into_iter().chain(guide()).chain([program]) {
        for line in text.lines().filter(|line| line.starts_with("fn main(")) {
            assert!(["fn main() -> ExitCode {", "fn main() {"].contains(&line), "{page}: {line}");
            mains += usize::from(line.contains("ExitCode"));
        }
    }
    assert_eq!(mains, 3, "in README, quick start and the program for recovery");
}

/// What a reader has to write into a `Cargo.toml` for a program that is shown.
#[test]
fn a_page_that_shows_a_program_shows_its_dependencies() {
    for page in ["README.md", "taskd-core/src/guide/quick_start.md"] {
        let text = read(page);
        let toml: String = text.split("```toml").nth(1).unwrap().split("```").next().unwrap().to_owned();
        let program: String = text.split("fn main() -> ExitCode").next().unwrap().to_owned()
            + text.split("fn main() -> ExitCode").nth(1).unwrap();
        for (used, crate_name) in
            [("taskd_core::", "taskd-core"), ("tokio::", "tokio"), ("tracing_subscriber::", "tracing-subscriber")]
        {
            assert!(program.contains(used) && toml.contains(&format!("{crate_name} = ")), "{page}: {crate_name}");
        }
    }
}

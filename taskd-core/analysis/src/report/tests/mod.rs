//! The report as text. `.ci/report-pages` opens the pages in a browser.

mod kernels;
mod support;

use super::{
    LiveFigures, LiveStatus, RunEntry, View, comparison_html, html, index, json, live_html, live_policy, svg, terminal,
};
use crate::document::Analysis;
use crate::synthetic::{Fault, Job, trace};
use crate::{Settings, analyze, compare};
use std::fs;
use std::path::PathBuf;
use support::document;

/// A name that would be an element or a script, if the page treated it as markup.
const HOSTILE: &str =
    "<img src=x onerror=\"window.pwned=1\"></script><!--<script>window.pwned=1</script>\u{2028}{{script}}\u{1b}[31m'&";

/// Returns the content of a script element of the page by its identifier.
fn element(page: &str, id: &str) -> String {
    let (_, after) = page.split_once(&format!("id=\"{id}\">")).unwrap();
    after.split_once("</script>").unwrap().0.to_owned()
}

/// Returns a document in which every text is hostile.
fn hostile() -> Analysis {
    let mut analysis = document(4, 4);
    for info in &mut analysis.ranks {
        info.host = Some(HOSTILE.to_owned());
    }
    let text = json(&analysis);
    let mut value: serde_json::Value = serde_json::from_str(&text).unwrap();
    replace_texts(&mut value);
    // The paths of the means are keys, not texts.
    serde_json::from_value(value).unwrap()
}

fn replace_texts(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => *text = HOSTILE.to_owned(),
        serde_json::Value::Array(items) => items.iter_mut().for_each(replace_texts),
        serde_json::Value::Object(fields) => fields.values_mut().for_each(replace_texts),
        _ => {}
    }
}

/// Returns the document of a simulated job with a slow rank.
fn simulated() -> Analysis {
    let job = Job { dp: 4, tp: 2, pp: 2, ..Job::default() }.with_fault(Fault::SlowRank {
        rank: 5,
        from_step: 6,
        percent: 50,
    });
    analyze(&trace(&job, 1), &Settings::default())
}

/// Writes the pages that `.ci/report-pages` opens, into the directory that `TASKD_REPORT_PAGES` names.
#[test]
fn pages_are_written_for_the_browser() {
    let Some(directory) = std::env::var_os("TASKD_REPORT_PAGES").map(PathBuf::from) else { return };
    fs::create_dir_all(&directory).unwrap();
    let write = |name: &str, content: String| fs::write(directory.join(name), content).unwrap();
    let mut runs = Vec::new();
    for (ranks, steps) in [(4, 12), (64, 40), (1_024, 100)] {
        let analysis = document(ranks, steps);
        write(&format!("{ranks}.json"), json(&analysis));
        write(&format!("{ranks}.html"), html(&analysis));
        runs.push(RunEntry::new(&format!("{ranks}.html"), &analysis));
        for (view, name) in View::ALL {
            write(&format!("{ranks}-{name}.svg"), svg(&analysis, view));
        }
    }
    let analysis = simulated();
    write("16.json", json(&analysis));
    write("16.html", html(&analysis));
    runs.push(RunEntry::new("16.html", &analysis));
    let comparison = compare(&document(4, 12), &analysis);
    write("comparison.json", serde_json::to_string(&comparison).unwrap());
    write("comparison.html", comparison_html(&comparison));
    write("empty.html", html(&Analysis::default()));
    write("hostile.html", html(&hostile()));
    write("index.html", index(&runs));
}

#[test]
fn page_has_all_figures_of_the_document() {
    let analysis = simulated();
    let page = html(&analysis);
    let mut shown: serde_json::Value = serde_json::from_str(&element(&page, "analysis")).unwrap();
    shown["timeline"] = serde_json::from_str(&element(&page, "timeline-data")).unwrap();
    for spans in shown["timeline"]["spans"].as_array_mut().unwrap() {
        let each: Vec<_> = spans.as_array().unwrap().chunks(5).map(|span| span.to_vec().into()).collect();
        *spans = serde_json::Value::Array(each);
    }
    let written: serde_json::Value = serde_json::from_str(&json(&analysis)).unwrap();
    assert!(shown == written, "the page has other figures than the JSON");
}

#[test]
fn page_admits_its_own_script_and_style_only() {
    let page = html(&document(4, 4));
    let (_, policy) = page.split_once("Content-Security-Policy\" content=\"").unwrap();
    let (policy, _) = policy.split_once('"').unwrap();
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for request in ["http://", "https://", "src=", "@import", "url(", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(request), "the page contains {request}");
    }
    for markup in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!page.contains(markup), "the page's script uses {markup}");
    }
}

#[test]
fn live_page_has_the_figures_of_the_file_and_admits_its_own_server_only() {
    let analysis = hostile();
    let status = LiveStatus { revision: 7, error: Some(HOSTILE.to_owned()), ..LiveStatus::default() };
    let (file, live) = (html(&analysis), live_html(&analysis, &status));
    for id in ["analysis", "timeline-data"] {
        assert!(element(&file, id) == element(&live, id), "{id} differs");
    }
    let shown: serde_json::Value = serde_json::from_str(&element(&live, "live-status")).unwrap();
    assert_eq!((&shown["revision"], &shown["error"]), (&7.into(), &HOSTILE.into()));
    assert_eq!(live.matches("</script>").count(), 4, "a name ended a script");
    assert!(live.contains(&live_policy()) && live_policy().ends_with("; connect-src 'self'"), "{}", live_policy());
    for markup in ["EventSource", "live-status", "connect-src"] {
        assert!(!file.contains(markup), "the file has {markup}");
    }
    let figures = LiveFigures::new(&analysis);
    assert!(!figures.analysis.contains('\n') && !figures.timeline.contains('\n'), "a line break ends an event's data");
}

#[test]
fn hostile_names_remain_text_in_every_output() {
    let analysis = hostile();
    let page = html(&analysis);
    assert!(!page.contains("<img"), "a name became an element");
    assert_eq!(page.matches("</script>").count(), 3, "a name ended a script");
    assert!(!page.contains('\u{2028}'));
    let shown: serde_json::Value = serde_json::from_str(&element(&page, "analysis")).unwrap();
    assert_eq!(shown["title"], HOSTILE);
    for (view, name) in View::ALL {
        let image = svg(&analysis, view);
        assert!(!image.contains("<img") && !image.contains("<script") && !image.contains('\u{1b}'), "{name}");
    }
    assert!(!index(&[RunEntry::new("x.html", &analysis)]).contains("<img"));
    assert!(!terminal(&analysis, false).contains('\u{1b}'));
}

#[test]
fn terminal_summary_begins_with_the_verdict() {
    let summary = terminal(&document(64, 12), false);
    assert!(summary.starts_with("Rank 40 on node-005 computes 50 % longer"), "{summary}");
    assert!(summary.contains("rank 40: slow-rank, 50.2 % slower, since step 16, confidence 98.7 %"), "{summary}");
    assert!(summary.contains("communication was collected for 10 of 12 steps"), "{summary}");
    assert!(summary.lines().count() <= 25 && !summary.contains('\u{1b}'), "{summary}");
    assert!(terminal(&document(4, 4), true).starts_with("\u{1b}[1;31m"));
}

#[test]
fn terminal_summary_of_many_findings_has_25_lines() {
    let mut analysis = document(64, 12);
    let blame = analysis.verdict.blamed[0].clone();
    analysis.verdict.blamed = vec![blame; 9];
    analysis.missing = vec!["x".repeat(1000); 30];
    let summary = terminal(&analysis, false);
    assert!(summary.lines().count() <= 25, "{summary}");
    assert!(summary.contains("and 6 more components at fault"), "{summary}");
    assert!(summary.lines().all(|line| line.chars().count() <= 200), "{summary}");
}

#[test]
fn svg_of_every_view_has_figures() {
    let analysis = document(64, 12);
    for (view, name) in View::ALL {
        let image = svg(&analysis, view);
        assert!(image.starts_with("<svg ") && image.trim_end().ends_with("</svg>"), "{name}");
        let marks = image.matches("<rect").count() + image.matches("<polyline").count();
        assert!(marks > 30, "{name}: {marks} marks");
        assert!(image.contains("40"), "{name} shows the rank at fault");
    }
}

#[test]
fn svg_without_figures_states_why() {
    for (view, name) in View::ALL {
        let image = svg(&Analysis::default(), view);
        assert!(image.contains("The trace") || image.contains("No send"), "{name}: {image}");
    }
}

#[test]
fn index_lists_runs_with_relative_links() {
    let mut fault = RunEntry::new("job a/report.html", &document(4, 4));
    let healthy =
        RunEntry { path: "../other.html".to_owned(), title: "b".to_owned(), is_healthy: true, ..RunEntry::default() };
    fault.title = "a & b".to_owned();
    let page = index(&[fault, healthy]);
    assert!(page.contains("<a href=\"./job%20a/report.html\">a &amp; b</a>"), "{page}");
    assert!(page.contains("2 runs, 1 with a fault."), "{page}");
    assert!(!page.contains("other.html"), "a link leads outside of the directory");
    assert!(page.contains("script-src 'none'"), "{page}");
    assert!(index(&[]).contains("There is no run under this directory."));
}

#[test]
fn comparison_begins_with_its_sentence() {
    let (mut before, after) = (document(4, 6), document(8, 6));
    before.title = HOSTILE.to_owned();
    let comparison = compare(&before, &after);
    let page = comparison_html(&comparison);
    let (_, from) = page.split_once("<p class=\"verdict\">").unwrap();
    assert!(from.contains("<td>step</td>"), "{page}");
    assert!(!comparison.sentence.is_empty() && !page.contains("<img") && !page.contains("<script"), "{page}");
}

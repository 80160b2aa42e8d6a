"""Opens the report's pages in headless Chromium over the DevTools protocol, and checks what an engineer would use.

Arguments: the directory of the pages, a directory for the screenshots, the browser, and the program that serves a live
page.
"""

import base64
import json
import os
import pathlib
import re
import sys
import time

from chromium import Browser
from live_report_page import live_page_works
from report_page_tables import comparison_works, outliers_open, tables_sort

OPEN_LIMIT_MS = 3000  # a page of 1,024 ranks and 100 steps, from its navigation until the verdict is drawn
OPENINGS = 3  # of which the fastest counts: other programs of the machine make one slow, never fast
SLOWEST_REDRAW_MS = 700  # one change of the timeline's zoom, on two busy cores


SECTIONS = (
    "overview steps overlap communication timeline pipeline kernels heat times critical incidents what-if hints limits "
    "clocks missing"
).split()
# Colours of a canvas in a coarse sample, without its most frequent one: 0 is a blank canvas.
PAINTED = """(() => [...document.querySelectorAll('%s canvas:first-child')].map(c => {
  const copy = new OffscreenCanvas(c.width, c.height).getContext('2d', {willReadFrequently: true});
  copy.drawImage(c, 0, 0);
  const data = copy.getImageData(0, 0, c.width, c.height).data, colours = new Map();
  for (let i = 0; i < data.length; i += 4 * 7) {
    const key = data[i] << 16 | data[i + 1] << 8 | data[i + 2];
    colours.set(key, (colours.get(key) ?? 0) + 1);
  }
  return colours.size - 1;
}))()"""


class Checks:
    def __init__(self):
        self.failed, self.count = [], 0

    def __call__(self, holds, what):
        self.count += 1
        if not holds:
            self.failed.append(what)
            print(f"  FAILED {what}", flush=True)


def lines_and_heat_are_those_of_the_trace(browser, check, name, document):
    """Each rank of the timeline has lines of its memory and its FLOPs; heat maps have the figures of the JSON."""
    browser.go("#timeline")
    lines = int(browser.run("document.querySelector('#timeline .chart').dataset.lines"))
    drawn = sum(
        len(document["timeline"][what][row]) > 1 for what in ("memory", "flop") for row in range(len(document["ranks"]))
    )
    is_narrow = browser.run("document.querySelector('#timeline .chart').dataset.detail") == "bands"
    check(lines == drawn or is_narrow and lines <= drawn, f"{name}: the timeline has {lines} lines of {drawn}")
    check(len(document["ranks"]) > 16 or lines == drawn, f"{name}: few ranks have all lines: {lines} of {drawn}")
    browser.go("#heat")
    ranks = document["ranks"]
    for index, field in enumerate(("flop_per_step", "flop_per_second", "peak_memory_bytes")):
        most = max(info[field] or 0 for info in ranks)
        tip = browser.run(f"""(() => {{ const c = document.querySelectorAll('#heat .chart')[{index}]; c.focus();
          c.dispatchEvent(new KeyboardEvent('keydown', {{key: 'ArrowRight', bubbles: true}}));
          return document.getElementById('tip').textContent; }})()""")
        found = re.search(r"rank (\d+)", tip)
        info = next((info for info in ranks if found and info["rank"] == int(found[1])), None)
        room = info and (info["memory_capacity_bytes"] if field == "peak_memory_bytes" else most)
        share = browser.run(f"(100 * {info[field]} / {room}).toFixed(1)") if room else "no figure"
        check(f"({share} %)" in tip, f"{name}: the heat map of {field} has {share} % of its rank: {tip!r}")


def timeline_works(browser, check, name):
    """Zoom by brush, reset by double click and Escape, tooltip, keys."""
    browser.go("#timeline")
    box = browser.box("#timeline .chart")
    y = box["y"] + box["h"] / 2
    state = "document.querySelector('#timeline .chart').dataset"
    browser.drag(box["x"] + 300, y, box["x"] + 500, y)
    check(browser.run(f"{state}.zoomed") == "true", f"{name}: the brush zooms the timeline")
    browser.mouse("mouseMoved", box["x"] + 420, y)
    browser.settle()
    tip = browser.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
    check("rank" in tip and "ms" in tip, f"{name}: the tooltip of the timeline has times: {tip!r}")
    browser.click(box["x"] + 420, y, count=2)
    check(browser.run(f"{state}.zoomed") == "false", f"{name}: a double click resets the timeline")
    browser.run("document.querySelector('#timeline .chart').focus()")
    browser.key("+")
    check(browser.run(f"{state}.zoomed") == "true", f"{name}: the key + zooms")
    browser.key("ArrowRight")
    browser.key("Escape")
    check(browser.run(f"{state}.zoomed") == "false", f"{name}: Escape resets")
    slowest = browser.run("""(async () => { const chart = document.querySelector('#timeline .chart'); let most = 0;
      for (const key of ['+', '+', '+', 'ArrowRight', 'ArrowLeft', '-', 'Escape']) { const began = performance.now();
        chart.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
        most = Math.max(most, performance.now() - began); }
      return most; })()""")
    check(slowest < SLOWEST_REDRAW_MS, f"{name}: a redraw of the timeline takes {slowest:.0f} ms")
    return slowest


def views_react(browser, check, name):
    """Lasso, filters, stages, heat map, a click on a step, and the theme."""
    browser.go("#communication")
    box = browser.box("#communication .chart")
    shown = (
        "[...document.querySelectorAll('#communication .note')]"
        ".find(n => n.textContent.startsWith('Shown:'))?.textContent ?? ''"
    )
    browser.mouse("mousePressed", box["x"] + 2, box["y"] + 2, button="left", clickCount=1)
    for x, y in ((box["w"] - 4, 2), (box["w"] - 4, box["h"] - 4), (2, box["h"] - 4)):
        browser.mouse("mouseMoved", box["x"] + x, box["y"] + y, button="left", buttons=1)
    browser.mouse("mouseReleased", box["x"] + 2, box["y"] + box["h"] - 4, button="left", clickCount=1)
    browser.settle()
    check("inside the lasso" in browser.run(shown), f"{name}: a lasso opens the matrix of its ranks")
    count = (
        "[...document.querySelectorAll('#communication .grid')]"
        ".find(g => /Links/.test(g.ariaLabel)).querySelector('table').ariaRowCount"
    )
    every = int(browser.run(count))
    browser.run(
        "(() => { const i = document.querySelector('#communication input'); i.value = '1'; "
        "i.dispatchEvent(new Event('input')); })()"
    )
    check(0 < int(browser.run(count)) - 1 < every - 1, f"{name}: the filter of the links leaves out others")
    browser.go("#timeline")
    before = browser.run("document.querySelector('#timeline .chart').dataset.drawn")
    collapse = "[...document.querySelectorAll('#timeline .stages button')].find(b => b.textContent.startsWith('Stage'))"
    if browser.run(f"Boolean({collapse})"):
        browser.run(f"{collapse}.click()")
        browser.settle()
        check(
            browser.run(f"{collapse}.getAttribute('aria-expanded')") == "false"
            and browser.run("document.querySelector('#timeline .chart').dataset.drawn") != before,
            f"{name}: a stage collapses",
        )
        browser.run(f"{collapse}.click()")
    browser.go("#times")
    box = browser.box("#times .chart")
    browser.click(box["x"] + box["w"] / 2, box["y"] + box["h"] / 2)
    time.sleep(0.05)
    browser.settle()
    check(browser.run("location.hash").startswith("#timeline/step-"), f"{name}: a click on a step opens its timeline")
    check(
        browser.run("document.querySelector('#timeline .chart').dataset.zoomed") == "true",
        f"{name}: the timeline shows the step",
    )
    theme = browser.run("document.documentElement.dataset.theme")
    browser.run("document.getElementById('theme').click()")
    check(browser.run("document.documentElement.dataset.theme") != theme, f"{name}: the button changes the theme")
    browser.run("document.getElementById('theme').click()")


def blame_shown(browser, check, name, document):
    """The evidence of the blamed component, and one click each to what the reader looks at next."""
    blame = document["verdict"]["blamed"][0]
    text = browser.run("document.querySelector('#overview .blame').textContent")
    for item in [*blame["evidence"], *blame["ruled_out"]]:
        check(item["text"] in text, f"{name}: the page lacks: {item['text']}")
    check(all(action in text for action in blame["next"]), f"{name}: what to do next is shown")
    check(f"since step {blame['onset_step']}" in text, f"{name}: the onset is shown")
    began = browser.run("document.querySelector('#overview .blame .began')?.textContent ?? ''")
    check(bool(began), f"{name}: the clock")
    rows = browser.run(
        "[...document.querySelectorAll('#overview .blame table[aria-label=\"Suspects and peers\"] tbody tr')]"
        ".map(r => [...r.children].map(c => c.textContent))"
    )
    expected = [[f"rank {one['rank']}", f"{one['since_us'] / 1000:.3f}"] for one in blame["compared"]]
    check([[row[0], row[3]] for row in rows] == expected, f"{name}: suspects and peers: {rows}")
    check(
        browser.run("document.querySelectorAll('#agreements li.agrees').length")
        == sum(one["agrees"] for one in document["verdict"]["agreements"]),
        f"{name}: incidents that agree with the verdict",
    )
    judged = browser.run("document.querySelector('#judged-by').textContent")
    check(judged == document["verdict"]["judged_by"], f"{name}: the page states which rule judged")
    for label, view in (("slowest", "timeline"), ("fastest", "timeline"), ("Communication", "communication")):
        browser.go("#overview")
        browser.run(
            "[...document.querySelectorAll('#overview .tools button')]"
            f".find(b => b.textContent.includes('{label}')).click()"
        )
        hash_now = browser.run("location.hash")
        check(hash_now.startswith(f"#{view}"), f"{name}: one click to {label}: {hash_now}")
    browser.go("#overview")


def figures_equal(browser, check, name, document):
    """Compares tables of the page with the JSON, formatted as the page formats them."""
    means = document["summary"]["means"]

    def format_ms(us):
        return "–" if us is None else browser.run(f"({us!r} / 1000).toFixed(3)")

    browser.go("#steps")
    cells = (
        "[...document.querySelectorAll('#steps .grid tbody tr:not(.space)')]"
        ".map(r => [...r.children].map(c => c.textContent))"
    )
    titles = browser.run("[...document.querySelectorAll('#steps .grid thead th')].map(h => h.textContent)")
    first = next(i for i, title in enumerate(titles) if title.startswith("Step"))
    rows = browser.run(cells)
    check(rows[0][first] == format_ms(means["breakdown.total_us"]["all"]), f"{name}: the mean row of the step trace")
    numbers = {info["rank"]: row for row, info in enumerate(document["ranks"])}
    for row in rows[1:9]:
        expected = means["breakdown.total_us"]["of_ranks"][numbers[int(row[0])]]
        check(row[first] == format_ms(expected), f"{name}: step of rank {row[0]}: {row[first]}")
    # One step, chosen in the second list.
    column = len(document["steps"]) // 2
    browser.run(f"""(() => {{ const s = document.querySelectorAll('#steps select')[1];
        s.value = '{document["steps"][column]}';
      s.dispatchEvent(new Event('change')); }})()""")
    for row in browser.run(cells)[1:9]:
        expected = document["breakdown"]["total_us"][numbers[int(row[0])]][column]
        check(row[first] == format_ms(expected), f"{name}: chosen step of rank {row[0]}: {row[first]}")
    sentence = browser.run("document.querySelector('#overview .verdict p').textContent")
    check(sentence == document["verdict"]["sentence"], f"{name}: the verdict is the document's sentence")
    blame_shown(browser, check, name, document)
    browser.go("#communication")
    links = document["communication"]["links"]
    if links:
        longest = max(link["time_us"] for link in links)
        shown = browser.run(
            "[...document.querySelectorAll('#communication .grid')].find(g => /Links/.test(g.ariaLabel))"
            ".querySelector('tbody tr:not(.space)').children[4].textContent"
        )
        check(shown == format_ms(longest), f"{name}: the link with the most time comes first: {shown}")
    kernels = document["kernels"]["rules"]
    if kernels:
        browser.go("#kernels")
        grid = "[...document.querySelectorAll('#kernels .grid')].at(%d)"
        cell = grid + ".querySelector('tbody tr:not(.space)').children[%d].textContent"
        shown = browser.run(cell % (1, 4))
        longest = max(kernel["sum_us"] for kernel in kernels[0]["kernels"])
        check(shown == format_ms(longest), f"{name}: the kernel with the longest sum comes first: {shown}")
        browser.run(
            "(() => { const s = document.querySelectorAll('#kernels select')[0];"
            " s.value = s.options[s.options.length - 1].value; s.dispatchEvent(new Event('change')); })()"
        )
        shown = browser.run(cell % (0, 4))
        idle = format_ms(kernels[-1]["devices"][0]["idle_us"])
        check(shown == idle or len(kernels) == 1, f"{name}: chosen rules: {shown}")
        host = kernels[-1]["host"]
        tables = [host[what] for what in ("launches", "queues", "copies", "annotations") if host[what]]
        rows = browser.run(
            "[...document.querySelectorAll('#kernels .grid table')].slice(2).map(t => Number(t.ariaRowCount) - 1)"
        )
        check(
            rows == [len(table) for table in tables],
            f"{name}: rows of launches, queues, copies and annotations: {rows}",
        )
    if document["what_if"]:
        browser.go("#what-if")
        shown = browser.run("[...document.querySelectorAll('#what-if tbody tr')].map(r => r.children[2].textContent)")
        check(
            shown == [format_ms(one["time_us"]) for one in document["what_if"]["scenarios"]],
            f"{name}: what-if: {shown}",
        )


def keyboard_works(browser, check, name):
    browser.go("#overview")
    browser.run("document.activeElement?.blur(); scrollTo(0, 0)")
    browser.go("#steps")
    browser.run("document.querySelector('#steps .grid').focus()")
    browser.key("ArrowDown")
    browser.key("ArrowRight")
    check(
        browser.run("document.querySelectorAll('#steps .grid td.at').length") == 1,
        f"{name}: arrow keys move in a table",
    )
    check(
        browser.run("getComputedStyle(document.activeElement).outlineStyle") != "none", f"{name}: the focus is visible"
    )
    browser.key("Enter")
    check(browser.run("location.hash").startswith("#rank-"), f"{name}: Enter opens the page of a rank")
    check(
        browser.run("document.querySelectorAll('#main section:not([hidden]) .grid').length") > 0,
        f"{name}: the rank's page has tables",
    )
    rows = browser.run("document.querySelectorAll('#steps .grid tbody tr').length")
    check(rows <= 60, f"{name}: a table has at most 60 rows in the page: {rows}")
    browser.go("#overview")
    browser.run("[...document.querySelectorAll('#overview button')].find(b => /slowest/.test(b.textContent)).click()")
    time.sleep(0.1)
    browser.settle()
    check(
        browser.run("location.hash").startswith("#timeline/rank-"),
        f"{name}: one click to the timeline of the slowest rank",
    )
    unnamed = browser.run(
        "[...document.querySelectorAll('button, select, input, [tabindex=\"0\"]')]"
        ".filter(e => !(e.ariaLabel || e.textContent.trim()"
        " || e.closest('label') || e.getAttribute('aria-label'))).length"
    )
    check(unnamed == 0, f"{name}: {unnamed} controls without a name")


def page_works(browser, check, pages, shots, ranks):
    name = f"{ranks} ranks"
    browser.events.clear()
    document = json.loads((pages / f"{ranks}.json").read_text())
    readies, cpu = [], []
    for _ in range(OPENINGS):
        before = browser.cpu_seconds()
        browser.open(pages / f"{ranks}.html")
        cpu.append(browser.cpu_seconds() - before)
        readies.append(int(browser.run("document.documentElement.dataset.readyMs")))
    ready = min(readies)
    check(1000 * min(cpu) < OPEN_LIMIT_MS, f"{name}: the page is ready after {min(cpu):.2f} s of CPU time")
    if os.getloadavg()[0] > 1.5 * os.cpu_count():
        print(f"  {name}: ready after {readies} ms; not checked, because other programs use this machine", flush=True)
    else:
        check(ready < OPEN_LIMIT_MS, f"{name}: the page is ready after {readies} ms")
    browser.shot(shots / f"{ranks}-light-overview.png")
    filled = {}
    for section in SECTIONS:
        browser.go(f"#{section}")
        time.sleep(0.05)
        browser.settle()
        filled[section] = int(browser.run(f"document.getElementById('{section}').dataset.filledMs ?? -1"))
        check(filled[section] >= 0, f"{name}: section {section} is filled")
        check(
            browser.run(f"document.getElementById('{section}').textContent").find("could not be drawn") < 0,
            f"{name}: section {section} is drawn",
        )
        painted = browser.run(PAINTED % f"#{section} .chart")
        check(all(colours > 0 for colours in painted), f"{name}: canvases of {section} are painted: {painted}")
        browser.shot(shots / f"{ranks}-light-{section}.png")
    check(
        sum(browser.run("[...document.querySelectorAll('.chart')].map(() => 1)")) >= 9, f"{name}: all charts are there"
    )
    lines_and_heat_are_those_of_the_trace(browser, check, name, document)
    slowest = timeline_works(browser, check, name)
    figures_equal(browser, check, name, document)
    views_react(browser, check, name)
    tables_sort(browser, check, name)
    outliers_open(browser, check, name, ranks)
    keyboard_works(browser, check, name)
    browser.shot(shots / f"{ranks}-light-slowest.png")
    blamed = document["verdict"]["blamed"][0]["ranks"][0]
    browser.go(f"#rank-{blamed}")
    painted = browser.run(PAINTED % "#main .chart:not([hidden])")
    browser.shot(shots / f"{ranks}-light-rank.png")
    complaints = browser.complaints()
    check(complaints == [], f"{name}: console and network: {complaints}")
    for section in ("overview", "steps", "communication", "timeline", "pipeline", "heat", "times"):
        if section == "overview":
            browser.open(pages / f"{ranks}.html", theme="dark")
        else:
            browser.go(f"#{section}")
        browser.shot(shots / f"{ranks}-dark-{section}.png")
    browser.go("#overview")
    pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)["data"])
    (shots / f"{ranks}.pdf").write_bytes(pdf)
    check(
        pdf.startswith(b"%PDF")
        and pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") + pdf.count(b"/Type /Page/") >= 4,
        f"{name}: the page prints",
    )
    unfilled = browser.run("document.querySelectorAll('section.waiting').length")
    check(unfilled == 0, f"{name}: {unfilled} sections are not printed")
    complaints = browser.complaints()
    check(complaints == [], f"{name}: dark and print: {complaints}")
    return {
        "ranks": ranks,
        "ready_ms": readies,
        "open_cpu_s": round(min(cpu), 2),
        "slowest_redraw_ms": round(slowest),
        "slowest_section": max(filled, key=filled.get),
        "slowest_section_ms": max(filled.values()),
        "html_bytes": (pages / f"{ranks}.html").stat().st_size,
    }


def other_pages_work(browser, check, pages, shots):
    browser.open(pages / "empty.html")
    for section in SECTIONS[1:]:
        browser.go(f"#{section}")
        check(
            browser.run(f"document.querySelector('#{section} .empty-view')?.textContent ?? ''") != "",
            f"empty run: {section} states why it is empty",
        )
    browser.shot(shots / "empty.png")
    check(browser.complaints() == [], f"empty run: {browser.complaints()}")
    browser.events.clear()
    browser.open(pages / "hostile.html")
    for fragment in [*SECTIONS, "rank-0"]:
        browser.go(f"#{fragment}")
    check(
        browser.run(
            "document.querySelectorAll("
            "'img, iframe, script:not([type]):not(:last-of-type), a[href^=\"javascript\"]').length"
        )
        == 0,
        "hostile names: no element comes from a name",
    )
    check(browser.run("typeof window.pwned") == "undefined", "hostile names: no script of a name ran")
    check(
        "<img" in browser.run("document.querySelector('#overview .verdict p')?.textContent ?? ''"),
        "hostile names: names are shown as text",
    )
    check(browser.complaints() == [], f"hostile names: {browser.complaints()}")
    browser.call("Page.navigate", url=(pages / "index.html").resolve().as_uri())
    time.sleep(0.3)
    check(browser.run("document.querySelectorAll('a').length") == 4, "the index links to the runs")
    browser.shot(shots / "index.png")
    comparison_works(browser, check, pages, shots)


def main():
    pages, shots, program = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    live = sys.argv[4]
    sizes = [int(size) for size in sys.argv[5:]] if len(sys.argv) > 5 else [4, 16, 64, 1024]
    shots.mkdir(parents=True, exist_ok=True)
    browser, check, results = Browser(program), Checks(), []
    try:
        for ranks in sizes:
            results.append(page_works(browser, check, pages, shots, ranks))
            print(json.dumps(results[-1]), flush=True)
        other_pages_work(browser, check, pages, shots)
        live_page_works(browser, check, shots, live)
    finally:
        browser.close()
    print(json.dumps({"checks": check.count, "failed": check.failed, "pages": results}))
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()

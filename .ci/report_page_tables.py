"""Checks of the report's tables and matrices, and of the page that compares two runs."""

import json
import time

FEW_RANKS = 8  # up to which the cells of the matrix have box plots


def tables_sort(browser, check, name):
    """A click on a heading sorts by it, a second one the other way around."""
    browser.go("#steps")
    head = "[...document.querySelectorAll('#steps .grid thead th')].find(h => h.textContent.startsWith('Rank'))"
    rows = "document.querySelectorAll('#steps .grid tbody tr:not(.space):not(.mean)')"
    ranks = f"[...{rows}].map(r => Number(r.children[0].textContent))"
    orders = []
    for _ in range(2):
        browser.run(f"{head}.querySelector('button').click()")
        shown = browser.run(ranks)
        orders.append((browser.run(f"{head}.ariaSort"), shown == sorted(shown), shown == sorted(shown, reverse=True)))
    both = sorted(orders)
    expected = [("ascending", True, False), ("descending", False, True)]
    check(both == expected, f"{name}: the table sorts by rank: {orders}")


def outliers_open(browser, check, name, ranks):
    """A click on an outlier of a box plot names its operation and links to its step."""
    browser.go("#communication")
    browser.settle()
    matrix = "[...document.querySelectorAll('#communication .chart')].find(c => c.dataset.outlier)"
    if not browser.run(f"Boolean({matrix})"):
        check(ranks > FEW_RANKS, f"{name}: the matrix has outliers")
        return
    x, y = (float(part) for part in browser.run(f"{matrix}.dataset.outlier").split())
    browser.run(f"{matrix}.scrollIntoView({{block: 'center'}})")
    box = browser.run(f"(() => {{ const b = {matrix}.getBoundingClientRect(); return {{x: b.x, y: b.y}}; }})()")
    browser.click(box["x"] + x, box["y"] + y)
    browser.settle()
    link = browser.run("document.querySelector('#communication .read a')?.hash ?? ''")
    check(link.startswith("#timeline/rank-"), f"{name}: an outlier leads to its step: {link!r}")


def comparison_works(browser, check, pages, shots):
    """The page of a comparison has its sentence first, and all rows of its document."""
    comparison = json.loads((pages / "comparison.json").read_text())
    browser.events.clear()
    browser.call("Page.navigate", url=(pages / "comparison.html").resolve().as_uri())
    time.sleep(0.3)
    shown = browser.run("document.querySelector('.verdict').textContent")
    check(shown == comparison["sentence"], f"comparison: its sentence comes first: {shown}")
    rows = browser.run("[...document.querySelectorAll('table')].map(t => t.querySelectorAll('tbody tr').length)")
    expected = [len(comparison[what]) for what in ("figures", "ranks", "kernels")]
    check(rows == [count for count in expected if count], f"comparison: rows of its tables: {rows}, {expected}")
    browser.shot(shots / "comparison.png")
    check(browser.complaints() == [], f"comparison: {browser.complaints()}")

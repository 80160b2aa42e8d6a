"""The live report page in a browser: what it keeps when its figures change, and how it shows failures."""

import subprocess
import time

# What the reader of a page has chosen, as the page shows it.
CHOSEN = """(() => ({
  zoom: document.querySelector('#timeline .read')?.textContent,
  sorted: document.querySelector('#steps th[aria-sort=\"descending\"]')?.textContent,
  chosen: document.querySelectorAll('#steps select')[1]?.value,
  first: document.querySelector('#steps .grid tbody tr:not(.space):not(.mean)')?.children[0].textContent,
  filter: document.querySelector('#communication input')?.value,
  focus: document.activeElement?.ariaLabel,
}))()"""


class LiveRun:
    """The program of taskd-live that serves the page of a simulated run."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    def order(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()


def wait_for(browser, condition, seconds=30):
    until = time.monotonic() + seconds
    while not browser.run(condition):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def live_page_works(browser, check, shots, program):
    """Figures change under zoom, order, choices and focus; failures, a lost connection and the end are shown."""
    run = LiveRun(program)
    try:
        browser.events.clear()
        browser.open(run.url)
        line = "document.getElementById('live')"
        check(wait_for(browser, f"{line}.dataset.state === 'live'"), "live: the page is live")
        browser.go("#communication")
        browser.run(
            "(() => { const i = document.querySelector('#communication input'); i.value = '1'; "
            "i.dispatchEvent(new Event('input')); })()"
        )
        browser.go("#steps")
        browser.run(
            "[...document.querySelectorAll('#steps th button')].find(b => b.title.includes('Step (ms)')).click()"
        )
        browser.run("""(() => { const s = document.querySelectorAll('#steps select')[1]; s.value = '7';
          s.dispatchEvent(new Event('change')); })()""")
        browser.go("#timeline")
        box = browser.box("#timeline .chart")
        y = box["y"] + box["h"] / 2
        browser.drag(box["x"] + 300, y, box["x"] + 500, y)
        browser.run("document.querySelector('#timeline .chart').focus()")
        before = browser.run(CHOSEN)
        top = browser.run("document.querySelector('#timeline').getBoundingClientRect().top")
        check(before["chosen"] == "7" and before["zoom"].startswith("Shown: 0"), f"live: choices are made: {before}")
        run.order("grow")
        changed = f"{line}.dataset.revision === '2'"
        check(wait_for(browser, changed), "live: other figures arrive")
        browser.settle()
        steps = "document.querySelectorAll('#pipeline select, #timeline select')[0].options.length"
        check(browser.run(steps) == 17, f"live: the timeline has the new steps: {browser.run(steps)}")
        moved = browser.run("document.querySelector('#timeline').getBoundingClientRect().top") - top
        check(abs(moved) < 3, f"live: the page does not jump: {moved}")
        browser.shot(shots / "live-timeline.png")
        for section in ("communication", "steps"):
            browser.run(f"document.getElementById('{section}').scrollIntoView()")
            check(wait_for(browser, f"!document.getElementById('{section}').classList.contains('waiting')"), section)
        browser.settle()
        after = browser.run(CHOSEN)
        check(after == before, f"live: zoom, order, choices and focus are kept: {before} {after}")
        browser.shot(shots / "live-steps.png")
        browser.go("#rank-5")
        run.order("grow")
        check(wait_for(browser, f"{line}.dataset.revision === '3'"), "live: figures arrive on the page of a rank")
        check(
            browser.run("document.querySelector('#main section:not([hidden]) h2').textContent") is not None
            and browser.run("document.getElementById('rank-title')?.textContent") == "Rank 5",
            "live: the page of a rank stays open",
        )
        browser.go("#overview")
        browser.run("[...document.querySelectorAll('#head button')].find(b => /Pause/.test(b.textContent)).click()")
        run.order("grow")
        check(wait_for(browser, f"{line}.dataset.state === 'waiting'"), "live: paused figures wait")
        browser.run("[...document.querySelectorAll('#head button')].find(b => /Pause/.test(b.textContent)).click()")
        check(wait_for(browser, f"{line}.dataset.revision === '4'"), "live: figures are shown after the pause")
        run.order("fail")
        check(wait_for(browser, f"{line}.dataset.state === 'failing'"), "live: a failed reading is shown")
        check(
            "the disk is gone" in browser.run(f"{line}.textContent") and " ago" in browser.run(f"{line}.textContent"),
            "live: the error and the age of the figures are shown",
        )
        browser.shot(shots / "live-failing.png")
        run.order("mend")
        check(wait_for(browser, f"{line}.dataset.state === 'live'"), "live: a reading that succeeds is shown")
        complaints = [one for one in browser.complaints() if not one.startswith(f"request: {run.url}events?")]
        check(complaints == [], f"live: console and network: {complaints}")
        run.end()
        check(wait_for(browser, f"{line}.dataset.state === 'lost'"), "live: a lost connection is shown")
        check(
            browser.run("document.querySelectorAll('#overview .verdict').length") == 1, "live: the last figures remain"
        )
        browser.shot(shots / "live-lost.png")
        run = LiveRun(program)
        browser.open(run.url)
        run.order("end")
        check(wait_for(browser, f"{line}.dataset.state === 'ended'"), "live: the end of the run is shown")
        run.end()
        time.sleep(0.5)
        check(browser.run(f"{line}.dataset.state") == "ended", "live: it stays after the server has ended")
        browser.shot(shots / "live-ended.png")
    finally:
        run.end()

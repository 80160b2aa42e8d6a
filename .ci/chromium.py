"""One page in headless Chromium, over the DevTools protocol.

Uses the standard library: the browser's pipe (`--remote-debugging-pipe`) has messages of JSON that end with a zero
byte.
"""

import base64
import json
import os
import subprocess
import tempfile
import time

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--remote-debugging-pipe",
    "--allow-file-access-from-files=false",
]


class Browser:
    """One headless Chromium, and the page that is open in it."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.writes = os.pipe()
        self.reads, from_browser = os.pipe()

        def fds():  # the browser reads commands from 3 and writes answers to 4
            low, high = os.dup(to_browser), os.dup(from_browser)
            os.dup2(low, 3)
            os.dup2(high, 4)

        self.process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={self.profile.name}", "about:blank"],
            preexec_fn=fds,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.buffer, self.session = 0, b"", None
        self.events = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Performance"):
            self.call(f"{domain}.enable")

    def read(self):
        while b"\0" not in self.buffer:
            part = os.read(self.reads, 1 << 20)
            if not part:
                raise SystemExit("Chromium ended: start it by hand to see why")
            self.buffer += part
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def run(self, script):
        """Evaluates an expression in the page, and waits for its promise."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script[:100]}: {answer['exceptionDetails']['exception'].get('description')}")
        return answer["result"].get("value")

    def open(self, page, width=1440, height=900, theme="light"):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self.run("document.documentElement?.dataset.readyMs"):
            time.sleep(0.01)
        self.settle()

    def cpu_seconds(self):
        metrics = self.call("Performance.getMetrics")["metrics"]
        return next(metric["value"] for metric in metrics if metric["name"] == "ProcessTime")

    def settle(self):
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def complaints(self):
        """Messages of the console, exceptions and requests other than the page's own."""
        self.settle()
        found = []
        for event in self.events:
            method, parameters = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                found.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
            elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
                found.append(
                    "console: " + " ".join(str(a.get("value", a.get("description"))) for a in parameters["args"])
                )
            elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append("log: " + parameters["entry"]["text"])
            elif method == "Network.requestWillBeSent":
                url = parameters["request"]["url"]
                if parameters.get("type") != "Document":
                    found.append(f"request: {url}")
        return found

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, x0, y0, x1, y1):
        self.mouse("mouseMoved", x0, y0)
        self.mouse("mousePressed", x0, y0, button="left", clickCount=1)
        for part in range(1, 6):
            self.mouse("mouseMoved", x0 + (x1 - x0) * part / 5, y0 + (y1 - y0) * part / 5, button="left", buttons=1)
        self.mouse("mouseReleased", x1, y1, button="left", clickCount=1)
        self.settle()

    def click(self, x, y, count=1):
        for turn in range(1, count + 1):
            self.mouse("mousePressed", x, y, button="left", clickCount=turn)
            self.mouse("mouseReleased", x, y, button="left", clickCount=turn)
        self.settle()

    def key(self, name, code=None):
        text = {"text": name} if len(name) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=name, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=name)
        self.settle()

    def shot(self, path):
        image = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(image["data"]))

    def box(self, selector):
        return self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null; "
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const b = e.getBoundingClientRect(); return {x: b.x, y: b.y, w: b.width, h: b.height}; })()"
        )

    def go(self, fragment):
        self.run(f"location.hash = {json.dumps(fragment)}")
        time.sleep(0.05)
        self.settle()

    def close(self):
        self.process.terminate()
        self.process.wait()
        self.profile.cleanup()

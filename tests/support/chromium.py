"""A headless Chromium driven through chromedriver's WebDriver interface, with the standard library alone."""

import base64
import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
)


def why_none() -> str:
    """Say which program is missing; empty where none is."""
    missing = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return (
        f"{' and '.join(missing)} not installed (Debian: apt-get install chromium chromium-driver)" if missing else ""
    )


class Browser:
    """One session: pages, scripts, the pointer, pictures and what the browser logged."""

    def __init__(self, address: str, profile: str) -> None:
        options = {"binary": shutil.which("chromium"), "args": [*FLAGS, f"--user-data-dir={profile}"]}
        wanted = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        self.address = address
        self.session = ""
        self.session = f"/session/{self._send('/session', {'capabilities': {'alwaysMatch': wanted}})['sessionId']}"

    def open(self, path: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Open a file in a window of CSS pixels, as a system in the light or the dark would show it."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])
        self._send(f"{self.session}/url", {"url": path.as_uri()})
        self.run("return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)))")

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script and return what it returns."""
        return self._send(f"{self.session}/execute/sync", {"script": script, "args": list(arguments)})

    def devtools(self, command: str, **parameters: object) -> Any:
        """Run a command of the DevTools protocol."""
        return self._send(f"{self.session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        """Move, press, release or turn the wheel at a place of the window."""
        self.devtools("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Return what was logged since the last call: "browser" or "performance"."""
        found: list[dict[str, Any]] = self._send(f"{self.session}/se/log", {"type": kind})
        return found

    def requests(self) -> list[str]:
        """Return the addresses that files asked for since the last call; the browser's own pages are not ours."""
        events = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        asked = [event["params"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in asked if each["documentURL"].startswith("file:")]

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """Save what is seen, or the whole page, as a PNG."""
        found = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        """End the session."""
        self._send(self.session, None, "DELETE")

    def _send(self, path: str, body: object, method: str = "POST") -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None


@contextmanager
def browser() -> Iterator[Browser]:
    """Start chromedriver on a free port and a browser; both end with the block."""
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert driver.stdout
        said = next(line for line in driver.stdout if "on port" in line and "successfully" in line)
        address = f"http://127.0.0.1:{int(said.rstrip('.').split()[-1].rstrip('.'))}"
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            found = Browser(address, profile)
            try:
                yield found
            finally:
                found.close()
    finally:
        driver.terminate()
        driver.wait()

"""A headless Chromium, driven over its debugging protocol. Needs the program `chromium` and the package websocket-client."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request

try:
    import websocket
except ImportError:
    websocket = None

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
MISSING = "chromium" if PROGRAM is None else "the package websocket-client" if websocket is None else ""


class Browser:
    """One page. Use as a context manager. `problems`: what its console and its policy complained about."""

    def __init__(self, width=1360, height=860):
        self.folder = tempfile.mkdtemp(prefix="tandem-browser-")
        self.process = subprocess.Popen(
            [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--mute-audio",
             "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self.folder}",
             f"--window-size={width},{height}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.problems = []
        self.last = 0
        try:
            port = self.wait(self.port, 60)
            targets = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30))
            page = next(target for target in targets if target["type"] == "page")
            self.socket = websocket.create_connection(page["webSocketDebuggerUrl"], timeout=60)
        except BaseException:
            self.close()
            raise
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")
        self.size(width, height)

    def port(self):
        try:
            with open(os.path.join(self.folder, "DevToolsActivePort")) as file:
                return file.readline().strip()
        except FileNotFoundError:
            return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.close()

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def wait(condition, seconds=30):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds} s in vain")

    def call(self, method, **parameters):
        self.last += 1
        self.socket.send(json.dumps({"id": self.last, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.last:
                if "error" in message:
                    raise AssertionError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message)

    def note(self, message):
        what, parameters = message.get("method"), message.get("params", {})
        if what == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.problems.append(parameters["entry"]["text"])
        elif what == "Runtime.exceptionThrown":
            self.problems.append(str(parameters["exceptionDetails"]))
        elif what == "Page.javascriptDialogOpening":
            self.problems.append("dialog: " + parameters["message"])

    def run(self, script):
        """The value of a script, which may be a promise."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise AssertionError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, script, seconds=30):
        """Waits until the script's value is true, and returns it."""
        try:
            return self.wait(lambda: self.run(script), seconds)
        except AssertionError:
            raise AssertionError(f"never true: {script}") from None

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, key, code=None, number=0, modifiers=0, text=None):
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def enter(self):
        self.key("Enter", number=13, text="\r")

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)
        self.call("Emulation.setTouchEmulationEnabled", enabled=phone)

    def scheme(self, name):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def picture(self, name):
        """A screenshot, if somebody wants to look: TANDEM_SCREENSHOTS names a folder."""
        folder = os.environ.get("TANDEM_SCREENSHOTS")
        if folder:
            data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
            with open(os.path.join(folder, name + ".png"), "wb") as file:
                file.write(data)

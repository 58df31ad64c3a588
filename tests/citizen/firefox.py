"""Firefox driven through WebDriver BiDi, with the part of Selenium's interface that the tests use.

Selenium needs geckodriver for Firefox, which Debian does not ship. Firefox itself implements BiDi: JSON over a
websocket on a port that it prints at start.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# Disable requests and dialogs of a fresh profile.
_QUIET = {
    "app.normandy.enabled": False,
    "app.update.enabled": False,
    "browser.download.alwaysOpenPanel": False,
    "browser.download.folderList": 2,
    "browser.download.manager.showWhenStarting": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.page": 0,
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.update.enabled": False,
    "intl.accept_languages": "en",
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.enabled": False,
}
_VALUES = """(...given) => {
  const answer = (function () { SCRIPT })(...given);
  return answer instanceof Element ? answer : JSON.stringify(answer ?? null);
}"""
_LATER = """async (...given) => {
  const answer = await new Promise((done) => (function () { SCRIPT })(...given, done));
  return JSON.stringify(answer ?? null);
}"""


class Firefox:
    """One window of Firefox."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._number = 0
        self._requested_urls: list[str] = []
        self._console_messages: list[str] = []
        self.ask("session.new", capabilities={})
        # Headless, the first window has no keyboard focus; a second one has.
        self._window = self.ask("browsingContext.create", type="window")["context"]
        self.ask("session.subscribe", events=["network.beforeRequestSent", "log.entryAdded"])
        self.viewport(390, 844)

    def ask(self, method: str, **params: Any) -> Any:
        """Send a command and return its result; events received meanwhile are stored."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("method") == "network.beforeRequestSent":
                self._requested_urls.append(message["params"]["request"]["url"])
            elif message.get("method") == "log.entryAdded" and message["params"]["level"] in (
                "error",
                "warn",
            ):
                self._console_messages.append(message["params"]["text"])
            elif message.get("id") == self._number:
                if message["type"] == "error":
                    raise RuntimeError(f"{method}: {message['message'][:500]}")
                return message["result"]

    def _call(self, function: str, given: tuple[Any, ...]) -> Any:
        def to_bidi(argument: Any) -> Any:
            if isinstance(argument, Element):
                return {"sharedId": argument.identity}
            kind = "string" if isinstance(argument, str) else "number"
            return {"type": kind, "value": argument}

        answer = self.ask(
            "script.callFunction",
            functionDeclaration=function,
            awaitPromise=True,
            target={"context": self._window},
            arguments=[to_bidi(argument) for argument in given],
        )
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        result = answer["result"]
        return Element(self, result["sharedId"]) if result["type"] == "node" else json.loads(result["value"])

    def execute_script(self, script: str, *given: Any) -> Any:
        return self._call(_VALUES.replace("SCRIPT", script), given)

    def execute_async_script(self, script: str, *given: Any) -> Any:
        return self._call(_LATER.replace("SCRIPT", script), given)

    def get(self, address: str) -> None:
        self.ask("browsingContext.navigate", context=self._window, url=address, wait="complete")

    def refresh(self) -> None:
        self.ask("browsingContext.reload", context=self._window, wait="complete")

    @property
    def current_url(self) -> str:
        return str(self.execute_script("return location.href"))

    @property
    def switch_to(self) -> SimpleNamespace:
        return SimpleNamespace(active_element=self.execute_script("return document.activeElement"))

    def find_element(self, how: str, what: str) -> Element:
        (element,) = self.find_elements(how, what)[:1]
        return element

    def find_elements(self, how: str, what: str) -> list[Element]:
        selector = f"#{what}" if how == "id" else what
        number = self.execute_script("return document.querySelectorAll(arguments[0]).length", selector)
        script = "return document.querySelectorAll(arguments[0])[arguments[1]]"
        return [self.execute_script(script, selector, i) for i in range(number)]

    def viewport(self, width: int = 390, height: int = 844) -> None:
        """Make the window as wide as some api."""
        size = {"width": width, "height": height}
        self.ask("browsingContext.setViewport", context=self._window, viewport=size)

    def keys(self, text: str) -> None:
        """Press keys, wherever the focus is."""
        actions = [{"type": kind, "value": sign} for sign in text for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": actions}
        self.ask("input.performActions", context=self._window, actions=[source])

    def set_files(self, element: Element, file: str) -> None:
        self.ask("input.setFiles", context=self._window, element={"sharedId": element.identity}, files=[file])

    def requested_urls(self) -> list[str]:
        """Every address that the page asked for something."""
        self.execute_script("return 1")
        return self._requested_urls

    def console_messages(self) -> list[str]:
        """What the browser wrote into its console."""
        self.execute_script("return 1")
        return self._console_messages


class Element:
    """An element of a page in Firefox."""

    def __init__(self, browser: Firefox, identity: str) -> None:
        self._browser = browser
        self.identity = identity

    def _evaluate(self, script: str, *given: Any) -> Any:
        return self._browser.execute_script(f"const e = arguments[0]; return {script}", self, *given)

    @property
    def text(self) -> str:
        return str(self._evaluate("e.checkVisibility() ? e.innerText.trim() : ''"))

    def is_displayed(self) -> bool:
        return bool(self._evaluate("e.checkVisibility()"))

    def is_enabled(self) -> bool:
        return bool(self._evaluate("!e.disabled"))

    def is_selected(self) -> bool:
        return bool(self._evaluate("e.checked"))

    def get_attribute(self, name: str) -> str:
        return str(self._evaluate("e.getAttribute(arguments[1])", name))

    def send_keys(self, text: str) -> None:
        if self._evaluate("e.type === 'file'"):
            self._browser.set_files(self, text)
            return
        self._evaluate("e.focus()")
        self._browser.keys(text)

    def clear(self) -> None:
        self._evaluate("(e.value = '', e.dispatchEvent(new Event('input')))")


@contextmanager
def firefox_in(profile: Path) -> Iterator[Firefox]:
    """Firefox with its own profile, which can be restarted; downloads go beside it."""
    websocket = pytest.importorskip(
        "websocket", reason="websocket-client, a part of selenium, is not installed"
    )
    program = shutil.which("firefox-esr") or shutil.which("firefox")
    if program is None:
        pytest.skip("no firefox is installed (Debian: firefox-esr)")
    profile.mkdir(exist_ok=True)
    settings = _QUIET | {"browser.download.dir": str(profile.parent)}
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in settings.items()]
    (profile / "user.js").write_text("".join(lines))
    run = [program, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            match = next(filter(None, (re.search(r"ws://127\.0\.0\.1:\d+", line) for line in process.stderr)))
            address = f"{match[0]}/session"
            with closing(websocket.create_connection(address, timeout=120, suppress_origin=True)) as socket:
                browser = Firefox(socket)
                yield browser
                browser.ask("browser.close")  # stored data are written on a regular shutdown
            process.wait(60)
        finally:
            if process.poll() is None:
                process.terminate()

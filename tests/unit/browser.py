# SPDX-License-Identifier: BSD-3-Clause
"""Pages in a real browser, at the width of a telephone and of a screen: `scripts/test-tools` installs Debian's."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (400, 1600)
_NAMES = ("chromium-headless-shell", "chromium", "google-chrome")

# What a person would see as broken, and what the test's own script returns. A page's policy may
# forbid scripts.
_PROBE = """<pre id="probe"></pre><script>
addEventListener("load", () => setTimeout(() => {
  const result = (() => { %s })();
  document.getElementById("probe").textContent = JSON.stringify({
    result, width: innerWidth, widest: document.documentElement.scrollWidth });
}, 100));
</script>"""


def look(page: Path, width: int, script: str = "return null;") -> Any:
    """Show a page in a window of that width, run `script` in it, and return what the script returns, a JSON value.

    A page that is wider than its window, or that writes to the console, as it does when its policy refuses something,
    fails the test. Skips the test where there is no browser.
    """
    browser = next(filter(None, map(shutil.which, _NAMES)), None)
    if browser is None:
        pytest.skip("capability: a browser. Install Debian's chromium-headless-shell, or Chromium")
    text = page.read_text(encoding="utf-8")
    probe = page.with_suffix(f".{width}.html")
    # A policy that allows no scripts would stop the probe too.
    text = text.replace("style-src", "script-src 'unsafe-inline'; style-src", 1) if "script-src" not in text else text
    probe.write_text(text.replace("</body>", _PROBE % script + "</body>"), encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",  # containers run tests as root
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={page.parent / 'browser'}",
        f"--window-size={width},1000",
        "--virtual-time-budget=2000",
    ]
    shown = subprocess.run(
        [browser, *options, "--dump-dom", probe.as_uri()], capture_output=True, text=True, timeout=60
    )
    match = re.search(r'<pre id="probe">(\{.*?\})</pre>', shown.stdout, re.DOTALL)
    assert match, shown.stderr
    console = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    assert not console, console
    answer = json.loads(unescape(match[1]))
    assert answer["widest"] <= answer["width"] == width, answer
    return answer["result"]

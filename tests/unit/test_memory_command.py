# SPDX-License-Identifier: BSD-3-Clause
"""`outboard memory` and files that are not snapshots."""

from __future__ import annotations

import os
import pickle

import pytest
from click.testing import CliRunner

from torch_outboard.cli import main
from torch_outboard.cli.memory import page, summarise

from .browser import WIDTHS, look

FRAME = {"name": "f", "filename": "</script><b>.py", "line": 3}
SNAPSHOT = {
    "segments": [
        {
            "device": 0,
            "address": 4096,
            "total_size": 2048,
            "blocks": [
                {"size": 512, "state": "active_allocated", "frames": [FRAME]},
                {"size": 1536, "state": "inactive", "frames": []},
            ],
        }
    ],
    "device_traces": [
        [
            {"action": "segment_alloc", "addr": 4096, "size": 2048, "frames": []},
            {"action": "alloc", "addr": 4096, "size": 512, "frames": [FRAME]},
            {"action": "oom", "size": 10**9, "device_free": 5, "frames": [FRAME]},
        ],
        [{"action": "snapshot", "addr": 0, "size": 0, "frames": []}],
    ],
}


class MaliciousPickle:
    def __reduce__(self):
        return (os.mkdir, ("evil",))


def run(tmp_path, data, *options):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data)
    return CliRunner().invoke(main, ["memory", str(path), *options])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        pickle.dumps(SNAPSHOT)[:-20],
        pickle.dumps(MaliciousPickle()),
        pickle.dumps({**SNAPSHOT, "segments": [MaliciousPickle()]}),
        pickle.dumps([1, 2]),
        pickle.dumps({"segments": [{"address": "x"}], "device_traces": []}),
        pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": 1}]]}),
        b"\x80\x04P1\n.",
    ],
)
def test_what_is_no_snapshot_is_refused(tmp_path, data, monkeypatch):
    monkeypatch.chdir(tmp_path)
    answer = run(tmp_path, data)
    assert answer.exit_code == 1
    assert "snapshot.pickle is not a memory snapshot: " in answer.output
    assert not (tmp_path / "evil").exists()


def test_a_missing_file_is_named(tmp_path):
    answer = CliRunner().invoke(main, ["memory", str(tmp_path / "none.pickle")])
    assert answer.exit_code == 1 and "none.pickle" in answer.output


def test_the_text_tells_the_sums(tmp_path):
    answer = run(tmp_path, pickle.dumps(SNAPSHOT))
    assert "device 0: 1 segments, 2.0 KiB reserved, 512 B in use" in answer.output


def test_a_page_holds_its_data_and_no_markup_of_it():
    summary = summarise(SNAPSHOT)
    assert summary["timelines"][0]["points"] == [[0, 2048], [512, 2048], [512, 2048]]
    text = page("a <title>", summary)
    assert "a &lt;title&gt;" in text and text.count("</script>") == 1


CLICK = """
const svg = document.querySelector("svg"), area = svg.getBoundingClientRect();
const at = { clientX: area.right - 10, clientY: area.top + 20 };
svg.dispatchEvent(new PointerEvent("pointermove", at));
const value = document.querySelector(".value").textContent;
svg.dispatchEvent(new MouseEvent("click", at));
return [value, document.getElementById("timelines").textContent, document.querySelectorAll("svg").length];
"""


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_tells_what_was_allocated_at_an_entry(tmp_path, width):
    path = tmp_path / "page.html"
    path.write_text(page("a <title>", summarise(SNAPSHOT)), encoding="utf-8")
    value, chosen, charts = look(path, width, CLICK)
    assert value == "entry 2, oom of 953.7 MiB: 512 B allocated, 2.0 KiB reserved"
    assert "Allocated at that time, since the history began: 1 blocks" in chosen and "</script><b>.py:3 f" in chosen
    assert charts == 1  # a device that was never used has none

# SPDX-License-Identifier: BSD-3-Clause
"""The result of a search as a self-contained HTML page without scripts: the streams' tasks, and the race."""

from __future__ import annotations

import html
import os
import re
from typing import Any

from torch_outboard.race.report import command_of
from torch_outboard.race.search import Finding

__all__ = ["page"]

_TASK, _GAP, _LANE, _LEFT, _TOP = 14, 4, 46, 96, 30
_RECORD, _WAIT = 0, 1

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 90em; padding: 1em; color: #1c1c1c;
  background: #fff; overflow-wrap: anywhere; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; margin-top: 1.6em; }
pre { white-space: pre-wrap; background: #f3f3f3; padding: .6em; } .picture { overflow-x: auto; }
text { font: 12px system-ui, sans-serif; fill: currentColor; } .lane { stroke: #bbb; } .task { fill: #6b93c4; }
.first { fill: #d98e04; } .second { fill: #c0392b; } .order { stroke: #4a7d4a; stroke-width: 1.5; fill: none; }
.missing { stroke: #c0392b; stroke-width: 2; stroke-dasharray: 5 4; fill: none; }
.accesses { display: flex; flex-wrap: wrap; gap: 1em; } .accesses > div { flex: 1 1 20em; min-width: 0; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } pre { background: #262626; } }
"""


def page(finding: Finding) -> str:
    """Return the page. Every text of the program is escaped."""
    title = f"Races of {' '.join(finding.plan.program.words)}"
    parts = [f"<h1>{_text(title)}</h1>"]
    if finding.shown is not None:
        options = ", ".join(f"{name}={value}" for name, value in finding.shown.items())
        parts.append(f"<p>A race shows under <code>{_text(options)}</code>:</p><pre>{_text(finding.difference)}</pre>")
    elif not finding.by:
        parts.append(f"<p>No race in {finding.runs} runs.</p>")
    for race in finding.races[:1]:
        parts += [f"<h2>Missing</h2><p>{_code(race['remedy'])}</p>", _accesses(race)]
    parts.append(_picture(finding))
    if finding.by:
        parts.append(f"<h2>Repeat it</h2><pre>{_text(command_of(finding))}</pre>")
    parts += [f"<p>{_text(note)}</p>" for note in finding.notes]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _code(value: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", _text(value))


def _accesses(race: dict[str, Any]) -> str:
    shown = race["accesses"][:1] if race["kind"] == "unwaited" else race["accesses"]
    blocks = [
        f"<div><h2>{_text(access['text_head'])}</h2><pre>{_text(access['stack'])}</pre></div>" for access in shown
    ]
    return f'<div class="accesses">{"".join(blocks)}</div>'


def _picture(finding: Finding) -> str:
    """Return the tasks in the order in which they were queued, with a lane per stream, as SVG."""
    entries = finding.expected.answer.get("log", ())
    if not entries:
        return ""
    race = finding.races[0] if finding.races else None
    accesses = race["accesses"] if race is not None else []
    lanes = {
        stream: at for at, stream in enumerate(sorted({tuple(entry[2]) for entry in entries if entry[0] == "task"}))
    }
    if any(tuple(access["stream"]) not in lanes for access in accesses):
        lanes[-1, 0] = len(lanes)
    places: dict[int, float] = {}
    for at, entry in enumerate(entries):
        places[entry[1]] = _LEFT + at * (_TASK + _GAP)
    width, height = _LEFT + (len(entries) + 2) * (_TASK + _GAP), _TOP + len(lanes) * _LANE + 24
    drawn = [_lane(stream, at, width) for stream, at in lanes.items()]
    records: dict[tuple[int, ...], tuple[float, float]] = {}
    marks = {access["number"]: name for access, name in zip(accesses, ("first", "second"), strict=False)}
    for entry in entries:
        stream = tuple(entry[2])
        if stream not in lanes:
            continue
        x, y = places[entry[1]], _y(lanes[stream])
        if entry[0] == "task":
            drawn.append(_task(entry, x, y, marks.get(entry[1], "task")))
        elif entry[3] == _RECORD:
            records[tuple(entry[4])] = (x, y)
        elif entry[3] == _WAIT and tuple(entry[4]) in records:
            start = records[tuple(entry[4])]
            drawn.append(f'<path class="order" d="M{start[0]} {start[1]} L{x} {y}"><title>a wait</title></path>')
    drawn += _missing(race, accesses, lanes, places, width)
    return (
        "<h2>The streams' tasks, in the order of the calls</h2>"
        f'<div class="picture"><svg role="img" aria-label="tasks of {len(lanes)} streams" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}">{"".join(drawn)}</svg></div>'
    )


def _y(lane: int) -> float:
    return _TOP + lane * _LANE + _TASK / 2


def _lane(stream: tuple[int, ...], at: int, width: float) -> str:
    name = "host" if stream[0] < 0 else f"{stream[0]}: stream {stream[1]}"
    y = _y(at)
    return (
        f'<text x="4" y="{y + 4}">{_text(name)}</text>'
        f'<line class="lane" x1="{_LEFT - 8}" y1="{y}" x2="{width}" y2="{y}"/>'
    )


def _task(entry: list[Any], x: float, y: float, kind: str) -> str:
    place = f" at {os.path.basename(entry[4][0])}:{entry[4][1]}" if entry[4] else ""
    return (
        f'<rect class="{kind}" x="{x}" y="{y - _TASK / 2}" width="{_TASK}" height="{_TASK}" rx="2">'
        f"<title>{_text(entry[3])}{_text(place)}</title></rect>"
    )


def _missing(
    race: dict[str, Any] | None,
    accesses: list[dict[str, Any]],
    lanes: dict[tuple[int, ...], int],
    places: dict[int, float],
    width: float,
) -> list[str]:
    """Return the line that marks the missing wait."""
    if race is None:
        return []
    ends = []
    for access in accesses:
        number = access["number"]
        near = min(places, key=lambda known: abs(known - number))  # host accesses are not in any lane's log
        ends.append((places[near] + _TASK / 2, _y(lanes.get(tuple(access["stream"]), len(lanes) - 1))))
    (x1, y1), (x2, y2) = ends
    middle = (x1 + x2) / 2
    return [
        f'<path class="missing" d="M{x1} {y1} Q{middle} {min(y1, y2) - 24} {x2} {y2}"><title>no wait</title></path>',
        f'<text x="{min(middle, width - 60)}" y="14">no wait</text>',
    ]

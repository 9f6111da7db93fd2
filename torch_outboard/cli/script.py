# SPDX-License-Identifier: BSD-3-Clause
"""A user's script in this process."""

from __future__ import annotations

import runpy
import sys
import types
from pathlib import Path

__all__ = ["run_script"]


def run_script(script: str, arguments: tuple[str, ...]) -> int:
    """Run a script as `python SCRIPT ARGUMENTS` does, and return its status."""
    argv, path = sys.argv, sys.path
    sys.argv = [script, *arguments]
    sys.path = [str(Path(script).resolve().parent), *sys.path]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return _status(end.code)
    except KeyboardInterrupt as error:
        _print(error, script)
        return 130
    except BaseException as error:  # noqa: BLE001 - printed as Python prints it
        _print(error, script)
        return 1
    finally:
        sys.argv, sys.path = argv, path
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code
    print(code, file=sys.stderr)
    return 1


def _print(error: BaseException, script: str) -> None:
    """Print the traceback without this command's frames, through the script's own hook if it has one."""
    frames: types.TracebackType | None = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    # If there is no frame of the script, python could not read the script, and prints no stack.
    sys.excepthook(type(error), error.with_traceback(frames), frames)

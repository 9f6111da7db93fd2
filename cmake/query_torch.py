# SPDX-License-Identifier: BSD-3-Clause
"""Prints what CMake must know about this Python's torch as JSON, and writes the build's record."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

# A device backend that is installed, this one included, must not be loaded while it is being built.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

ROOT = Path(__file__).resolve().parent.parent


def load_build_module() -> ModuleType:
    """Load torch_outboard/_build.py alone: the package itself may need the extension."""
    spec = importlib.util.spec_from_file_location("outboard_build", ROOT / "torch_outboard" / "_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", type=Path, required=True, help="where to write the build's record")
    parser.add_argument("--sanitize", default="")
    arguments = parser.parse_args()

    try:
        import torch
    except ImportError as error:
        sys.exit(
            f"import torch: {error}\nInstall torch first, and build without isolation:\n"
            f"  {sys.executable} -m pip install torch && {sys.executable} -m pip install --no-build-isolation ."
        )
    build = load_build_module()
    try:
        build.check_supported(torch.__version__)
    except ImportError as error:
        sys.exit(str(error))
    python_include = Path(sysconfig.get_path("include"))
    if not (python_include / "Python.h").is_file():
        sys.exit(f"{python_include}/Python.h is missing: install Python's headers (Debian and Ubuntu: python3-dev)")

    root = Path(torch.__file__).parent
    minor = build.torch_minor(torch.__version__)
    record = {
        "torch": str(torch.__version__),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "sanitize": arguments.sanitize,
    }
    text = json.dumps(record, indent=2) + "\n"
    # Written only when it differs, so that a build with nothing to do stays one.
    if not arguments.write.is_file() or arguments.write.read_text() != text:
        arguments.write.write_text(text)
    include = [root / "include", root / "include/torch/csrc/api/include", root / "include/kineto"]
    answer = {
        "torch_version": str(torch.__version__),
        "torch_minor": minor[1],
        "torch_include": [directory.as_posix() for directory in include if directory.is_dir()],
        "torch_root": root.as_posix(),
        "torch_cxx11_abi": int(torch.compiled_with_cxx11_abi()),
        "python_include": python_include.as_posix(),
        "distributed": "ON" if torch.distributed.is_available() else "OFF",
        "extension_suffix": ".pyd" if sys.platform == "win32" else ".so",
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()

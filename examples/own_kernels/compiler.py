# SPDX-License-Identifier: BSD-3-Clause
"""What stands for a vendor's compiler and its launches: a small language, which the host's C compiler takes.

Nothing here is told to PyTorch. Replace it by your compiler, and keep what the driver calls. language.h has the words.
"""

import ctypes
import os
import re
import subprocess
import tempfile
from pathlib import Path

WORDS = Path(__file__).with_name("language.h")
ENTRY = """
void run_%(name)s(wide items, void* const* arguments) {
  for (number_of_this_item = 0; number_of_this_item < items; ++number_of_this_item) %(name)s(%(values)s);
}
"""
KERNEL = re.compile(r"^kernel void (\w+)\(([^)]*)\)", re.MULTILINE)
# What computes in another way than it is written stays off.
FLAGS = ("-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-lm")


class BuildError(Exception):
    """The text is no program; the message is what the compiler says."""


def build(text, options):
    """Gives what the compiler makes of a program. BuildError if it refuses the text, OSError if it can't be run."""
    with tempfile.TemporaryDirectory() as folder:
        library, messages = compiled(folder, text + "".join(entry(*found) for found in KERNEL.findall(text)))
        if library is None:
            # If it builds nothing at all, as with a full disk, no text is to blame.
            nothing, why = compiled(folder, "")
            if nothing is None:
                raise OSError(why)
            raise BuildError(f"the program does not build, options {options!r}:\n{messages}")
        return library


def compiled(folder, text):
    """Gives the library and what the compiler says; None for the library if there is none."""
    source, library = Path(folder, "program.c"), Path(folder, "program.so")
    source.write_text(text)
    command = [os.environ.get("CC", "cc"), "-include", str(WORDS), str(source), "-o", str(library), *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return (library.read_bytes() if done.returncode == 0 else None), done.stderr


def entry(name, parameters):
    """Gives a C function that runs a kernel's items, with the places of its arguments."""
    kinds = [re.sub(r"\w+\s*$", "", one) for one in parameters.split(",")]
    values = ", ".join(f"*({kind}*)arguments[{place}]" for place, kind in enumerate(kinds))
    return ENTRY % {"name": name, "values": values}


def load(library):
    """Gives a program that can be run. OSError if it is none."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        return ctypes.CDLL(file.name)


def find(program, name):
    """Gives a kernel of a program by its name, or None."""
    return getattr(program, f"run_{name}", None)


def launch(function, items, values):
    """Runs so many items of a kernel, given the bytes of each argument."""
    held = [ctypes.create_string_buffer(one, len(one)) for one in values]
    places = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    function(ctypes.c_int64(items), places)

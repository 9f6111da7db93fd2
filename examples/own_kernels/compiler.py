# SPDX-License-Identifier: BSD-3-Clause
"""A stand-in for a vendor's compiler and launches: a small language that the host's C compiler compiles.

PyTorch does not see this module. Replace it by your compiler, and keep the functions that the driver calls. language.h
defines the words of the language.
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
# Without flags that change the results of the code as written.
FLAGS = ("-std=gnu11", "-O2", "-ftree-vectorize", "-ffp-contract=off", "-fPIC", "-shared", "-w", "-lm")


class BuildError(Exception):
    """The text is not a valid program; the message is the compiler's output."""


def build(text, options):
    """Return the library of a program.

    Raises
    ------
    BuildError
        The compiler refuses the text.
    OSError
        The compiler cannot run.
    """
    with tempfile.TemporaryDirectory() as folder:
        library, messages = compiled(folder, text + "".join(entry(*found) for found in KERNEL.findall(text)))
        if library is None:
            # If even an empty text does not build, as with a full disk, the text is not to blame.
            nothing, why = compiled(folder, "")
            if nothing is None:
                raise OSError(why)
            raise BuildError(f"the program does not build, options {options!r}:\n{messages}")
        return library


def compiled(folder, text):
    """Return the library, or None if it does not build, and the compiler's messages."""
    source, library = Path(folder, "program.c"), Path(folder, "program.so")
    source.write_text(text)
    command = [os.environ.get("CC", "cc"), "-include", str(WORDS), str(source), "-o", str(library), *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    return (library.read_bytes() if done.returncode == 0 else None), done.stderr


def entry(name, parameters):
    """Return the source of a C function that runs a kernel's items, with pointers to its arguments."""
    kinds = [re.sub(r"\w+\s*$", "", parameter) for parameter in parameters.split(",")]
    values = ", ".join(f"*({kind}*)arguments[{place}]" for place, kind in enumerate(kinds))
    return ENTRY % {"name": name, "values": values}


def load(library):
    """Load a library as a program; raise OSError if it is not a library."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        return ctypes.CDLL(file.name)


def find(program, name):
    """Return the program's kernel of this name, or None."""
    return getattr(program, f"run_{name}", None)


def launch(function, items, values):
    """Run a number of items of a kernel; `values` are the bytes of each argument."""
    held = [ctypes.create_string_buffer(value, len(value)) for value in values]
    places = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    function(ctypes.c_int64(items), places)

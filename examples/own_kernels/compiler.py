# SPDX-License-Identifier: BSD-3-Clause
"""What stands for a vendor's compiler and its launches: a small language, which the host's C compiler takes.

Nothing here is told to PyTorch. Replace it by your compiler, and keep what the driver calls.
"""

import ctypes
import os
import re
import subprocess
import tempfile
from pathlib import Path

# The words of the language.
WORDS = """\
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <tgmath.h>
#undef I
typedef int8_t tiny;
typedef int16_t small;
typedef int32_t word;
typedef int64_t wide;
typedef uint8_t unsigned_tiny;
typedef uint16_t unsigned_small;
typedef uint32_t unsigned_word;
typedef uint64_t unsigned_wide;
#define helper static inline __attribute__((always_inline, unused))
#define kernel static
#define in_memory
#define constant static const
#define infinity INFINITY
#define not_a_number NAN
#define item_number() (number_of_this_item)
#define AS(To, From, name) helper To name(From from) { To to; memcpy(&to, &from, sizeof to); return to; }
AS(float, uint32_t, bits_to_float)
AS(uint32_t, float, float_to_bits)
AS(double, uint64_t, bits_to_double)
AS(uint64_t, double, double_to_bits)
#undef AS
helper int take(in_memory uint32_t* place) { const int is_first = *place == 0; *place = 1; return is_first; }
typedef float vector_of_float __attribute__((vector_size(32)));
typedef double vector_of_double __attribute__((vector_size(32)));
typedef uint32_t vector_of_unsigned_word __attribute__((vector_size(32)));
typedef uint64_t vector_of_unsigned_wide __attribute__((vector_size(32)));
#define vector_load(vector, place) memcpy(&(vector), place, sizeof(vector))
#define vector_store(vector, place) memcpy(place, &(vector), sizeof(vector))
static wide number_of_this_item;
#line 1 "program"
"""

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
    """Gives a program's library. OSError if the compiler can't be run."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "program.c"), Path(folder, "program.so")
        source.write_text(WORDS + text + "".join(entry(*found) for found in KERNEL.findall(text)))
        command = [os.environ.get("CC", "cc"), str(source), "-o", str(library), *FLAGS]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            check_compiler(Path(folder))
            raise BuildError(f"the program does not build, options {options!r}:\n{done.stderr}")
        return ctypes.CDLL(str(library))


def check_compiler(folder):
    """Check that the compiler works. OSError if it builds nothing at all, as with a full disk: no text is to blame."""
    source, library = folder / "nothing.c", folder / "nothing.so"
    source.write_text(WORDS)
    done = subprocess.run([os.environ.get("CC", "cc"), str(source), "-o", str(library), *FLAGS], capture_output=True)
    if done.returncode != 0:
        raise OSError(done.stderr.decode(errors="replace"))


def entry(name, parameters):
    """Gives a C function that runs a kernel's items, with the places of its arguments."""
    kinds = [re.sub(r"\w+\s*$", "", one) for one in parameters.split(",")]
    values = ", ".join(f"*({kind}*)arguments[{place}]" for place, kind in enumerate(kinds))
    return ENTRY % {"name": name, "values": values}


def find(library, name):
    """Gives a kernel of a program by its name, or None."""
    return getattr(library, f"run_{name}", None)


def launch(function, items, values):
    """Runs so many items of a kernel, given the bytes of each argument."""
    held = [ctypes.create_string_buffer(one, len(one)) for one in values]
    places = (ctypes.c_void_p * len(held))(*map(ctypes.addressof, held))
    function(ctypes.c_int64(items), places)

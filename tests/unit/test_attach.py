# SPDX-License-Identifier: BSD-3-Clause
"""Refusals of attach. Every refusal comes before any change, so one process can try all of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import torch_outboard
from torch_outboard import Driver, Option, RegistrationError
from torch_outboard._build import BuildInfo

from .contract import ROOT
from .toys import Toy


@pytest.fixture(autouse=True)
def _nothing_is_attached():
    yield
    assert torch_outboard.attached_driver() is None
    assert torch._C._get_privateuse1_backend_name() == "privateuseone"


def named(name: str) -> type[Driver]:
    return type("Named", (Toy,), {"name": name})


@pytest.mark.parametrize(
    "name, why",
    [
        ("", "lower-case letters"),
        ("Toy", "lower-case letters"),
        ("toy2", "lower-case letters"),
        ("my-toy", "lower-case letters"),
        ("_toy", "lower-case letters"),
        ("import", "keyword"),
        ("cpu", "torch reserves the name"),
        ("cuda", "torch reserves the name"),
        ("meta", "torch reserves the name"),
        ("privateuseone", "torch reserves the name"),
        ("optim", "it would hide torch.optim"),
        ("requires_grad_", "lower-case letters"),
        ("requires_grad", "it would hide Tensor.requires_grad"),
        ("children", "it would hide Module.children"),
        ("nbytes", "it would hide Tensor.nbytes"),
    ],
)
def test_names_that_torch_cannot_use(name, why):
    with pytest.raises(RegistrationError, match=why):
        torch_outboard.attach(named(name))


def test_an_unknown_driver_names_the_near_ones():
    from torch_outboard._discovery import found_drivers

    known = next(iter(found_drivers()))
    with pytest.raises(RegistrationError, match=f"no driver is called '{known}x'. Did you mean '{known}'"):
        torch_outboard.attach(known + "x")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("made_up", "^driver 'made_up' is not installed: pip install torch-outboard-made-up$"),
        ("checkout", "^driver 'checkout' is not installed: pip install torch-outboard-checkout$"),
        ("made", "no driver is called 'made'"),
        ("docs", "no driver is called 'docs'"),  # an extra that brings no driver
        ("dev", "no driver is called 'dev'"),
    ],
)
def test_a_driver_of_an_extra_is_named_with_the_line_that_installs_it(monkeypatch, name, words):
    requirements = [
        *("torch>=2", 'sphinx>=8; extra == "docs"', 'torch-outboard[test]; extra == "dev"'),
        *('torch-outboard-made-up; extra == "made_up"', "torch-outboard-checkout; extra == 'checkout'"),
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda distribution: requirements)
    with pytest.raises(RegistrationError, match=words):
        torch_outboard.attach(name)


@pytest.mark.parametrize(
    "target, why",
    [
        ("no_such_module:Driver", "No module named 'no_such_module'"),
        ("torch_outboard.driver:Nothing", "has no attribute 'Nothing'"),
        ("torch_outboard.driver:Option", "is not a subclass of torch_outboard.Driver"),
    ],
)
def test_a_target_that_is_no_driver(target, why):
    with pytest.raises(RegistrationError, match=why):
        torch_outboard.attach(target)


def test_other_things_are_no_drivers():
    with pytest.raises(TypeError, match="a driver must be a name or a subclass"):
        torch_outboard.attach(3)
    with pytest.raises(RegistrationError, match="pass the options to "):
        torch_outboard.attach(Toy(), devices=1)


def test_an_init_that_forgets_its_base():
    class IncompleteDriver(Toy):
        def __init__(self):
            pass

    with pytest.raises(RegistrationError, match="must call super"):
        torch_outboard.attach(IncompleteDriver())


def test_a_fallback_mode_that_is_none(monkeypatch):
    monkeypatch.setenv("OUTBOARD_FALLBACK", "loud")
    with pytest.raises(ValueError, match="OUTBOARD_FALLBACK must be warn, error or silent, not 'loud'"):
        torch_outboard.attach(Toy)


def test_an_extension_for_another_torch(monkeypatch):
    import torch_outboard._build as build

    monkeypatch.setattr(build, "build_info", lambda: BuildInfo(torch="2.0.1", python="3.11"))
    with pytest.raises(
        ImportError, match=rf"built for torch 2.0.1, but torch {torch.__version__.split('+')[0]}.*Rebuild it: "
    ):
        torch_outboard.attach(Toy)


@pytest.mark.parametrize(
    "entry, value, why",
    [
        ("stream_query", 0, "is an int, but not the address"),
        ("stream_query", -1, "is an int, but not the address"),
        ("stream_query", "text", "must be a method, or the address"),
        ("kernel_register", print, "cannot be a Python method"),
        ("host_alloc", print, "host_alloc, host_free must be implemented together"),
        ("graph_launch", print, "must be implemented together or not at all"),
    ],
)
def test_entries_that_cannot_be_bound(entry, value, why):
    with pytest.raises(RegistrationError, match=why):
        torch_outboard.attach(type("Bad", (Toy,), {entry: value}))


def test_another_version_of_the_contract():
    with pytest.raises(RegistrationError, match="built for version 2 of the contract.*Rebuild"):
        torch_outboard.attach(type("Newer", (Toy,), {"abi": (2, 0)}))


# -- Libraries
# --------------------------------------------------------------------------------------------------------


class LibraryDriver(Driver):
    name = "toy"
    options = {"devices": Option(int, None, "Number of devices.")}


def test_a_library_that_is_missing(tmp_path):
    driver = type("Missing", (LibraryDriver,), {"library": tmp_path / "no.so"})
    with pytest.raises(RegistrationError, match="its library does not load .*no.so"):
        torch_outboard.attach(driver)


def test_a_library_that_is_none(tmp_path):
    path = tmp_path / "text.so"
    path.write_text("not a library")
    with pytest.raises(RegistrationError, match="its library does not load .*text.so"):
        torch_outboard.attach(type("Text", (LibraryDriver,), {"library": path}))


TABLE = """
#include <torch_outboard/driver.h>
#include <stdio.h>
#include <string.h>
{functions}
OB_EXPORT ob_status {symbol}(const ob_options* options, ob_driver* out_driver, char* error, size_t error_size) {{
  (void)options;
  (void)error;
  (void)error_size;
  {body}
}}
"""


@pytest.fixture(scope="session")
def compile_library(tmp_path_factory):
    """Return a function that compiles the body of ob_driver_table into a driver library."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    include = Path(torch_outboard.__file__).parent / "include"
    if not include.is_dir():
        include = ROOT / "include"

    def compile_body(body: str, symbol: str = "ob_driver_table", functions: str = "") -> Path:
        folder = tmp_path_factory.mktemp("library")
        (folder / "driver.c").write_text(TABLE.format(symbol=symbol, body=body, functions=functions))
        command = [compiler, "-shared", "-fPIC", f"-I{include}", "driver.c", "-o", "driver.so"]
        subprocess.run(command, cwd=folder, check=True)
        return folder / "driver.so"

    return compile_body


@pytest.mark.parametrize(
    "body, why",
    [
        ('snprintf(error, error_size, "no such chip"); return OB_UNAVAILABLE;', "cannot be attached: no such chip"),
        ("return OB_ABORTED;", r"ob_driver_table failed with ABORTED \(10\)"),
        ("out_driver->abi_major = 7; return OB_OK;", "built for version 7 of the contract"),
        ("out_driver->abi_major = 1; out_driver->struct_size = 40; return OB_OK;", "struct_size is 40 bytes"),
        ("out_driver->abi_major = 1; out_driver->struct_size *= 2; return OB_OK;", "but the core"),
        ("out_driver->abi_major = 1; return OB_OK;", "lacks required entries: device_count, device_properties"),
    ],
    ids=["reason", "status", "abi", "short struct", "long struct", "empty"],
)
def test_a_library_whose_table_is_refused(compile_library, body, why):
    with pytest.raises(RegistrationError, match=why):
        torch_outboard.attach(type("Refused", (LibraryDriver,), {"library": compile_library(body)}))


def test_a_table_that_ends_within_an_entry_ends_before_it(compile_library, run_python):
    # All required entries, then half of last_error.
    library = compile_library(
        """
  void (**entries)(void) = (void (**)(void))(void*)&out_driver->device_count;
  for (int i = 0; i < 13; ++i) entries[i] = (void (*)(void))nothing;
  out_driver->device_count = count;
  memset((char*)&out_driver->last_error, 0x5a, sizeof(out_driver->last_error));
  out_driver->abi_major = OB_ABI_MAJOR;
  out_driver->struct_size = offsetof(ob_driver, last_error) + 4;
  return OB_OK;""",
        functions="""
static int32_t count(void* self) { (void)self; return 0; }
static ob_status nothing(void* self) { (void)self; return OB_OK; }""",
    )
    run_python(
        f"""
import torch_outboard
from torch_outboard import Driver, _C
class Cut(Driver):
    name = "cut"
    library = {str(library)!r}
torch_outboard.attach(Cut)
assert _C.entries()["stream_wait_event"] and not _C.entries()["last_error"]
"""
    )


def test_a_library_without_the_symbol(compile_library):
    path = compile_library("return OB_OK;", symbol="other_table")
    with pytest.raises(RegistrationError, match="does not export ob_driver_table"):
        torch_outboard.attach(type("Other", (LibraryDriver,), {"library": path}))


# -- What changes the process
# -----------------------------------------------------------------------------------------

ATTACH = """
import sys
import pytest, torch, torch_outboard
from torch_outboard import RegistrationError
from unit.toys import Toy
"""


def test_attaching_again(run_python):
    run_python(
        ATTACH
        + """
class Other(Toy):
    name = "other"
with pytest.raises(RegistrationError):
    torch_outboard.attach("nothing_like_it")
module = torch_outboard.attach(Toy, devices=3)
assert module is torch.toy and module.device_count() == 3
assert torch_outboard.attach(Toy, devices="3") is module
with pytest.raises(RegistrationError, match="new options it has 2 devices, but this process has already counted 3"):
    torch_outboard.attach(Toy)
with pytest.raises(RegistrationError, match="'toy' is already attached.*Start another process for 'other'"):
    torch_outboard.attach(Other)
assert torch_outboard.attached_driver().opened == []
"""
    )


def test_attaching_goes_on_where_it_failed(run_python):
    run_python(
        ATTACH
        + """
class WithKernel(Toy):
    kernels = {"aten::no_such_operator": print}
with pytest.raises((ValueError, RuntimeError), match="no_such_operator"):
    torch_outboard.attach(WithKernel)
assert torch_outboard.attached_driver() is None
WithKernel.kernels = {}
assert torch_outboard.attach(WithKernel) is torch.toy
assert torch.empty(2, device="toy").is_toy
"""
    )


def test_settings_that_failed_are_applied_by_the_next_attach(run_python):
    """They follow the installed table, which nothing takes back."""
    run_python(
        ATTACH
        + """
import os
from torch_outboard._settings import Settings
os.environ["OUTBOARD_FALLBACK"] = "error"
apply, failing = Settings.apply, [MemoryError("once")]
def fails_once(settings, driver):
    if failing:
        raise failing.pop()
    apply(settings, driver)
Settings.apply = fails_once
with pytest.raises(MemoryError, match="once"):
    torch_outboard.attach(Toy)
assert torch_outboard.attached_driver() is None and not hasattr(torch, "toy")
torch_outboard.attach(Toy)
with pytest.raises(torch_outboard.NotSupportedError):
    torch.ones(2, device="toy").sin()
"""
    )


def test_another_package_has_taken_the_device_type(run_python):
    run_python(
        ATTACH
        + """
torch.utils.rename_privateuse1_backend("foreign")
with pytest.raises(RegistrationError, match="another package has taken .*'foreign'. Uninstall it"):
    torch_outboard.attach(Toy)
assert torch.ones(2).sum() == 2
"""
    )


def test_an_import_after_the_first_was_purged_says_so(run_python):
    run_python(
        ATTACH
        + """
import sys
torch_outboard.attach(Toy)
for name in [module for module in sys.modules if module.partition(".")[0] == "torch_outboard"]:
    del sys.modules[name]
import torch_outboard
with pytest.raises(torch_outboard.RegistrationError, match="has attached 'toy' in this process already"):
    torch_outboard.attach("sim")
"""
    )


def test_texts_without_a_final_zero_are_cut(run_python):
    run_python(
        """
import ctypes
import torch, torch_outboard
from examples.pure_python_driver import PythonDriver

@ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)
def fill(self, device, out):
    ctypes.memset(out + 8, ord("x"), 256 + 3 * 64)
    return 0

class Driver(PythonDriver):
    device_properties = fill

found = torch_outboard.attach(Driver).get_device_properties(0)
assert found.name == 255 * "x"
assert found.vendor == found.architecture == found.driver_version == 63 * "x"
"""
    )


def test_no_device_is_no_obstacle_to_attaching(run_python):
    run_python(
        ATTACH
        + """
module = torch_outboard.attach(Toy, devices=0)
assert not module.is_available() and module.device_count() == 0
assert torch.device("toy").type == "toy"
torch.manual_seed(0)
with pytest.raises(torch.AcceleratorError, match="driver 'toy' has 0 devices"):
    torch.empty(1, device="toy")
"""
    )


def test_a_failing_probe_says_why_at_first_use(run_python):
    run_python(
        ATTACH
        + """
class Broken(Toy):
    def device_count(self):
        raise torch_outboard.DriverError("the kernel module is not loaded", torch_outboard.Status.UNAVAILABLE)
module = torch_outboard.attach(Broken)
assert module.device_count() == 0
with pytest.raises(torch.AcceleratorError, match="UNAVAILABLE .14.: the kernel module is not loaded"):
    torch.empty(1, device="toy")
"""
    )


def test_this_process_is_clean():
    # The tests above ran in this process, unless each has its own.
    assert "torch.toy" not in sys.modules


def test_an_installation_without_source_files(run_python):
    run_python(
        """
import inspect

def unreadable(*arguments):
    raise OSError("could not get source code")

inspect.getsource = inspect.getsourcelines = unreadable
import torch, torch_outboard
module = torch_outboard.attach("sim")
x = torch.ones(2, device="sim")
assert (x + 1).tolist() == [2, 2] and repr(x) == "tensor([1., 1.], device='sim:0')"
assert torch.from_dlpack(x).device.type == "sim"
""",
    )


def test_kernels_of_a_class_are_not_hidden_by_an_attribute_of_the_instance(run_python):
    run_python(
        """
import pytest, torch_outboard
from examples.pure_python_driver import PythonDriver

class Hiding(PythonDriver):
    kernels = {"aten::relu": lambda x: x}

    def __init__(self, **options):
        super().__init__(**options)
        self.kernels = {}

with pytest.raises(torch_outboard.RegistrationError, match="assigns `self.kernels`.*aten::relu"):
    torch_outboard.attach(Hiding())
"""
    )


def test_attaching_after_a_backward_pass(run_python):
    """torch starts autograd's threads at a process's first pass, for the devices that exist then."""
    print_ = run_python("""
import torch
x = torch.ones(3, requires_grad=True)
(x * 2).sum().backward()

import torch_outboard
from torch_outboard import _C

torch_outboard.attach("sim", devices=3)
for index in (0, 2):
    y = torch.ones(3, device=f"sim:{index}", requires_grad=True)
    (y * 2).sum().backward()
    assert y.grad.tolist() == [2.0] * 3 and y.grad.device.index == index
(x * 3).sum().backward()
assert x.grad.tolist() == [5.0] * 3

# As where another device's threads had been started.
try:
    _C.begin_autograd_threads(7)
except torch_outboard.RegistrationError as error:
    print(error)
""")
    assert "torch counted 3 devices; the driver has 7" in str(print_)


def test_a_null_character_is_refused(run_python) -> None:
    run_python(
        r"""
import pytest, torch_outboard
with pytest.raises(ValueError, match="an option's value must not contain a null character: 'lazy:7.x00 and more'"):
    torch_outboard.attach("sim", schedule="lazy:7\0 and more")
torch_outboard.attach("sim")
"""
    )

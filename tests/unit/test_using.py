# SPDX-License-Identifier: BSD-3-Clause
"""What `use()` of every integration is made of. The libraries themselves are in tests/ecosystem."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from torch_outboard._errors import RegistrationError
from torch_outboard.integrations._patched import ActiveIntegration


@pytest.fixture
def library(monkeypatch):
    """Return a module with a function that another module has imported by name."""
    module, importer = ModuleType("some_library"), ModuleType("some_library.other")
    exec("def choose():\n    return 'cpu'\nclass Chosen:\n    device = 'cpu'", module.__dict__)
    importer.choose = module.choose
    monkeypatch.setitem(sys.modules, "some_library", module)
    monkeypatch.setitem(sys.modules, "some_library.other", importer)
    return module


def test_a_function_is_replaced_wherever_it_was_imported_to_and_put_back(library):
    importer, before = sys.modules["some_library.other"], library.choose
    with ActiveIntegration() as using:
        using.replace(library, "choose", lambda: "chip", "choose the chip")
        using.set(library.Chosen, "device", "chip", "be on the chip")
        assert library.choose() == importer.choose() == library.Chosen.device == "chip"
        assert set(using.patches().values()) == {"choose the chip", "be on the chip"}
    assert library.choose is importer.choose is before and library.Chosen.device == "cpu" and using.patches() == {}


def test_what_the_library_no_longer_has_is_refused_by_name(library):
    using = ActiveIntegration()
    for owner, name in ((library, "some_library.pick"), (library.Chosen, "some_library.Chosen.pick")):
        with pytest.raises(RegistrationError, match=f"the installed some_library lacks {name}"):
            using.set(owner, "pick", None, "pick the chip")
    assert not hasattr(library, "pick") and using.patches() == {}


def test_a_module_is_patched_when_it_is_imported_and_not_after_close(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("imported_within", "imported_after"):
        (tmp_path / f"{name}.py").write_text("device = 'cpu'")
    using = ActiveIntegration()
    for name in ("imported_within", "imported_after"):
        using.when_imported(name, lambda module: using.set(module, "device", "chip", "be on the chip"))
    import imported_within

    assert imported_within.device == "chip"
    using.close()
    import imported_after

    assert imported_within.device == imported_after.device == "cpu"


@pytest.mark.parametrize("module", ["huggingface", "lightning", "safetensors"])
def test_without_a_device_it_says_what_to_call(run_python, module):
    run_python(
        f"from torch_outboard import RegistrationError\nfrom torch_outboard.integrations import {module}\n"
        f"try:\n    {module}.use()\nexcept RegistrationError as error:\n"
        "    assert 'call torch_outboard.attach(…) before it' in str(error)\nelse:\n    raise AssertionError()"
    )


def test_using_all_asks_for_no_device(run_python):
    """`outboard run` uses all integrations before the script attaches with options of its own, or forks."""
    run_python(
        "import torch, torch_outboard\ntorch_outboard.attach('sim')\n"
        "from torch_outboard import _C, integrations\n"
        "first = integrations.use_all()\nassert integrations.use_all() == first\n"
        "assert not _C.is_any_device_touched() and not _C.any_device_opened()\n"
        "torch_outboard.attach('sim', devices=4)\nassert torch.accelerator.device_count() == 4"
    )


def test_a_variable_for_another_device_is_refused(run_python):
    run_python(
        "import torch, torch_outboard\ntorch_outboard.attach('sim')\n"
        "from torch_outboard.integrations import huggingface\n"
        "try:\n    huggingface.use()\nexcept torch_outboard.RegistrationError as error:\n"
        "    assert \"ACCELERATE_TORCH_DEVICE is 'cuda:0'\" in str(error)\nelse:\n    raise AssertionError()",
        env={"ACCELERATE_TORCH_DEVICE": "cuda:0"},
    )

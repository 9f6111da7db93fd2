# SPDX-License-Identifier: BSD-3-Clause
"""`outboard doctor`: the machine, the drivers' own checks, and how the answers of libraries are judged.

What the installed libraries answer is in tests/ecosystem.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess

import pytest

from torch_outboard._check import Check
from torch_outboard.doctor import libraries, machine, report
from torch_outboard.doctor.libraries import ProbeContext

RUN = """
import sys
from torch_outboard.cli import main
main(sys.argv[1:], prog_name="outboard")
"""
ASKING = ProbeContext("sim", {}, "sim")


def judged(**answer):
    return list(
        libraries._checks_of(ASKING, {"library": "accelerate", "version": "9", "why": "", "others": {}, **answer})
    )


def test_a_report_is_reported_in_lines():
    tree = {"name": "a chip", "sizes": [1, 2], "devices": [{"memory": {"heaps": ["4 GiB"]}}], "kinds": list("abcdef")}
    assert list(report.lines_of(tree))[:7] == [
        "name: a chip",
        "sizes: 1, 2",
        "devices:",
        "  -",
        "    memory:",
        "      heaps: 4 GiB",
        "kinds:",
    ]
    assert list(report.lines_of(tree))[7:9] == ["  - a", "  - b"]


@pytest.mark.parametrize(
    ("given", "status", "words"),
    [
        ([], 2, "--report needs --driver"),
        (["--driver=null"], 1, "the driver 'null' has no report"),
        (["--driver=nobody"], 1, "the report's process ended with status"),
    ],
)
def test_only_drivers_with_a_report_have_one(run_python, given, status, words):
    answer = run_python(RUN, "doctor", "--report", *given, status=status)
    assert words in answer.stdout + answer.stderr


def test_vulkan_reports_what_is_missing():
    from torch_outboard.drivers.vulkan import VulkanDriver

    facts = VulkanDriver(library="/nowhere/libvulkan.so.1").report()
    assert "/nowhere" in facts["loader"]["error"] and "devices" not in facts["loader"]
    assert "Vulkan cannot be loaded" in facts["computations"]["error"]
    assert facts["machine"]["options"]["library"] == "/nowhere/libvulkan.so.1"


@pytest.mark.skipif(ctypes.util.find_library("vulkan") is None, reason="capability: a loader of Vulkan")
def test_vulkan_reports_its_devices(run_python):
    answer = run_python(RUN, "doctor", "--report", "--driver=vulkan", "--json")
    facts = json.loads(answer.stdout)
    assert facts["loader"]["api"].startswith("1.") and facts["drivers of devices"]
    for device in facts["loader"]["devices"]:
        assert device["needed features"] == "all", device
        assert device["limits"]["maxComputeWorkGroupInvocations"] >= 128
        assert device["limits"]["maxPushConstantsSize"] >= 128 and device["limits"]["timestampPeriod"] > 0
        assert device["subgroups"]["least"] <= device["subgroups"]["size"] <= device["subgroups"]["most"]
        assert device["memory"]["heaps"] and device["queues"]
        assert "VK_EXT_calibrated_timestamps" not in device["extensions"] or "device" in device["clocks"]
    for device in facts["computations"]["devices"]:
        assert {result["state"] for result in device["results"].values()} == {"right"}, device["results"]
        assert device["properties"]["shared_memory_per_block"] >= 16 << 10


def test_the_device_is_right_and_any_other_is_reported_with_the_line_to_write():
    assert judged(device="sim") == [Check("accelerate 9", "right", "uses sim")]
    [check] = judged(device="cpu", why="state.py:7, default_device")
    assert check.state == "wrong" and check.found == "silently uses cpu, not sim (state.py:7, default_device)"
    assert "huggingface.use()" in check.remedy


def test_a_refusal_is_reported_in_the_librarys_words():
    _, check = judged(device="sim", others={"fp16": "ValueError: requires cuda"})
    assert check == Check("accelerate 9, fp16", "wrong", "refuses sim: ValueError: requires cuda", check.remedy)


def test_a_library_that_cannot_be_asked_is_wrong():
    assert judged(error="ImportError: no psutil") == [
        Check("accelerate 9", "wrong", "the check failed: ImportError: no psutil")
    ]


@pytest.mark.parametrize(
    ("where", "members", "state", "words"),
    [
        ("sim", 2, "right", "one group of 2, on sim:0, sim:1"),
        ("cpu", 2, "wrong", "one group, on cpu:0, cpu:1, not on sim"),
        ("sim", 1, "wrong", "separate models"),
    ],
)
def test_ranks_are_a_group_only_if_they_add_up(where, members, state, words):
    ranks = [{"device": where, "index": index, "members": members} for index in range(2)]
    check = libraries._check_of_group(ASKING, "accelerate", ranks)
    assert check.state == state and words in check.found
    check = libraries._check_of_group(ASKING, "accelerate", [ranks[0], {"error": "no port"}])
    assert check.state == "wrong" and "no port" in check.found


def test_a_library_that_ends_the_process_takes_no_other_with_it(tmp_path, monkeypatch):
    """Of three libraries, the second one ends the process as it is imported."""
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("raise ImportError('too old')")
    (tmp_path / "peft.py").write_text("import os; print('no such chip'); os._exit(7)")
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    (tmp_path / "deepspeed" / "accelerator.py").write_text(
        "class Asked:\n    def device_name(self):\n        return 'cuda'\ndef get_accelerator():\n    return Asked()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    checks = list(libraries.check_libraries(ASKING, ["safetensors", "peft", "deepspeed"]))
    assert [check.state for check in checks] == ["wrong", "wrong", "wrong"]
    assert "too old" in checks[0].found and "status 7" in checks[1].found
    assert "silently uses cuda" in checks[2].found and "deepspeed/accelerator.py:4" in checks[2].found


def test_what_is_not_installed_is_not_asked():
    assert list(libraries.check_libraries(ASKING, ["deepspeed"])) == []


def test_another_torch_is_reported_with_the_command(monkeypatch):
    assert machine.check_build().state == "right"
    monkeypatch.setattr(machine, "installed_torch", lambda: "2.12.0")
    check = machine.check_build()
    assert check.state == "wrong" and "2.12.0" in check.found and check.remedy


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"OUTBOARD_DRIVER": "sim", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "has no effect"),
        ({"OUTBOARD_DRIVER": "simm"}, "'sim' is"),
    ],
)
def test_loading_that_cannot_work_is_reported(monkeypatch, variables, words):
    for name in ("OUTBOARD_DRIVER", "TORCH_DEVICE_BACKEND_AUTOLOAD"):
        monkeypatch.delenv(name, raising=False)
    assert [check.state for check in machine.check_autoload()] == ["right"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    [check] = machine.check_autoload()
    assert check.state == "wrong" and words in check.found and check.remedy


def test_two_vendors_that_load_themselves_are_reported(monkeypatch):
    class Entry:
        def __init__(self, name, module):
            self.name, self.module, self.dist = name, module, None

    monkeypatch.delenv("OUTBOARD_DRIVER", raising=False)
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD", raising=False)
    entries = [Entry("outboard", "torch_outboard_autoload"), Entry("a", "a"), Entry("b", "b")]
    monkeypatch.setattr(machine, "entry_points", lambda group: entries)
    [check] = machine.check_autoload()
    assert check.state == "wrong" and "a, b load themselves" in check.found


@pytest.mark.parametrize(("is_wanted", "state"), [(True, "wrong"), (False, "unused")])
def test_a_driver_without_a_device_is_wrong_only_if_it_is_wanted(is_wanted, state):
    report = {"attached": {"error": "no device: the driver reports none", "devices": []}}
    [check] = machine.check_driver("chip", is_wanted, report, "")
    assert check.state == state and check.found == "no device: the driver reports none"
    [check] = machine.check_driver("chip", is_wanted, None, "status -11")
    assert check.state == "wrong" and "status -11" in check.found


def test_a_folder_that_others_can_write_is_reported(run_python, tmp_path):
    open_to_all = tmp_path / "shared"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    code = (
        "import torch\nfrom torch_outboard.doctor import machine\ncheck = machine._cache()\n"
        "assert check.state == '{}', check\nassert '{}' in check.found + check.remedy, check"
    )
    folder = {"OUTBOARD_KERNEL_CACHE_DIR": str(tmp_path / "own")}
    run_python(code.format("right", "GiB free"), env=folder)
    wrong = {"OUTBOARD_KERNEL_CACHE_DIR": str(open_to_all / "kernels" / "below")}
    open_to_all.chmod(0o500)
    if os.geteuid() == 0:  # root may write everywhere
        open_to_all.chmod(0o700)
        (open_to_all / "kernels").write_text("a file where a folder should be")
    run_python(code.format("wrong", "each process builds its own"), env=wrong)
    run_python(code.format("unused", "OUTBOARD_KERNEL_CACHE_DIR"), env={"OUTBOARD_KERNEL_CACHE_DIR": ""})


def test_the_command_asks_the_driver_itself_and_its_status_says_whether_all_is_well(run_python):
    answer = run_python(RUN, "doctor", "--driver", "unit.toys:Checked", "--no-libraries", "--json", status=1)
    report = json.loads(answer.stdout)
    wrong = [check for check in report["checks"] if check["state"] == "wrong"]
    assert wrong == [{"subject": "firmware", "state": "wrong", "found": "it is too old", "remedy": "flash it"}]
    assert report["wrong"] == 1
    assert any(check["subject"] == "unit.toys:Checked, device 0" for check in report["checks"])


def test_an_unknown_library_is_refused(run_python):
    answer = run_python(RUN, "doctor", "--library", "accelerat3", status=2)
    assert "unknown name 'accelerat3'" in answer.stderr


_LOADER = """
#include <stdint.h>
int vkCreateInstance(const void* info, const void* allocator, void** instance) {
  *instance = (void*)info;
  return *(const int*)info == 1 ? STATUS : -99;
}
int vkEnumeratePhysicalDevices(void* instance, uint32_t* count, void* devices) { *count = DEVICES; return 0; }
void vkDestroyInstance(void* instance, const void* allocator) {}
"""


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (_LOADER.replace("STATUS", "0").replace("DEVICES", "3"), "right", "opens; devices of all drivers: 3"),
        (_LOADER.replace("STATUS", "0").replace("DEVICES", "0"), "unused", "finds no device (0)"),
        (_LOADER.replace("STATUS", "-9").replace("DEVICES", "0"), "unused", "finds no device (-9)"),
        ("int vk_icdGetInstanceProcAddr;", "unused", "is a device's driver without the loader"),
        ("int nothing;", "unused", "is not a Vulkan library"),
        (None, "unused", "cannot open shared object file"),
    ],
)
def test_a_driver_says_what_its_loader_finds(tmp_path, code, state, words):
    from torch_outboard.drivers.vulkan import VulkanDriver

    library = tmp_path / "libloader.so"
    if code is not None:
        (tmp_path / "loader.c").write_text(code)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "loader.c"], check=True)
    check, *_ = VulkanDriver(library=str(library)).checks()
    assert (check.subject, check.state) == ("Vulkan's loader", state) and words in check.found, check

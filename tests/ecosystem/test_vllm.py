# SPDX-License-Identifier: BSD-3-Clause
"""vLLM serves small models on the device, with the tokens of transformers on the CPU; what its platform refuses.

vLLM is too large for the environment of `make test-ecosystem`; docs/integrations.md says how to install and test it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .snippets import ATTACH, REFUSED

PROGRAM = Path(__file__).parent / "programs" / "serves.py"
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="capability: vLLM, which is not installed")

USE = ATTACH + "from torch_outboard.integrations import vllm as ours\n"
# Stands for a vLLM that need not be installed.
PRETEND = """
import importlib.machinery, sys, types
import importlib.metadata as metadata
for name in ("vllm", "vllm.platforms"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
metadata.version = lambda name: "{}"
"""


def serve(folder, *arguments, **variables):
    """Run the program, and return what it has told."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOARD_", "VLLM_"))}
    environment |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "OUTBOARD_FALLBACK": "error", **variables}
    command = [sys.executable, str(PROGRAM), str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    if "NO DEVICE" in done.stdout:
        pytest.skip("capability: a device of this driver")
    assert "end of the process" not in done.stderr  # what vLLM does as the process ends finds the devices
    return json.loads(done.stdout.rpartition("TOKENS")[2].partition("\n")[0])  # before what vLLM tells of its end


def check(answers):
    for prompts in ("whole", "chunked"):
        for answer in answers[prompts]:
            assert answer == answers["expected"], prompts


@needs_vllm
@pytest.mark.parametrize("model", ["llama", "mistral"])
def test_it_answers_as_transformers_does(tmp_path, model):
    check(serve(tmp_path, "--driver", "sim", "--model", model))


@needs_vllm
@pytest.mark.parametrize("model", ["llama", "mistral"])
def test_generated_kernels_run_all_of_it(tmp_path, model):
    answers = serve(tmp_path, "--driver", "opencl", "--option", "host_access=False", "--model", model)
    check(answers)
    assert answers["providers"] == ["generated"]


@needs_vllm
def test_by_the_variable_processes_of_vllm_attach_the_driver(tmp_path):
    check(serve(tmp_path, OUTBOARD_VLLM="sim"))


@needs_vllm
def test_unasked_vllm_takes_its_own_platform_and_use_comes_too_late(run_python):
    answer = run_python(
        USE
        + "from vllm.platforms import current_platform\nassert type(current_platform).__module__.startswith('vllm.')\n"
        + REFUSED
        + "import os\nassert 'OUTBOARD_VLLM' not in os.environ",
        fresh=True,
    )
    assert "Platform already: call use() before `import vllm`" in answer.stdout


@needs_vllm
def test_closed_it_is_unasked_again(run_python):
    run_python(
        USE
        + "with ours.use() as used:\n    assert used.patches()\n    assert ours.use() is used\n"
        + "from vllm.platforms import current_platform\nassert type(current_platform).__module__.startswith('vllm.')\n",
        fresh=True,
    )


@needs_vllm
@pytest.mark.parametrize(
    ("before", "variable", "expected"),
    [
        ("", "made_up", "no driver is called 'made_up'"),
        ("torch_outboard.attach('sim')\n", "null", "driver 'sim' is already attached"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_no_silent_choice_of_another_platform(
    run_python, before, variable, expected
):
    code = f"import torch_outboard\n{before}from vllm.platforms import current_platform"
    answer = run_python(code, env={"OUTBOARD_VLLM": variable}, status=1, fresh=True)
    assert expected in answer.stderr


@needs_vllm
def test_what_the_platform_cannot_do_is_refused_by_name(run_python, tmp_path):
    cases = [
        ({"tensor_parallel_size": 2}, "more than one device"),
        ({"enable_lora": True}, "LoRA"),
        ({"quantization": "fp8"}, "weights quantized as fp8"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype not supported"),
        ({"kv_cache_dtype": "bfloat16"}, "a cache of bfloat16 for a model of torch.float32"),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}},
            "speculative decoding",
        ),
    ]
    run_python(
        f"import sys\nsys.path.insert(0, {str(PROGRAM.parent)!r})\nfrom serves import answers, make_model\n"
        + f"folder = {str(tmp_path)!r}\nmake_model('llama', folder)\n"
        + USE
        + f"ours.use()\nfor options, expected in {cases!r}:\n"
        + """
    try:
        answers(folder, **options)
    except torch_outboard.NotSupportedError as error:
        assert expected in str(error), error
    else:
        raise AssertionError(options)
""",
        fresh=True,
    )


@pytest.mark.parametrize(
    ("before", "variables", "expected"),
    [
        ("import sys\nsys.modules['vllm'] = None\n", {}, "vLLM is not installed"),
        (PRETEND.format("0.31.1+cpu"), {}, "vLLM 0.31.1+cpu is too old: torch-outboard's platform needs 0.32 or later"),
        (PRETEND.format("0.32.0"), {"OUTBOARD_VLLM": "null"}, "OUTBOARD_VLLM selects 'null', but use() selects 'sim'"),
        (
            PRETEND.format("0.32.0"),
            {"VLLM_PLUGINS": "ascend,lora"},
            "VLLM_PLUGINS selects 'ascend,lora', but use() selects 'sim'",
        ),
        (
            PRETEND.format("0.32.0"),
            {"VLLM_TARGET_DEVICE": "cpu"},
            "VLLM_TARGET_DEVICE selects 'cpu', but use() selects 'sim'",
        ),
    ],
)
def test_what_use_refuses(run_python, before, variables, expected):
    answer = run_python(ATTACH + before + USE + REFUSED, env=variables)
    assert expected in answer.stdout


def test_without_a_device_it_is_refused(run_python):
    answer = run_python("import torch_outboard\nfrom torch_outboard.integrations import vllm as ours\n" + REFUSED)
    assert "vllm.use() needs a device" in answer.stdout

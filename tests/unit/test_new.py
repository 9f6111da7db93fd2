# SPDX-License-Identifier: BSD-3-Clause
"""`outboard new`, `outboard test`, and the driver tests as others run them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from torch_outboard._discovery import found_drivers
from torch_outboard.cli import main
from torch_outboard.cli.new import TEMPLATES, project_files
from torch_outboard.testing import driver_test_command, run_driver_tests, suite

from .contract import ROOT

KINDS = [(template, language) for template, languages in TEMPLATES.items() for language in languages]
# Of the driver tests those of the contract: test_each_driver.py runs all on the drivers that projects are made of.
CONTRACT = [
    *(
        "test_copies.py",
        "test_device.py",
        "test_errors.py",
        "test_factories.py",
        "test_memory.py",
        "test_memory_pools.py",
    ),
    *("test_storage.py", "test_stream_bad_input.py", "test_streams.py", "test_waits.py"),
]


RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def invoke(*arguments: str) -> tuple[int, str]:
    answer = CliRunner(env={"COLUMNS": "400"}).invoke(main, arguments)
    return answer.exit_code, answer.output


def is_installed(distribution: str) -> bool:
    # Not by importlib.util.find_spec: setuptools warns of "pip" there once distutils is imported, as by torch's tests.
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# tests/stress has the template "triton".
@pytest.mark.parametrize(("template", "language"), [kind for kind in KINDS if kind[0] != "triton"])
def test_a_made_project_builds_and_passes_the_driver_tests(template, language, tmp_path):
    build_and_test(template, language, tmp_path)


def build_and_test(template, language, tmp_path):
    if not (is_installed("scikit-build-core") and is_installed("pip")):
        pytest.skip("capability: scikit-build-core and pip, which build the project")
    project, site = tmp_path / "project", tmp_path / "site"
    kind = ("--template", template, "--language", language)
    status, output = invoke("new", "made_up", *kind, "--folder", str(project))
    assert status == 0, output
    assert f"cd {project}" in output and "outboard test made_up" in output

    # As a user does it, but into a folder of its own and without network: the build tools are those that are here.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOARD_", "PYTEST_"))}
    environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), environment["PATH"]])
    run(
        environment,
        "-m",
        "pip",
        "install",
        "--no-index",
        "--no-build-isolation",
        "--no-deps",
        f"--target={site}",
        project,
    )
    environment["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, sys.path), str(ROOT)])
    what = {"kernels": "generated_kernels", "triton": "by_triton"}.get(template, "there_and_back")
    run(environment, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", what, cwd=project)
    if template in ("kernels", "triton"):
        return  # it has the streams and the memory of another template; `make stress` has its kernels run all tests
    # Of the others all files of the contract pass where their drivers are tested, of which they are copies.
    files = CONTRACT if template == "other-process" else CONTRACT[:1]
    run(environment, "-c", RUN, "test", "made_up", *files, "-q", cwd=project)


def test_a_template_has_its_language():
    status, output = invoke("new", "made_up", "--template", "other-process", "--language", "c")
    assert status == 2 and "the template other-process is in python only" in output


def run(environment, *arguments, cwd=None) -> None:
    command = [sys.executable, *map(str, arguments)]
    answer = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    assert answer.returncode == 0, f"{command}\n{answer.stdout}\n{answer.stderr}"


@pytest.mark.parametrize(("template", "language"), KINDS)
def test_a_made_project_speaks_of_itself(template, language):
    files = project_files("my_chip", template, language)
    assert {"pyproject.toml", "README.md", ".gitignore", ".github/workflows/tests.yml"} <= set(files)
    own = {path: text for path, text in files.items() if not path.startswith("include/")}
    for path, text in own.items():
        assert "{{" not in text and "{%" not in text, path
        for skeleton in (
            "null driver",
            '"null"',
            "pure Python",
            "pure_python",
            "PythonDriver",
            "other_process",
            "OtherProcess",
            "own_kernels",
            "OwnKernels",
            "Own kernels",
            "own_triton",
            "OwnTriton",
            "examples",
        ):
            assert skeleton not in text, path
    base = "HostDevice" if template in ("kernels", "triton") else "Driver"
    assert f"class MyChipDriver({base}):" in files["torch_my_chip/__init__.py"]
    assert 'my_chip = "torch_my_chip:MyChipDriver"' in files["pyproject.toml"]


def test_kernels_are_a_template_of_their_own(tmp_path):
    status, output = invoke("new", "made_up", "--kernels", "--folder", str(tmp_path / "project"))
    assert status == 0, output
    package = tmp_path / "project" / "torch_made_up"
    assert 'LANGUAGE = "made_up_c"' in (package / "dialect.py").read_text()
    assert "kernel_generator = MadeUpGenerator" in (package / "__init__.py").read_text()
    assert "test_operators_run_as_generated_kernels" in (tmp_path / "project" / "tests" / "test_driver.py").read_text()
    status, output = invoke("new", "made_up", "--kernels", "--language", "c", "--folder", str(tmp_path / "x"))
    assert status == 2 and "the template kernels is in python only" in output


def test_triton_is_a_template_of_its_own(tmp_path):
    status, output = invoke("new", "made_up", "--triton", "--folder", str(tmp_path / "project"))
    assert status == 0, output
    package = tmp_path / "project" / "torch_made_up"
    assert 'NAME = "made_up"\nLANGUAGE = "made_up_ir"' in (package / "backend.py").read_text()
    assert 'backend="made_up"' in (package / "__init__.py").read_text()
    assert "test_torch_compile_makes_kernels" in (tmp_path / "project" / "tests" / "test_driver.py").read_text()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("MyChip", "lower-case letters"),
        ("chip9", "lower-case letters"),
        ("a__b", "lower-case letters"),
        ("", "lower-case letters"),
        ("../x", "lower-case letters"),
        ("class", "keyword of Python"),
        ("cuda", "torch reserves the name"),
        ("opencl", "torch reserves the name"),
        ("tensor", "would hide torch.tensor"),
        ("half", "would hide"),
        ("quantized", "would hide"),
    ],
)
def test_names_that_cannot_be_are_refused(name, why, tmp_path):
    status, output = invoke("new", name, "--folder", str(tmp_path / "project"))
    assert status == 2 and "Invalid value for NAME" in output and why in output
    assert not (tmp_path / "project").exists()


def test_names_that_are_taken_are_refused(tmp_path, monkeypatch):
    drivers = found_drivers()
    # One of those that pass as a name; there are others that torch reserves.
    name = next(name for name in drivers if invoke("new", name, "--folder", str(tmp_path / "x"))[1].count("installed"))
    _, output = invoke("new", name, "--folder", str(tmp_path / "project"))
    assert f"a driver {name!r} is installed already, by torch-outboard" in output
    (tmp_path / "torch_taken").mkdir()
    (tmp_path / "torch_taken" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    status, output = invoke("new", "taken", "--folder", str(tmp_path / "project"))
    assert status == 2 and "the project's package would be torch_taken" in output


def test_folders_with_something_in_them_are_left_alone(tmp_path):
    (tmp_path / "file").write_text("kept")
    status, output = invoke("new", "made_up", "--folder", str(tmp_path))
    assert status == 1 and "is there already and is not empty. Name another: --folder" in output
    status, output = invoke("new", "made_up", "--folder", str(tmp_path / "file"))
    assert status == 1 and "is no folder" in output
    status, output = invoke("new", "made_up", "--folder", str(tmp_path / "file" / "below"))
    assert status == 1 and "the project cannot be written" in output
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "kept"
    (tmp_path / "empty").mkdir()
    assert invoke("new", "made_up", "--folder", str(tmp_path / "empty"))[0] == 0


def test_another_language_is_refused(tmp_path):
    status, output = invoke("new", "made_up", "--language", "rust", "--folder", str(tmp_path / "x"))
    assert status == 2 and "'c', 'python'" in output


def test_the_driver_tests_are_where_the_package_says():
    folder, config = suite()
    assert (folder / "test_streams.py").is_file() and config.is_file()


def test_a_driver_that_fails_is_told_with_what_pytest_printed(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tests")
    with pytest.raises(AssertionError, match="(?s)'nothing' ended with status 4.*no driver is called 'nothing'"):
        run_driver_tests("nothing")
    # Its copies do nothing.
    with pytest.raises(AssertionError, match="(?s)ended with status 1.*test_copies"):
        run_driver_tests("unit.toys:Toy", arguments=("-q", "-x", "-k", "test_copies"))


def test_options_and_arguments_reach_pytest():
    command = driver_test_command("made_up", {"devices": "4"}, ["-k", "streams"])
    assert (
        "--driver=made_up" in command and "--driver-option=devices=4" in command and command[-2:] == ["-k", "streams"]
    )


def test_missing_tools_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"need pytest and hypothesis: .*torch-outboard\[test\]"):
        driver_test_command("made_up")
    status, output = invoke("test", "made_up")
    assert status == 1 and "need pytest and hypothesis" in output


def test_the_command_runs_the_tests(run_python):
    answer = run_python(RUN, "test", "examples.pure_python_driver:PythonDriver", "-o", "devices=1", "-q", "-k", "pool")
    assert "passed" in answer.stdout and "needs two devices" not in answer.stdout.split("short test summary")[0]
    assert "write KEY=VALUE" in run_python(RUN, "test", "nothing", "-o", "devices", status=2).stderr

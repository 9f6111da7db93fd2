# SPDX-License-Identifier: BSD-3-Clause
"""`outboard new`, `outboard test`, and the driver tests as other projects run them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from torch_outboard._discovery import found_drivers
from torch_outboard.cli import main
from torch_outboard.cli.new import TEMPLATES, _outboard_source, project_files
from torch_outboard.drivers.skeletons import _SKELETONS
from torch_outboard.testing import driver_test_command, run_driver_tests, suite

from .contract import ROOT

KINDS = [(template, language) for template, languages in TEMPLATES.items() for language in languages]
# Of the driver tests those of the contract: test_each_driver.py runs all on the
# drivers that projects are made of.
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


# The files of a template and language; of others CONTRACT. `make stress` runs all
# tests on devices with kernels.
FILES = {
    ("host-memory", "c"): CONTRACT[:1],
    ("host-memory", "python"): CONTRACT[:1],
    ("device", "c"): ["test_device_programs.py", "test_stream_bad_input.py", "test_streams.py"],
    ("device", "python"): ["test_device_programs.py"],  # the rest is the template other-process
}
GENERATED = ("device", "kernels")

RUN = "import sys; from torch_outboard.cli import main; main(sys.argv[1:])"


def invoke(*arguments: str) -> tuple[int, str]:
    answer = CliRunner(env={"COLUMNS": "400"}).invoke(main, arguments)
    return answer.exit_code, answer.output


def is_installed(distribution: str) -> bool:
    # Not by importlib.util.find_spec: setuptools warns of "pip" there once distutils is
    # imported, as by torch's tests.
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# tests/stress has the template "triton".
@pytest.mark.database
@pytest.mark.parametrize(("template", "language"), [kind for kind in KINDS if kind[0] != "triton"])
def test_a_made_project_builds_and_passes_the_driver_tests(template, language, tmp_path, run_python):
    build_and_test(template, language, tmp_path, run_python)


def build_and_test(template, language, tmp_path, run_python):
    project, site = tmp_path / "project", tmp_path / "site"
    make_and_install(project, site, "--template", template, "--language", language)
    test = {"triton": "by_triton"}.get(template, "generated_kernels" if template in GENERATED else "there_and_back")
    run_installed(run_python, site, project, "-q", "-p", "no:cacheprovider", "-k", test)
    if template in ("kernels", "triton"):
        return  # it has the streams and the memory of another template; `make stress` has its kernels run all tests
    # Of the others all files of the contract pass where their drivers are
    # tested, of which they are copies.
    files = FILES.get((template, language), CONTRACT)
    run_installed(run_python, site, ROOT, *driver_test_command("made_up", arguments=[*files, "-q"])[3:])
    if (template, language) == ("device", "c"):
        run_python(
            f"import sys; sys.path.insert(0, {str(site)!r})\n" + STOPPED_AND_KILLED, env={"OUTBOARD_FALLBACK": "error"}
        )


# As tests/unit/test_other_process.py and test_own_device.py have it for devices in Python.
STOPPED_AND_KILLED = """
import os, pathlib, signal, pytest, torch, torch_outboard
torch_outboard.attach("made_up")
x = torch.ones(4, device="made_up").mul_(2)  # its kernel is built here, for which the chip must go on
torch.accelerator.synchronize()

def is_chip(process):
    name, _, rest = process.joinpath("stat").read_text().rpartition(") ")
    return name.endswith("(chip_process") and rest.split()[1] == str(os.getpid())

[chip] = [int(process.name) for process in pathlib.Path("/proc").glob("[0-9]*") if is_chip(process)]
stream, event = torch.accelerator.current_stream(), torch.Event("made_up", enable_timing=True)
assert stream.query()
os.kill(chip, signal.SIGSTOP)
try:
    x.mul_(2)
    event.record()
    assert not event.query() and not stream.query() and not stream.query()
finally:
    os.kill(chip, signal.SIGCONT)
assert x.tolist() == [4] * 4 and event.query() and stream.query()
os.kill(chip, signal.SIGKILL)
with pytest.raises(torch.AcceleratorError, match="the chip's process, .*, has ended by signal 9"):
    while True:  # until the driver has noticed
        torch.accelerator.synchronize()
with pytest.raises(torch.AcceleratorError, match="was lost"):
    x.cpu()
"""


def make_and_install(project, site, *kind):
    """Make a project and install it as a user does, but into a separate folder and by the build tools here."""
    if not (is_installed("scikit-build-core") and is_installed("pip")):
        pytest.skip("capability: scikit-build-core and pip, which build the project")
    status, output = invoke("new", "made_up", *kind, "--folder", str(project))
    assert status == 0, output
    assert f"cd {project}" in output and "outboard test made_up" in output
    pip = ("-m", "pip", "install", "--no-index", "--no-build-isolation", "--no-deps", f"--target={site}")
    run(environment(), *pip, project)


def run_installed(run_python, site, folder, *arguments):
    """Run pytest in a folder, with the packages in `site`, in a process that has already imported torch."""
    path = os.pathsep.join([str(site), *filter(None, sys.path), str(ROOT)])
    code = f"""
import os, runpy, sys
os.chdir({str(folder)!r})
os.environ["PYTHONPATH"] = {path!r}
sys.path.insert(0, {str(site)!r})
sys.argv[0] = "pytest"
runpy.run_module("pytest", run_name="__main__", alter_sys=True)
"""
    run_python(code, *map(str, arguments))


def environment() -> dict[str, str]:
    """Return the environment of a shell in which the running Python comes first."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("OUTBOARD_", "PYTEST_"))}
    return own | {"PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])}


def test_what_ci_runs(tmp_path):
    """The script, with pip's settings for a separate folder and no network."""
    project, site = tmp_path / "project", tmp_path / "site"
    assert invoke("new", "made_up", "--language", "python", "--folder", str(project))[0] == 0
    path = os.pathsep.join([str(site), *filter(None, sys.path), str(ROOT)])
    pip = {"PIP_TARGET": str(site), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1"}
    command = [str(project / ".ci" / "run"), "-q", "-k", "there_and_back"]
    answer = subprocess.run(command, env={**environment(), **pip, "PYTHONPATH": path}, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "Next: outboard test made_up" in answer.stdout and "1 passed" in answer.stdout
    workflow = (project / ".github" / "workflows" / "tests.yml").read_text()
    assert "run: .ci/run" in workflow and "TORCH_OUTBOARD: ${{ vars.TORCH_OUTBOARD || '" in workflow
    assert "pip install 'torch>=2.11,<2.16' " in workflow


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (str(ROOT), f"{ROOT}[test]"),
        ("git+https://host/torch-outboard@main", "torch-outboard[test] @ git+https://host/torch-outboard@main"),
    ],
)
def test_ci_installs_torch_outboard_from_its_source(source, wanted, tmp_path):
    answer = run_ci(tmp_path, TORCH_OUTBOARD=source)
    assert answer.stdout.splitlines() == [
        f"-m pip install --no-build-isolation {wanted}",
        "-m pip install --no-build-isolation .",
        "-m pytest -q",
    ], answer.stdout + answer.stderr


def test_ci_says_that_torch_outboard_is_missing(tmp_path):
    answer = run_ci(tmp_path, TORCH_OUTBOARD="nowhere")
    assert answer.returncode == 1 and answer.stdout == ""
    assert "There is no torch-outboard in nowhere. Set TORCH_OUTBOARD to git+URL" in answer.stderr


def run_ci(folder, **variables):
    """Run the script without installed packages, with a Python that prints its other arguments."""
    assert invoke("new", "made_up", "--language", "python", "--folder", str(folder / "project"))[0] == 0
    tools = folder / "tools"
    tools.mkdir()
    for name, text in {"python": '[ "$1" != -c ] && echo "$@"', "outboard": "exit 0"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    return subprocess.run(
        [folder / "project" / ".ci" / "run", "-q"], env={"PATH": path, **variables}, capture_output=True, text=True
    )


def test_the_source_of_torch_outboard_is_known_by_its_repository(tmp_path, monkeypatch):
    def source(**direct_url):
        class Found:
            def read_text(self, name):
                return json.dumps(direct_url) if name == "direct_url.json" else None

        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Found())
        return _outboard_source()

    assert source(url="https://host/x.git", vcs_info={"vcs": "git", "commit_id": "abc"}) == "git+https://host/x.git@abc"
    assert source(url="https://user:secret@host/x.git", vcs_info={"commit_id": "abc"}) == "./torch-outboard"
    assert source(url=tmp_path.as_uri(), dir_info={"editable": True}) == "./torch-outboard"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["remote", "add", "origin", "https://host/y.git"]):
        subprocess.run([*git, *command], check=True)
    assert source(url=tmp_path.as_uri()) == "./torch-outboard"  # no commit
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "One"], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert source(url=tmp_path.as_uri()) == f"git+https://host/y.git@{commit}"


def test_a_template_has_its_language():
    status, output = invoke("new", "made_up", "--template", "other-process", "--language", "c")
    assert status == 2 and "the template other-process exists only in python; omit --language c" in output


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (
            ("--template", "other-process", "--kernels"),
            "--template other-process and --kernels select different templates",
        ),
        (("--kernels", "--triton"), "--kernels and --triton select different templates"),
        (("--triton", "--template", "host-memory"), "--template host-memory and --triton select different templates"),
        (("--kernels", "--template", "triton", "--triton"), "--template triton and --kernels and --triton select"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, wanted, tmp_path):
    status, output = invoke("new", "made_up", *options, "--folder", str(tmp_path / "project"))
    assert status == 2 and wanted in output
    assert not (tmp_path / "project").exists()
    assert invoke("new", "made_up", "--kernels", "--template", "kernels", "--folder", str(tmp_path / "same"))[0] == 0


def run(environment, *arguments, cwd=None) -> None:
    command = [sys.executable, *map(str, arguments)]
    answer = subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)
    assert answer.returncode == 0, f"{command}\n{answer.stdout}\n{answer.stderr}"


@pytest.mark.parametrize(("template", "language"), KINDS)
def test_a_made_project_speaks_of_itself(template, language):
    files = project_files("my_chip", template, language)
    assert {"pyproject.toml", "README.md", ".gitignore", ".github/workflows/tests.yml", ".ci/run"} <= set(files)
    headers = {"include/torch_outboard/driver.h", "include/torch_outboard/collectives.h"}
    assert headers & set(files) == (headers if language == "c" else set())
    described = tomllib.loads(files["pyproject.toml"])["project"]
    assert described["license"] == "BSD-3-Clause" and described["license-files"] == ["LICENSE"]
    assert files["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert "## Where to go on\n\n1. " in files["README.md"]
    own = {path: text for path, text in files.items() if not path.startswith("include/")}
    for path, text in own.items():
        assert "{{" not in text.replace("${{", "") and "{%" not in text, path
        if path == "README.md":
            text = text.replace("examples/digits.py", "")  # of a checkout
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
            "own_chip",
            "Own chip",
            "own_device",
            "OwnDevice",
            "Own device",
            "own_triton",
            "OwnTriton",
            "examples",
        ):
            assert skeleton not in text, path
    bases = {"kernels": "HostDevice", "triton": "HostDevice", "device": "ProcessDriver"}
    base = bases.get(template, "Driver") if language == "python" else "Driver"
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
    assert status == 2 and "the template kernels exists only in python" in output


def test_what_a_device_needs_to_be_read_or_changed():
    """The rest of a project stands for a runtime, a compiler and a chip, and is deleted when yours replace it."""
    wanted = {
        "c": ("src/driver.c", "torch_my_chip/__init__.py", "torch_my_chip/dialect.py"),
        "python": tuple(f"torch_my_chip/{name}.py" for name in ("__init__", "memory", "dialect", "programs")),
    }
    for language, paths in wanted.items():
        files = project_files("my_chip", "device", language)
        lines = [line.strip() for path in paths for line in without_docstrings(files[path]).splitlines()]
        code = [line for line in lines if line and not line.startswith(("# ", "// ", "/* ", "* "))]
        assert 200 < len(code) < 300, (language, len(code))
    assert 'LANGUAGE = "my_chip_c"' in files["torch_my_chip/dialect.py"]
    assert '#define LANGUAGE "my_chip_c"' in project_files("my_chip", "device", "c")["src/driver.c"]


def without_docstrings(text: str) -> str:
    """Return a module without its docstrings but with other texts; other languages stay unchanged."""
    text = re.sub(r'\A(?:# .*\n)*"""(?:.|\n)*?"""', "", text)
    return re.sub(r'^ +"""(?:.|\n)*?"""$', "", text, flags=re.MULTILINE)


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
        ("class", "Python keyword"),
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


def test_what_projects_are_made_of_is_installed():
    rules = (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")
    sources = {path for files in _SKELETONS.values() for path, _ in files.values()} | {"LICENSE"}
    assert len(sources) > 20
    whole = re.findall(r"install\(DIRECTORY (\S+) DESTINATION \$\{skeletons\}", rules)
    listed = set(re.findall(r"[\w./]+", rules))
    assert [path for path in sources if path not in listed and str(Path(path).parent) not in whole] == []


def test_names_that_are_taken_are_refused(tmp_path, monkeypatch):
    drivers = found_drivers()
    # A driver's name that is valid as a name; torch reserves others.
    name = next(name for name in drivers if invoke("new", name, "--folder", str(tmp_path / "x"))[1].count("installed"))
    _, output = invoke("new", name, "--folder", str(tmp_path / "project"))
    assert f"a driver {name!r} is already installed, by torch-outboard" in output
    (tmp_path / "torch_taken").mkdir()
    (tmp_path / "torch_taken" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    status, output = invoke("new", "taken", "--folder", str(tmp_path / "project"))
    assert status == 2 and "the project's package torch_taken would hide" in output


def test_folders_with_something_in_them_are_left_alone(tmp_path):
    (tmp_path / "file").write_text("kept")
    status, output = invoke("new", "made_up", "--folder", str(tmp_path))
    assert status == 1 and "exists and is not empty. Name another: --folder" in output
    status, output = invoke("new", "made_up", "--folder", str(tmp_path / "file"))
    assert status == 1 and "is not a folder" in output
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


def test_a_driver_that_fails_is_reported_with_what_pytest_printed(monkeypatch):
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
    driver = "examples.pure_python_driver:PythonDriver"
    answer = run_python(RUN, "test", driver, "-o", "devices=1", "-q", "-k", "peer_copy or pool_of_one")
    assert "Failed: 0. Skipped: 1, for:\n     1  two devices. The driver has one\n" in answer.stdout
    assert "write KEY=VALUE" in run_python(RUN, "test", "nothing", "-o", "devices", status=2).stderr

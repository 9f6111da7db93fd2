# SPDX-License-Identifier: BSD-3-Clause
"""`outboard new`: creates a driver project."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click

from torch_outboard._build import NEWEST_TORCH, OLDEST_TORCH
from torch_outboard._discovery import found_drivers
from torch_outboard._errors import RegistrationError
from torch_outboard._version import __version__
from torch_outboard.cli.torch_first import import_torch

__all__ = ["new", "project_files"]

_TEMPLATES = Path(__file__).parent / "project"
# Template (the kind of device to start with) -> the available languages of the driver, the default
# first.
TEMPLATES = {
    "host-memory": ("c", "python"),
    "device": ("c", "python"),
    "other-process": ("python",),
    "kernels": ("python",),
    "triton": ("python",),
}
LANGUAGES = ("c", "python")


@click.command()
@click.argument("name")
@click.option(
    "--template",
    type=click.Choice(tuple(TEMPLATES)),
    help="The device to start with. host-memory: work runs at once. device: a typical chip, asynchronous, with memory "
    "that the host cannot reach and kernels generated in its own language. other-process: the same without kernels. "
    "kernels: the same language, on host memory, at once. triton: a back end for Triton, with which torch.compile "
    "builds kernels.  [default: host-memory]",
)
@click.option("--kernels", flag_value="kernels", help="The same as --template kernels.")
@click.option("--triton", flag_value="triton", help="The same as --template triton.")
@click.option(
    "--language", type=click.Choice(LANGUAGES), help="Language of the driver. [default: the first of the template]"
)
@click.option("--folder", type=click.Path(path_type=Path), help="Folder of the project. [default: ./NAME]")
def new(
    name: str,
    template: str | None,
    kernels: str | None,
    triton: str | None,
    language: str | None,
    folder: Path | None,
) -> None:
    """Create a driver project that builds, attaches and passes the driver tests.

    NAME is the device's name in torch: torch.device("NAME"), torch.NAME. The folder must be empty or must not exist.
    """
    template = _chosen({f"--template {template}": template, "--kernels": kernels, "--triton": triton})
    _check(name)
    language = language or TEMPLATES[template][0]
    if language not in TEMPLATES[template]:
        raise click.UsageError(
            f"the template {template} exists only in {' and '.join(TEMPLATES[template])}; omit --language {language}, "
            "or choose another template"
        )
    folder = folder or Path(name)
    files = project_files(name, template, language)
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise click.ClickException(
                f"{folder} exists and {'is not empty' if folder.is_dir() else 'is not a folder'}. "
                "Name another: --folder FOLDER"
            )
        for path, text in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                target.chmod(0o755)
    except OSError as error:
        raise click.ClickException(f"the project cannot be written: {error}") from error
    click.echo(f"Created {folder} with {len(files)} files. Next:")
    click.echo(f"  cd {folder}")
    click.echo("  pip install --no-build-isolation -e '.[test]'")
    click.echo(f"  outboard test {name}")
    click.echo("Then continue with README.md.")


def _chosen(options: dict[str, str | None]) -> str:
    """Return the template that the options name.

    Raises click.UsageError if the options name several templates.
    """
    chosen = {option: template for option, template in options.items() if template is not None}
    if len(set(chosen.values())) > 1:
        raise click.UsageError(f"{' and '.join(chosen)} select different templates; use one of them")
    return next(iter(chosen.values()), "host-memory")


def _check(name: str) -> None:
    import_torch()
    from torch_outboard._device_name import check_name

    try:
        check_name(name)
    except RegistrationError as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error
    if (driver := found_drivers().get(name)) is not None:
        raise click.BadParameter(
            f"a driver {name!r} is already installed, by {driver.distribution}. Choose another name.", param_hint="NAME"
        )
    package = _package(name)
    if (spec := importlib.util.find_spec(package)) is not None:
        raise click.BadParameter(
            f"the project's package {package} would hide {spec.origin or 'another package'}. Choose another name.",
            param_hint="NAME",
        )


def _torch_requirement() -> str:
    """Return the supported versions of torch as a requirement for pip."""
    (major, oldest), (_, newest) = OLDEST_TORCH, NEWEST_TORCH
    return f"torch>={major}.{oldest},<{major}.{newest + 1}"


def _outboard_source() -> str:
    """Return pip's source for this torch-outboard: its repository, or a submodule if no repository is known."""
    import importlib.metadata
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        text = importlib.metadata.distribution("torch-outboard").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        text = None
    # Without that record, the package may lie in a checkout on PYTHONPATH.
    origin: dict[str, Any] = json.loads(text) if text else {"url": Path(__file__).parents[2].as_uri()}
    url, commit = origin.get("url", ""), origin.get("vcs_info", {}).get("commit_id")
    if url.startswith("file://"):
        url, commit = _repository(url2pathname(urlsplit(url).path))
    is_public = re.fullmatch(r"https://[\w./-]+", url)  # do not write down a URL with a password
    return f"git+{url}@{commit}" if is_public and commit else "./torch-outboard"


def _repository(folder: str) -> tuple[str, str | None]:
    """Return the URL from which a checkout was cloned, and its commit, or "" and None."""
    if shutil.which("git") is None:
        return "", None
    answers = [
        subprocess.run(["git", "-C", folder, *command], capture_output=True, text=True)
        for command in (("remote", "get-url", "origin"), ("rev-parse", "HEAD"))
    ]
    if any(answer.returncode for answer in answers):
        return "", None
    url, commit = (answer.stdout.strip() for answer in answers)
    return url, commit


def _package(name: str) -> str:
    return f"torch_{name}"


def _target(template: Path, package: str) -> str:
    """Return a template's path in the project.

    Templates spell a leading dot as dot_, so that wheels include them.
    """
    path = template.with_suffix("").as_posix()
    return path.replace("dot_", ".").replace("package/", f"{package}/")


def project_files(name: str, template: str, language: str) -> dict[str, str]:
    """Return the texts of the project's files by their paths in the project."""
    import jinja2

    from torch_outboard.drivers.skeletons import class_name, contract_headers, license_text, skeleton

    package = _package(name)
    values = {
        "name": name,
        "template": template,
        "language": language,
        "package": package,
        "distribution": package.replace("_", "-"),
        "class": class_name(name),
        "stem": class_name(name).removesuffix("Driver"),
        "outboard": __version__,
        "source": _outboard_source(),
        "torch": _torch_requirement(),
    }
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    files: dict[str, str] = {}
    # The last folder has the files of this template only, and may not exist.
    for part in ("common", language, f"{language}-{template}"):
        root = _TEMPLATES / part
        for source in sorted(root.rglob("*.jinja")):
            files[_target(source.relative_to(root), package)] = environment.from_string(
                source.read_text(encoding="utf-8")
            ).render(values)
    files |= skeleton(template, language, name, package)
    files["LICENSE"] = license_text()
    if language == "c":
        files |= {f"include/torch_outboard/{header}": text for header, text in contract_headers().items()}
    return files

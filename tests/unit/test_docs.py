# SPDX-License-Identifier: BSD-3-Clause
"""The documentation's quotes and links exist."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from torch_outboard._discovery import found_drivers
from torch_outboard._options import environment_name
from torch_outboard._variables import VARIABLES
from torch_outboard.cli import main
from torch_outboard.cli.new import project_files
from torch_outboard.kernels.reasons import REMEDIES, code_of

from .contract import ROOT
from .places import named_files

BENCHMARKS = ROOT / "benchmarks"
PAGES = [BENCHMARKS / "README.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
QUOTE = re.compile(r"<!-- from: (?P<path>\S+) -->\n```\w*\n(?P<code>.*?)```", re.DOTALL)


def quotes(text: str) -> list[tuple[str, str]]:
    """Return the file and the text of each quoted piece; a line of "…" separates two pieces of one block."""
    return [
        (match["path"], piece.strip("\n"))
        for match in QUOTE.finditer(text)
        for piece in re.split(r"^…\n", match["code"], flags=re.MULTILINE)
    ]


def test_quoted_code_is_in_the_source():
    all_quotes = [(page, *quote) for page in PAGES for quote in quotes(page.read_text(encoding="utf-8"))]
    assert len(all_quotes) > 10
    stale = [
        f"{page.name}: {path} has no longer\n{piece}"
        for page, path, piece in all_quotes
        if piece not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert not stale, "\n\n".join(stale)


def test_a_quote_that_is_not_there_would_be_seen():
    page = "<!-- from: a.cpp -->\n```cpp\none\n…\ntwo\n```\n"
    assert quotes(page) == [("a.cpp", "one"), ("a.cpp", "two")]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [target.split("#")[0] for target in re.findall(r"\]\((?!https?:|#)([^)\s]+)\)", text)]
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert not missing, f"{page.name} links to {missing}"


def long_sentences(text: str, most: int = 40) -> list[str]:
    """Return the sentences of a page with more words than `most`. Tables, code and headings are left out."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    paragraphs = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if not line.startswith(("|", "#", "!", "<"))]
        paragraphs += re.split(r"\n(?=\s*(?:[-*]|\d+\.) )", "\n".join(lines))
    words = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", paragraph.replace("\n", " ")) for paragraph in paragraphs]
    sentences = [sentence for paragraph in words for sentence in re.split(r"(?<=[.!?:;])\s+", paragraph)]
    return [sentence for sentence in sentences if len(sentence.split()) > most]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_sentences_are_short(page):
    assert long_sentences(page.read_text(encoding="utf-8")) == []


def test_a_long_sentence_would_be_seen():
    long = "word " * 41
    assert long_sentences(f"A short one. {long}end.\n\n- {long}\n\n| {long} |\n\n```\n{long}\n```\n") == [
        f"{long}end.",
        f"- {long}",
    ]


def test_files_that_maintainers_are_sent_to_exist():
    assert named_files((ROOT / "docs" / "maintaining.md").read_text(encoding="utf-8")).missing == []


def test_a_file_that_is_missing_would_be_seen():
    text = "`core/device.cpp` and `driver.h`, `core/nowhere.cpp`, `ops/none/`\n"
    text += "`codegen/mapping/run.py`, `columns.py`, `rows.py`"
    assert named_files(text).missing == ["core/nowhere.cpp", "ops/none/", "rows.py"]


def test_the_guide_speaks_of_the_project_that_is_made():
    guide = (ROOT / "docs" / "writing-a-driver.md").read_text(encoding="utf-8")
    files = project_files("mychip", "host-memory", "c")
    for path in ("src/driver.c", "torch_mychip/__init__.py", "include/torch_outboard/driver.h", "tests/test_driver.py"):
        assert f"`{path}`" in guide and path in files
    # The reader replaces an entry of the made driver by the guide's,
    # which uses functions of the driver.
    (entry,) = re.findall(r"(?<!-->\n)```c\n(.*?)```", guide, re.DOTALL)  # the others are quoted from examples
    signature, *body = entry.splitlines()
    assert signature in files["src/driver.c"]
    assert (
        "static ob_status check_range(driver* d, int32_t device, uint64_t address, uint64_t bytes)"
        in files["src/driver.c"]
    )


REFUSING = ("CallRefusal", "ClassRefusal", "OperatorRefusal", "RefusalReason")


def reasons() -> Iterator[tuple[str, str]]:
    """Yield each reason why an operator has no kernel, with its file. "…" stands for inserted text."""
    for path in sorted((ROOT / "torch_outboard" / "kernels").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and ast.unparse(node.func) in REFUSING):
                continue
            # These have their texts from codegen/refused.py, below, and from a row of the book.
            elsewhere = ("str(missing[0])", "refused.reason", "str(error)", "f'{reason} [upstream]'")
            if ast.unparse(node.args[0]) not in elsewhere:
                yield path.name, text_of(node.args[0])
    refused = ROOT / "torch_outboard" / "codegen" / "refused.py"
    for node in ast.walk(ast.parse(refused.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name == "missing_feature_of":
            yield from ((refused.name, text_of(part.value)) for part in ast.walk(node) if isinstance(part, ast.Return))
    provider = ROOT / "csrc" / "ops" / "planned" / "generated_provider.cpp"
    after = provider.read_text(encoding="utf-8").partition("explain_missing_plan(const Call& call) {")[2]
    yield from ((provider.name, text) for text in re.findall(r'"([^"]+)"', after.partition("}")[0]))
    recipes = ROOT / "csrc" / "ops" / "planned" / "recipes.cpp"
    for parts in re.findall(r'(?:refuse\(|reason = )\s*((?:"[^"]+"\s*)+)', recipes.read_text(encoding="utf-8")):
        yield recipes.name, "".join(re.findall(r'"([^"]+)"', parts))


def text_of(reason: ast.expr) -> str:
    match reason:
        case ast.Constant(str(text)):
            return text
        case ast.JoinedStr(values):
            return "".join(text_of(part) if isinstance(part, ast.Constant) else "…" for part in values)
    raise AssertionError(f"a reason is a text that can be read here, not {ast.dump(reason)}")


# Reasons that are put together, or that are raised elsewhere.
COMPOSED = (
    "its plan can't be used: … [program]",
    "building its plan raised … [upstream]",
    "the process is exiting, so no plan is built [no-thread]",
    "no thread can be started to build its plan: … [no-thread]",
    "the interpreter is shutting down [no-thread]",
)


def reasons_by_code() -> dict[str, list[str]]:
    texts_of: dict[str, list[str]] = {code: [] for code in REMEDIES}
    for reason in sorted({*COMPOSED, *(text for _, text in reasons() if text)}):
        text, _, code = reason.removesuffix("]").rpartition(" [")
        texts_of[code].append(text)
    return texts_of


def test_each_reason_for_no_kernel_has_a_remedy():
    pairs = list(reasons())
    assert len(pairs) > 70 and "the driver has no kernel generator [no-generator]" in {text for _, text in pairs}
    without = sorted({f"{file}: {text}" for file, text in pairs if text and not code_of(text)})
    assert not without, "end it with a code of kernels/reasons.py, [plan] for example: " + "; ".join(without)
    unused = sorted(code for code, texts in reasons_by_code().items() if not texts)
    assert not unused, f"nothing is refused with these codes any more: {unused}"


def test_the_page_has_the_table_of_reasons():
    page = (ROOT / "docs" / "kernels.md").read_text(encoding="utf-8")
    listed = page.partition("### Reasons and remedies\n")[2].partition("\n## ")[0]
    reasons_of = {code: "<br>".join(f"`{text}`" for text in texts) for code, texts in reasons_by_code().items()}
    rows = [f"| `{code}` | {todo} | {reasons_of[code]} |" for code, todo in REMEDIES.items()]
    table = "\n".join(["| code | what to do | reasons |", "|---|---|---|", *rows])
    assert table in listed, f"the table of docs/kernels.md must be\n\n{table}"


def wrong_rows(page: str) -> list[str]:
    """Return what is wrong with the table of benchmarks: scripts without a row, and dates that are not the figures'."""
    rows = page.partition("| script |")[2].partition("\n\n")[0].splitlines()[2:]
    named = {name for row in rows for name in re.findall(r"`(\w+\.(?:py|sh))", row.split("|")[1])}
    scripts = {path.name for path in BENCHMARKS.iterdir() if path.suffix in (".py", ".sh") and path.name[0] != "_"}
    wrong = sorted(scripts ^ named)
    linked = [link for row in rows for link in re.findall(r"\[([\d-]+)\]\(results/(\w[\w-]*\.json)\)", row)]
    for date, name in linked:
        figures = json.loads((BENCHMARKS / "results" / name).read_text(encoding="utf-8"))
        known = (figures.get("about") or figures.get("machine") or figures).get("date", date)
        wrong += [f"{name}: {date}, not {known}"] if date != known else []
    return wrong + sorted(
        {path.name for path in (BENCHMARKS / "results").glob("*.json")} - {name for _, name in linked}
    )


def test_the_table_of_benchmarks_has_them_all():
    assert wrong_rows((BENCHMARKS / "README.md").read_text(encoding="utf-8")) == []


def test_a_benchmark_without_a_row_and_an_old_date_would_be_seen():
    page = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    assert wrong_rows(re.sub(r"\| `amp.py` .*\n", "", page)) == ["amp.py"]
    assert wrong_rows(re.sub(r"\| `allocator.py` .*\n", "", page)) == ["allocator.py", "allocator.json"]
    assert wrong_rows(page.replace("2026-11-22](results/dispatch", "2026-11-20](results/dispatch")) == [
        "dispatch.json: 2026-11-20, not 2026-11-22"
    ]


def wrong_commands(text: str) -> list[str]:
    """Return the commands of a page that `outboard` does not have, or not with these options.

    An option that stands alone, as `--text`, belongs to a command that the same paragraph names.
    """
    wrong = []
    for paragraph in re.split(r"\n(?:\s*\n|(?=\s*\d+\. |\|))", text):
        known: set[str] = set()
        lines = re.findall(r"`(outboard [^`]+)`|^(outboard .+)$", paragraph.replace("``", ""), re.MULTILINE)
        for line in (quoted or typed for quoted, typed in lines):
            command, options = parsed(line)
            if command is None:
                wrong.append(line)
            elif not command.context_settings.get("ignore_unknown_options"):
                named = {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
                known |= named
                wrong += [f"{line}: {option}" for option in options if option not in named]
        alone = re.findall(r"`(--[a-z-]+)", paragraph) if known else []
        wrong += [f"{option} of no command here" for option in alone if option not in known]
    return wrong


def parsed(line: str) -> tuple[click.Command | None, list[str]]:
    """Return the command that a line calls, None if there is no such command, and the line's options."""
    command: click.Command | None = main
    words = [word for word in shlex.split(line, comments=True)[1:] if word != "…"]
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        command = command.commands.get(words.pop(0))
    return command, [word.partition("=")[0] for word in words if word.startswith("--") and len(word) > 2]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_and_options_exist(page):
    assert wrong_commands(page.read_text(encoding="utf-8")) == []


def test_a_command_or_option_that_does_not_exist_would_be_seen():
    text = "`outboard kernels describe OP`\n\n`outboard info --drivers NAME` and `outboard test x --lf`\n\n"
    text += "1. `outboard kernels explain OP`, with `--dtype`.\n2. `outboard kernels explain OP`, with `--dtypes`.\n\n"
    text += "`--free`\n\n"
    text += "```\noutboard new mychip --tempalte device  # a comment\n```\n"
    assert wrong_commands(text) == [
        "outboard kernels describe OP",
        "outboard info --drivers NAME: --drivers",
        "--dtypes of no command here",
        "outboard new mychip --tempalte device  # a comment: --tempalte",
    ]


VARIABLE = re.compile(r"\bOUTBOARD_[A-Z0-9_]*[A-Z0-9]\b(?!_)")


def unknown_variables(text: str) -> list[str]:
    """Return the environment variables of a page that neither the package nor a driver reads."""
    known = set(VARIABLES)
    for driver in (entry.load() for entry in found_drivers().values()):
        known |= {environment_name(driver.name, option) for option in driver.options}
        known |= {name for option in driver.options.values() for name in VARIABLE.findall(option.doc)}
    return [name for name in VARIABLE.findall(text) if name not in known]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_variables_are_read_by_somebody(page):
    assert unknown_variables(page.read_text(encoding="utf-8")) == []


def test_a_variable_of_nobody_would_be_seen():
    text = "`OUTBOARD_OCL_HOST_ACCESS`, `OUTBOARD_<DRIVER>_<OPTION>` and `OUTBOARD_OPENCL_HOST_ACCESS=0`"
    assert unknown_variables(text) == ["OUTBOARD_OPENCL_HOST_ACCESS"]


SITE = ROOT / "docs" / "index.md"


def test_the_site_has_every_page():
    named = {line for line in SITE.read_text(encoding="utf-8").splitlines() if line and not line.startswith((":", "`"))}
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"}
    assert not pages - named, "name it in docs/index.md"


def test_errors_that_troubleshooting_lists_are_raised_somewhere():
    """Except those of other libraries, which have their own tests in tests/ecosystem."""
    keys = re.findall(
        r"^\| `(.+?)` \|", (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    sources = [*(ROOT / "torch_outboard").rglob("*.py"), *(ROOT / "csrc").rglob("*.cpp")]
    text = "".join(source.read_text(encoding="utf-8") for source in sources)
    # A message goes on in the next line's string.
    text = re.sub(r'"\s*\n\s*f?"', "", text)
    others = {"Your setup doesn't support bf16/gpu", "device sim is invalid"}
    assert len(keys) > 15
    assert not [key for key in keys if key not in text and key not in others]

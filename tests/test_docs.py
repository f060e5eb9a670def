"""What the documents show is run, what they point at exists, and what they list equals the code."""

import ast
import builtins
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import evidence_archive.errors as errors_module
from evidence_archive.cli import app
from evidence_archive.errors import EvidenceArchiveError, NotAvailableError
from evidence_archive.keys import new_keys
from evidence_archive.testing import ScriptedModel, call, say

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    path for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("policies/*.md")) if path.is_file()
)
NOT_RUN: dict[str, str] = {}
"""First line of a block marked ``python no-run`` -> why it cannot run."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
_LINK = re.compile(r"(?<!!)\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(text: str, *infos: str) -> Iterator[tuple[int, str]]:
    """Line number and body of the fenced blocks with one of these info strings."""
    for match in _FENCE.finditer(text):
        if match["info"].strip() in infos:
            yield text.count("\n", 0, match.start()) + 2, match["body"]


def prose(text: str) -> str:
    return _FENCE.sub("", text)


# --- python blocks ------------------------------------------------------------------------------------------------


def stage() -> dict[str, Any]:
    """What the README says the reader brings."""

    def run_tool(made: Any) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": made.id, "content": "14 timeouts, all on node 3\n" * 100}

    client = ScriptedModel(
        [
            call("logs.search", query="timeout"),
            call("archive_evidence", batch=[{"id": "r1", "note": "14 timeouts, all on node 3."}]),
            say("Node 3."),
        ]
    )
    messages = [{"role": "user", "content": "Why is it slow?"}]
    return {"client": client, "MODEL": "any", "TOOLS": [], "run_tool": run_tool, "messages": messages}


def run_page(text: str, page: str, names: dict[str, Any]) -> None:
    for line, body in blocks(text, "python"):
        indented = "\n" * (line - 1) + body  # so that a traceback names the page's own line
        exec(compile(indented, page, "exec"), names)


PAGES = [path for path in DOCUMENTS if any(blocks(path.read_text("utf-8"), "python"))]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder as the documents assume it: a key file and the policies."""
    shutil.copytree(ROOT / "policies", tmp_path / "policies")
    new_keys(tmp_path / "evidence.keys")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_python_block_runs_as_it_stands(path: Path, folder: Path):
    run_page(path.read_text("utf-8"), name_of(path), stage())


IN_ORDER = ("README.md", "docs/custody.md", "docs/keys.md", "docs/verify.md", "docs/backup.md")
"""Pages that a new user follows in one folder."""


@pytest.mark.parametrize("pages", [IN_ORDER, ("README.md", *reversed(IN_ORDER[1:]))], ids=["forth", "back"])
def test_the_pages_can_be_followed_in_one_folder(pages: tuple[str, ...], folder: Path):
    for page in pages:
        run_page((ROOT / page).read_text("utf-8"), page, stage())


def test_must_fail_control_a_page_that_opens_the_session_as_another_is_noticed(folder: Path):
    text = (ROOT / "docs" / "verify.md").read_text("utf-8")
    run_page((ROOT / "README.md").read_text("utf-8"), "README.md", stage())
    with pytest.raises(NotAvailableError):
        run_page(text.replace('subject="triage-agent"', 'subject="records-office"'), "control", stage())


def test_a_block_that_fails_is_noticed(folder: Path):
    with pytest.raises(ZeroDivisionError):
        run_page("text\n\n```python\nx = 1\n```\n\n```python\nx / 0\n```\n", "control", {})


def test_the_loop_of_the_readme_archives_what_its_tool_returned(folder: Path):
    names = stage()
    run_page((ROOT / "README.md").read_text("utf-8"), "README.md", names)
    last = names["client"].requests[-1]
    assert last.messages[2]["content"].startswith("[archived r1 tag=")
    assert names["messages"][2]["content"] == "14 timeouts, all on node 3\n" * 100


def test_blocks_are_python_or_named_with_a_reason_why_they_are_not_run():
    marked = {
        body.splitlines()[0]
        for path in DOCUMENTS
        for match in _FENCE.finditer(path.read_text("utf-8"))
        if (info := match["info"].strip()).startswith("py") and info != "python"
        for body in [match["body"]]
    }
    assert marked == set(NOT_RUN)


# --- commands -----------------------------------------------------------------------------------------------------


def commands(text: str) -> Iterator[list[str]]:
    """Arguments of every ``evidence-archive`` command in code blocks and code spans."""
    spans = re.findall(r"`([^`\n]+)`", prose(text))
    lines = [line for match in _FENCE.finditer(text) for line in match["body"].replace("\\\n", " ").splitlines()]
    for shown in (*spans, *lines):
        for part in re.split(r"&&|\|(?!=)|;", shown):
            words = re.match(r"^\s*(?:\$ )?(?:uv run )?(?:\.venv/bin/)?evidence-archive (?!=)(.*)$", part)
            if words:
                yield shlex.split(words[1], comments=True)


def command_names() -> set[str]:
    """Every command there is, such as ``keys new``, with the groups and the program itself (an empty name)."""
    names = {"", *(str(one.name) for one in app.registered_commands)}
    for group in app.registered_groups:
        inner = group.typer_instance.registered_commands
        names |= {str(group.name), *(f"{group.name} {one.name}" for one in inner)}
    return names


def missing(arguments: list[str]) -> str | None:
    """What of a command does not exist: the command, or options that its help does not show."""
    known = command_names()
    words = [word for word in arguments if not word.startswith("-")]
    groups = {str(group.name) for group in app.registered_groups}
    name = " ".join(words[:2] if words[:1] and words[0] in groups else words[:1])
    if name not in known:
        return name
    shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, name
    options = {word.split("=")[0] for word in arguments if word.startswith("--")}
    absent = sorted(option for option in options if not re.search(rf"{option}\b", shown.output))
    return " ".join([name, *absent]) if absent else None


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_command_shown_exists_with_its_options(path: Path):
    assert [found for arguments in commands(path.read_text("utf-8")) if (found := missing(arguments))] == []


def test_a_command_or_option_that_does_not_exist_is_noticed():
    assert missing(["frobnicate"]) == "frobnicate"
    assert missing(["keys", "old"]) == "keys old"
    assert missing(["demo", "--kept", "x"]) == "demo --kept"
    assert missing(["demo", "--keep", "x"]) is None
    assert list(commands("`evidence-archive demo --json | jq`")) == [["demo", "--json"]]


def test_the_readme_lists_every_command_once():
    table = re.findall(r"^\| `evidence-archive ([a-z -]+)` \|", (ROOT / "README.md").read_text("utf-8"), re.M)
    groups = {"", *(str(group.name) for group in app.registered_groups)}
    assert sorted(table) == sorted(command_names() - groups)


def test_the_readme_has_the_two_commands_and_their_uv_forms():
    text = (ROOT / "README.md").read_text("utf-8")
    venv = "python3 -m venv .venv && .venv/bin/pip install -e"
    assert text.count(f"\n{venv} . && .venv/bin/evidence-archive demo\n") == 1
    assert text.count(f"\n{venv} '.[test]' && .venv/bin/pytest\n") == 1
    assert "`uv run evidence-archive demo`" in text
    assert "`uv run --extra test pytest`" in text


# --- links --------------------------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", prose(text), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken_links(path: Path, text: str) -> list[str]:
    broken = []
    for target in _LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        if not linked.exists() or (anchor and anchor not in anchors(linked.read_text("utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_relative_link_resolves(path: Path):
    assert broken_links(path, path.read_text("utf-8")) == []


def test_a_broken_link_or_anchor_is_noticed():
    text = "[a](nowhere.md) [b](docs/architecture.md#nowhere) [c](docs/architecture.md#floors) [d](https://x.test/)"
    assert broken_links(ROOT / "README.md", text) == ["nowhere.md", "docs/architecture.md#nowhere"]


# --- what architecture.md prints ----------------------------------------------------------------------------------

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text("utf-8")


def section(title: str) -> str:
    return ARCHITECTURE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_invariants_are_numbered_1_to_11():
    assert [int(n) for n in re.findall(r"^(\d+)\. \*\*", section("Invariants"), re.M)] == list(range(1, 12))


def test_every_invariant_says_where_it_is_held():
    parts = re.split(r"^\d+\. ", section("Invariants"), flags=re.M)[1:]
    assert [part for part in parts if "Held by" not in part.replace("\n   ", " ")] == []


def test_the_floors_printed_are_the_layers_that_are_enforced():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rows = re.findall(r"^\|[^|]*\| (`[^|]*) \|", section("Floors"), re.M)
    assert [re.findall(r"`(\w+)`", row) for row in rows] == [layer.split(" | ") for layer in layers]


def test_every_module_named_in_the_architecture_exists():
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)", ARCHITECTURE))
    assert named
    assert sorted(name for name in named if not (ROOT / "evidence_archive" / name).is_file()) == []


def printed_tree(text: str) -> dict[str, str | None]:
    """Class -> base, read off a drawn tree."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for match in re.finditer(r"^[ │├└]*\b([A-Z]\w*Error)\b", text, re.M):
        column = match.start(1) - match.start()
        above = [(at, name) for at, name in above if at < column]
        parents[match[1]] = above[-1][1] if above else None
        above.append((column, match[1]))
    return parents


def real_tree() -> dict[str, str | None]:
    classes = [EvidenceArchiveError]
    for base in classes:
        classes += base.__subclasses__()
    own = [one for one in classes if one.__module__ == errors_module.__name__]
    return {one.__name__: None if one is EvidenceArchiveError else one.__bases__[0].__name__ for one in own}


def test_the_error_tree_printed_is_the_one_in_the_code():
    assert printed_tree(section("Errors")) == real_tree()


def test_the_error_tree_in_the_docstring_of_errors_is_the_one_in_the_code():
    assert printed_tree(str(errors_module.__doc__)) == real_tree()


def test_every_error_named_in_a_document_exists():
    known = {*errors_module.__all__, *vars(builtins)}
    named = {
        (name_of(path), word)
        for path in DOCUMENTS
        for word in re.findall(r"\b[A-Z][a-z]\w*Error\b", path.read_text("utf-8"))
    }
    assert sorted((page, word) for page, word in named if word not in known) == []


def test_decisions_are_numbered_without_gaps_and_have_context_decision_and_consequences():
    pages = sorted((ROOT / "docs" / "decisions").glob("*.md"))
    assert [page.name[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for page in pages:
        text = page.read_text("utf-8")
        assert text.startswith(f"# {page.name[:4]}: "), page.name
        assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.M) == ["Context", "Decision", "Consequences"], page.name


def test_limits_stated_in_the_readme_are_the_defaults():
    from evidence_archive.model import Limits

    text = (ROOT / "README.md").read_text("utf-8")
    stated = re.search(r"(\d+) MiB each by default", text)
    assert stated is not None
    assert int(stated[1]) * 1024 * 1024 == Limits().original_bytes_max


def test_documents_name_no_machine():
    paths = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp)/\w")
    assert [name_of(path) for path in DOCUMENTS if paths.search(path.read_text("utf-8"))] == []


def test_the_parsers_of_this_file_read_what_they_should():
    tree = "RError\n├ AError  x\n├ BError\n│  ├ CError\n│  └ DError\n└ EError\n   └ FError"
    parents = {"RError": None, "AError": "RError", "BError": "RError", "CError": "BError", "DError": "BError"}
    assert printed_tree(tree) == {**parents, "EError": "RError", "FError": "EError"}
    assert ast.parse(next(blocks("```python\nx = 1\n```\n", "python"))[1]).body

"""SECURITY.md and docs/operations.md say what is so: every named test exists, every error is there with its code."""

import ast
import re
import runpy
from pathlib import Path

import pytest

from evidence_archive import errors
from evidence_archive.errors import EvidenceArchiveError
from evidence_archive.model import Limits
from evidence_archive.proof.leaf import EVENTS
from evidence_archive.store.engine import POOL_CONNECTIONS_MAX
from evidence_archive.store.sqlite import journal_rules

ROOT = Path(__file__).resolve().parents[1]
SECURITY = (ROOT / "SECURITY.md").read_text("utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text("utf-8")
NAMED = re.compile(r"`((?:(?:attacks|fuzz|mutants)/)?test_\w+\.py)(?:::(\w+))?`")


def functions_in(name: str) -> set[str]:
    """The test functions of a file, wherever in it they are defined."""
    path = ROOT / "tests" / name
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)} | {""}


def missing(text: str) -> list[str]:
    return [f"{name}::{test}" for name, test in NAMED.findall(text) if test not in functions_in(name)]


def table(text: str, first_head: str) -> list[list[str]]:
    """The cells of the table whose first column has this head."""
    lines = text.splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith(f"| {first_head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def tree(root: type[EvidenceArchiveError] = EvidenceArchiveError) -> list[type[EvidenceArchiveError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def test_every_test_that_security_md_names_exists() -> None:
    assert missing(SECURITY) == []
    assert len(NAMED.findall(SECURITY)) >= 30


@pytest.mark.parametrize(
    "named",
    [
        "`test_tamper.py::test_that_never_was`",
        "`test_nowhere.py`",
        "`attacks/test_oracle.py::test_that_never_was`",
        "`fuzz/test_fuzz.py::test_that_never_was`",
        "`mutants/test_mutants.py::test_that_never_was`",
    ],
)
def test_a_test_that_does_not_exist_would_be_noticed(named: str) -> None:
    assert len(missing(f"| guarantee | {named} |")) == 1


def test_security_md_counts_the_mutations() -> None:
    mutations = runpy.run_path(str(ROOT / "tests" / "mutants" / "mutations.py"), run_name="mutations")["MUTATIONS"]
    assert f" {len(mutations)} hand-written mutations" in SECURITY


@pytest.mark.parametrize("head", ["guarantee", "attack"])
def test_every_guarantee_and_every_attack_names_a_test(head: str) -> None:
    rows = table(SECURITY, head)
    assert len(rows) >= 12
    for row in rows:
        assert NAMED.search(row[-1]), row[0]


def test_what_is_not_found_yet_is_said_in_the_table_and_under_what_does_not_hold() -> None:
    rows = table(SECURITY, "attack")
    assert sum("not yet" in row[2] for row in rows) == 3
    assert "older copy of everything" in SECURITY.split("## What does not hold yet")[1]


def test_operations_md_lists_every_error_with_its_exit_code_and_no_other() -> None:
    stated = {row[0].strip("`"): int(row[1]) for row in table(OPERATIONS, "error")}
    assert stated == {kind.__name__: kind.exit_code for kind in tree() if kind.__module__ == errors.__name__}


def test_every_error_says_what_to_do() -> None:
    for name, _, means, do in table(OPERATIONS, "error"):
        assert means, name
        assert do, name


def test_operations_md_lists_every_event_of_the_log_and_no_other() -> None:
    listed = {event for row in table(OPERATIONS, "event") for event in re.findall(r"`([a-z.]+)`", row[0])}
    assert listed == EVENTS


def test_the_limits_that_operations_md_names_are_those_of_the_code() -> None:
    limits = Limits()
    assert (limits.store_wait_ms_max, limits.view_wait_ms_max, limits.suspension_seconds) == (5_000, 1_000, 60)
    assert f"at most {POOL_CONNECTIONS_MAX} connections" in OPERATIONS


def test_the_journal_modes_that_operations_md_names_are_those_of_the_code() -> None:
    wal, truncate = table(OPERATIONS, "linked SQLite")
    assert wal[1:3] == ["`wal`", "`FULL`"]
    assert truncate[1:3] == ["`truncate`", "`EXTRA`"]
    for version in ((3, 44, 6), (3, 44, 7), (3, 50, 7), (3, 50, 8), (3, 51, 3), (3, 60, 0)):
        assert journal_rules(version) == ("wal", 2)
    for version in ((3, 7, 0), (3, 44, 5), (3, 45, 0), (3, 50, 6), (3, 51, 0), (3, 51, 2)):
        assert journal_rules(version) == ("truncate", 3)

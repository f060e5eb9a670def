"""docs/reliability.md says what is so: tests exist, faults have their controls, figures are what the tests run."""

import ast
import re

import pytest
from test_security_doc import ROOT, functions_in, table

PAGE = (ROOT / "docs" / "reliability.md").read_text("utf-8")
NAMED = re.compile(r"`((?:sweeps/)?test_\w+\.py)(?:::(\w+))?`")
LONG_RUNS = ("sweeps/*.py", "test_postgres*.py", "test_objects*.py", "test_large_originals.py", "test_matching*.py")


def missing(text: str) -> list[str]:
    return [f"{name}::{test}" for name, test in NAMED.findall(text) if test not in functions_in(name)]


def function(name: str, test: str) -> ast.FunctionDef:
    tree = ast.parse((ROOT / "tests" / name).read_text("utf-8"))
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == test)


def is_nightly(test: ast.FunctionDef) -> bool:
    return any("pytest.mark.nightly" in ast.unparse(mark) for mark in test.decorator_list)


def nightly_tests() -> set[tuple[str, str]]:
    """The long versions of tests about loss, but for their controls."""
    folder = ROOT / "tests"
    return {
        (str(path.relative_to(folder)), node.name)
        for pattern in LONG_RUNS
        for path in folder.glob(pattern)
        for node in ast.parse(path.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and is_nightly(node) and "must_fail_control" not in node.name
    }


def figures(test: ast.FunctionDef) -> set[str]:
    """The numbers a test passes to its sweep: the first of each call, which is how much of it is done."""
    calls = [node for node in ast.walk(ast.Module(test.body, [])) if isinstance(node, ast.Call)]
    numbers = [[one.value for one in call.args if isinstance(one, ast.Constant)] for call in calls]
    return {f"{found[0]:,}" for found in numbers if found and isinstance(found[0], int) and found[0] > 1}


def test_every_test_that_reliability_md_names_exists() -> None:
    assert missing(PAGE) == []
    assert len(NAMED.findall(PAGE)) >= 80


@pytest.mark.parametrize("named", ["`sweeps/test_sweep_kill.py::test_that_never_was`", "`test_nowhere.py`"])
def test_a_test_that_does_not_exist_would_be_noticed(named: str) -> None:
    assert len(missing(f"| promise | {named} |")) == 1


@pytest.mark.parametrize(("head", "least"), [("promise", 10), ("fault", 20)])
def test_every_promise_and_every_fault_names_a_test_and_a_control(head: str, least: int) -> None:
    rows = table(PAGE, head)
    assert len(rows) >= least
    for row in rows:
        held, control = (set(NAMED.findall(cell)) for cell in row[-2:])
        assert held, row[0]
        assert control, row[0]
        assert not held & control, row[0]


@pytest.mark.parametrize("invariant", [1, 2, 3, 4, 8, 11])
def test_every_invariant_about_loss_is_among_the_promises(invariant: int) -> None:
    assert any(row[0].startswith(f"{invariant}. ") for row in table(PAGE, "promise"))


def test_every_long_version_is_listed_beside_its_short_one() -> None:
    rows = table(PAGE, "sweep")
    listed = {pair for row in rows for pair in NAMED.findall(row[4])}
    assert listed == nightly_tests()
    assert not {pair for row in rows for pair in NAMED.findall(row[2])} & (listed - short_too(rows))


def short_too(rows: list[list[str]]) -> set[tuple[str, str]]:
    """Tests that are both, by a parameter."""
    return {pair for row in rows for pair in NAMED.findall(row[2]) if "param(" in ast.unparse(function(*pair))}


def test_the_figures_are_those_that_the_tests_run() -> None:
    seen = 0
    for row in table(PAGE, "sweep"):
        for said, named in ((row[1], row[2]), (row[3], row[4])):
            for pair in NAMED.findall(named):
                numbers = figures(function(*pair))
                assert numbers <= set(re.findall(r"[\d,]*\d", said)), row[0]
                seen += len(numbers)
    assert seen >= 10


def test_a_figure_that_is_not_what_a_test_runs_would_be_noticed() -> None:
    (test,) = ast.parse("def test_it():\n    sweep(Bench(), 20_000, 80)").body
    assert isinstance(test, ast.FunctionDef)
    assert figures(test) == {"20,000"}


def test_what_is_not_promised_is_said() -> None:
    said = PAGE.split("## What is not promised")[1].split("## ")[0]
    for words in ("Disks that lie", "affected SQLite", "Network file systems", "overwritten", "Loss of all keys"):
        assert words in said

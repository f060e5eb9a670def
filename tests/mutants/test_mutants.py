"""Every mutation of our own code is killed by the test it names, and that test passes on the code as it is."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pytest

sys.path.append(os.path.dirname(__file__))
from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
PURE = ("access", "checkpoint", "envelope", "keyring", "model", "policy", "proof")
"""What is tested without a store; ``tests/conftest.py``, which takes most of a short run, is then left out."""

SECONDS_MAX = 300
"""After which a run that hangs is ended; it then counts as no answer."""

WITNESS = """
import json, pathlib, sys

reports = []


def pytest_runtest_logreport(report):
    reports.append([report.nodeid, report.when, report.outcome])


def pytest_sessionfinish(session, exitstatus):
    files = [getattr(module, "__file__", None) for name, module in list(sys.modules.items())
             if name.partition(".")[0] == "evidence_archive"]
    told = {"exit": int(exitstatus), "reports": reports, "files": sorted(filter(None, files))}
    pathlib.Path(__file__).with_name("told.json").write_text(json.dumps(told))
"""
"""A plugin of the run that tells which files were loaded and what became of each test."""


@pytest.fixture
def copy(tmp_path: Path) -> Iterator[Path]:
    """A copy of the package, compiled as far as it is here, in a folder that has all else by links."""
    folder = tmp_path / "copy"
    # A compiled file that is being written has another name until it is whole.
    shutil.copytree(ROOT / "evidence_archive", folder / "evidence_archive", ignore=shutil.ignore_patterns("*.pyc.*"))
    for name in ("tests", "policies", "docs", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "witness.py").write_text(WITNESS)
    yield folder
    shutil.rmtree(folder)


def run(folder: Path, *tests: str) -> dict[str, Any]:
    """What a run of these tests on this copy, and on nothing else, tells; they all are pure, or none is."""
    ours = ("COV", "PYTEST_", "PYTHON", "HYPOTHESIS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # Without the plugins of others a run begins in half the time; ours is named, so that the copy's is loaded.
    environment |= {"PYTHONPATH": str(folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["CI"] = "true"  # Hypothesis then tries the same inputs every time, and none is too slow
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--basetemp", "made"]
    plugins = ["-p", "witness", "-p", "evidence_archive.testing.plugin", *["--noconftest"] * is_pure(tests[0])]
    done = subprocess.run(
        [*command, *plugins, *tests],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    told = folder / "told.json"
    assert told.exists(), f"the run did not come to its end: {done.stdout[-2_000:]}{done.stderr[-2_000:]}"
    answer: dict[str, Any] = json.loads(told.read_text())
    answer["output"] = done.stdout[-4_000:]
    assert all(file.startswith(f"{folder}/") for file in answer["files"]), "another copy was loaded"
    return answer


def is_pure(test: str) -> bool:
    return test.partition("::")[0] in {f"tests/test_{name}.py" for name in PURE}


def mutate(folder: Path, mutation: Mutation) -> Path:
    """The copy's file, changed; nothing that was compiled from it before is left."""
    path = folder / "evidence_archive" / mutation.file
    text = path.read_text("utf-8")
    path.write_text(text.replace(mutation.old, mutation.new), "utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    return path


def is_killed(folder: Path, mutation: Mutation) -> bool:
    """Whether the test that is named, and no accident around it, fails on the changed copy."""
    path = mutate(folder, mutation)
    told = run(folder, mutation.killed_by)
    assert told["exit"] in (0, 1), f"the run did not test anything: {told['output']}"
    assert str(path) in told["files"], "the changed file was not loaded"
    return told["exit"] == 1 and any(report[1:] == ["call", "failed"] for report in told["reports"])


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_killed_by_the_test_it_names(mutation: Mutation, copy: Path):
    assert is_killed(copy, mutation)


def test_must_fail_control_a_mutation_that_changes_nothing_survives(copy: Path):
    mutation = next(one for one in MUTATIONS if one.name == "access: being the owner opens what names roles")
    assert not is_killed(copy, replace(mutation, new=f"{mutation.old}  # as before"))


def test_every_named_test_passes_on_the_code_as_it_is(copy: Path):
    named = sorted({mutation.killed_by for mutation in MUTATIONS})
    for tests in (list(filter(is_pure, named)), list(filterfalse(is_pure, named))):
        told = run(copy, *tests)
        assert told["exit"] == 0, told["output"]
        passed = {nodeid for nodeid, when, outcome in told["reports"] if (when, outcome) == ("call", "passed")}
        assert [one for one in tests if not any(test == one or test.startswith(f"{one}[") for test in passed)] == []
        assert {outcome for _, _, outcome in told["reports"]} == {"passed"}


def test_every_mutation_is_of_text_that_is_there_once_and_is_still_python():
    files = {name: (ROOT / "evidence_archive" / name).read_text("utf-8") for name in {one.file for one in MUTATIONS}}
    trees = {name: ast.dump(ast.parse(text)) for name, text in files.items()}
    for mutation in MUTATIONS:
        text = files[mutation.file]
        assert text.count(mutation.old) == 1, f"{mutation.name}: its text is there {text.count(mutation.old)} times"
        assert ast.dump(ast.parse(text.replace(mutation.old, mutation.new))) != trees[mutation.file], mutation.name
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 60

"""Every mutation of our own code is killed by the test it names, and that test passes on the code as it is."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import filterfalse
from pathlib import Path
from typing import Any

import pytest

sys.path.append(os.path.dirname(__file__))
from mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[2]
PURE = (
    *("access", "checkpoint", "envelope", "keyring", "model", "policy", "proof", "references"),
    *("window_card", "window_carrying", "window_summaries"),
)
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

NURSERY = """
import importlib, json, os, signal, sys, time

for name in ("pytest", *sys.argv[2:]):
    importlib.import_module(name)
assert not any(name.partition(".")[0] == "evidence_archive" for name in sys.modules)
import pytest

for line in sys.stdin:
    folder, arguments = json.loads(line)
    child = os.fork()
    if child == 0:
        os.setsid()
        os.chdir(folder)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for new, old in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(new, old)
        sys.path.insert(0, folder)
        code = 70
        try:
            code = pytest.main(arguments)
        finally:
            os._exit(code)
    end = time.monotonic() + float(sys.argv[1])
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.005)
    print("ended", flush=True)
"""
"""A process that has loaded what others wrote, and forks one for every run, which then loads the copy."""

LOADED = (
    "alembic.command",
    "cryptography.hazmat.primitives.ciphers.aead",
    "hypothesis",
    "psycopg",
    "sqlmodel",
    "structlog",
    "tiktoken",
)


@pytest.fixture(scope="session")
def nursery() -> Iterator[subprocess.Popen[str]]:
    """The process that runs begin in; most of a short run would go into loading the same again."""
    ours = ("COV", "PYTEST_", "PYTHON", "HYPOTHESIS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    # Without the plugins of others a run begins in half the time; ours is named, so that the copy's is loaded.
    environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment["CI"] = "true"  # Hypothesis then tries the same inputs every time, and none is too slow
    # -P: the folder it begins in is not a place to load from; each run's own is.
    command = [sys.executable, "-P", "-c", NURSERY, str(SECONDS_MAX), *LOADED]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT.parent
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@dataclass(frozen=True)
class Copy:
    """A copy of the package, and the process that runs of tests on it begin in."""

    folder: Path
    nursery: subprocess.Popen[str]


@pytest.fixture
def copy(tmp_path: Path, nursery: subprocess.Popen[str]) -> Iterator[Copy]:
    """A copy of the package, compiled as far as it is here, in a folder that has all else by links."""
    folder = tmp_path / "copy"
    # A compiled file that is being written has another name until it is whole.
    shutil.copytree(ROOT / "evidence_archive", folder / "evidence_archive", ignore=shutil.ignore_patterns("*.pyc.*"))
    for name in ("tests", "policies", "docs", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "witness.py").write_text(WITNESS)
    yield Copy(folder, nursery)
    shutil.rmtree(folder)


def run(copy: Copy, *tests: str) -> dict[str, Any]:
    """What a run of these tests on this copy, and on nothing else, tells; they all are pure, or none is."""
    arguments = ["-x", "-q", "-p", "no:cacheprovider", "--basetemp", "made"]
    arguments += ["-p", "witness", "-p", "evidence_archive.testing.plugin", *["--noconftest"] * is_pure(tests[0])]
    stdin, stdout = copy.nursery.stdin, copy.nursery.stdout
    assert stdin is not None
    assert stdout is not None
    stdin.write(json.dumps([str(copy.folder), [*arguments, *tests]]) + "\n")
    stdin.flush()
    assert stdout.readline() == "ended\n"
    told, output = copy.folder / "told.json", (copy.folder / "output").read_text("utf-8", "replace")
    assert told.exists(), f"the run did not come to its end: {output[-4_000:]}"
    answer: dict[str, Any] = json.loads(told.read_text())
    told.unlink()
    answer["output"] = output[-4_000:]
    assert all(file.startswith(f"{copy.folder}/") for file in answer["files"]), "another copy was loaded"
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


def is_killed(copy: Copy, mutation: Mutation) -> bool:
    """Whether the test that is named, and no accident around it, fails on the changed copy."""
    path = mutate(copy.folder, mutation)
    told = run(copy, mutation.killed_by)
    assert told["exit"] in (0, 1), f"the run did not test anything: {told['output']}"
    assert str(path) in told["files"], "the changed file was not loaded"
    return told["exit"] == 1 and any(report[1:] == ["call", "failed"] for report in told["reports"])


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_killed_by_the_test_it_names(mutation: Mutation, copy: Copy):
    assert is_killed(copy, mutation)


def test_must_fail_control_a_mutation_that_changes_nothing_survives(copy: Copy):
    mutation = next(one for one in MUTATIONS if one.name == "access: being the owner opens what names roles")
    assert not is_killed(copy, replace(mutation, new=f"{mutation.old}  # as before"))


def test_every_named_test_passes_on_the_code_as_it_is(copy: Copy):
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

"""The demo's tools: they run on this machine and return bulky, real output. None reads environment variables."""

import ast
import importlib.metadata
import importlib.util
import platform
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["LOOKUP", "SPECS", "run"]

LOOKUP = "lookup_prescription"
"""The only tool whose result is made up: what a prescription rests on, which the demo's policy protects."""

SEARCH_MATCHES_MAX = 400
TEST_SECONDS_MAX = 30

_TEST_FILE = """
import datetime
import unittest


class LeapDays(unittest.TestCase):
    def test_every_year_of_four_centuries(self):
        for year in range(1900, 2300):
            with self.subTest(year=year):
                try:
                    datetime.date(year, 2, 29)
                    real = True
                except ValueError:
                    real = False
                self.assertEqual(real, year % 4 == 0)
"""


def run(name: str, arguments: Mapping[str, Any], folder: Path) -> str:
    """What a tool of the demo says.

    Args:
        name: one of the names in ``SPECS``.
        arguments: as the scripted model gives them.
        folder: scratch folder for tools that need files.
    """
    return _TOOLS[name](folder, **arguments)


def _list_packages(folder: Path) -> str:
    """Every installed distribution with its metadata."""
    blocks = []
    for found in sorted(importlib.metadata.distributions(), key=lambda each: str(each.name).lower()):
        requires = "".join(f"\n  requires {line}" for line in found.requires or ())
        summary = found.metadata.json.get("summary", "")
        blocks.append(f"{found.name} {found.version}: {summary}{requires}\n  files {len(found.files or ())}")
    return "\n".join(blocks)


def _report_environment(folder: Path) -> str:
    """The interpreter and how it was built; build variables, never those of the process's environment."""
    lines = [f"{key}: {value}" for key, value in platform.uname()._asdict().items() if key != "node"]
    lines += [f"python: {sys.version}", f"implementation: {platform.python_implementation()}"]
    lines += [f"path {key}: {value}" for key, value in sorted(sysconfig.get_paths().items())]
    lines += [f"{key} = {value!r}" for key, value in sorted(sysconfig.get_config_vars().items())]
    return "\n".join(lines)


def _source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    origin = spec.origin if spec is not None else None
    if origin is None or not origin.endswith(".py"):
        return f"# {module} has no source on this machine"
    return Path(origin).read_text("utf-8")


def _read_source(folder: Path, module: str) -> str:
    """The source of a standard-library module."""
    return _source_of(module)


def _outline_source(folder: Path, module: str) -> str:
    """Every class and function of a module with its line and its first docstring line."""
    lines = []
    for node in ast.walk(ast.parse(_source_of(module))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            words = (ast.get_docstring(node) or "").partition("\n")[0]
            lines.append(f"{module}.py:{node.lineno}: {type(node).__name__} {node.name}: {words}")
    return "\n".join(lines)


def _search_sources(folder: Path, pattern: str) -> str:
    """Lines of the standard library that match a pattern."""
    wanted = re.compile(pattern)
    matches: list[str] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1):
            if wanted.search(line):
                matches.append(f"{path.name}:{number}: {line.strip()}")
    rest = len(matches) - SEARCH_MATCHES_MAX
    return "\n".join([*matches[:SEARCH_MATCHES_MAX], *([f"... and {rest} more"] if rest > 0 else [])])


def _run_tests(folder: Path) -> str:
    """A real run of a test file that finds a real mistake: not every fourth year is a leap year."""
    Path(folder, "test_leap_days.py").write_text(_TEST_FILE, "utf-8")
    done = subprocess.run(  # noqa: S603 - this interpreter, on a file that was just written here
        [sys.executable, "-I", "-m", "unittest", "discover", "-v", "-s", str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=TEST_SECONDS_MAX,
        check=False,
    )
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}".replace(str(folder), "FOLDER")


def _lookup_prescription(folder: Path, case: str) -> str:
    """A made-up record of the kind that must never leave the view."""
    doses = "\n".join(f"day {day:>2}: 12.5 mg at 08:00, 12.5 mg at 20:00, with food" for day in range(1, 22))
    head = f"Case {case} (made up)\nPatient: dog, 9 years, 14.2 kg\nSubstance: exampletrine"
    return f"{head}\n{doses}\nSigned: Dr. Example"


_TOOLS: Mapping[str, Callable[..., str]] = {
    "list_packages": _list_packages,
    "report_environment": _report_environment,
    "read_source": _read_source,
    "outline_source": _outline_source,
    "search_sources": _search_sources,
    "run_tests": _run_tests,
    LOOKUP: _lookup_prescription,
}


def _spec(name: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"} for argument in arguments},
        "required": list(arguments),
        "additionalProperties": False,
    }
    described = (_TOOLS[name].__doc__ or "").partition("\n")[0]
    return {"type": "function", "function": {"name": name, "description": described, "parameters": parameters}}


SPECS = [
    _spec("list_packages", ()),
    _spec("report_environment", ()),
    _spec("read_source", ("module",)),
    _spec("outline_source", ("module",)),
    _spec("search_sources", ("pattern",)),
    _spec("run_tests", ()),
    _spec(LOOKUP, ("case",)),
]
"""Their specs, for the request."""

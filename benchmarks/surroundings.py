"""What every benchmark shares: the machine's name tag, real text, an archive in a temporary folder, a bare commit."""

import os
import platform
import sqlite3
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evidence_archive import Archive, Policy
from evidence_archive.keys import new_keys
from evidence_archive.store.sqlite import journal_rules


def machine() -> dict[str, Any]:
    """What has to be written beside a figure."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "commit": commit.stdout.strip() or "unknown",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "journal": "/".join(map(str, journal_rules(sqlite3.sqlite_version_info))),
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
    }


def real_text(size_chars: int, skip: int = 0) -> str:
    """Text that people wrote: sources of the standard library, joined, from the character ``skip`` on."""
    return _corpus(skip + size_chars)[skip : skip + size_chars]


def _corpus(size_chars: int) -> str:
    parts, total = [], 0
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    while total < size_chars:
        for path in paths:
            parts.append(path.read_text(encoding="utf-8", errors="replace"))
            total += len(parts[-1])
            if total >= size_chars:
                break
    return "".join(parts)


@contextmanager
def fresh_archive(**limits: int) -> Iterator[tuple[Archive, Path]]:
    """An archive in a temporary folder under a policy that allows everything, with these limits."""
    lines = ["[policy]", 'name = "benchmark"', "version = 1", 'default = "allow"', "[limits]"]
    policy = Policy.loads("\n".join([*lines, *(f"{name} = {value}" for name, value in limits.items())]))
    with tempfile.TemporaryDirectory() as folder:
        new_keys(f"{folder}/keys")
        with Archive.open(f"sqlite:///{folder}/evidence.db", keys=f"{folder}/keys", policy=policy) as archive:
            yield archive, Path(folder)


@contextmanager
def windowed_archive(window_tokens_max: int) -> Iterator[Archive]:
    """An archive in a temporary folder under a policy with a window of this size."""
    head = '[policy]\nname = "benchmark"\nversion = 1\ndefault = "allow"\n'
    text = f"{head}[window]\nwindow_tokens_max = {window_tokens_max}\n"
    with tempfile.TemporaryDirectory() as folder:
        new_keys(f"{folder}/keys")
        url = f"sqlite:///{folder}/evidence.db"
        with Archive.open(url, keys=f"{folder}/keys", policy=Policy.loads(text)) as archive:
            yield archive


def durable_connection(path: Path) -> sqlite3.Connection:
    """A bare connection with the durability the archive uses."""
    mode, synchronous = journal_rules(sqlite3.sqlite_version_info)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA journal_mode={mode}")
    connection.execute(f"PRAGMA synchronous={synchronous}")
    connection.execute("PRAGMA secure_delete=1")
    return connection


@contextmanager
def bare_commits(folder: Path) -> Iterator[Callable[[], None]]:
    """A function that commits one small row at the archive's durability, in a database of its own."""
    connection = durable_connection(folder / "bare.db")
    connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, b BLOB)")

    def commit() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO t (b) VALUES (?)", (b"x" * 100,))
        connection.execute("COMMIT")

    yield commit
    connection.close()


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def quantile(values: list[float], share: float) -> float:
    """The value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rows(header: list[str], body: list[list[str]]) -> str:
    """A plain table."""
    widths = [max(len(line[at]) for line in [header, *body]) for at in range(len(header))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in [header, *body]
    )

"""Something that happens just before a line of the package runs: which lines an operation runs, and one act at one.

Lines are those of ``sys.settrace``, over all threads. An act that raises is what the line itself would have raised.
"""

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dis import get_instructions
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import evidence_archive

__all__ = ["Line", "Watch", "passings_of", "untraced"]

PACKAGE = f"{Path(evidence_archive.__file__).parent}/"


class Line(NamedTuple):
    """A line of the package: its path below the package, and its number."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@cache
def _file_in_package(code: CodeType) -> str | None:
    return code.co_filename.removeprefix(PACKAGE) if code.co_filename.startswith(PACKAGE) else None


@cache
def _quiet(code: CodeType) -> frozenset[int]:
    """Offsets of instructions from which nothing can be raised, though a tracer could.

    A ``try:`` of its own line is no operation, and no block's table covers it. Where a ``with`` ends normally,
    ``__exit__(None, None, None)`` is called: the interpreter looks for signals where a call begins or ends, and
    nothing is allocated between the last call of the block and this one. An exception put there would leave a lock
    taken that nothing else could leave taken.
    """
    found, row = set(), list(get_instructions(code))
    for at, one in enumerate(row):
        follows = row[at + 1 : at + 4] if one.opname == "SWAP" else row[at : at + 3]
        leaves = len(follows) == 3 and all(two.opname == "LOAD_CONST" and two.argval is None for two in follows)
        if one.opname == "NOP" or leaves:
            found.add(one.offset)
    return frozenset(found)


class Watch:
    """Counts the passings of lines; an act is done once, at one passing of one line.

    Args:
        line: where to act; ``None`` to count every line of the package.
        passing: at which of its passings, from 1.
        act: done there, in the thread that passes.
    """

    def __init__(self, line: Line | None = None, passing: int = 0, act: Callable[[], object] | None = None) -> None:
        self.passings: Counter[Line] = Counter()
        self.acted = False
        self._line, self._passing, self._act = line, passing, act

    def _called(self, frame: FrameType, _event: str, _what: object) -> Any:
        file = _file_in_package(frame.f_code)
        if file is None or self.acted or (self._line is not None and file != self._line.file):
            return None
        return self._stepped

    def _stepped(self, frame: FrameType, event: str, _what: object) -> Any:
        if self.acted:
            return None
        if event == "line" and (self._line is None or frame.f_lineno == self._line.number):
            code = frame.f_code
            if frame.f_lasti not in _quiet(code):
                line = Line(_file_in_package(code) or "", frame.f_lineno)
                self.passings[line] += 1
                if line == self._line and self.passings[line] == self._passing:
                    self.acted = True
                    if self._act is not None:
                        self._act()
        return self._stepped

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread, and every thread that begins in the block."""
        with untraced():
            threading.settrace(self._called)
            sys.settrace(self._called)
            try:
                yield
            finally:
                sys.settrace(None)
                threading.settrace(None)  # type: ignore[arg-type]


@contextmanager
def untraced() -> Iterator[None]:
    """No other tracer in the block; afterwards the one that was there before goes on."""
    before, before_in_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.settrace(before)
        threading.settrace(before_in_threads)  # type: ignore[arg-type]


def passings_of(operation: Callable[[], object]) -> Counter[Line]:
    """How often each line of the package is passed while an operation runs."""
    watch = Watch()
    with watch.watching():
        operation()
    return watch.passings

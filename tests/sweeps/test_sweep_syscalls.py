"""A batch while the kernel fails it: every system call on the store's files, failing or the last one, one by one.

``strace`` attaches to a child that stands right before its batch, and makes the n-th call of one kind fail (EIO,
ENOSPC, EINTR; EIO and ENOSPC also from there on), or kills the child in its place. Which calls there are is read off
a run without faults, by the files they concern, so that whatever the store does below its folder is swept.
"""

import random
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from invariants import Case, conversation
from nursery import Nursery
from tracing import traced
from workers import JOURNALS, prepared, store_findings

SIZES = [2_048, 40_960, 1_572_864]
CALLS = (
    *("openat", "creat", "read", "pread64", "preadv", "write", "pwrite64", "pwritev", "fsync", "fdatasync"),
    *("truncate", "ftruncate", "fallocate", "unlink", "unlinkat", "rename", "renameat", "renameat2"),
    *("link", "linkat", "mkdir", "mkdirat", "rmdir"),
)
FAULTS = ("KILL", "EIO", "EIO+", "ENOSPC", "ENOSPC+", "EINTR")
_CALL = re.compile(r"^(?:\d+\s+)?(\w+)\(")


class Point(NamedTuple):
    """The n-th call of a kind, and what happens at it; ``+`` means also at all later ones."""

    call: str
    number: int
    fault: str

    @property
    def injection(self) -> str:
        how = "signal=KILL" if self.fault == "KILL" else f"error={self.fault.rstrip('+')}"
        return f"inject={self.call}:{how}:when={self.number}{'+' if self.fault.endswith('+') else ''}"


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    if shutil.which("strace") is None:
        pytest.skip("sweep: strace is not installed")
    with Nursery() as made:
        yield made


class Bench:
    """One store, copied for every point, and the child that archives into it."""

    def __init__(self, nursery: Nursery, folder: Path, mode: str, naive: str | None = None) -> None:
        self._nursery = nursery
        self._mode = mode
        self._naive = naive
        self._folder = folder / "store"
        self._trace = folder / "trace"
        self._case = Case("case", conversation("case", SIZES))
        self._template = prepared(folder / "template", mode, [self._case])
        self.acknowledged = self.refused = 0

    def points(self) -> list[Point]:
        """Every call that concerns the store's files, with every fault."""
        return [Point(call, number, fault) for call, number in self.calls() for fault in FAULTS]

    def calls(self) -> list[tuple[str, int]]:
        """The calls on the store's files in a run without faults, each with its number among all of its kind."""
        _, found = self.run(None)
        assert self._naive or not found, found
        counted: Counter[str] = Counter()
        calls = []
        for line in self._trace.read_text().splitlines():
            match = _CALL.match(line)
            if match:
                counted[match[1]] += 1
                if str(self._folder) in line:
                    calls.append((match[1], counted[match[1]]))
        return calls

    def run(self, point: Point | None) -> tuple[bool, list[str]]:
        """A batch with a fault: whether it happened, and what does not hold afterwards."""
        shutil.copytree(self._template, self._folder)
        try:
            rules, folder = JOURNALS[self._mode], str(self._folder)
            child = self._nursery.start(
                "workers.one_batch", folder=folder, rules=rules, sizes=SIZES, naive=self._naive
            )
            faults = [] if point is None else ["-e", point.injection]
            calls = "trace=" + ",".join(f"?{call}" for call in CALLS)
            with traced(child, self._trace, ["-f", "-y", "-s", "0", "-e", calls, *faults]):
                code, said = child.ended()
            killed = point is not None and point.fault == "KILL"
            hit = point is None or (code == -9 if killed else "(INJECTED)" in self._trace.read_text())
            acknowledged = [one["receipt"] for one in said if "receipt" in one]
            self.acknowledged += bool(acknowledged)
            self.refused += any("refused" in one for one in said)
            found = [wrong for one in said for wrong in one.get("wrong", ())]
            found += [f"An untyped error came out: {one['broken']}." for one in said if "broken" in one]
            if code not in (0, -9 if killed else 0):
                found.append(f"The process ended with {code}.")
            self._case.acknowledged = acknowledged
            found += store_findings(self._folder, [self._case], self._mode)
            return hit, [f"{point}: {one}" for one in found]
        finally:
            shutil.rmtree(self._folder)


def in_turn(points: list[Point]) -> Iterator[Point]:
    """All points in a fixed order that takes one of each call and fault before a second one of any."""
    groups: defaultdict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        groups[point.call, point.fault].append(point)
    for key, group in groups.items():
        random.Random(str(key)).shuffle(group)
    while any(groups.values()):
        for group in groups.values():
            if group:
                yield group.pop()


def sweep(bench: Bench, wanted: int, record: Callable[[str, object], None]) -> None:
    """Run points until that many faults happened; nothing may be wrong after any."""
    points = bench.points()
    done: Counter[str] = Counter()
    found = []
    for point in in_turn(points):
        hit, wrong = bench.run(point)
        found += wrong
        done[point.fault] += hit
        if done.total() == wanted:
            break
    record("points", done.total())
    record("points_there_are", len(points))
    record("points_by_fault", dict(done))
    record("acknowledged", bench.acknowledged)
    record("refused", bench.refused)
    record("violations", len(found))
    assert not found, "\n".join(found)
    assert done.total() == wanted, "fewer calls than points are wanted"
    assert bench.acknowledged, "some faults come too late to matter, or are gone at the second try"
    assert bench.refused, "some faults refuse the batch"


@pytest.mark.parametrize("mode", JOURNALS)
def test_no_failing_system_call_loses_or_halves_a_batch(
    nursery: Nursery, tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    sweep(Bench(nursery, tmp_path, mode), 75, record_property)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", JOURNALS)
def test_no_failing_system_call_of_many_loses_or_halves_a_batch(
    nursery: Nursery, tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    sweep(Bench(nursery, tmp_path, mode), 600, record_property)


@pytest.mark.parametrize(
    ("naive", "symptom"), [("early", "was acknowledged, and is lost"), ("apart", "does not come back")]
)
def test_an_archiver_that_acknowledges_early_or_writes_in_two_transactions_is_caught(
    nursery: Nursery, tmp_path: Path, naive: str, symptom: str, record_property: Callable[[str, object], None]
) -> None:
    bench = Bench(nursery, tmp_path, "truncate", naive)
    points = [Point(call, number, "KILL") for call, number in bench.calls() if call in ("fdatasync", "ftruncate")]
    found = [wrong for point in points for wrong in bench.run(point)[1] if symptom in wrong]
    record_property("violations", len(found))
    assert found

"""Faults at every edge between an archive and the world: the points, what goes wrong there, and when.

An archive reaches its store, its objects and its keys through the protocols of ``ports.py`` alone. Every method of
these protocols is an edge, and every edge has one or two named points, so that the list is generated and a new method
cannot be left out::

    plan = FaultPlan()
    archive = Archive(FaultyStore(store, plan), keys=FaultyKeys(keys, plan), policy=policy)
    plan.error("store.commit.after")  # the commit takes place, and the caller is told that it failed

A method that only reads has one point, before it; one that changes something has a point before and one after.
"""

import os
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, cast, get_args, get_origin, get_type_hints

from evidence_archive.errors import FormatError, KeyringError, StoreUnavailableError
from evidence_archive.ports import KeyLifecycle, KeyProvider, ObjectStore, OrgStore, Reader, Store, Writer

if TYPE_CHECKING:
    from evidence_archive.archive import Archive

__all__ = [
    "FAULT_POINTS",
    "Crashed",
    "FaultPlan",
    "FaultPoint",
    "FaultyKeys",
    "FaultyObjects",
    "FaultyStore",
    "Passing",
    "faulted",
]

PASSINGS_RECORDED_MAX = 100_000
"""Passings a plan remembers; older ones are forgotten, and still counted."""

_ERRORS: dict[str, Callable[[], Exception]] = {
    "store": lambda: StoreUnavailableError("The store cannot be reached (a fault set by a plan): try again."),
    "objects": lambda: StoreUnavailableError("The objects cannot be reached (a fault set by a plan): try again."),
    "keys": lambda: KeyringError("The keys cannot be reached (a fault set by a plan): try again."),
}
"""What the contract of each family lets its methods raise when the other side is away."""

_READS = frozenset({"org", "orgs", "scoped", "get", "versions", "reopened"})
"""Methods that change nothing, besides all of a reader and of a key provider; any other has a point after it too."""

_NEVER_FAIL = frozenset({"close", "scrub"})
"""Methods that raise nothing, whatever happens."""

_PLAIN = re.compile(r":\w+:`|``")
"""Markup of docstrings, where Markdown has a single backtick."""


# --- the points -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FaultPoint:
    """A place where something can go wrong.

    Args:
        name: such as ``store.commit.after``.
        words: one sentence on what has happened there, and what has not.
    """

    name: str
    words: str


@dataclass(frozen=True, slots=True)
class _Edge:
    """One method of a protocol, with the points around it."""

    method: str
    words: str
    before: str
    after: str | None
    opens: Any
    """The protocol of what it returns, or yields, where faults go on in that; else ``None``."""
    yields: bool

    def points(self) -> Iterator[FaultPoint]:
        yield FaultPoint(self.before, f"Before `{self.method}`: {self.words}")
        if self.yields and self.opens is Writer:
            yield FaultPoint(
                "store.commit.before", "All is written, nothing is committed: the transaction rolls back."
            )
            yield FaultPoint("store.commit.after", "The commit took place, and the caller is told that it failed.")
        elif self.after is not None:
            yield FaultPoint(self.after, f"`{self.method}` took place, and the caller is told that it failed.")


def _edges(family: str, protocol: type) -> Iterator[_Edge]:
    """Every public method of a protocol, inherited ones too; what must not fail is no edge."""
    for name in sorted(one for base in protocol.__mro__ for one in vars(base)):
        function = getattr(protocol, name)
        if name.startswith("_") or name in _NEVER_FAIL or not callable(function):
            continue
        returned = get_type_hints(function).get("return")
        yields = get_origin(returned) is AbstractContextManager
        opens = get_args(returned)[0] if yields else returned
        reads = protocol is KeyProvider or name in _READS or hasattr(Reader, name) or yields
        stem = f"{family}.{name}"
        yield _Edge(
            method=name,
            words=_PLAIN.sub("`", " ".join((function.__doc__ or "").partition("\n\n")[0].split())),
            before=f"{stem}.begin" if opens is Writer else stem if reads else f"{stem}.before",
            after=None if reads else f"{stem}.after",
            opens=opens if opens in (OrgStore, Reader, Writer, KeyProvider) else None,
            yields=yields,
        )


_FAMILIES: dict[Any, tuple[_Edge, ...]] = {
    protocol: tuple(_edges(family, protocol))
    for family, protocol in (
        ("store", Store),
        ("store", OrgStore),
        ("store", Reader),
        ("store", Writer),
        ("objects", ObjectStore),
        ("keys", KeyProvider),
        ("keys", KeyLifecycle),
    )
}

FAULT_POINTS: tuple[FaultPoint, ...] = tuple(
    sorted(
        {point for edges in _FAMILIES.values() for edge in edges for point in edge.points()},
        key=lambda point: point.name,
    )
)
"""Every point there is, by name."""


# --- the plan ---------------------------------------------------------------------------------------------------


class Crashed(BaseException):
    """The process died here, as far as this archive can tell: everything it does from now on raises this."""

    def __init__(self) -> None:
        super().__init__("This archive crashed: open a new one.")


class Passing(NamedTuple):
    """A point was passed.

    Args:
        point: its name.
        number: how often it had been passed then, from 1.
    """

    point: str
    number: int


@dataclass(slots=True)
class _Fault:
    points: str
    first: int
    last: int | None
    strike: Callable[[str], object]
    family: str | None = None
    """Once it struck, it strikes at every point of this family."""
    met: int = 0

    def concerns(self, point: str) -> bool:
        return fnmatchcase(point, self.points) or (self.family is not None and fnmatchcase(point, self.family))

    def strikes(self, point: str) -> bool:
        if self.family is not None and self.met >= self.first and fnmatchcase(point, self.family):
            return True
        if not fnmatchcase(point, self.points):
            return False
        self.met += 1
        return self.first <= self.met and (self.last is None or self.met <= self.last)


class FaultPlan:
    """What goes wrong, where and when; a plan in which nothing goes wrong records where something could. Thread-safe.

    Points are named as in :data:`FAULT_POINTS`, or by a pattern such as ``store.*``. ``nth`` counts the passings of
    these points from the moment on at which the fault is set, from 1; ``times`` bounds how many of them it strikes.

    Args:
        sleep: waits for a number of seconds; ``FrozenClock().advance`` makes delays cost nothing.
    """

    def __init__(self, *, sleep: Callable[[float], object] = time.sleep) -> None:
        self._sleep = sleep
        self._lock = threading.Lock()
        self._faults: list[_Fault] = []
        self._faults_at: dict[str, list[_Fault]] = {}
        """Those whose patterns fit a point: it may be passed thousands of times."""
        self._passings: deque[Passing] = deque(maxlen=PASSINGS_RECORDED_MAX)
        self._counts: Counter[str] = Counter()
        self._life = 0

    def error(
        self, point: str, error: BaseException | None = None, *, nth: int = 1, times: int | None = None
    ) -> None:
        """An exception at a point.

        Args:
            point: name or pattern.
            error: what is raised; by default what the contract of that edge allows when the other side is away.
            nth, times: which passings; without ``times`` all from the n-th on.

        Raises:
            FormatError: there is no such point, or a number is below 1.
        """

        def strike(at: str) -> None:
            raise (error or _ERRORS[at.partition(".")[0]]())

        self._set(point, strike, nth, times)

    def outage(self, point: str, *, nth: int = 1) -> None:
        """The other side goes away at a point and stays away: every edge of the same family fails from then on.

        Args:
            point: name or pattern.
            nth: at which passing.

        Raises:
            FormatError: there is no such point, or a number is below 1.
        """

        def strike(at: str) -> None:
            raise _ERRORS[at.partition(".")[0]]()

        self._set(point, strike, nth, 1, family=f"{point.partition('.')[0]}.*")

    def delay(self, point: str, *, delay_ms: float, nth: int = 1, times: int | None = None) -> None:
        """A wait at a point, after which all goes on.

        Args:
            point: name or pattern.
            delay_ms: how long, in milliseconds, at least 0.
            nth, times: which passings; without ``times`` all from the n-th on.

        Raises:
            FormatError: there is no such point, or a number is too small.
        """
        if delay_ms < 0:
            raise FormatError("A delay is 0 milliseconds or more.")
        self._set(point, lambda at: self._sleep(delay_ms / 1_000), nth, times)

    def run(self, point: str, action: Callable[[], object], *, nth: int = 1, times: int | None = 1) -> None:
        """Something that happens elsewhere at this very moment, such as another writer who is faster.

        Args:
            point: name or pattern.
            action: is called; what it raises is raised at the point.
            nth, times: which passings; by default one.

        Raises:
            FormatError: there is no such point, or a number is below 1.
        """
        self._set(point, lambda at: action(), nth, times)

    def crash(self, point: str, *, nth: int = 1, kill: bool = False) -> None:
        """The end of the process at a point.

        Args:
            point: name or pattern.
            nth: at which passing.
            kill: end this very process with SIGKILL. Otherwise :class:`Crashed` is raised, there and at every later
                edge of the archives that are open, until a new one is opened over new ``Faulty...`` objects.

        Raises:
            FormatError: there is no such point, or a number is below 1.
        """
        self._set(point, self._killed if kill else self._crashed, nth, 1)

    def clear(self) -> None:
        """Nothing goes wrong any more; what was recorded is forgotten. What crashed stays dead."""
        with self._lock:
            self._faults.clear()
            self._faults_at.clear()
            self._passings.clear()
            self._counts.clear()

    @property
    def passings(self) -> tuple[Passing, ...]:
        """The newest passings, in their order."""
        with self._lock:
            return tuple(self._passings)

    def count(self, *points: str) -> int:
        """How often points were passed.

        Args:
            points: names or patterns.
        """
        with self._lock:
            return sum(
                times for name, times in self._counts.items() if any(fnmatchcase(name, pattern) for pattern in points)
            )

    def _set(
        self, points: str, strike: Callable[[str], object], nth: int, times: int | None, *, family: str | None = None
    ) -> None:
        if not any(fnmatchcase(point.name, points) for point in FAULT_POINTS):
            raise FormatError(f"There is no fault point {points!r}: FAULT_POINTS lists them all.")
        if nth < 1 or (times is not None and times < 1):
            raise FormatError("Passings are counted from 1, and a fault strikes at least once.")
        with self._lock:
            self._faults.append(_Fault(points, nth, None if times is None else nth + times - 1, strike, family))
            self._faults_at.clear()

    def _passed(self, point: str, life: int) -> None:
        with self._lock:
            if life != self._life:
                raise Crashed
            self._counts[point] += 1
            self._passings.append(Passing(point, self._counts[point]))
            if point not in self._faults_at:
                self._faults_at[point] = [fault for fault in self._faults if fault.concerns(point)]
            struck = [fault for fault in self._faults_at[point] if fault.strikes(point)]
        for fault in struck:
            fault.strike(point)

    def _crashed(self, point: str) -> None:
        with self._lock:
            self._life += 1
        raise Crashed

    def _killed(self, point: str) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


# --- in front of what is there ----------------------------------------------------------------------------------


class _Faulty:
    """What all of them share; whatever is no edge comes from what stands behind."""

    __slots__ = ("_inner", "_life", "_plan")

    def __init__(self, inner: Any, plan: FaultPlan, life: int | None = None) -> None:
        self._inner = inner
        self._plan = plan
        self._life = plan._life if life is None else life

    def _pass(self, point: str | None) -> None:
        if point is not None:
            self._plan._passed(point, self._life)

    def __getattr__(self, name: str) -> Any:
        if name in _Faulty.__slots__:  # nothing is behind an object that is only being made
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} over {self._inner!r}>"


def _calling(edge: _Edge) -> Callable[..., Any]:
    def call(self: _Faulty, *given: Any, **named: Any) -> Any:
        self._pass(edge.before)
        result = getattr(self._inner, edge.method)(*given, **named)
        self._pass(edge.after)
        return result if edge.opens is None else _CLASSES[edge.opens](result, self._plan, self._life)

    return call


def _yielding(edge: _Edge) -> Callable[..., Any]:
    commits = edge.opens is Writer

    @contextmanager
    def block(self: _Faulty, *given: Any, **named: Any) -> Iterator[Any]:
        self._pass(edge.before)
        with getattr(self._inner, edge.method)(*given, **named) as inner:
            yield _CLASSES[edge.opens](inner, self._plan, self._life)
            self._pass("store.commit.before" if commits else None)
        self._pass("store.commit.after" if commits else None)

    return block


def _closing(self: _Faulty) -> None:
    """Close what stands behind; a process that died closes nothing, so what it only held in memory is gone."""
    if self._life == self._plan._life:
        self._inner.close()


def _class(name: str, protocol: Any, words: str = "", base: type = _Faulty, **more: Any) -> Any:
    """A class that implements a protocol by handing every method on, with its points around it."""
    methods = {
        edge.method: wraps(getattr(protocol, edge.method))((_yielding if edge.yields else _calling)(edge))
        for edge in _FAMILIES[protocol]
    }
    return type(name, (base,), {"__doc__": words, "__module__": __name__, "__slots__": (), **methods, **more})


def _fronted(cls: Any, inner: object = None, *_: object) -> Any:
    """A front that can what stands behind it can: versions are made and retired only where keys can be."""
    return object.__new__(_CLASSES[KeyLifecycle] if isinstance(inner, KeyLifecycle) else cls)


FaultyStore: Callable[[Store, FaultPlan], Store] = _class(
    "FaultyStore", Store, "A store with a plan in front of it and of everything it opens."
)
"""A store with a plan in front of it and of everything it opens: ``FaultyStore(inner, plan)``."""

FaultyObjects: Callable[[ObjectStore, FaultPlan], ObjectStore] = _class(
    "FaultyObjects", ObjectStore, "An object store with a plan in front of it.", close=_closing
)
"""An object store with a plan in front of it: ``FaultyObjects(inner, plan)``."""

FaultyKeys: Callable[[KeyProvider, FaultPlan], KeyProvider] = _class(
    "FaultyKeys", KeyProvider, "A key provider with a plan in front of it.", __new__=_fronted
)
"""A key provider with a plan in front of it: ``FaultyKeys(inner, plan)``.

Where the provider makes and retires versions (:class:`~evidence_archive.ports.KeyLifecycle`), this one does so too.
"""

_CLASSES: dict[Any, Any] = {
    OrgStore: _class("FaultyOrgStore", OrgStore),
    Reader: _class("FaultyReader", Reader),
    Writer: _class("FaultyWriter", Writer),
    KeyProvider: FaultyKeys,
    KeyLifecycle: _class(
        "FaultyKeys",
        KeyLifecycle,
        base=cast(type, FaultyKeys),
        shared_by_orgs=property(lambda self: self._inner.shared_by_orgs),
    ),
}


def faulted(archive: "Archive", plan: FaultPlan) -> "Archive":
    """The archive, with a plan in front of its store, its keys and, where it has them, its objects.

    For an archive that was opened as an application opens it, before its first session.

    Args:
        archive: is changed, and returned.
        plan: what goes wrong.
    """
    around = archive._around
    fronts: dict[str, Callable[[Any, FaultPlan], Any]] = {
        "store": FaultyStore,
        "keys": FaultyKeys,
        "objects": FaultyObjects,
    }
    changed = {
        one.name: fronts[one.name](getattr(around, one.name), plan)
        for one in fields(around)
        if one.name in fronts and getattr(around, one.name) is not None
    }
    archive._around = replace(around, **changed)
    return archive

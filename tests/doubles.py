"""Doubles for what surrounds the core: a cheap counter, and a store that fails when a test says so."""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import event

from evidence_archive import Archive, Policy
from evidence_archive.errors import StoreUnavailableError
from evidence_archive.keys import open_provider
from evidence_archive.matching import Place
from evidence_archive.records import Records
from evidence_archive.store import open_store
from evidence_archive.testing.faults import FAULT_POINTS, FaultPlan, FaultyStore

__all__ = [
    "AWAY",
    "UNANSWERED",
    "UNAUDITED",
    "UNCOMMITTED",
    "UNWRITABLE",
    "Characters",
    "Flaky",
    "arguments",
    "batch_of",
    "listen_to",
    "opened",
    "policy_of",
    "registered_without_looking_again_under_the_lock",
    "telling",
]

AWAY, UNWRITABLE, UNCOMMITTED, UNANSWERED, UNAUDITED = "away", "unwritable", "uncommitted", "unanswered", "append"
"""Nothing works; no write begins; commits fail; commits succeed and say they failed; audit entries fail.

The name of any other method of a reader or writer makes that method fail.
"""


class Characters:
    """One token for four characters, exactly: for tests to which tokens do not matter."""

    name = "characters"
    estimated = False

    def count(self, text: str) -> int:
        return -(-len(text) // 4)


class Flaky:
    """A plan as one switch: what is set as ``fault`` fails with ``error`` until it is set to ``None``."""

    def __init__(self) -> None:
        self.plan = FaultPlan()
        self.fault: str | None = None
        self.error: Exception = StoreUnavailableError("The store is away: try again.")
        self.before_write: Callable[[], Any] | None = None
        self.plan.run("store.writing.begin", self._first, times=None)
        for point in FAULT_POINTS:
            faults = _FAULTS.get(point.name, (point.name.removeprefix("store.").removesuffix(".before"),))
            self.plan.run(point.name, partial(self._fail, faults), times=None)

    @property
    def reads(self) -> int:
        return self.plan.count("store.peeking", "store.reading")

    @property
    def writes(self) -> int:
        return self.plan.count("store.writing.begin")

    def _first(self) -> None:
        first, self.before_write = self.before_write, None
        if first is not None:
            first()

    def _fail(self, faults: tuple[str, ...]) -> None:
        if self.fault in faults:
            raise self.error


_FAULTS = {
    "store.peeking": (AWAY,),
    "store.reading": (AWAY,),
    "store.writing.begin": (AWAY, UNWRITABLE),
    "store.commit.before": (UNCOMMITTED,),
    "store.commit.after": (UNANSWERED,),
}


@cache
def _migrated() -> bytes:
    """An empty database whose schema is made: making it anew takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        open_store(f"sqlite:///{path}", create=True, wait_ms=5_000).close()
        return path.read_bytes()


def opened(desk: Any, *, policy: Policy | None = None, clock: Any = None, counter: Any = None) -> Archive:
    """An archive over a store that can be made to fail, by the switch that is its attribute ``flaky``."""
    policy = policy or Policy.default()
    if desk.server is None and not desk.database.exists():
        desk.database.touch(0o600)
        desk.database.write_bytes(_migrated())
    flaky = Flaky()
    store = FaultyStore(open_store(desk.url, create=True, wait_ms=policy.limits.store_wait_ms_max), flaky.plan)
    archive = Archive(
        store, keys=open_provider(desk.keys), policy=policy, counter=counter or Characters(), clock=clock
    )
    archive.flaky = flaky
    return archive


def listen_to(archive: Archive, heard: Callable[[str], Any]) -> None:
    """From now on every statement of an archive is told before it runs."""
    engine: Any = archive._around.store._engine  # type: ignore[attr-defined]
    engine = engine.engine
    engine.dispose()

    def listen(connection: Any, _record: object) -> None:
        if hasattr(connection, "set_trace_callback"):
            connection.set_trace_callback(heard)
        else:
            connection.cursor_factory = telling(connection.cursor_factory, heard)

    event.listen(engine, "connect", listen)


def telling(kind: Any, heard: Callable[[str], Any]) -> Any:
    """A cursor of psycopg's that tells every statement before it runs it."""

    class Telling(kind):  # type: ignore[misc]
        def execute(self, query: str, *given: Any, **named: Any) -> Any:
            heard(query)
            return super().execute(query, *given, **named)

        def executemany(self, query: str, rows: Any, **named: Any) -> None:
            heard(query)
            super().executemany(query, rows, **named)

    return Telling


def policy_of(rules: str = "", *, default: str = "allow", **limits: int) -> Policy:
    """A policy of some rules and limits."""
    numbers = "\n".join(f"{name} = {value}" for name, value in limits.items())
    head = f'[policy]\nname = "test"\nversion = 1\ndefault = "{default}"\n'
    return Policy.loads(f"{head}[limits]\n{numbers}\n{rules}")


PATIENCE_MS = 60_000
"""So long a wait for a lock that no crowd on a busy machine exceeds it."""


def patient() -> Policy:
    """Allows everything, and waits for locks as long as it takes: a view would go on without new labels."""
    return policy_of(store_wait_ms_max=PATIENCE_MS, view_wait_ms_max=PATIENCE_MS)


def arguments(**named: Any) -> str:
    """The arguments of a call, as a model sends them."""
    return json.dumps(named)


def batch_of(*pairs: tuple[str, str]) -> str:
    """The arguments of a call that archives."""
    return arguments(batch=[{"id": result_id, "note": note} for result_id, note in pairs])


def registered_without_looking_again_under_the_lock(patch: pytest.MonkeyPatch) -> None:
    """Break the core: two processes that meet a result at once give it two IDs."""

    def naive(self: Records, unknown: list[Place]) -> None:
        if not unknown:
            return
        new = []
        with self.vault.store.writing(self.wait_ms, audited=False) as writer:
            row = self.session_under_lock(writer)
            row.version += 1
            for place in unknown:
                new.append(self._new_row(row, place, self._measured(place)))
                row.next_number += 1
            writer.insert_results(new)
            writer.update_session(row)
        for place, record in zip(unknown, new, strict=True):
            self.timeline.give(place, record.number)
        self.timeline.settle()
        self.absorb(new)
        self.row = row

    patch.setattr(Records, "register", naive)

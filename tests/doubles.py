"""Doubles for what surrounds the core: a cheap counter, and a store that fails when a test says so."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import event

from evidence_archive import Archive, Policy
from evidence_archive.errors import StoreUnavailableError
from evidence_archive.keys import open_provider
from evidence_archive.store import open_store

__all__ = [
    "AWAY",
    "UNANSWERED",
    "UNAUDITED",
    "UNCOMMITTED",
    "UNWRITABLE",
    "Characters",
    "FlakyStore",
    "arguments",
    "batch_of",
    "listen_to",
    "opened",
    "policy_of",
    "telling",
]

AWAY, UNWRITABLE, UNCOMMITTED, UNANSWERED, UNAUDITED = "away", "unwritable", "uncommitted", "unanswered", "append"
"""Nothing works; no write begins; commits fail; commits succeed and say they failed; audit entries fail.

The name of any other method of a writer makes that method fail.
"""


class Characters:
    """One token for four characters, exactly: for tests to which tokens do not matter."""

    name = "characters"
    estimated = False

    def count(self, text: str) -> int:
        return -(-len(text) // 4)


class FlakyStore:
    """A store that counts its reads and writes, and fails in the way that is set."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.fault: str | None = None
        self.error: Exception = StoreUnavailableError("The store is away: try again.")
        self.before_write: Callable[[], Any] | None = None
        self.reads = self.writes = 0

    def org(self, org: str) -> Any:
        return self._inner.org(org)

    def create_org(self, *arguments: Any) -> Any:
        return self._inner.create_org(*arguments)

    def scoped(self, *arguments: Any) -> "_FlakyOrg":
        return _FlakyOrg(self, self._inner.scoped(*arguments))

    def close(self) -> None:
        self._inner.close()

    def fail(self, *faults: str) -> None:
        if self.fault in faults:
            raise self.error


class _FlakyOrg:
    def __init__(self, switch: FlakyStore, inner: Any) -> None:
        self._switch = switch
        self._inner = inner

    @contextmanager
    def peeking(self, wait_ms: int) -> Iterator[Any]:
        self._switch.reads += 1
        self._switch.fail(AWAY)
        with self._inner.peeking(wait_ms) as reader:
            yield reader

    @contextmanager
    def reading(self, wait_ms: int) -> Iterator[Any]:
        self._switch.reads += 1
        self._switch.fail(AWAY)
        with self._inner.reading(wait_ms) as reader:
            yield reader

    @contextmanager
    def writing(self, wait_ms: int, *, audited: bool) -> Iterator[Any]:
        self._switch.writes += 1
        first, self._switch.before_write = self._switch.before_write, None
        if first is not None:
            first()
        self._switch.fail(AWAY, UNWRITABLE)
        with self._inner.writing(wait_ms, audited=audited) as writer:
            yield _FlakyWriter(self._switch, writer)
            self._switch.fail(UNCOMMITTED)
        self._switch.fail(UNANSWERED)


class _FlakyWriter:
    def __init__(self, switch: FlakyStore, inner: Any) -> None:
        self._switch = switch
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        self._switch.fail(name)
        return getattr(self._inner, name)


@cache
def _migrated() -> bytes:
    """An empty database whose schema is made: making it anew takes longer than most tests."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "empty.db"
        open_store(f"sqlite:///{path}", create=True, wait_ms=5_000).close()
        return path.read_bytes()


def opened(desk: Any, *, policy: Policy | None = None, clock: Any = None, counter: Any = None) -> Archive:
    """An archive over a store that can be made to fail; the store is its attribute ``flaky``."""
    policy = policy or Policy.default()
    if desk.server is None and not desk.database.exists():
        desk.database.touch(0o600)
        desk.database.write_bytes(_migrated())
    store = FlakyStore(open_store(desk.url, create=True, wait_ms=policy.limits.store_wait_ms_max))
    archive = Archive(
        store, keys=open_provider(desk.keys), policy=policy, counter=counter or Characters(), clock=clock
    )
    archive.flaky = store
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


def arguments(**named: Any) -> str:
    """The arguments of a call, as a model sends them."""
    return json.dumps(named)


def batch_of(*pairs: tuple[str, str]) -> str:
    """The arguments of a call that archives."""
    return arguments(batch=[{"id": result_id, "note": note} for result_id, note in pairs])

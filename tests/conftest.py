"""What every test shares: fast deterministic Hypothesis, keys made at run time, a store in a temporary folder."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from postgres_server import Server, given_or_own, raw
from sqlalchemy import URL, make_url
from sqlmodel import SQLModel

from evidence_archive import Archive, Principal
from evidence_archive.keys import new_keys
from evidence_archive.store import open_store

settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("nightly", parent=settings.get_profile("gate"), derandomize=False, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

TABLES = sorted(SQLModel.metadata.tables)

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Recorded data beside the project; tests that use it skip where it is absent."""


@dataclass
class Desk:
    """A store with its keys in one folder, opened as often as a test likes.

    Args:
        folder: where the keys are, and the file of an SQLite database.
        url: of another database.
        server: where that database is, for what its own role may not.
    """

    folder: Path
    url: str = ""
    server: Server | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self.url = self.url or f"sqlite:///{self.folder}/evidence.db"

    @property
    def database(self) -> Path:
        """The file of an SQLite database."""
        assert self.server is None
        return self.folder / "evidence.db"

    @property
    def keys(self) -> Path:
        return self.folder / "evidence.keys"

    def open(self, **named: Any) -> Archive:
        return Archive.open(self.url, **{"keys": self.keys, **named})

    def straight(self) -> AbstractContextManager[Any]:
        """A connection past this library, its seals and its row-level security."""
        if self.server is None:
            return closing(sqlite3.connect(self.database, isolation_level=None))
        return closing(raw(self.server.admin.set(database=make_url(self.url).database)))

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """A statement past all that, in SQLite's words: ``?`` for a parameter, ``x'00'`` for bytes; its rows."""
        with self.straight() as straight:
            if self.server is None:
                return straight.execute(statement, values).fetchall()  # type: ignore[no-any-return]
            theirs = re.sub(r"\bx'([0-9a-f]*)'", r"'\\x\1'::bytea", statement).replace("?", "%s")
            done = straight.execute(theirs, values)
            return done.fetchall() if done.description else []

    def rows(self, table: str, where: str = "true") -> list[tuple[Any, ...]]:
        """What a table holds, as stored."""
        return sorted(self.execute(f"SELECT * FROM {table} WHERE {where}"), key=repr)

    def saved(self) -> Any:
        """All that is stored, to be compared or put back."""
        return self.database.read_bytes() if self.server is None else {name: self.rows(name) for name in TABLES}

    def put_back(self, saved: Any) -> None:
        """Make an older state the present one, as a restored backup does; nobody may be connected."""
        if self.server is None:
            self.database.write_bytes(saved)
            return
        with self.straight() as straight:
            straight.execute("SET session_replication_role = replica")  # tables that only grow would refuse
            straight.execute(f"TRUNCATE {', '.join(TABLES)}")
            for name, rows in saved.items():
                for row in rows:
                    straight.execute(f"INSERT INTO {name} VALUES ({', '.join(['%s'] * len(row))})", row)

    def stored(self) -> bytes:
        """Every byte that is stored, to be searched."""
        if self.server is None:
            return b"".join(path.read_bytes() for path in sorted(self.folder.glob("evidence.db*")))
        cells = [cell for name in TABLES for row in self.rows(name) for cell in row]
        return b"\n".join(cell if isinstance(cell, bytes) else str(cell).encode() for cell in cells)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Meanwhile another connection lets nobody in."""
        with self.straight() as straight:
            straight.execute("BEGIN EXCLUSIVE" if self.server is None else "BEGIN")
            if self.server is not None:
                straight.execute(f"LOCK TABLE {', '.join(TABLES)} IN ACCESS EXCLUSIVE MODE")
            yield
            straight.execute("ROLLBACK")


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Iterator[None]:
    """Events go to ``logging`` unless an application configured structlog; looking at events configures it."""
    yield
    if structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture
def sqlite_desk(tmp_path: Path) -> Desk:
    """A folder with fresh keys and no database yet."""
    new_keys(tmp_path / "evidence.keys")
    return Desk(tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A running server."""
    with given_or_own() as server:
        yield server


@pytest.fixture(scope="session")
def migrated_url(postgres: Server) -> URL:
    """An empty database whose schema is made: copying it takes a tenth of making it."""
    url = postgres.database(postgres.role())
    open_store(url.render_as_string(hide_password=False)).close()
    return url


@pytest.fixture(scope="session")
def postgresql_desks(postgres: Server, migrated_url: URL) -> Callable[[Path], AbstractContextManager[Desk]]:
    """Makes a desk in a folder: fresh keys, and a database without rows of a role without privileges."""

    @contextmanager
    def made(folder: Path) -> Iterator[Desk]:
        new_keys(folder / "evidence.keys")
        url = postgres.database(str(migrated_url.username), template=str(migrated_url.database))
        yield Desk(folder, url.render_as_string(hide_password=False), postgres)
        postgres.drop(url.database)

    return made


@pytest.fixture
def postgresql_desk(
    tmp_path: Path, postgresql_desks: Callable[[Path], AbstractContextManager[Desk]]
) -> Iterator[Desk]:
    """A desk on PostgreSQL."""
    with postgresql_desks(tmp_path) as desk:
        yield desk


@pytest.fixture(params=["sqlite", "postgresql"])
def desk(request: pytest.FixtureRequest) -> Desk:
    """A store of each engine in turn; a test that can only be about one asks for ``sqlite_desk``."""
    found: Desk = request.getfixturevalue(f"{request.param}_desk")
    return found


@pytest.fixture
def archive(desk: Desk) -> Iterator[Archive]:
    """An open archive under the default policy."""
    with desk.open() as opened:
        yield opened


@pytest.fixture
def owner() -> Principal:
    """Who owns the sessions of a test."""
    return Principal(org="north-clinic", subject="triage-agent", roles={"agent"})


class Conversation:
    """A message list that grows as an agent's does: calls, results, answers."""

    def __init__(self) -> None:
        self.messages: list[Any] = [{"role": "user", "content": "go on"}]
        self._calls = 0

    def call(self, name: str, arguments: str = "{}", call_id: str | None = None) -> dict[str, Any]:
        self._calls += 1
        call = {
            "id": f"call_{self._calls}" if call_id is None else call_id,
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self.messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        return call

    def tool(self, content: Any, name: str = "logs.search", call_id: str | None = None) -> dict[str, Any]:
        """A call and its result, the result's message returned."""
        call = self.call(name, call_id=call_id)
        message = {"role": "tool", "tool_call_id": call["id"], "content": content}
        self.messages.append(message)
        return message

    def say(self, text: str = "I have read it.") -> None:
        self.messages.append({"role": "assistant", "content": text})

    def ours(self, session: Any, name: str, arguments: str, call_id: str | None = None) -> dict[str, Any]:
        """A call of one of our tools, answered; the answer's message returned and appended."""
        answer = session.answer(self.call(name, arguments, call_id))
        self.messages.append(answer)
        return answer


@pytest.fixture
def talk() -> Conversation:
    """An empty conversation."""
    return Conversation()

"""The contracts hold for what ships, and naive backends do not get through them."""

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from postgres_server import Server, raw
from sqlalchemy import URL

from evidence_archive.errors import MisuseError
from evidence_archive.keys import EnvironmentKeys, FileKeys, added_version, new_keys
from evidence_archive.ports import KeyProvider, Store
from evidence_archive.store import open_store, rows
from evidence_archive.store.sql import SqlOrgStore, SqlReader, SqlStore, SqlWriter
from evidence_archive.store.statements import OBJECT, SESSION
from evidence_archive.testing import KeyProviderContract, StoreContract

pytest_plugins = ["pytester"]

ALTERED = {
    "org": "UPDATE orgs SET kek_version = kek_version + 1",
    "session": "UPDATE sessions SET version = version + 1",
    "scope": "UPDATE scope_keys SET kek_version = kek_version + 1",
    "result": "UPDATE results SET tokens = tokens + 1",
    "batch": "UPDATE batches SET created_at_us = created_at_us + 1",
    "posting": "UPDATE postings SET created_at_us = created_at_us + 1",
    "head": "UPDATE audit_heads SET policy_digest = 'else'",
}


class SqliteContract(StoreContract):
    """The store that ships, over SQLite."""

    def make(self, folder: Path) -> Store:
        return open_store(f"sqlite:///{folder}/evidence.db")

    def reopen(self, folder: Path) -> Store:
        return open_store(f"sqlite:///{folder}/evidence.db", create=False)

    def alter(self, folder: Path, kind: str) -> bool:
        with closing(sqlite3.connect(folder / "evidence.db")) as straight:
            straight.execute("DROP TRIGGER postings_only_grow_update")
            assert straight.execute(ALTERED[kind]).rowcount >= 1
            straight.commit()
        return True


class TestSqliteStore(SqliteContract):
    pass


class TestPostgresqlStore(StoreContract):
    """The store that ships, over PostgreSQL: each folder has a database of its own."""

    @pytest.fixture(autouse=True)
    def _databases(self, postgres: Server, migrated_url: URL) -> Iterator[None]:
        self.server, self.template, self.urls = postgres, migrated_url, dict[Path, URL]()
        yield
        for url in self.urls.values():
            postgres.drop(url.database)

    def make(self, folder: Path) -> Store:
        self.urls[folder] = self.server.database(str(self.template.username), template=str(self.template.database))
        return self.reopen(folder)

    def reopen(self, folder: Path) -> Store:
        return open_store(self.urls[folder].render_as_string(hide_password=False))

    def alter(self, folder: Path, kind: str) -> bool:
        with closing(raw(self.server.admin.set(database=self.urls[folder].database))) as straight:
            straight.execute("ALTER TABLE postings DISABLE TRIGGER USER")
            assert straight.execute(ALTERED[kind]).rowcount >= 1
        return True


class TestFileKeys(KeyProviderContract):
    def make(self, folder: Path) -> KeyProvider:
        new_keys(folder / "keys")
        return self.reopen(folder)

    def reopen(self, folder: Path) -> KeyProvider:
        return FileKeys(folder / "keys")


class TestEnvironmentKeys(KeyProviderContract):
    makes_versions = False

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(os, "environ", dict(os.environ))

    def make(self, folder: Path) -> KeyProvider:
        new_keys(folder / "keys")
        os.environ[f"KEYS_IN_{folder.name}"] = (folder / "keys").read_text("ascii")
        return self.reopen(folder)

    def reopen(self, folder: Path) -> KeyProvider:
        return EnvironmentKeys(f"KEYS_IN_{folder.name}")


# --- naive backends ---------------------------------------------------------------------------------------------


class Orgless(SqlStore):
    """Keeps everything of all orgs together."""

    def scoped(self, row: Any, row_key: bytes) -> SqlOrgStore:
        super().scoped(row, row_key)
        return SqlOrgStore(self._engine, "north-clinic", row_key)


class Unscoped(SqlOrgStore):
    @contextmanager
    def writing(self, wait_ms: int, *, audited: bool) -> Any:
        with super().reading(wait_ms) as reader:
            head = reader.head() if audited else None
        with self._engine.connection(wait_ms) as connection:
            yield SqlWriter(self._engine, connection, self._org, self._row_key, head)


class WithoutRollback(SqlStore):
    """Commits every statement as it comes."""

    def scoped(self, row: Any, row_key: bytes) -> SqlOrgStore:
        super().scoped(row, row_key)
        return Unscoped(self._engine, row.org, row_key)


class Forgetful(SqlStore):
    """Loses what it holds when it is closed."""

    def close(self) -> None:
        with self._engine.writing(1_000) as connection:
            connection.driver_connection.execute("DELETE FROM results")
        super().close()


def sqlite(cls: type[SqlStore], folder: Path) -> SqlStore:
    return cls(open_store(f"sqlite:///{folder}/evidence.db")._engine)


class NaiveKeys:
    """One key for everything, and no seal: what is wrapped is only covered."""

    current: ClassVar[int] = 1

    def __init__(self, folder: Path) -> None:
        self._cover = sum(str(folder).encode()) % 255 + 1

    def current_version(self, org: str) -> int:
        return self.current

    def fingerprint(self, org: str, version: int) -> bytes:
        return bytes([self._cover]) * 16

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        return bytes(byte ^ self._cover for byte in key)

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self.wrap(org, version, wrapped, context)


class Looking:
    """Keys that ship, with one promise broken."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "keys").exists():
            new_keys(folder / "keys")
        self.folder = folder
        self.inner = FileKeys(folder / "keys")

    def reopened(self) -> KeyProvider:
        return type(self)(self.folder)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class TriesTheCurrentKey(Looking):
    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self.inner.unwrap(org, 1, wrapped, context)


class IgnoresTheContext(Looking):
    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        return self.inner.wrap(org, version, key, b"")

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self.inner.unwrap(org, version, wrapped, b"")


class IgnoresTheOrg(Looking):
    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        return self.inner.wrap("all", version, key, context)

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self.inner.unwrap("all", version, wrapped, context)


class ForgetsVersions(Looking):
    """Makes a version for itself alone."""

    def new_version(self, org: str) -> int:
        return self.inner.current_version(org) + 1


class NumbersOneKeyTwice(Looking):
    """Every version is the first one, under another number."""

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        return self.inner.wrap(org, min(version, 1), key, context)

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self.inner.unwrap(org, min(version, 1), wrapped, context)


class RetiresTheCurrentKey(Looking):
    def retire(self, org: str, version: int) -> None:
        if version == self.inner.current_version(org):
            self.inner.new_version(org)
        self.inner.retire(org, version)


class KeepsWhatIsRetired(Looking):
    """Lists it no more, and unwraps with it all the same."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kept = FileKeys(folder / "keys")
        self.kept._look = lambda: None  # type: ignore[method-assign]

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        return self.kept.unwrap(org, version, wrapped, context)


class HidesWhomElseItServes(Looking):
    shared_by_orgs = False


class ReopensItself(Looking):
    def reopened(self) -> KeyProvider:
        return self


class ListsWhatIsNotThere(Looking):
    def versions(self, org: str) -> tuple[int, ...]:
        return (*self.inner.versions(org), 7)


class WritesWithoutALock(Looking):
    """Reads, waits until all have read, and writes."""

    readers = threading.Barrier(4)

    def new_version(self, org: str) -> int:
        path = self.folder / "keys"
        text = added_version(path.read_text())
        self.readers.wait(timeout=30)
        new = path.with_name(f"keys-{threading.get_ident()}")
        new.write_text(text)
        new.chmod(0o600)
        new.rename(path)
        return int(json.loads(text)["current"])


def failures(pytester: pytest.Pytester, contract: str, made: str, *, among: Iterable[str] = ("TestIt",)) -> set[str]:
    """Which tests of a contract a backend fails, among some; the run is one as its author would make it."""
    pytester.makepyfile(
        "\n".join(
            [
                "from test_contracts import *",
                f"from test_contracts import {contract}",
                f"class TestIt({contract}):",
                f"    def make(self, folder): return {made}",
                f"    def reopen(self, folder): return {made}",
                "ours = [name for name in globals() if name.startswith('Test') and name != 'TestIt']",
                "for name in ours: globals().pop(name)",
            ]
        )
    )
    result = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider", "-p", "no:cov", "-k", " or ".join(among))
    reports = [one for one in result.reprec.getreports("pytest_runtest_logreport") if one.failed]  # type: ignore[attr-defined]
    return {one.nodeid.partition("::TestIt::")[2].partition("[")[0].removeprefix("test_") for one in reports}


def test_a_backend_that_keeps_its_promises_fails_nothing(pytester: pytest.Pytester) -> None:
    assert failures(pytester, "SqliteContract", "sqlite(SqlStore, folder)") == set()
    assert failures(pytester, "KeyProviderContract", "Looking(folder)") == set()


@pytest.mark.parametrize(
    ("made", "broken"),
    [
        (
            "sqlite(Orgless, folder)",
            {"nothing_of_one_org_is_found_through_another", "nothing_of_one_org_is_changed_through_another"},
        ),
        (
            "sqlite(WithoutRollback, folder)",
            {"a_write_that_raises_leaves_nothing", "a_write_that_stops_after_any_step_leaves_nothing"},
        ),
        ("sqlite(Forgetful, folder)", {"it_survives_the_object_that_wrote_it"}),
    ],
)
def test_a_naive_store_fails_its_contract(pytester: pytest.Pytester, made: str, broken: set[str]) -> None:
    assert failures(pytester, "SqliteContract", made, among=broken) == broken


def all_that_is_over(self: SqlReader, now_us: int, _count: int) -> list[Any]:
    rows = [self.object(b"%d" % number * 16) for number in range(1, 9)]
    return [row for row in rows if row is not None and row.expires_at_us <= now_us]


def lenient(self: SqlWriter, rows: Any) -> None:
    self._update(OBJECT, [row for row in rows if self.object(row.original_id)])


def losing(self: SqlWriter, session: Any) -> None:
    self._update(SESSION, [replace(session, version=min(session.version, 9))])


@pytest.mark.parametrize(
    ("cls", "method", "naive", "broken"),
    [
        (
            SqlReader,
            "lapsed_objects",
            all_that_is_over,
            "only_what_is_over_and_named_by_nothing_lapses_the_oldest_first",
        ),
        (SqlWriter, "update_objects", lambda self, rows: None, "an_intent_becomes_a_place_and_comes_back_equal"),
        (SqlWriter, "update_objects", lenient, "a_change_of_objects_of_which_one_is_not_there_is_refused"),
        (SqlWriter, "update_session", losing, "no_update_of_a_session_is_lost_between_writers"),
    ],
    ids=["all lapse", "deaf", "lenient", "losing"],
)
def test_a_store_that_is_careless_with_objects_or_sessions_fails_its_contract(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, cls: Any, method: str, naive: Any, broken: str
) -> None:
    monkeypatch.setattr(cls, method, naive)
    assert failures(pytester, "SqliteContract", "sqlite(SqlStore, folder)", among=[broken]) == {broken}


def test_a_store_that_skips_seals_fails_its_contract(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "check_row_seal", lambda *given: None)
    broken = {
        "a_row_that_was_changed_is_never_handed_out",
        "an_org_opens_only_with_its_own_row_under_its_own_key",
        "an_org_whose_row_was_changed_does_not_open",
    }
    assert failures(pytester, "SqliteContract", "sqlite(SqlStore, folder)", among=broken) == broken


@pytest.mark.parametrize(
    ("made", "broken"),
    [
        (
            "NaiveKeys(folder)",
            {
                "under_another_context_nothing_is_unwrapped",
                "changed_bytes_are_never_unwrapped",
                "a_version_that_is_missing_is_said_to_be_and_no_other_is_tried",
                "a_fingerprint_is_16_bytes_and_names_one_key_of_one_org",
            },
        ),
        ("TriesTheCurrentKey(folder)", {"a_version_that_is_missing_is_said_to_be_and_no_other_is_tried"}),
        ("IgnoresTheContext(folder)", {"under_another_context_nothing_is_unwrapped"}),
        ("IgnoresTheOrg(folder)", {"for_another_org_nothing_is_unwrapped"}),
        ("ForgetsVersions(folder)", {"a_new_version_is_current_everywhere_and_the_older_ones_still_unwrap"}),
        ("NumbersOneKeyTwice(folder)", {"every_version_has_a_key_of_its_own"}),
        ("RetiresTheCurrentKey(folder)", {"the_current_version_is_never_retired"}),
        ("KeepsWhatIsRetired(folder)", {"a_retired_version_unwraps_nothing_any_more_for_anybody"}),
        (
            "HidesWhomElseItServes(folder)",
            {"what_is_done_for_one_org_is_done_for_all_only_where_that_is_said"},
        ),
        ("WritesWithoutALock(folder)", {"versions_that_are_made_at_once_are_all_there"}),
        ("ReopensItself(folder)", {"a_reopened_provider_is_another_object_over_the_same_keys"}),
        ("ListsWhatIsNotThere(folder)", {"the_versions_are_those_that_unwrap_and_the_current_one_is_among_them"}),
    ],
)
def test_naive_keys_fail_their_contract(pytester: pytest.Pytester, made: str, broken: set[str]) -> None:
    assert failures(pytester, "KeyProviderContract", made, among=broken) == broken


@pytest.mark.parametrize("contract", [StoreContract, KeyProviderContract])
def test_who_inherits_has_to_say_how_a_backend_is_made(contract: Any, tmp_path: Path) -> None:
    for verb in ("make", "reopen"):
        with pytest.raises(MisuseError, match=rf"define {verb}\(folder\)"):
            getattr(contract(), verb)(tmp_path)


def test_tests_that_need_changed_rows_are_skipped_with_a_reason_where_nobody_says_how(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_ours="from evidence_archive.testing import StoreContract\n"
        "from evidence_archive.store import open_store\n"
        "class TestIt(StoreContract):\n"
        "    def make(self, folder): return open_store(f'sqlite:///{folder}/e.db')\n"
        "    reopen = make\n"
    )
    result = pytester.runpytest_inprocess("-q", "-rs", "-p", "no:cacheprovider", "-p", "no:cov", "-k", "was_changed")
    result.assert_outcomes(skipped=6)
    result.stdout.fnmatch_lines(["*define alter(folder, kind)*"])

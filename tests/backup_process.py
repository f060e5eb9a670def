"""A process that makes backups and puts them back, and dies on the way when it is told to.

It reads a line of JSON for each piece of work and forks a child for it, before anything is connected to anything. The
child passes moments: every statement of a database, every file that is opened, moved, made or removed. At the moment
that it is told, it is killed by SIGKILL. The answer is one line of JSON: how it ended, how many moments it passed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import event
from sqlalchemy.pool import Pool

from evidence_archive import Archive, Policy, Principal
from evidence_archive.backup import restore_backup
from evidence_archive.errors import EvidenceArchiveError
from evidence_archive.keys import open_provider
from evidence_archive.testing.scripted import FrozenClock
from evidence_archive.tokens import EstimateCounter

__all__ = ["BackupProcess", "work"]

WATCHED = ("open", "os.", "sqlite3.connect", "fcntl.", "shutil.")


def work(given: dict[str, Any]) -> None:
    """One backup, or one restore."""
    roles = frozenset({"custodian"})
    if given["what"] == "backup":
        with Archive.open(given["url"], keys=given["keys"], create=False, counter=EstimateCounter()) as archive:
            archive.custody(Principal(given["org"], given["subject"], roles)).backup(given["folder"])
        return
    restore_backup(
        Path(given["folder"]),
        given["url"],
        keys=open_provider(given["keys"]),
        policy=Policy.default(),
        subject=given["subject"],
        roles=roles,
        replays=given["replays"],
        clock=FrozenClock(given["now_us"]) if given.get("now_us") else None,
    )


class BackupProcess:
    """The process; a context manager. Call it with what is to be done."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="ascii"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def __call__(self, *, die_at: int = 0, **given: Any) -> tuple[str, int]:
        """How it ended (``done``, ``killed``, or the name of an error), and how many moments were passed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**given, "die_at": die_at}) + "\n")
        self._process.stdin.flush()
        ended, passed = json.loads(self._process.stdout.readline())
        return ended, passed


def _child(given: dict[str, Any], answers: int) -> None:
    passed = 0

    def moment(*_: object) -> None:
        nonlocal passed
        passed += 1
        if passed == given["die_at"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(name: str, _: object) -> None:
        if name.startswith(WATCHED):
            moment()

    event.listen(Pool, "connect", lambda connection, _: connection.set_trace_callback(moment))
    sys.addaudithook(watch)
    try:
        work(given)
        ended = "done"
    except EvidenceArchiveError as error:
        ended = type(error).__name__
    os.write(answers, json.dumps([ended, passed]).encode())


def _serve() -> None:
    for line in sys.stdin:
        answers, answering = os.pipe()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                _child(json.loads(line), answering)
                code = 0
            finally:
                os._exit(code)
        os.close(answering)
        with os.fdopen(answers, "rb") as reading:
            said = reading.read()
        _, status = os.waitpid(child, 0)
        if not said:
            said = json.dumps(["killed" if os.WIFSIGNALED(status) else "failed", 0]).encode()
        print(said.decode(), flush=True)


if __name__ == "__main__":
    _serve()

"""A process that has loaded everything and forks children on request, so that a child costs milliseconds.

A child does one work, a function of a module in this folder. Whatever it says is a JSON object on one line. It waits
where its work says so until it is told to go on, which is how a tracer is attached or a race begun at a known place.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections import defaultdict, deque
from pathlib import Path
from typing import Any, Self

__all__ = ["Child", "Nursery", "say", "serve", "wait_for_go"]

PATIENCE_S = 120
"""After that long without a word something hangs: a bound on waiting, never part of a claim."""

_HERE = Path(__file__).resolve().parent
_SERVE = f"import sys; sys.path[:0] = {[str(_HERE), str(_HERE.parent)]!r}; import workers; workers.main()"


def say(**said: Any) -> None:
    """Tell the parent; by ``writev``, which no sweep makes fail, and in one piece."""
    os.writev(1, [json.dumps({"from": os.getpid(), **said}).encode() + b"\n"])


def wait_for_go() -> None:
    """Tell the parent that everything is ready, and wait for its word."""
    say(ready=True)
    if signal.sigtimedwait({signal.SIGUSR1}, PATIENCE_S) is None:
        os._exit(1)


def serve() -> None:
    """Fork a child for every line on standard input that asks for one, until the input ends."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    say(serving=True)
    for line in sys.stdin:
        asked = json.loads(line)
        if "await" in asked:
            say(ended=os.waitstatus_to_exitcode(os.waitpid(asked["await"], 0)[1]))
            continue
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                module, _, function = asked["work"].rpartition(".")
                getattr(importlib.import_module(module), function)(**asked["given"])
                code = 0
            except BaseException as error:
                say(broken=type(error).__name__)
            finally:
                os._exit(code)
        say(child=pid)


class Child:
    """A forked process at its work."""

    def __init__(self, nursery: "Nursery", pid: int) -> None:
        self._nursery = nursery
        self.pid = pid

    def heard(self) -> dict[str, Any]:
        """The next thing it says."""
        return self._nursery._heard(self.pid)

    def ready(self) -> None:
        """Return once it waits to be told to go on."""
        said = self.heard()
        assert "ready" in said, said

    def go(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGUSR1)

    def kill(self) -> None:
        """End it at once, wherever it is."""
        os.kill(self.pid, signal.SIGKILL)

    def ended(self) -> tuple[int, list[dict[str, Any]]]:
        """Its exit code, negative for a signal, and what it said that was not heard yet."""
        return self._nursery._ended(self.pid)


class Nursery:
    """The forking process; a context manager that leaves no child behind."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_HERE
        )
        self._said: defaultdict[int, deque[dict[str, Any]]] = defaultdict(deque)
        self._rest = b""
        self._alive: set[int] = set()
        assert "serving" in self._heard(self._process.pid)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in list(self._alive):
            with contextlib.suppress(ProcessLookupError):  # it may have ended, and waits to be collected
                os.kill(pid, signal.SIGKILL)
            self._ended(pid)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)
        self._process.stdout.close()

    def start(self, work: str, **given: Any) -> Child:
        """A child at a work, such as ``workers.one_batch``, with these arguments."""
        self._ask(work=work, given=given)
        pid = self._heard(self._process.pid)["child"]
        self._alive.add(pid)
        return Child(self, pid)

    def _ask(self, **asked: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asked).encode() + b"\n")
        self._process.stdin.flush()

    def _heard(self, pid: int) -> dict[str, Any]:
        assert self._process.stdout is not None
        while not self._said[pid]:
            assert select.select([self._process.stdout], [], [], PATIENCE_S)[0], f"no word from process {pid}"
            read = os.read(self._process.stdout.fileno(), 1 << 16)
            assert read, "the nursery ended"
            *lines, self._rest = (self._rest + read).split(b"\n")
            for line in lines:
                said = json.loads(line)
                self._said[said.pop("from")].append(said)
        return self._said[pid].popleft()

    def _ended(self, pid: int) -> tuple[int, list[dict[str, Any]]]:
        self._ask(**{"await": pid})
        code = self._heard(self._process.pid)["ended"]
        self._alive.discard(pid)
        return code, list(self._said.pop(pid, ()))  # what it said came before its end

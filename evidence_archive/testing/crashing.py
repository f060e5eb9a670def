"""Processes that die at a fault point: ``python -m evidence_archive.testing.crashing`` is one of them.

It reads one line of JSON (what to open, and where to die), prints what each operation of the conversation told, a
line of JSON each, then that it has come to the point, and is killed there by SIGKILL. One is always started ahead,
because starting takes longer than dying. Processes are spawned, never forked: a fork would share connections.
"""

import json
import signal
import subprocess
import sys
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from evidence_archive.archive import Archive
from evidence_archive.errors import EvidenceArchiveError, MisuseError
from evidence_archive.model import Principal
from evidence_archive.testing.conversing import Conversation, Probe, Told
from evidence_archive.testing.faults import FaultPlan, faulted
from evidence_archive.testing.safekeeping import DONE, Act
from evidence_archive.testing.sweeping import FIRST_USE, Trial, set_fault
from evidence_archive.tokens import EstimateCounter

__all__ = ["Configuration", "Crashing"]

AT_THE_POINT = "at the point"
"""The last line of a process that dies where it should; another end is not one of ours."""

CRASH_SECONDS_MAX = 60
"""How long a process may take from being told where to die until it is dead, in seconds."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What an application opens; equal in every process.

    Args:
        url: of the store.
        keys: path of the key file, or ``env:NAME``.
        policy: path of the policy file, or ``None`` for the built-in default.
        objects: where large originals lie, or ``None``.
    """

    url: str
    keys: str
    policy: str | None = None
    objects: str | None = None

    def open(self, plan: FaultPlan, *, create: bool = True) -> Archive:
        """The archive with a plan in front of it. Tokens are estimated, since a sweep is not about them.

        Args:
            plan: what goes wrong.
            create: make what is not there yet.

        Raises:
            EvidenceArchiveError: store, keys, policy or objects are not as they should be.
        """
        named: dict[str, Any] = asdict(self)
        return faulted(Archive.open(named.pop("url"), create=create, counter=EstimateCounter(), **named), plan)


class Crashing:
    """Processes to be killed, for :class:`~evidence_archive.testing.sweeping.Sweep`; a context manager.

    Args:
        configuration: what they open.
        probe: what they archive.
    """

    def __init__(self, configuration: Configuration, probe: Probe) -> None:
        self._configuration = configuration
        self._probe = probe
        self._spare: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._spare = _started()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            _ended(spare)

    def __call__(self, trial: Trial, session_id: str, *, principal: Principal | None = None) -> list[Told] | None:
        """What was heard from a process until it was killed at the point; ``None`` when it was not.

        Args:
            trial: of the kind ``crash``.
            session_id: where the conversation takes place, or what a custodian acts on.
            principal: who acts, where that is not the one of the probe.

        Raises:
            MisuseError: it is not used in a ``with`` statement, or no process can be started.
        """
        process = self._spare
        if process is None:
            raise MisuseError("Processes to be killed are used in a 'with' statement.")
        self._spare = _started()
        principal = principal or self._probe.principal
        sent = {
            "configuration": asdict(self._configuration),
            "principal": {**asdict(principal), "roles": sorted(principal.roles)},
            "probe": {"tool": self._probe.tool, "large_chars": self._probe.large_chars},
            "trial": asdict(trial),
            "session_id": session_id,
        }
        try:
            said, _ = process.communicate(json.dumps(sent) + "\n", timeout=CRASH_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _ended(process)
        lines = [json.loads(line) for line in said.splitlines()]
        if process.returncode != -signal.SIGKILL or lines[-1:] != [AT_THE_POINT]:
            return None
        return [Told(**line) for line in lines[:-1]]


def _started() -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(  # noqa: S603 - this very module, in this very interpreter
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
        )
    except OSError as error:
        raise MisuseError("No process can be started on this machine to be killed: sweep without crashes.") from error


def _ended(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _say(line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _converse(sent: dict[str, Any]) -> None:
    """Open, converse, and die on the way."""
    plan, trial, principal = FaultPlan(), Trial(**sent["trial"]), Principal(**sent["principal"])

    def arm() -> None:
        plan.clear()
        plan.run(trial.point, lambda: _say(AT_THE_POINT), nth=trial.number)
        set_fault(plan, trial, kill=True)

    if trial.operation in DONE:
        with closing(Configuration(**sent["configuration"]).open(plan)) as archive:
            Act(trial.operation, principal, sent["session_id"]).perform(archive, begins=arm)
        return
    arm()
    talk = Conversation(
        Probe(principal, **sent["probe"]),
        sent["session_id"],
        heard=lambda told: _say({"operation": told.operation, "word": told.word}),
    )
    with closing(Configuration(**sent["configuration"]).open(plan)) as archive:
        if trial.operation == FIRST_USE:
            talk.open(archive, FIRST_USE)
        else:
            talk.run(archive)


if __name__ == "__main__":
    line = sys.stdin.readline()
    if line:  # nothing is sent to the one that was started ahead when all is over
        with suppress(EvidenceArchiveError):
            _converse(json.loads(line))

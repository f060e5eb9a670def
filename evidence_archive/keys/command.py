"""Keys behind a program: one request of JSON to its standard input, one answer from its standard output.

The protocol is in docs/keys.md. The program is started anew for each request, without a shell. Keys are in what is
written to it and read from it, never in its arguments or its environment.
"""

import base64
import contextlib
import json
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NoReturn

from evidence_archive.errors import KeyNotFoundError, KeyringError, SealBrokenError, WrongKeyError
from evidence_archive.keys.remembering import REMEMBER_MS, monotonic_ms
from evidence_archive.keys.service import Known, ServiceKeys
from evidence_archive.keys.strict_json import read_json

__all__ = ["ANSWER_BYTES_MAX", "TIMEOUT_MS", "CommandKeys", "open_command"]

ANSWER_BYTES_MAX = 64 * 1024
"""Longest answer of a command, in bytes."""

TIMEOUT_MS = 5_000
"""How long a command may take for one request, in milliseconds."""

VERSION_MAX = 10**9

_PROTOCOL = "evidence-archive/key-command/1"
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_NAME_CHARS_MAX = 1_024
_SAID = {
    "unavailable": "cannot reach its keys: try again, and check what it needs",
    "denied": "may not use its keys: check its credentials and what they may do",
    "unsupported": "cannot do this: do it where its keys are",
}


class CommandKeys(ServiceKeys):
    """Keys that a program wraps and unwraps, for any vault that has a command line.

    Args:
        argv: the program, by its path or by a name that is found in ``PATH``, and its arguments. They can be seen by
            every user of the machine: no secrets.
        timeout_ms: how long one request may take, in milliseconds; then the program and what it started are killed.
        remember_ms: how long its word on which versions there are counts, in milliseconds.
        clock_ms: milliseconds that never go backwards.

    Raises:
        KeyringError: there is no such program.
    """

    _FORM = "command/1"

    def __init__(
        self,
        argv: Sequence[str],
        timeout_ms: int = TIMEOUT_MS,
        *,
        remember_ms: int = REMEMBER_MS,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._argv = tuple(argv)
        self._timeout_ms = timeout_ms
        if not self._argv or "\0" in "".join(self._argv) or shutil.which(self._argv[0]) is None:
            raise KeyringError("There is no such key command: write its path, or a name that is found in PATH.")
        super().__init__(remember_ms, clock_ms)

    def versions(self, org: str) -> tuple[int, ...]:
        """The versions that can unwrap now, ascending.

        Raises:
            KeyringError: the command cannot say.
        """
        known = self._anew(org)
        return () if known is None else tuple(sorted(known.names))

    def new_version(self, org: str) -> int:
        """A new version, made by the command and current when this returns; also the first one of an org.

        Raises:
            KeyringError: the command cannot make one, or answers with something else.
        """
        answer = self._asked("new_version", {"org": org}, {"version"})
        self.forget(org)
        version = answer["version"]
        if type(version) is not int or not 1 <= version < VERSION_MAX:
            self._nonsense()
        return version

    def retire(self, org: str, version: int) -> None:
        """The version is destroyed by the command; nothing where it is gone already.

        Args:
            org: whose version.
            version: not the current one.

        Raises:
            KeyringError: it is the current one, or the command cannot destroy it.
        """
        known = self._anew(org)
        if known is None:
            return
        self._check_retirable(version, known)
        with contextlib.suppress(KeyNotFoundError):
            self._asked("retire", {"org": org, "version": version}, set())
        self.forget(org)

    def reopened(self) -> "CommandKeys":
        """Another object over the same command, with nothing remembered.

        Raises:
            KeyringError: the program is gone.
        """
        return CommandKeys(self._argv, self._timeout_ms, remember_ms=self._remember_ms, clock_ms=self._clock_ms)

    # --- the verbs of the protocol ------------------------------------------------------------------------------

    def _list(self, listing: str) -> Mapping[str, Known]:
        try:
            answer = self._asked("list", {"org": listing}, {"current", "keys"})
        except KeyNotFoundError:
            return {}
        current, keys = answer["current"], answer["keys"]
        if type(current) is not int or not isinstance(keys, dict) or str(current) not in keys:
            self._nonsense()
        if not all(_VERSION.fullmatch(version) and _is_name(name) for version, name in keys.items()):
            self._nonsense()
        if len(set(keys.values())) != len(keys):
            self._nonsense()
        return {listing: Known(current, {int(version): name for version, name in keys.items()})}

    def _encrypt(self, org: str, version: int, plaintext: bytes, place: bytes) -> bytes:
        request = {"org": org, "version": version, "plaintext": _text(plaintext), "context": _text(place)}
        return self._bytes(self._asked("wrap", request, {"wrapped"})["wrapped"])

    def _decrypt(self, org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        request = {"org": org, "version": version, "wrapped": _text(sealed), "context": _text(place)}
        return self._bytes(self._asked("unwrap", request, {"plaintext"})["plaintext"])

    def _source(self) -> str:
        return f"key command {self._argv[0]!r}"

    def _asked(self, verb: str, request: Mapping[str, Any], fields: set[str]) -> Mapping[str, Any]:
        """The fields of an answer, which has exactly these."""
        text = json.dumps({"protocol": _PROTOCOL, "verb": verb, **request}) + "\n"
        answer = read_json(self._run(text.encode("ascii")), ANSWER_BYTES_MAX)
        if not isinstance(answer, dict) or answer.get("protocol") != _PROTOCOL:
            self._nonsense()
        error = answer.get("error")
        if error is not None and answer.keys() == {"protocol", "error"}:
            self._refuse(verb, request, error)
        if answer.keys() != {"protocol", *fields}:
            self._nonsense()
        return answer

    def _refuse(self, verb: str, request: Mapping[str, Any], error: object) -> NoReturn:
        if error in ("not_found", "wrong_key"):
            self.forget(request["org"])
        if error == "not_found":
            what = f"key version {request['version']}" if "version" in request else "this org's key"
            raise KeyNotFoundError(
                f"The {self._source()} does not have {what}: use the one this store was sealed with."
            )
        if error == "wrong_key":
            raise WrongKeyError(
                f"The {self._source()} has another key than the one that wrapped this: use the right one."
            )
        if error == "broken" and verb == "unwrap":
            raise SealBrokenError("A wrapped key does not open: its bytes or its place are not what was wrapped.")
        if isinstance(error, str) and error in _SAID:
            raise KeyringError(f"The {self._source()} {_SAID[error]}.")
        self._nonsense()

    def _bytes(self, text: object) -> bytes:
        try:
            data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
        except ValueError:
            data = b""
        if not data or _text(data) != text:
            self._nonsense()
        return data

    def _nonsense(self) -> NoReturn:
        raise KeyringError(
            f"The {self._source()} answers with something else than its protocol has: check which it is."
        )

    # --- the program --------------------------------------------------------------------------------------------

    def _run(self, request: bytes) -> bytes:
        """What the program answers; its own words on standard error are dropped, they may hold secrets."""
        until_ms = monotonic_ms() + self._timeout_ms
        try:
            process: Any = subprocess.Popen(  # noqa: S603  # no shell, and the program is what the keys' holder named
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise KeyringError(f"The {self._source()} cannot be started: check its path and its mode.") from error
        code: int | None = None
        try:
            answer = _exchanged(process.stdin, process.stdout, request, until_ms)
            if answer is not None and len(answer) <= ANSWER_BYTES_MAX:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = process.wait(max(0, until_ms - monotonic_ms()) / 1_000)
        finally:
            if code is None:  # nobody has waited for it, so that its number is still its own
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()
        if answer is not None and len(answer) > ANSWER_BYTES_MAX:
            self._nonsense()
        if code is None or answer is None:
            raise KeyringError(
                f"The {self._source()} did not answer within {self._timeout_ms} milliseconds: try again."
            )
        if code:
            raise KeyringError(f"The {self._source()} ended with exit status {code}: look into its own log.")
        return answer


def open_command(line: str) -> CommandKeys:
    """The keys behind a command line, which is split as a shell would, and started without one.

    Args:
        line: program and arguments; no secrets.

    Raises:
        KeyringError: it cannot be split, or there is no such program.
    """
    try:
        argv = shlex.split(line)
    except ValueError:
        argv = []
    return CommandKeys(argv)


def _exchanged(stdin: IO[bytes], stdout: IO[bytes], request: bytes, until_ms: int) -> bytes | None:
    """What was answered up to its end, or to one byte more than it may have; ``None`` when time was over first."""
    left = memoryview(request)
    answer = bytearray()
    os.set_blocking(stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_WRITE)
        selector.register(stdout, selectors.EVENT_READ)
        while len(answer) <= ANSWER_BYTES_MAX:
            wait_ms = until_ms - monotonic_ms()
            if wait_ms <= 0:
                return None
            for key, _ in selector.select(wait_ms / 1_000):
                if key.fileobj is stdout:
                    block = os.read(stdout.fileno(), ANSWER_BYTES_MAX + 1 - len(answer))
                    if not block:
                        return bytes(answer)
                    answer += block
                    continue
                try:
                    left = left[os.write(stdin.fileno(), left) :]
                except BlockingIOError:
                    continue
                except BrokenPipeError:  # it does not want to know more; what it answers decides
                    left = left[:0]
                if not left:
                    selector.unregister(stdin)
                    stdin.close()
    return bytes(answer)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and 1 <= len(name) <= _NAME_CHARS_MAX


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

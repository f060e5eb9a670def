"""What every test shares: fast deterministic Hypothesis, keys made at run time, a store in a temporary folder."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from evidence_archive import Archive, Principal
from evidence_archive.keys import new_keys

settings.register_profile(
    "gate",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("nightly", parent=settings.get_profile("gate"), derandomize=False, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "gate"))

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
"""Recorded data beside the project; tests that use it skip where it is absent."""


@dataclass
class Desk:
    """A store with its keys in one folder, opened as often as a test likes."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/evidence.db"

    @property
    def database(self) -> Path:
        return self.folder / "evidence.db"

    @property
    def keys(self) -> Path:
        return self.folder / "evidence.keys"

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a statement gives, past the library."""
        with closing(sqlite3.connect(self.database)) as straight, straight:
            return straight.execute(statement, values).fetchall()

    def open(self, **named: Any) -> Archive:
        return Archive.open(self.url, **{"keys": self.keys, **named})


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A folder with fresh keys and no database yet."""
    new_keys(tmp_path / "evidence.keys")
    return Desk(tmp_path)


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

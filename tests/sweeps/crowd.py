"""Agents in several processes that use one store at once; nothing here knows which database it is.

Works of the nursery: each child opens the store, says that it is ready, and begins with the others.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from doubles import Characters, patient
from invariants import OWNER, conversation, note
from nursery import say, wait_for_go

from evidence_archive import Archive, BatchRejectedError, EvidenceArchiveError, StoreBusyError
from evidence_archive.store.sqlite import SqliteEngine

__all__ = ["RESULTS", "SHARED", "first_use", "opened_at", "operate", "shared_and_own"]

SHARED = "shared"
RESULTS = 40


def opened_at(url: str, keys: str) -> Archive:
    """The store under a policy that waits for locks as long as it takes."""
    return Archive.open(url, keys=keys, policy=patient(), counter=Characters())


def shared_and_own(number: int) -> dict[str, list[Any]]:
    """The conversations of a process by session: one that all processes hold, and one of its own."""
    return {name: conversation(name, [1_000] * RESULTS) for name in (SHARED, f"own {number}")}


class Seat:
    """A session as one process works in it."""

    def __init__(self, archive: Archive, session_id: str, messages: Sequence[Any]) -> None:
        self._archive = archive
        self._session = archive.session(session_id, OWNER)
        self._messages = messages
        self._known: dict[int, str] = {}
        self._turns = 0

    def view(self, _draw: random.Random) -> None:
        self._turns = min(self._turns + 1, RESULTS)
        for at, message in enumerate(self._session.view(self._messages[: 1 + 3 * self._turns])):
            if message["role"] == "tool" and message["content"].startswith("[evidence r"):
                self._known.setdefault(at // 3 + 1, message["content"].split()[1])

    def archive(self, draw: random.Random) -> None:
        place, result_id = draw.choice(list(self._known.items()))
        self._session.archive([(result_id, note(place))])
        say(session=self._session.id, receipt=[result_id])

    def restore(self, draw: random.Random) -> None:
        place, result_id = draw.choice(list(self._known.items()))
        if self._session.restore(result_id).content != self._messages[3 * place - 1]["content"]:
            say(wrong=f"{result_id} of {self._session.id} came back as something else.")

    def label(self, draw: random.Random) -> None:
        self._session.label(draw.choice(list(self._known.values())), sensitivity=f"seen {draw.randrange(3)}")


def operate(url: str, keys: str, number: int, operations: int, seed: str, naive: bool = False) -> None:
    """View, archive, restore and label, in the session of all and in one of its own, in random order.

    Args:
        url: of the store.
        keys: path of the keys.
        number: of this process.
        operations: how many.
        seed: of the order.
        naive: transactions do not lock before they read.
    """
    if naive:
        SqliteEngine.writing = _plain  # type: ignore[method-assign]
    draw = random.Random(f"{seed} {number}")
    with opened_at(url, keys) as archive:
        wait_for_go()
        seats: list[Seat] = []
        for name, messages in shared_and_own(number).items():
            with _told():
                seats.append(Seat(archive, name, messages))
        for _ in range(operations if seats else 0):
            seat = draw.choice(seats)
            verbs = [seat.view, seat.archive, seat.restore, seat.label] if seat._known else [seat.view]
            with _told():
                draw.choice(verbs)(draw)


def first_use(url: str, keys: str, number: int) -> None:
    """Archive one result, in an org that nobody used before.

    Args:
        url: of the store.
        keys: path of the keys.
        number: of this process.
    """
    with opened_at(url, keys) as archive:
        wait_for_go()
        name = f"own {number}"
        seat = Seat(archive, name, shared_and_own(number)[name])
        draw = random.Random(number)
        seat.view(draw)
        seat.archive(draw)


@contextmanager
def _told() -> Iterator[None]:
    """Say how a verb was refused: ``targets``, ``changed`` where others were faster, else as the store's failure."""
    try:
        yield
    except BatchRejectedError as error:
        faster = error.reason == "store_unavailable" and error.__cause__ is None
        say(refused="changed" if faster else error.reason)
    except EvidenceArchiveError as error:
        faster = isinstance(error, StoreBusyError) and error.__cause__ is None  # no lock was waited for in vain
        say(refused="changed" if faster else type(error).__name__)


@contextmanager
def _plain(self: SqliteEngine, wait_ms: int, org: str = "") -> Iterator[Any]:
    with self.connection(wait_ms) as connection:
        yield from self._transaction(connection, "BEGIN")

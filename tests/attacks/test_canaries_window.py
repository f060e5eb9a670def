"""Whatever is secret on a card, in the books, in a query, a span or a summary is nowhere outside either.

Searched as in :mod:`test_canaries`: database and journal at every commit, objects, temporary files, backups, logs at
DEBUG, tracebacks and reprs, for the texts in any encoding and for digests of what is made of them.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Conversation
from doubles import Characters, listen_to, policy_of
from scanner import Scanner, canary
from test_canaries import OFFICER, Bag, bag, logs, reachable, temporary
from test_vault import OWNER

from evidence_archive import Archive, AsyncArchive, EvidenceArchiveError
from evidence_archive.carding import Carding
from evidence_archive.errors import FormatError
from evidence_archive.events import Events
from evidence_archive.ledger.checks import number_is, pointer_equals, quotes
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.searching import Searching
from evidence_archive.testing.faults import FaultPlan, faulted
from evidence_archive.window.card import Item

__all__ = ["bag", "logs", "temporary"]

WINDOW = policy_of("[window]\nwindow_tokens_max = 3000\narchive_tokens_min = 50\n")
PLACES = (
    *("goal", "step", "reason", "card of the model", "dropped", "wrong id", "wrong state", "wrong key", "wrong part"),
    *("claim", "artifact", "name of an artifact", "pointer", "check", "query", "query of the model", "wrong query"),
    *("said", "asked", "arguments", "result", "summary", "refused summary", "raised"),
)
FAULTS = (
    *("store.insert_postings.before", "store.insert_postings.after", "store.postings", "store.commit.before"),
    *("store.commit.after", "store.append.before", "store.find"),
)


def made_up() -> dict[str, str]:
    return {name: canary() for name in PLACES}


def wholes(canaries: dict[str, str]) -> dict[str, bytes]:
    """The exact bytes of what is archived and cited."""
    return {
        "all of a result": result(canaries).encode(),
        "all of an artifact": artifact(canaries).encode(),
        "a cited part": f"{canaries['artifact']}\n".encode(),
    }


def result(canaries: dict[str, str]) -> str:
    return f"{canaries['result']}\n" * 60


def artifact(canaries: dict[str, str]) -> str:
    return f'{{"{canaries["pointer"]}": 7}}\n{canaries["artifact"]}\nend'


class Summaries:
    """Answers that are refused, raised and taken, with secrets in all of them.

    Args:
        canaries: by place.
    """

    def __init__(self, canaries: dict[str, str]) -> None:
        self.canaries = canaries
        self.asked = 0

    def summarize(self, span: Any, earlier: Any, refused: str | None) -> str:
        self.asked += 1
        if self.asked % 3 == 1:
            return self.canaries["refused summary"]
        if self.asked % 3 == 2:
            raise ValueError(self.canaries["raised"])
        secret = self.canaries["summary"]
        return f"conclusion: {secret}\nbasis: {secret}\nunresolved: {secret}\nreferences: {secret}"


def steps(archive: Archive, canaries: dict[str, str], name: str, seen: list[Any]) -> list[Callable[[], Any]]:
    """Everything that a session with a window does, some of it wrong; what came back is added to ``seen``."""
    talk, opened = Conversation(), list[Any]()

    def session() -> Any:
        return opened[0]

    def call(tool: str, **named: Any) -> Callable[[], Any]:
        return lambda: talk.ours(session(), tool, json.dumps(named)) and None

    def change(*changes: dict[str, Any]) -> Callable[[], Any]:
        return lambda: seen.append(session().update_card(list(changes)))

    def view() -> None:
        for at in range(6):
            arguments = json.dumps({"query": canaries["arguments"], "at": at})
            issued = talk.call("logs.search", arguments)
            talk.messages.append({"role": "tool", "tool_call_id": issued["id"], "content": result(canaries)})
            talk.say(f"{canaries['said']} is not yet clear. " * 20)
            talk.messages.append({"role": "user", "content": f"What of {canaries['asked']}?"})
            session().view(talk.messages)

    def posted() -> None:
        ledger, place = session().ledger, f"artifact:out/{canaries['name of an artifact']}"
        seen.append(ledger.store(place.removeprefix("artifact:"), artifact(canaries)))
        claim = ledger.claim(canaries["claim"], [f"{place}#L2", place])
        seen.append(claim)
        fact = ledger.verify(claim, quotes(canaries["artifact"]), key=True)
        pointed = ledger.claim(canaries["claim"], [f"{place}#L1"])
        seen.extend([fact, ledger.verify(pointed, pointer_equals(f"/{canaries['pointer'].replace('~', '~0')}", 7))])
        seen.extend([ledger.reconcile(strong=True), ledger.close(), ledger.books()])
        ledger.verify(claim, quotes(canaries["check"]))

    wrong = f"artifact:{canaries['name of an artifact']}#L2-L2"
    return [
        lambda: opened.append(archive.session(name, OWNER, summarizer=Summaries(canaries))),
        change({"goal": canaries["goal"]}, {"add": "step", "text": canaries["step"], "reason": canaries["reason"]}),
        view,
        call("update_card", changes=[{"add": "step", "text": canaries["card of the model"], "references": ["r1"]}]),
        change({"id": "s1", "to": "dropped", "reason": canaries["dropped"]}),
        change({"id": canaries["wrong id"], "to": "confirmed"}),
        change({"id": "s2", "to": canaries["wrong state"]}),
        change({"id": "s2", canaries["wrong key"]: 1}),
        change({"id": "s2", "references": [wrong]}),
        call("update_card", changes=[{"id": canaries["wrong id"], "to": "confirmed"}]),
        posted,
        lambda: session().ledger.claim(canaries["claim"], [wrong]),
        lambda: session().ledger.claim(canaries["claim"], [f"artifact:{canaries['name of an artifact']}"]),
        lambda: session().ledger.claim(canaries["claim"], [f"r1#/{canaries['wrong part']}"]),
        lambda: session().ledger.verify(next(iter(session().ledger.books().claims.values())), number_is(4.0)),
        lambda: seen.append(session().search(canaries["query"])),
        lambda: seen.append(session().search(canaries["result"].upper())),
        lambda: session().search(f"{canaries['wrong query']}\n"),
        call("search_evidence", query=canaries["query of the model"]),
        view,
        lambda: seen.append(session().card()),
        lambda: seen.append(archive.session(name, OWNER).view(talk.messages) and None),
        lambda: seen.append(session().stats()),
    ]


def done(archive: Archive, canaries: dict[str, str], name: str, seen: list[Any]) -> Iterator[BaseException]:
    """What was raised."""
    for step in steps(archive, canaries, name, seen):
        try:
            step()
        except (EvidenceArchiveError, IndexError, StopIteration) as error:
            yield error


def scanned(bag: Bag, logs: Any, canaries: dict[str, str]) -> set[str]:
    bag.add(logs.getvalue().encode("utf-8", "surrogatepass"))
    return bag.found(Scanner(canaries, wholes(canaries)))


def test_no_canary_of_a_window_is_in_files_logs_tracebacks_or_reprs(bag, logs, record_property):
    canaries, seen = made_up(), list[Any]()
    with bag.desk.open(policy=WINDOW, counter=Characters(), inline_size_max=2_000) as archive:
        listen_to(archive, lambda sql: bag.take() if sql == "COMMIT" else None)
        raised = list(done(archive, canaries, "case", seen))
        bag.take(*raised, *seen)
        bag.take(*reachable(seen), *reachable(archive, archive.session("case", OWNER), AsyncArchive(archive)))
    bag.add(logs.getvalue().encode("utf-8", "surrogatepass"))
    for word in (
        b"book.posted",
        b"evidence.searched",
        b"context_compressed",
        b"card_changed",
        b"Fact(",
        b".objects/",
    ):
        assert word in bag, f"{word!r} was not looked at"
    assert len(raised) == 10, "one for each wrong step"
    assert list(bag.temporary.iterdir()) == []
    record_property("bytes", sum(map(len, bag.pieces)))
    assert scanned(bag, logs, canaries) == set()


def test_no_canary_of_a_window_is_in_what_is_left_of_what_was_broken_off(bag, logs):
    canaries = made_up()
    for point in FAULTS:
        plan, seen = FaultPlan(), list[Any]()
        with faulted(bag.desk.open(policy=WINDOW, counter=Characters()), plan) as archive:
            plan.error(point, nth=2, times=8)
            bag.take(*done(archive, canaries, point, seen), *seen, archive)
        assert plan.count(point) > 1, f"{point} was never passed"
    assert b"evidence_archive.trouble" in logs.getvalue().encode()
    assert scanned(bag, logs, canaries) == set()


def test_no_canary_of_a_window_is_in_backups_or_in_what_a_shred_leaves(bag, logs):
    canaries, seen = made_up(), list[Any]()
    outside = bag.desk.folder / "outside"
    outside.mkdir()
    with bag.desk.open(policy=WINDOW, counter=Characters(), register=outside / "register") as archive:
        for name in ("case", "second"):
            bag.take(*done(archive, canaries, name, seen))
        custody = archive.custody(OFFICER)
        bag.take(custody.backup(outside / "first"), custody.verify("full"))
        bag.take(custody.shred(session_id="second"), custody.rotate(), custody.backup(outside / "second"))
        bag.take(*reachable(custody, custody.census()))
    for word in (b"manifest.json", b"shred.requested", b"book.posted"):
        assert word in bag, f"{word!r} was not looked at"
    assert scanned(bag, logs, canaries) == set()


# --- controls ---------------------------------------------------------------------------------------------------


def keeps_postings_open(patch: pytest.MonkeyPatch) -> None:
    """Break the core: what is put down is stored as it is."""
    patch.setattr("evidence_archive.books.wrap", lambda key, data, context: data)
    patch.setattr("evidence_archive.books.unwrap", lambda key, data, context: data)


def logs_the_card(patch: pytest.MonkeyPatch) -> None:
    """Break the core: an event tells what changed."""
    change = Carding.change

    def naive(self: Carding, changes: Any, call_id: bytes | None = None) -> Any:
        Events(org=OWNER.org).info("card", changes=changes)
        return change(self, changes, call_id)

    patch.setattr(Carding, "change", naive)


def repeats_the_query(patch: pytest.MonkeyPatch) -> None:
    """Break the core: an error repeats the query."""

    def naive(self: Searching, query: object, *_: Any, **named: Any) -> Any:
        raise FormatError(f"Nothing has {query} in it.")

    patch.setattr(Searching, "search", naive)


def shows_the_card(patch: pytest.MonkeyPatch) -> None:
    """Break the core: an item's repr tells its text."""
    patch.setattr(Item, "__repr__", lambda self: f"Item({self.text!r})")


def digests_in_the_log(patch: pytest.MonkeyPatch) -> None:
    """Break the core: an event tells the digest of an artifact."""
    store = Ledger.store

    def naive(self: Ledger, name: str, data: Any) -> Any:
        stored = store(self, name, data)
        Events(org=OWNER.org).info("stored", sha256=stored.sha256)
        return stored

    patch.setattr(Ledger, "store", naive)


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        (keeps_postings_open, "goal, plain"),
        (keeps_postings_open, "claim, plain"),
        (keeps_postings_open, "summary, plain"),
        (logs_the_card, "goal, plain"),
        (repeats_the_query, "query, plain"),
        (shows_the_card, "step, plain"),
        (digests_in_the_log, "all of an artifact, sha256, hex"),
    ],
)
def test_must_fail_control_a_window_that_tells_is_caught(bag, logs, broken, name, monkeypatch):
    broken(monkeypatch)
    canaries, seen = made_up(), list[Any]()
    with bag.desk.open(policy=WINDOW, counter=Characters()) as archive:
        bag.take(*done(archive, canaries, "case", seen), *reachable(seen))
    assert name in scanned(bag, logs, canaries)

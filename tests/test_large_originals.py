"""Originals outside the database: durable before a batch names them, exact, bounded, collected when given up."""

import asyncio
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, arguments, batch_of, opened, policy_of
from sqlalchemy.dialects import sqlite

from evidence_archive import (
    Archive,
    AsyncArchive,
    BatchRejectedError,
    FormatError,
    NotAvailableError,
    Principal,
    SealBrokenError,
    searching,
)
from evidence_archive.envelopes import INTENT_SECONDS, Envelopes
from evidence_archive.errors import (
    CheckFailedError,
    ObjectNotFoundError,
    StoreError,
    StoreUnavailableError,
    UnsupportedVersionError,
)
from evidence_archive.keys import open_provider
from evidence_archive.ledger.checks import quotes
from evidence_archive.model import Encoded
from evidence_archive.ports import OBJECT_BYTES_MAX
from evidence_archive.sealing.envelope import Slot, envelope_bytes, open_original, open_pieces, seal_pieces
from evidence_archive.store import open_store, statements
from evidence_archive.testing import FrozenClock

OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
LARGE = "".join(f"{n} row {sha256(b'%d' % n).hexdigest()} \U0001f600 timed out\r\n" for n in range(30_000))
PARTS = [
    {"type": "text", "text": "\ud83d lone"},
    {"type": "image_url", "image_url": {"url": "data:," + "A1b2" * 400_000}},
]
SMALL = "a small result that stays in its row\n" * 40


class MemoryObjects:
    """An object store in memory that fails when a test says so."""

    name = "memory"

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.on_put: Callable[[str], Any] = lambda key: None
        self.after_put: Callable[[str], Any] = lambda key: None

    def put(self, key: str, data: bytes) -> None:
        self.on_put(key)
        assert type(data) is bytes
        assert len(data) <= OBJECT_BYTES_MAX
        assert self.held.setdefault(key, data) == data
        self.puts.append(key)
        self.after_put(key)

    def get(self, key: str) -> bytes | None:
        return self.held.get(key)

    def delete(self, key: str) -> None:
        self.held.pop(key, None)

    def tidy(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Bench:
    """An archive over a store with objects in memory, and one session with a large and a small result in view."""

    def __init__(self, desk: Desk, objects: Any = None, **named: Any) -> None:
        self.desk = desk
        self.objects = MemoryObjects() if objects is None else objects
        self.clock = FrozenClock()
        self.named = named
        self.archive = self.opened()
        self.session = self.archive.session("case", OWNER)
        self.talk = Conversation()
        self.talk.tool(LARGE)
        self.talk.tool(SMALL)
        self.talk.tool(PARTS)
        self.talk.say()
        self.session.view(self.talk.messages)

    def opened(self, **named: Any) -> Archive:
        store = open_store(self.desk.url)
        named = {"objects": self.objects, "counter": Characters(), "clock": self.clock, **self.named, **named}
        policy = named.pop("policy", policy_of())
        return Archive(store, keys=open_provider(self.desk.keys), policy=policy, **named)

    def rows(self) -> list[tuple[str, int]]:
        wanted = "state <> 'used' ORDER BY size_bytes, created_at_us"
        found = self.desk.execute(f"SELECT state, size_bytes FROM objects WHERE {wanted}")
        return [(state, size) for state, size in found]

    def is_of(self, key: str, number: int) -> bool:
        """Whether an object is of the original of a result."""
        found = self.desk.execute(
            "SELECT o.key FROM objects o JOIN results r ON r.original_id = o.original_id WHERE r.number = ?", number
        )
        return any(key.startswith(one) for (one,) in found)

    def contents(self, archive: Archive) -> list[Any]:
        return [archive.restore("case", f"r{n}", principal=OWNER).content for n in (1, 2, 3)]


@pytest.fixture
def bench(desk: Desk) -> Any:
    """A bench, closed at the end."""
    made = Bench(desk)
    yield made
    made.archive.close()


ALL = [("r1", "the log"), ("r2", "the small one"), ("r3", "the picture")]


# --- what comes back --------------------------------------------------------------------------------------------


def test_large_originals_lie_in_objects_small_ones_in_their_row_and_all_come_back_exactly(bench: Bench) -> None:
    bench.session.archive(ALL)
    assert [state for state, _ in bench.rows()] == ["stored", "stored"]
    assert sum(map(len, bench.objects.held.values())) == sum(size for _, size in bench.rows())
    assert bench.desk.execute("SELECT count(*) FROM originals") == [(1,)]
    with bench.opened() as other:
        assert bench.contents(other) == [LARGE, SMALL, PARTS]
    view = bench.session.view(bench.talk.messages)
    assert [message["content"] for message in view if message["role"] == "tool" and len(str(message)) > 2_000] == []


def test_nothing_of_an_original_or_its_tool_or_session_stands_in_objects_or_their_names(bench: Bench) -> None:
    bench.session.archive(ALL)
    for key, data in bench.objects.held.items():
        assert len(key) == 39
        assert not {"north", "case", "logs"} & set(key.split("/"))
        assert LARGE[:40].encode() not in data
        assert b"lone" not in data


def test_a_large_original_lies_in_objects_of_bounded_size(desk: Desk) -> None:
    noise = "".join(sha256(b"%d" % n).hexdigest() for n in range(600_000))  # compresses to half
    bench = Bench(desk)
    talk = Conversation()
    talk.tool(noise)
    talk.say()
    session = bench.archive.session("noise", OWNER)
    session.view(talk.messages)
    session.archive([("r1", "noise")])
    sizes = [len(bench.objects.held[key]) for key in bench.objects.puts]
    assert sizes[:-1] == [OBJECT_BYTES_MAX] * (len(sizes) - 1)
    assert len(sizes) >= 2
    assert bench.archive.restore("noise", "r1", principal=OWNER).content == noise
    bench.archive.close()


@pytest.mark.parametrize("lines", ["1", "7-9", "30000", "29999-30000", "1-30000"])
def test_lines_of_a_large_original_are_those_of_the_text(bench: Bench, lines: str) -> None:
    bench.session.archive(ALL)
    live = Conversation()
    live.tool(LARGE)
    other = bench.archive.session("live", OWNER)
    other.view(live.messages)
    stored, in_view = bench.session.restore("r1", lines=lines), other.restore("r1", lines=lines)
    assert (stored.content, stored.part, stored.sha256) == (in_view.content, in_view.part, in_view.sha256)


@pytest.mark.parametrize("result", ["r1", "r2", "r3"])
def test_bytes_of_an_original_are_those_of_its_exact_bytes_wherever_it_lies(bench: Bench, result: str) -> None:
    live = {first: bench.session.restore(result, byte_range=f"{first}-{first + 999}") for first in (0, 1, 400)}
    whole = bench.session.restore(result).size_bytes
    bench.session.archive(ALL)
    for first, part in live.items():
        again = bench.session.restore(result, byte_range=f"{first}-{first + 999}")
        assert (again.content, again.part) == (part.content, part.part)
        assert type(again.content) is bytes
        assert len(again.content) == 1_000
    assert bench.session.restore(result, byte_range=f"{whole - 1}-{whole - 1}").content in (b"\n", b"]")
    with pytest.raises(FormatError, match=f"{whole} bytes"):
        bench.session.restore(result, byte_range=f"{whole}-{whole}")
    with pytest.raises(FormatError, match="alone"):
        bench.session.restore(result, byte_range="0-1", lines="1")
    for malformed in ("1-0", "0", "-1", "0-", "a-b", "00-1", 7):
        with pytest.raises(FormatError, match="byte_range"):
            bench.session.restore(result, byte_range=malformed)


def test_patterns_and_pointers_work_on_large_originals_too(bench: Bench) -> None:
    bench.session.archive(ALL)
    assert "29999 row" in bench.session.restore("r1", pattern="29999 row", context_lines=0).content
    with pytest.raises(FormatError, match="not text alone"):
        bench.session.restore("r3", pattern="x")


def test_a_whole_original_is_written_to_a_file_and_the_grant_is_in_the_log(bench: Bench) -> None:
    bench.session.archive(ALL)
    for result, content in (("r1", LARGE.encode("utf-8", "surrogatepass")), ("r2", SMALL.encode())):
        file = io.BytesIO()
        restored = bench.archive.restore_to(file, "case", result, principal=OWNER, reason="the auditor asked")
        assert file.getvalue() == content
        assert (restored.content, restored.size_bytes) == (None, len(content))
        assert restored.sha256 == sha256(content).hexdigest()
    events = [entry.event for entry in bench.archive.audit(principal=OWNER).entries]
    assert events.count("restore.granted") == 2


class Slow(io.RawIOBase):
    """A raw file that takes a part of what it is given, then nothing."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.held = bytearray()
        self.most = most

    def write(self, data: Any) -> int | None:
        taken = bytes(data[: min(10_007, self.most - len(self.held))])
        self.held += taken
        return len(taken) or None


def test_a_raw_file_that_takes_a_part_at_a_time_gets_all_and_one_that_is_full_is_an_error(bench: Bench) -> None:
    bench.session.archive(ALL)
    file = Slow()
    bench.archive.restore_to(file, "case", "r1", principal=OWNER)
    assert bytes(file.held) == LARGE.encode()
    with pytest.raises(OSError, match="takes nothing more"):
        bench.archive.restore_to(Slow(30_000), "case", "r1", principal=OWNER)


def test_must_fail_control_a_raw_file_that_is_written_to_once_misses_most() -> None:
    file = Slow()
    file.write(LARGE.encode())
    assert bytes(file.held) != LARGE.encode()


def test_a_file_that_does_not_count_what_it_takes_gets_all(bench: Bench) -> None:
    held = bytearray()

    class Uncounted:
        def write(self, data: bytes) -> None:
            held.extend(data)

    bench.session.archive(ALL)
    bench.archive.restore_to(Uncounted(), "case", "r1", principal=OWNER)  # type: ignore[arg-type]
    assert bytes(held) == LARGE.encode()


def test_an_archived_copy_of_a_part_is_written_to_a_file_as_that_part(bench: Bench) -> None:
    bench.session.archive(ALL)
    asked = arguments(id="r1", lines="7-90", pattern=None, context_lines=None, pointer=None, reason=None)
    bench.talk.ours(bench.session, "restore_evidence", asked)
    bench.talk.say()
    bench.session.view(bench.talk.messages)
    bench.session.archive([("r4", "some lines")])
    file = io.BytesIO()
    restored = bench.archive.restore_to(file, "case", "r4", principal=OWNER)
    assert file.getvalue().decode() == "".join(LARGE.splitlines(keepends=True)[6:90])
    assert (restored.content, restored.part) == (None, "lines 7-90 of 30000")


def test_a_large_original_is_written_to_a_file_for_who_awaits_it(bench: Bench) -> None:
    bench.session.archive(ALL)

    async def written() -> tuple[bytes, Any]:
        file = io.BytesIO()
        async with AsyncArchive.open(bench.desk.url, keys=bench.desk.keys, objects=bench.objects) as archive:
            restored = await archive.restore_to(file, "case", "r1", principal=OWNER)
            with pytest.raises(NotAvailableError):
                await archive.restore_to(file, "case", "r9", principal=OWNER)
            lines = await archive.restore("case", "r1", principal=OWNER, byte_range="0-9")
            assert (await archive.collect(principal=OWNER)).abandoned == 0
        return file.getvalue(), (restored.content, restored.sha256, lines.content)

    data, told = asyncio.run(written())
    assert data == LARGE.encode()
    assert told == (None, sha256(data).hexdigest(), data[:10])


def test_nothing_is_written_to_a_file_before_the_whole_is_known_to_be_authentic(bench: Bench) -> None:
    bench.session.archive(ALL)
    key = bench.objects.puts[0]
    held = bench.objects.held[key]
    bench.objects.held[key] = held[:-1] + bytes([held[-1] ^ 1])
    file = io.BytesIO()
    with pytest.raises(SealBrokenError):
        bench.archive.restore_to(file, "case", "r1", principal=OWNER)
    assert file.getvalue() == b""


def test_the_model_is_refused_a_whole_that_is_too_large_and_told_how_to_ask(bench: Bench) -> None:
    bench.session.archive(ALL)
    answer = bench.talk.ours(bench.session, "restore_evidence", '{"id": "r1"}')["content"]
    assert "the original has 30000" in answer
    assert "tokens" in answer


@pytest.mark.parametrize("size", [0, 1_023, 1_024, 70_000])
@pytest.mark.parametrize("make", [os.urandom, bytes], ids=["noise", "zeros"])
def test_what_compresses_and_what_does_not_is_sealed_in_pieces_as_it_is_in_memory(
    make: Callable[[int], bytes], size: int
) -> None:
    encoded, dek, ids = Encoded(make(size), "text"), os.urandom(32), {"original_id": b"o" * 16, "dek_id": b"d" * 16}
    slot = Slot(b"x" * 16, "north-clinic", "case", "r1", b"call_1", "logs.search", None, "text/plain", 0)
    named: dict[str, Any] = {"slot": slot, "dek": dek, **ids}
    sealed_size, pieces = seal_pieces(encoded=encoded, acl=b"facts", trust="tool-output", **named)
    envelope = b"".join(pieces)
    assert len(envelope) == envelope_bytes(sealed_size)
    assert (sealed_size < size) == (make is bytes and size >= 1_024)
    assert open_original(envelope, sealed_size=sealed_size, **named).data == encoded.data
    taken = bytearray()
    opened = open_pieces([envelope[:7], envelope[7:]], taken.extend, sealed_size=sealed_size, **named)
    assert (bytes(taken), opened.sha256) == (encoded.data, encoded.digest)


# --- attacks on what lies outside -------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "swapped", "emptied"])
def test_a_changed_object_does_not_open(bench: Bench, damage: str) -> None:
    bench.session.archive(ALL)
    (first, held), (second, other) = list(bench.objects.held.items())[:2]
    bench.objects.held[first] = {
        "flipped": held[:1_000] + bytes([held[1_000] ^ 1]) + held[1_001:],
        "cut": held[:-1],
        "longer": held + b"x",
        "swapped": other,
        "emptied": b"",
    }[damage]
    with pytest.raises(SealBrokenError):
        bench.session.restore("r1")
    assert second


def test_a_header_that_was_changed_does_not_pass_for_a_newer_version_wherever_the_envelope_lies(bench: Bench) -> None:
    bench.session.archive([("r1", "the log")])
    (key,) = bench.objects.puts
    held = bench.objects.held[key]
    bench.objects.held[key] = held[:4] + b"\x02" + held[5:]
    with pytest.raises(SealBrokenError):
        bench.session.restore("r1")
    assert bench.archive.session("case", OWNER).stats().suspended == "integrity"


def test_a_large_original_of_a_newer_version_is_told_as_that_and_suspends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def newer(*_: Any, **__: Any) -> Any:
        raise UnsupportedVersionError("An original is sealed in a form this version does not know.")

    bench.session.archive([("r1", "the log")])
    monkeypatch.setattr("evidence_archive.envelopes.open_pieces", newer)
    with pytest.raises(UnsupportedVersionError):
        bench.session.restore("r1")
    assert bench.archive.session("case", OWNER).stats().suspended is None


@pytest.mark.parametrize(
    "damage", ["state = 'intended'", "size_bytes = size_bytes + 1", "key = 'ff/' || substr(key, 4)"]
)
def test_a_row_of_objects_changed_by_hand_opens_nothing(bench: Bench, damage: str) -> None:
    bench.session.archive([("r1", "the log")])
    bench.desk.execute(f"UPDATE objects SET {damage}")
    with pytest.raises(SealBrokenError):
        bench.session.restore("r1")


def test_without_its_row_an_object_is_gone(bench: Bench) -> None:
    bench.session.archive([("r1", "the log")])
    bench.desk.execute("DELETE FROM objects")
    with pytest.raises(SealBrokenError, match="gone"):
        bench.session.restore("r1")


def test_an_object_that_is_not_there_is_the_operators_move_and_suspends_nothing(bench: Bench) -> None:
    bench.session.archive(ALL)
    taken, bench.objects.held = bench.objects.held, {}
    with pytest.raises(StoreUnavailableError, match="objects="):
        bench.session.restore("r1")
    assert bench.session.stats().suspended is None
    bench.objects.held = taken
    assert bench.session.restore("r1").content == LARGE


def test_one_object_that_is_not_there_stops_no_search_and_no_reconciliation_of_the_others(bench: Bench) -> None:
    bench.session.archive(ALL)
    ledger = bench.session.ledger
    ledger.post("the log is long", ["r1#L1"], quotes("timed out"), key=True)
    ledger.post("the small one", ["r2"], quotes(SMALL), key=True)
    of_the_log = [key for key in bench.objects.held if bench.is_of(key, 1)]
    taken = {key: bench.objects.held.pop(key) for key in of_the_log}
    with pytest.raises(ObjectNotFoundError, match="objects="):
        bench.session.restore("r1")
    found = bench.session.search("a small result")
    assert ({hit.result_id for hit in found.hits}, found.absent) == ({"r2"}, 1)
    entry = bench.archive.audit(principal=OWNER).entries[-1]
    assert (entry.event, entry.details["absent"]) == ("evidence.searched", 1)
    (wrong,) = ledger.reconcile().disagreements
    assert (wrong.fact_id, wrong.why) == ("f1", "r1#L1 is not at hand: an object of it is not in this object store.")
    with pytest.raises(CheckFailedError, match="f1 first"):
        ledger.close()
    assert bench.session.stats().suspended is None
    bench.objects.held |= taken
    assert bench.session.search("a small result").absent == 0
    assert ledger.reconcile().agrees
    assert ledger.close().facts == ("f1", "f2")


def test_a_search_looks_for_no_more_originals_than_it_may_where_objects_are_gone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for at in range(3):
        bench.session.ledger.store(f"log/{at}", f"{at}{LARGE}")
    kept = [one.result_id for one in bench.session.ledger.books().artifacts.values()]
    bench.objects.held = {}
    monkeypatch.setattr(searching, "ORIGINALS_MAX", 2)
    found = bench.session.search("timed out")
    assert (found.searched, found.absent, found.left_out, found.before) == (0, 2, 1, kept[1])


def test_a_product_whose_object_is_gone_is_kept_anew_when_it_is_cited_again(bench: Bench) -> None:
    ledger = bench.session.ledger
    first = ledger.post("the log", ["r1#L1"], quotes("timed out"))
    assert ledger.post("the log", ["r1#L2"], quotes("timed out")).sources[0].result_id == first.sources[0].result_id
    bench.objects.held.clear()
    again = ledger.post("the log", ["r1#L1"], quotes("timed out"))
    assert again.sources[0].result_id != first.sources[0].result_id
    assert [one.fact_id for one in ledger.reconcile(strong=True).disagreements] == ["f1", "f2"]


def test_without_an_object_store_what_lies_there_is_the_operators_move_too(bench: Bench) -> None:
    bench.session.archive(ALL)
    with bench.opened(objects=None) as other:
        assert other.restore("case", "r2", principal=OWNER).content == SMALL
        with pytest.raises(StoreUnavailableError, match="objects="):
            other.restore("case", "r1", principal=OWNER)


def test_an_object_store_that_lies_about_what_it_stored_gets_nothing_archived(bench: Bench) -> None:
    def forget(key: str) -> None:
        bench.objects.held[key] = bytes(len(bench.objects.held[key]))

    bench.objects.after_put = forget
    with pytest.raises(BatchRejectedError):
        bench.session.archive(ALL)
    assert bench.desk.execute("SELECT count(*) FROM results WHERE state = 'archived'") == [(0,)]
    bench.session.view(bench.talk.messages)


# --- intents ----------------------------------------------------------------------------------------------------


def test_the_intent_is_durable_before_the_first_object(bench: Bench) -> None:
    seen: list[Any] = []
    bench.objects.on_put = lambda key: seen.append(bench.rows())
    bench.session.archive(ALL)
    assert seen[0] == [("intended", size) for size in sorted(size for _, size in bench.rows())]


@pytest.mark.parametrize("at", [0, 1])
def test_a_put_that_fails_changes_nothing_and_deletes_nothing(bench: Bench, at: int) -> None:
    def fail(key: str) -> None:
        if len(bench.objects.puts) == at:
            raise StoreUnavailableError("The object store is away: try again.")

    bench.objects.on_put = fail
    with pytest.raises(BatchRejectedError, match="Nothing was archived: the object store is away"):
        bench.session.archive(ALL)
    assert len(bench.objects.held) == at
    assert bench.desk.execute("SELECT count(*) FROM results WHERE state = 'archived'") == [(0,)]
    assert bench.desk.execute("SELECT count(*) FROM originals") == [(0,)]
    bench.objects.on_put = lambda key: None
    bench.session.archive(ALL)
    with bench.opened() as other:
        assert bench.contents(other) == [LARGE, SMALL, PARTS]


def test_a_batch_that_another_process_overtakes_does_not_put_its_objects_again(bench: Bench) -> None:
    other = bench.opened()
    second, talk = other.session("case", OWNER), Conversation()
    talk.messages = [*bench.talk.messages]
    talk.tool("something new of the other process\n" * 60)

    def overtake(key: str) -> None:
        if len(bench.objects.puts) == 1:
            second.view(talk.messages)

    bench.objects.after_put = overtake
    bench.session.archive(ALL)
    assert len(bench.objects.puts) == len(set(bench.objects.puts)) == 2
    assert bench.contents(other) == [LARGE, SMALL, PARTS]
    other.close()


def lapse(bench: Bench) -> None:
    bench.clock.advance(INTENT_SECONDS)


def test_objects_of_a_batch_that_was_given_up_are_collected_when_its_time_is_over(bench: Bench) -> None:
    bench.objects.after_put = lambda key: (_ for _ in ()).throw(StoreUnavailableError("Away: try again."))
    with pytest.raises(BatchRejectedError):
        bench.session.archive(ALL)
    bench.objects.after_put = lambda key: None
    assert len(bench.objects.held) == 1
    assert bench.archive.collect(principal=OWNER) == replace(
        bench.archive.collect(principal=OWNER), abandoned=0, forgotten=0
    )
    assert len(bench.objects.held) == 1
    lapse(bench)
    assert bench.archive.collect(principal=OWNER).abandoned == 2
    assert bench.objects.held == {}
    assert [state for state, _ in bench.rows()] == ["emptied", "emptied"]
    lapse(bench)
    assert bench.archive.collect(principal=OWNER).forgotten == 2
    assert bench.rows() == []


def test_a_put_that_arrives_after_the_sweep_is_swept_once_more(bench: Bench) -> None:
    late: dict[str, bytes] = {}

    def swallow(key: str) -> None:
        late.update({key: bench.objects.held.pop(key)})
        raise StoreUnavailableError("The object store did not answer: try again.")

    bench.objects.after_put = swallow
    with pytest.raises(BatchRejectedError):
        bench.session.archive(ALL)
    lapse(bench)
    bench.archive.collect(principal=OWNER)
    bench.objects.held.update(late)
    lapse(bench)
    bench.archive.collect(principal=OWNER)
    assert bench.objects.held == {}


def test_a_run_without_the_object_store_uses_up_neither_deletion(bench: Bench) -> None:
    late: dict[str, bytes] = {}

    def swallow(key: str) -> None:
        late.update({key: bench.objects.held[key]})
        raise StoreUnavailableError("The object store did not answer: try again.")

    bench.objects.after_put = swallow
    with pytest.raises(BatchRejectedError):
        bench.session.archive(ALL)
    for _ in range(3):
        lapse(bench)
        with bench.opened(objects=None) as other, pytest.raises(StoreUnavailableError):
            other.collect(principal=OWNER)
    assert {state for state, _ in bench.rows()} == {"intended"}
    lapse(bench)
    assert bench.archive.collect(principal=OWNER).abandoned == 2
    bench.objects.held.update(late)
    lapse(bench)
    assert bench.archive.collect(principal=OWNER).forgotten == 2
    assert bench.objects.held == {}


def test_the_collector_never_touches_what_a_batch_named(bench: Bench) -> None:
    bench.session.archive(ALL)
    for _ in range(3):
        lapse(bench)
        bench.archive.collect(principal=OWNER)
    with bench.opened() as other:
        assert bench.contents(other) == [LARGE, SMALL, PARTS]


def given_up(bench: Bench, times: int) -> list[str]:
    """The first objects of some batches that failed after them; their time is over."""
    bench.objects.after_put = lambda key: (_ for _ in ()).throw(StoreUnavailableError("Away: try again."))
    for _ in range(times):
        with pytest.raises(BatchRejectedError):
            bench.session.archive([("r1", "the log")])
        bench.clock.advance(120)  # longer than archiving is suspended after failures
    bench.objects.after_put = lambda key: None
    lapse(bench)
    return list(bench.objects.held)


@pytest.mark.parametrize("stuck", [1, 5])
def test_objects_that_cannot_be_deleted_keep_no_others_from_being_collected(bench: Bench, stuck: int) -> None:
    held = given_up(bench, 8)
    bad, delete = set(held[:stuck]), bench.objects.delete

    def refusing(key: str) -> None:
        if key in bad:
            raise StoreError("Something else is in the place of an object: remove it.")
        delete(key)

    bench.objects.delete = refusing  # type: ignore[method-assign]
    for _ in range(6):
        with pytest.raises(StoreError, match="Something else"):
            bench.archive.collect(principal=OWNER)
        lapse(bench)
    assert set(bench.objects.held) == bad
    assert [state for state, _ in bench.rows()] == ["abandoned"] * stuck
    bad.clear()
    for _ in range(2):
        bench.archive.collect(principal=OWNER)
        lapse(bench)
    assert (bench.objects.held, bench.rows()) == ({}, [])


def test_an_older_intent_put_back_with_its_seal_makes_the_collector_delete_nothing(bench: Bench) -> None:
    older: list[Any] = []
    bench.objects.on_put = lambda key: older.extend(bench.desk.execute("SELECT * FROM objects"))
    bench.session.archive([("r1", "the log")])
    right = bench.desk.execute("SELECT * FROM objects")

    def put_back(row: Any) -> None:
        bench.desk.execute("DELETE FROM objects")
        bench.desk.execute(f"INSERT INTO objects VALUES ({','.join('?' * len(row))})", *row)

    put_back(older[0])
    held = dict(bench.objects.held)
    for _ in range(3):
        lapse(bench)
        assert bench.archive.collect(principal=OWNER).abandoned == 0
    assert bench.objects.held == held
    with pytest.raises(SealBrokenError):
        bench.session.restore("r1")
    put_back(right[0])
    assert bench.session.restore("r1").content == LARGE


def archived_and_put_back(bench: Bench) -> tuple[dict[Any, Any], int]:
    """What lies in the bucket and the size of r1, whose older result and intent are put back in the database."""
    older: list[Any] = []
    results = bench.desk.execute("SELECT * FROM results")
    bench.objects.on_put = lambda key: older.extend(bench.desk.execute("SELECT * FROM objects WHERE state <> 'used'"))
    bench.session.archive([("r1", "the log")])
    held = dict(bench.objects.held)
    [size] = bench.desk.execute("SELECT size_bytes FROM results WHERE number = 1")[0]
    for table, rows in (("results", results), ("objects", older[:1])):
        bench.desk.execute(f"DELETE FROM {table} WHERE org = 'north-clinic'")
        for row in rows:
            bench.desk.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", *row)
    return held, size


def nothing_is_collected(bench: Bench, held: dict[Any, Any]) -> None:
    for _ in range(3):
        lapse(bench)
        with bench.opened() as archive:
            assert archive.collect(principal=OWNER).abandoned == 0
    assert bench.objects.held == held != {}


def test_an_older_intent_and_result_put_back_together_make_the_collector_delete_nothing(
    bench: Bench,
) -> None:
    """The result then names nothing; that it was archived, the count of what is in keeping still knows."""
    held, _ = archived_and_put_back(bench)
    nothing_is_collected(bench, held)


def test_a_made_up_result_in_the_place_of_one_that_was_put_back_makes_the_collector_delete_nothing(
    bench: Bench,
) -> None:
    """As many results, and bytes, seem to be archived as are in keeping."""
    held, size = archived_and_put_back(bench)
    made_up = b"made up".ljust(16)
    bench.desk.execute(
        "UPDATE results SET state = 'archived', size_bytes = ?, original_id = ? WHERE number = 2", size, made_up
    )
    nothing_is_collected(bench, held)


def test_a_tombstone_of_a_copy_of_the_store_makes_the_collector_delete_nothing(bench: Bench) -> None:
    bench.session.archive([("r1", "the log")])
    held = dict(bench.objects.held)
    before = {table: bench.desk.execute(f"SELECT * FROM {table}") for table in TABLES_OF_A_SHRED}
    bench.objects.delete = lambda key: None  # type: ignore[method-assign]
    officer = Principal(org="north-clinic", subject="records-office", roles={"custodian"})
    bench.archive.custody(officer).shred(session_id="case", result_id="r1")
    del bench.objects.delete
    tombs = {table: bench.desk.execute(f"SELECT * FROM {table}") for table in ("results", "objects")}
    # The store that the shred was done in is the copy; this one goes on as it was, with two tables of the copy.
    for table, rows in {**before, **tombs}.items():
        bench.desk.execute(f"DELETE FROM {table}")
        for row in rows:
            bench.desk.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", *row)
    for _ in range(3):
        lapse(bench)
        with bench.opened() as archive:
            assert archive.collect(principal=OWNER).abandoned == 0
    assert bench.objects.held == held != {}


TABLES_OF_A_SHRED = (
    "sessions",
    "scope_keys",
    "results",
    "objects",
    "shreds",
    "custody",
    "audit_heads",
    "audit_leaves",
)


@pytest.mark.parametrize("error", [StoreUnavailableError("Away: try again."), RuntimeError("of a driver")])
def test_whatever_the_collector_meets_after_a_commit_the_batch_is_acknowledged(
    bench: Bench, error: Exception
) -> None:
    given_up(bench, 1)

    def fail(key: str) -> None:
        raise error

    bench.objects.delete = fail  # type: ignore[method-assign]
    assert bench.session.archive(ALL).result_ids == ("r1", "r2", "r3")
    assert bench.contents(bench.archive) == [LARGE, SMALL, PARTS]


def test_a_batch_whose_objects_are_collected_after_they_were_read_back_is_refused(bench: Bench) -> None:
    other, get = bench.opened(), bench.objects.get

    def collecting(key: str) -> bytes | None:
        data = get(key)
        if key == bench.objects.puts[-1] and len(bench.objects.puts) == 2:
            bench.objects.get = get  # type: ignore[method-assign]
            lapse(bench)
            other.collect(principal=OWNER)
        return data

    bench.objects.get = collecting  # type: ignore[method-assign]
    with pytest.raises(BatchRejectedError, match="longer than an intent lasts"):
        bench.session.archive(ALL)
    assert bench.desk.execute("SELECT count(*) FROM results WHERE state = 'archived'") == [(0,)]
    assert bench.desk.execute("SELECT count(*) FROM originals") == [(0,)]
    assert bench.session.archive(ALL).result_ids == ("r1", "r2", "r3")
    assert bench.contents(other) == [LARGE, SMALL, PARTS]
    other.close()


def test_looking_for_lapsed_intents_reads_neither_all_objects_nor_all_results(sqlite_desk: Desk) -> None:
    open_store(sqlite_desk.url).close()
    sql, ordered = statements.SELECT_LAPSED.on(sqlite.dialect())
    plan = sqlite_desk.execute(f"EXPLAIN QUERY PLAN {sql}", *ordered(("north-clinic", "stored", 0, "archived", 100)))
    read = [str(step[3]) for step in plan if "SEARCH" in str(step[3]) or "SCAN" in str(step[3])]
    assert [step.split("INDEX ")[-1] for step in read] == [
        "ix_objects_lapsed (org=? AND state<?)",
        "ix_results_original (org=? AND original_id=?)",
    ]


def collected_at(bench: Bench, at: int) -> bool:
    """The collector of another process runs after so many objects of a batch, too late; was the batch accepted?"""
    other = bench.opened()

    def collect(*_: Any) -> None:
        if len(bench.objects.puts) == at:
            lapse(bench)
            other.collect(principal=OWNER)

    bench.objects.after_put = collect
    try:
        bench.session.archive(ALL)
    except BatchRejectedError:
        return False
    finally:
        other.close()
    return True


@pytest.mark.parametrize("at", [1, 2])
def test_a_batch_whose_intents_were_collected_meanwhile_is_not_committed(bench: Bench, at: int) -> None:
    assert not collected_at(bench, at)
    assert bench.desk.execute("SELECT count(*) FROM results WHERE state = 'archived'") == [(0,)]
    bench.objects.after_put = lambda key: None
    bench.session.archive(ALL)
    assert bench.contents(bench.archive) == [LARGE, SMALL, PARTS]


def test_a_batch_whose_intents_were_collected_after_they_were_read_back_is_not_committed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, other = Envelopes.put, bench.opened()

    def late(self: Envelopes, outsides: Any, *, wait_ms: int) -> None:
        put(self, outsides, wait_ms=wait_ms)
        lapse(bench)
        other.collect(principal=OWNER)

    monkeypatch.setattr(Envelopes, "put", late)
    with pytest.raises(BatchRejectedError, match="longer than an intent lasts"):
        bench.session.archive(ALL)
    assert bench.desk.execute("SELECT count(*) FROM results WHERE state = 'archived'") == [(0,)]
    other.close()


def test_must_fail_control_a_commit_that_does_not_look_again_loses_an_original(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(writer: Any, outsides: Any) -> None:
        rows = [writer.object(outside.row.original_id) for outside in outsides]
        writer.update_objects([replace(row, state="stored") for row in rows])

    def put(self: Envelopes, outside: Any) -> None:
        data = b"".join(outside.pieces)
        bench.objects.put(f"{outside.row.key}.00000", data)
        outside.envelope_sha256 = sha256(data).digest()

    monkeypatch.setattr(Envelopes, "keep", staticmethod(blind))
    monkeypatch.setattr(Envelopes, "_put", put)
    assert collected_at(bench, 2)
    with pytest.raises(StoreUnavailableError):
        bench.session.restore("r1")


# --- a commit of unknown end ------------------------------------------------------------------------------------


def test_a_model_whose_commit_was_reported_as_failed_gets_the_receipt_that_was_recorded(
    talk: Conversation, desk: Desk
) -> None:
    flaky = opened(desk)
    session = flaky.session("case", OWNER)
    talk.tool(SMALL)
    talk.say()
    session.view(talk.messages)
    flaky.flaky.plan.error("store.commit.after", times=1)
    talk.ours(session, "archive_evidence", batch_of(("r1", "a small one")))
    talk.tool("later")
    session.view(talk.messages)
    assert desk.execute("SELECT number, own FROM results ORDER BY number") == [(1, None), (2, "receipt"), (3, None)]
    flaky.close()


# --- bounds -----------------------------------------------------------------------------------------------------


def test_without_an_object_store_an_original_above_64_mib_is_too_large(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evidence_archive.vault.INLINE_SIZE_LIMIT", 1_000_000)
    bench = Bench(desk, policy=policy_of(original_bytes_max=100_000_000))
    bench.archive.close()
    with bench.opened(objects=None) as archive:
        session = archive.session("case", OWNER)
        session.view(bench.talk.messages)
        with pytest.raises(BatchRejectedError, match="without objects=") as refused:
            session.archive(ALL)
    assert [target.status for target in refused.value.targets] == ["not_eligible", "ok", "not_eligible"]


@pytest.mark.parametrize("size", [-1, 64 * 1024 * 1024 + 1, True, "1", 1.5])
def test_an_inline_size_out_of_bounds_is_refused(desk: Desk, size: Any) -> None:
    with pytest.raises(FormatError, match="inline_size_max"):
        desk.open(inline_size_max=size)


def test_with_an_inline_size_of_zero_every_original_lies_outside(desk: Desk) -> None:
    bench = Bench(desk, inline_size_max=0)
    bench.session.archive(ALL)
    assert len(bench.rows()) == 3
    assert bench.contents(bench.archive) == [LARGE, SMALL, PARTS]
    bench.archive.close()


def test_threads_with_large_batches_of_their_own_sessions_all_succeed(desk: Desk) -> None:
    bench = Bench(desk)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            session, talk = bench.archive.session(f"case-{number}", OWNER), Conversation()
            talk.tool(f"{number}" + LARGE)
            talk.say()
            session.view(talk.messages)
            session.archive([("r1", "a log")])
            assert session.restore("r1", lines="1").content.startswith(f"{number}0 row")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    bench.archive.close()


_MEASURED = """
import io, resource, sys
from pathlib import Path
from conftest import Conversation, Desk
from doubles import Characters, arguments, batch_of, opened, policy_of
from sqlalchemy.dialects import sqlite
from evidence_archive import Principal
size = int(sys.argv[2])
OWNER = Principal(org="north-clinic", subject="owner")
line = "".join(f"{n} shard {n * 7919 % 1000} timed out after 30 s\\n" for n in range(30_000))
policy = policy_of(original_bytes_max=2 * 1024 ** 3)
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
class Sink(io.RawIOBase):
    size = 0
    def write(self, data):
        self.size += len(data)
        return len(data)
with Desk(Path(sys.argv[1])).open(counter=Characters(), policy=policy) as archive:
    session, talk = archive.session("case", OWNER), Conversation()
    def warm(name):
        other, small = archive.session(name, OWNER), Conversation()
        small.tool(line)
        small.say()
        other.view(small.messages)
        other.archive([("r1", "a log")])
        other.restore("r1", lines="3")
        archive.restore_to(Sink(), name, "r1", principal=OWNER)
    warm("warm")
    text = line * (size // len(line))
    talk.tool(text)
    talk.say()
    session.view(talk.messages)
    before = peak()
    session.archive([("r1", "a log")])
    archived = peak()
    part = session.restore("r1", lines="29999-30002").content
    assert part.count("\\n") == 4 and part in text, "the lines"
    tail = session.restore("r1", byte_range=f"{len(text) - 100}-{len(text) - 1}").content
    assert tail == text[-100:].encode(), "the bytes"
    sink = Sink()
    archive.restore_to(sink, "case", "r1", principal=OWNER)
    assert sink.size == len(text)
    print(len(text), archived - before, peak() - before)
"""


def grown(desk: Desk, size_bytes: int, first: str = "") -> tuple[int, int, int]:
    """Size of the original, and how much the peak of memory grew in MiB: by archiving, and by restores too."""
    told = subprocess.run(
        [sys.executable, "-c", first + _MEASURED, str(desk.folder), str(size_bytes)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    size, archived, restored = map(int, told.stdout.split())
    return size, archived, restored


def test_an_original_of_300_mib_is_archived_and_cut_with_less_than_64_mib_of_memory(desk: Desk) -> None:
    size, archived, restored = grown(desk, 300 * 1024 * 1024)
    assert size > 290 * 1024 * 1024
    assert archived < 64
    assert restored < 64


@pytest.mark.nightly
def test_an_original_of_nearly_2_gib_is_archived_and_cut_with_less_than_64_mib_of_memory(desk: Desk) -> None:
    size, archived, restored = grown(desk, 2 * 1024**3)
    assert size > 2_000 * 1024 * 1024
    assert archived < 64
    assert restored < 64


@pytest.mark.nightly
def test_must_fail_control_an_original_sealed_in_memory_takes_more(desk: Desk) -> None:
    naive = "from evidence_archive import model\nmodel.LONG_TEXT_CHARS_MIN = 1 << 40\n"
    assert grown(desk, 300 * 1024 * 1024, naive)[1] > 64

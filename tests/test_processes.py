"""Several real processes on one store, and processes that are killed: one truth, and a receipt is a promise."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import listen_to, patient

from evidence_archive import Archive, NotAvailableError, Principal
from evidence_archive.records import Records

OWNER = Principal(org="north-clinic", subject="owner")
HERE = Path(__file__).parent


def together(script: str, desk: Desk, count: int) -> list[Any]:
    """Run a script in several processes that begin at the same moment; what each printed, as JSON."""
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(desk.folder), str(number), desk.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=HERE,
        )
        for number in range(count)
    ]
    for worker in workers:  # each says when it has loaded everything
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    told = [worker.communicate(timeout=600)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * count
    return [json.loads(text) for text in told]


# --- registering ------------------------------------------------------------------------------------------------


def conversation(own: int | None = None) -> list[Any]:
    """Five turns that all processes hold, with results of one process alone between them."""
    talk = Conversation()
    for turn in range(5):
        talk.tool(f"shared finding {turn}\n" * 60, call_id=f"shared{turn}")
        talk.say()
        if own is not None:
            talk.tool(f"finding {turn} of process {own}\n" * 60, call_id=f"own{own}-{turn}")
            talk.say()
    return talk.messages


def ids(view: list[Any]) -> dict[str, str]:
    """The result ID of each call, from the labels."""
    return {
        message["tool_call_id"]: message["content"].split()[1]
        for message in view
        if message["role"] == "tool" and message["content"].startswith("[evidence r")
    }


_REGISTERING = """
import json, sys
from pathlib import Path
from conftest import Desk
from doubles import patient
from test_processes import OWNER, conversation, ids
with Desk(Path(sys.argv[1]), sys.argv[3]).open(policy=patient()) as archive:
    session = archive.session("case", OWNER)
    messages = conversation(int(sys.argv[2]))
    print("ready", flush=True)
    sys.stdin.readline()
    for end in range(1, len(messages) + 1):
        view = session.view(messages[:end])
    print(json.dumps(ids(view)))
"""


def test_processes_that_meet_the_same_results_at_once_give_them_the_same_ids(desk: Desk) -> None:
    with desk.open(policy=patient()) as archive:
        archive.session("case", OWNER)
    told = together(_REGISTERING, desk, 4)
    shared = [{call: given for call, given in one.items() if call.startswith("shared")} for one in told]
    assert len(shared[0]) == 5
    assert shared == [shared[0]] * 4
    own = [given for one in told for call, given in one.items() if call.startswith("own")]
    assert len(own) == len(set(own)) == 20
    assert not set(own) & set(shared[0].values())
    assert desk.execute("SELECT count(*), count(DISTINCT call_id), min(number), max(number) FROM results") == [
        (25, 25, 1, 25)
    ]


def raced(desk: Desk) -> tuple[dict[str, str], dict[str, str]]:
    """Two sessions register the same results, the second one just after the first one has looked."""
    with desk.open(policy=patient()) as one, desk.open(policy=patient()) as two:
        first, second = one.session("case", OWNER), two.session("case", OWNER)
        messages = conversation()
        second_view: list[Any] = []
        looked = first._records.refresh

        def refresh(wait_ms: int) -> None:
            looked(wait_ms)
            if not second_view:
                second_view.extend(second.view(messages))

        first._records.refresh = refresh  # type: ignore[method-assign]
        first_view = first.view(messages)
        return ids(first_view), ids(second_view)


def test_a_result_that_another_process_registers_meanwhile_gets_no_second_id(desk: Desk) -> None:
    first, second = raced(desk)
    assert len(first) == 5
    assert first == second
    assert desk.execute("SELECT count(*) FROM results") == [(5,)]


def test_registering_without_looking_again_under_the_lock_would_give_second_ids(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = Records.session_under_lock

    def blind(self: Records, writer: Any) -> Any:
        row = locked(self, writer)
        self.row = replace(self.row, version=row.version)
        return row

    monkeypatch.setattr(Records, "session_under_lock", blind)
    first, second = raced(desk)
    assert first != second


# --- the first use of an org ------------------------------------------------------------------------------------

_FIRST_USE = """
import json, sys
from pathlib import Path
from conftest import Conversation, Desk
from doubles import patient
from test_processes import OWNER
with Desk(Path(sys.argv[1]), sys.argv[3]).open(policy=patient()) as archive:
    print("ready", flush=True)
    sys.stdin.readline()
    session, talk = archive.session("case-" + sys.argv[2], OWNER), Conversation()
    talk.tool(f"finding of process {sys.argv[2]}\\n" * 60)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "a note")])
    print(json.dumps("done"))
"""


def test_processes_that_use_an_org_first_at_once_make_one_org_that_all_of_them_can_open(desk: Desk) -> None:
    desk.open(policy=patient()).close()  # the schema is there, the org is not
    assert together(_FIRST_USE, desk, 8) == ["done"] * 8
    assert desk.execute("SELECT count(*) FROM orgs") == [(1,)]
    assert desk.execute("SELECT count(*) FROM audit_heads") == [(1,)]
    with desk.open(policy=patient()) as archive:
        for number in range(8):
            restored = archive.restore(f"case-{number}", "r1", principal=OWNER)
            assert restored.content == f"finding of process {number}\n" * 60
        report = archive.audit(principal=OWNER)
        assert report.intact
        assert [entry.event for entry in report.entries].count("key.created") == 1
        assert [entry.event for entry in report.entries].count("policy.loaded") == 1


# --- killed -----------------------------------------------------------------------------------------------------


def finding(name: str, number: int) -> str:
    return f"finding {number} of {name}\r\n" * 50


def work(folder: str, url: str, name: str, kill_at: int | None, early: bool) -> None:
    """Archive batch after batch and print every receipt; with ``kill_at`` one batch, dying at that statement."""
    with Desk(Path(folder), url).open(policy=patient()) as archive:
        session, talk = archive.session(name, OWNER), Conversation()
        for first in range(1, 400, 3):
            for number in range(first, first + 3):
                talk.tool(finding(name, number))
            talk.say()
            session.view(talk.messages)
            batch = [(f"r{number}", f"note {number}") for number in range(first, first + 3)]
            if early:
                say({"receipt": [result_id for result_id, _ in batch]})
            if kill_at is not None:
                die_at(archive, kill_at)
            receipt = session.archive(batch)
            say({"receipt": [target.result_id for target in receipt.targets]})
            if kill_at is not None:
                return


def die_at(archive: Archive, statement: int) -> None:
    """From now on: SIGKILL to this process when it comes to this statement."""
    counted = [0]

    def count(_sql: str) -> None:
        counted[0] += 1
        if counted[0] > statement:
            os.kill(os.getpid(), signal.SIGKILL)

    listen_to(archive, count)


def say(what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


_NURSERY = """
import json, os, sys
from test_processes import say, work
import evidence_archive.store.sql
from evidence_archive.tokens import default_counter
default_counter().count("loaded once, before the children")
for line in sys.stdin:
    given = json.loads(line)
    child = os.fork()
    if child == 0:
        try:
            work(**given)
        finally:
            os._exit(1)
    say({"pid": child})
    os.waitpid(child, 0)
    say({"ended": child})
"""


class Nursery:
    """A process that has loaded everything and forks a worker for every round."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.process = subprocess.Popen(
            [sys.executable, "-c", _NURSERY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE
        )

    def round(
        self,
        name: str,
        *,
        kill_after: int | None = None,
        kill_at: int | None = None,
        early: bool = False,
        strike: Callable[[int], None] = lambda child: os.kill(child, signal.SIGKILL),
    ) -> list[list[str]]:
        """The receipts a worker printed until it was killed, or until what else strikes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        given = {"folder": str(self.desk.folder), "url": self.desk.url, "name": name}
        given |= {"kill_at": kill_at, "early": early}
        self.process.stdin.write(json.dumps(given) + "\n")
        self.process.stdin.flush()
        receipts: list[list[str]] = []
        child = None
        for line in self.process.stdout:
            told = json.loads(line)
            child = told.get("pid", child)
            if "receipt" in told:
                receipts.append(told["receipt"])
            if kill_after is not None and child is not None and len(receipts) > kill_after % 4:
                time.sleep(kill_after * 7 % 20 / 1_000)
                strike(child)
                kill_after = None
            if "ended" in told:
                break
        return receipts

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


@pytest.fixture
def nursery(desk: Desk) -> Iterator[Nursery]:
    desk.open(policy=patient()).close()
    made = Nursery(desk)
    yield made
    made.close()


def promises_kept(desk: Desk, name: str, receipts: list[list[str]]) -> None:
    """Every printed receipt is restorable, no batch is half there, and the log is whole."""
    with desk.open(policy=patient()) as archive:
        for result_id in (one for receipt in receipts for one in receipt):
            number = int(result_id.removeprefix("r"))
            assert archive.restore(name, result_id, principal=OWNER).content == finding(name, number)
        assert archive.audit(principal=OWNER).intact
    archived = desk.execute("SELECT batch_id, count(*) FROM results WHERE state = 'archived' GROUP BY batch_id")
    assert {count for _, count in archived} <= {3}
    assert {batch for batch, _ in archived} == {batch for (batch,) in desk.execute("SELECT batch_id FROM batches")}
    assert desk.execute("SELECT count(*) FROM originals") == [(3 * len(archived),)]


def test_every_receipt_printed_before_a_kill_is_restorable_and_no_batch_is_half_there(
    desk: Desk, nursery: Nursery
) -> None:
    printed = 0
    for number in range(20):
        receipts = nursery.round(f"round {number}", kill_after=number)
        assert receipts, "the worker has to have come so far"
        promises_kept(desk, f"round {number}", receipts)
        printed += len(receipts)
    assert printed >= 20


def test_a_worker_killed_at_any_statement_of_a_batch_leaves_all_of_it_or_none(desk: Desk, nursery: Nursery) -> None:
    outcomes = []
    for statement in range(60):
        receipts = nursery.round(f"statement {statement}", kill_at=statement)
        promises_kept(desk, f"statement {statement}", receipts)
        outcomes.append(bool(receipts))
        if receipts:
            break
    assert outcomes == [False] * (len(outcomes) - 1) + [True], "the last round goes through, all before are killed"
    assert len(outcomes) > 12


def test_a_receipt_printed_before_the_commit_would_be_caught(desk: Desk, nursery: Nursery) -> None:
    receipts = nursery.round("early", kill_at=4, early=True)
    assert receipts == [["r1", "r2", "r3"]]
    with pytest.raises(NotAvailableError):
        promises_kept(desk, "early", receipts)

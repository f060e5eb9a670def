"""What has to hold after any fault: nothing promised is lost, nothing is half there, nothing is shown without proof.

The store is opened anew and asked through the library; what no verb tells (rows of all tables together) is read
beside it from the same URL, so that the checks hold for every database the library supports.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conftest import Conversation
from sqlalchemy import Table, create_engine, func, select
from sqlalchemy.pool import NullPool

from evidence_archive import Archive, EvidenceArchiveError, Principal
from evidence_archive.proof.leaf import BATCH_ACCEPTED
from evidence_archive.store import tables

__all__ = ["OWNER", "Case", "batch_of", "conversation", "count_of", "findings", "note", "view_findings"]

OWNER = Principal(org="north-clinic", subject="owner")


@dataclass
class Case:
    """A session, the messages it was given, and the batches (lists of result IDs) whose receipts came out."""

    session_id: str
    messages: list[Any]
    acknowledged: list[list[str]] = field(default_factory=list)


def conversation(name: str, sizes: Sequence[int]) -> list[Any]:
    """A made-up conversation with a read result of each size in characters; about half of it compresses away."""
    talk = Conversation()
    for number, size in enumerate(sizes, 1):
        noise = random.Random(f"{name} {number}").randbytes(size // 2).hex()
        talk.tool(f"finding {number} of {name}\r\n{noise}"[:size])
        talk.say()
    return talk.messages


def batch_of(first: int, last: int) -> list[tuple[str, str]]:
    """The batch of the results from ``first`` to ``last``, where results were registered in their order."""
    return [(f"r{number}", note(number)) for number in range(first, last + 1)]


def note(place: int) -> str:
    """The note of the result at a place in the conversation, counted from 1."""
    return f"set aside as number {place}."


def view_findings(view: Sequence[Any], messages: Sequence[Any], archived: Collection[int] | None = None) -> list[str]:
    """What is wrong with a view: a result that is neither whole nor its note, or not what its state says.

    Args:
        view, messages: of a conversation.
        archived: places of the results that are archived, where that is known.
    """
    found = []
    results = [at for at, message in enumerate(messages) if message["role"] == "tool"]
    for place, at in enumerate(results, 1):
        shown, content = view[at]["content"], messages[at]["content"]
        whole, noted = shown.endswith(content), content not in shown and note(place) in shown
        if whole == noted:
            found.append(f"The view shows result {place} neither whole nor as its note.")
        elif archived is not None and noted != (place in archived):
            found.append(f"The view shows result {place} as what it is not.")
    return found


def findings(
    url: str, opened: Callable[[], Archive], cases: Iterable[Case], *, owner: Principal = OWNER
) -> list[str]:
    """Everything that does not hold in a store, one sentence each; empty when all is well.

    Args:
        url: of the store.
        opened: opens it with the library.
        cases: the sessions to look into; tables and log are checked for all of the org.
        owner: of the sessions.
    """
    found: list[str] = []
    try:
        with opened() as archive:
            views = []
            for case in cases:
                session = archive.session(case.session_id, owner)
                views.append((case, session.view(case.messages)))
            rows = _Rows(url, owner.org)
            for case, view in views:
                found += _case_findings(archive, case, view, rows, owner)
            found += rows.findings()
            report = archive.audit(principal=owner)
            found += report.findings
            if not report.intact:
                found.append("The audit log is not intact.")
            accepted = Counter(
                (entry.batch_id, tuple(entry.details["results"]))
                for entry in report.entries
                if entry.event == BATCH_ACCEPTED
            )
            if accepted != Counter((batch.hex(), tuple(ids)) for batch, ids in rows.archived_in.items()):
                found.append("The batches in the audit log are not those of the results.")
    except Exception as error:
        found.append(f"The store cannot be used: {type(error).__name__}: {error}")
    return found


def count_of(url: str, table: Table, org: str = OWNER.org) -> int:
    """How many rows of an org a table holds."""
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(select(func.set_config("evidence_archive.org", org, False)))
        counted: int = connection.execute(
            select(func.count()).select_from(table).where(table.c.org == org)
        ).scalar_one()
    engine.dispose()
    return counted


class _Rows:
    """What the tables of an org hold, read without the library."""

    def __init__(self, url: str, org: str) -> None:
        t, r = tables, tables.RESULTS.c
        engine = create_engine(url, poolclass=NullPool)
        with engine.connect() as connection:
            if engine.dialect.name == "postgresql":  # row-level security shows nothing else
                connection.execute(select(func.set_config("evidence_archive.org", org, False)))

            def all_of(*columns: Any) -> list[Any]:
                return list(connection.execute(select(*columns).where(columns[0].table.c.org == org)))

            sessions = all_of(t.SESSIONS.c.session_id, t.SESSIONS.c.scope_id)
            results = all_of(r.scope_id, r.number, r.state, r.batch_id, r.original_id, r.origin, r.call_id)
            self.originals = Counter(original_id for (original_id,) in all_of(t.ORIGINALS.c.original_id))
            o = t.OBJECTS.c
            self.originals.update(one for one, state in all_of(o.original_id, o.state) if state == "stored")
            self.batches = Counter(batch_id for (batch_id,) in all_of(t.BATCHES.c.batch_id))
        engine.dispose()
        names = {scope_id: session_id for session_id, scope_id in sessions}
        self.archived: defaultdict[str, dict[str, tuple[bytes, str]]] = defaultdict(dict)
        """By session and result ID: the batch, and the call it answers."""
        self.archived_in: defaultdict[bytes, list[str]] = defaultdict(list)
        self.named: Counter[bytes] = Counter()
        self.bad_rows = 0
        calls = Counter((row.scope_id, row.call_id) for row in results)
        self.twice = [call for call, times in calls.items() if times > 1]
        for row in sorted(results, key=lambda row: (row.scope_id, row.number)):
            if row.state == "archived":
                self.archived[names[row.scope_id]][f"r{row.number}"] = row.batch_id, row.call_id.decode()
                self.archived_in[row.batch_id].append(f"r{row.number}")
                if row.origin is None:
                    self.named[row.original_id] += 1
            elif row.batch_id is not None or row.original_id is not None:
                self.bad_rows += 1

    def findings(self) -> list[str]:
        found = []
        if self.twice:
            found.append(f"{len(self.twice)} results have more than one row.")
        if self.bad_rows:
            found.append(f"{self.bad_rows} live results have a part of what archived ones have.")
        if self.originals != self.named:
            found.append(f"There are {len(self.originals)} originals, and results name {len(self.named)} others.")
        if self.batches != Counter(set(self.archived_in)):
            found.append(f"There are {len(self.batches)} batches, and results name {len(self.archived_in)} others.")
        return found


def _case_findings(archive: Archive, case: Case, view: Sequence[Any], rows: _Rows, owner: Principal) -> list[str]:
    archived = rows.archived[case.session_id]
    results = [message for message in case.messages if message["role"] == "tool"]
    places = {message["tool_call_id"]: place for place, message in enumerate(results, 1)}
    found = view_findings(view, case.messages, {places[call_id] for _, call_id in archived.values()})
    for result_id, (_, call_id) in archived.items():
        try:
            restored = archive.restore(case.session_id, result_id, principal=owner)
            if restored.content != results[places[call_id] - 1]["content"]:
                found.append(f"{result_id} of {case.session_id} comes back as something else.")
        except EvidenceArchiveError as error:
            found.append(f"{result_id} of {case.session_id} does not come back: {type(error).__name__}")
    for ids in case.acknowledged:
        batches = {archived.get(result_id, (None, ""))[0] for result_id in ids}
        if None in batches:
            found.append(f"The batch of {ids} in {case.session_id} was acknowledged, and is lost.")
        elif len(batches) != 1 or rows.archived_in[batches.pop() or b""] != ids:
            found.append(f"The batch of {ids} in {case.session_id} is not one batch.")
    return found

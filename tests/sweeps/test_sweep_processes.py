"""Many processes on one store: one log without forks, one row for each original, one org, and every receipt holds."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Desk
from crowd import SHARED, opened_at, shared_and_own
from invariants import OWNER, Case, count_of, findings
from nursery import Nursery

from evidence_archive.proof.leaf import KEY_CREATED, POLICY_LOADED
from evidence_archive.store import tables

Record = Callable[[str, object], None]

REFUSALS = {"targets", "changed"}
"""Another process archived it first, or changed it meanwhile: nothing was done, and asking again is all it takes."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


def together(nursery: Nursery, work: str, processes: int, **given: Any) -> list[dict[str, Any]]:
    """What children said that began a work at the same moment."""
    children = [nursery.start(work, number=number, **given) for number in range(processes)]
    for child in children:
        child.ready()
    for child in children:
        child.go()
    ends = [child.ended() for child in children]
    assert [code for code, _ in ends] == [0] * processes, ends
    return [one for _, said in ends for one in said]


def crowded(
    nursery: Nursery, desk: Desk, operations: int, seed: str, *, naive: bool = False
) -> tuple[list[str], Counter[str], int]:
    """What is wrong after 8 processes worked on a store; how they were refused; how many receipts there are."""
    at = {"url": desk.url, "keys": str(desk.keys)}
    opened_at(**at).close()
    said = together(nursery, "crowd.operate", 8, operations=operations, seed=seed, naive=naive, **at)
    messages = {name: listed for number in range(8) for name, listed in shared_and_own(number).items()}
    cases = {name: Case(name, listed) for name, listed in messages.items()}
    for one in said:
        if "receipt" in one:
            cases[one["session"]].acknowledged.append(one["receipt"])
    receipts = [(name, ids[0]) for name, case in cases.items() for ids in case.acknowledged]
    found = [one["wrong"] for one in said if "wrong" in one]
    found += [f"{twice} was acknowledged twice." for twice, times in Counter(receipts).items() if times > 1]
    found += findings(desk.url, lambda: opened_at(**at), cases.values())
    assert naive or any(name == SHARED for name, _ in receipts)
    return (
        found,
        Counter(one["refused"] for one in said if "refused" in one),
        len(receipts),
    )


def sweep(nursery: Nursery, desk: Desk, operations: int, seed: str, record: Record) -> None:
    found, refused, receipts = crowded(nursery, desk, operations, seed)
    record("operations", 8 * operations)
    record("receipts", receipts)
    record("refusals", dict(refused))
    record("violations", len(found))
    assert not found
    assert not refused.keys() - REFUSALS
    assert count_of(desk.url, tables.ORGS) == 1


@pytest.mark.parametrize("repetition", range(2))
def test_processes_on_one_store_fork_no_log_and_keep_every_receipt(
    nursery: Nursery, desk: Desk, repetition: int, record_property: Record
) -> None:
    sweep(nursery, desk, 40, f"short {repetition}", record_property)


@pytest.mark.nightly
@pytest.mark.parametrize("repetition", range(20))
def test_processes_on_one_store_fork_no_log_and_keep_every_receipt_for_long(
    nursery: Nursery, desk: Desk, repetition: int, record_property: Record
) -> None:
    sweep(nursery, desk, 200, f"long {repetition}", record_property)


def first_used(nursery: Nursery, desk: Desk) -> None:
    at = {"url": desk.url, "keys": str(desk.keys)}
    opened_at(**at).close()
    said = together(nursery, "crowd.first_use", 16, **at)
    assert [one.get("receipt") for one in said] == [["r1"]] * 16
    cases = [
        Case(one["session"], shared_and_own(number)[one["session"]], [one["receipt"]])
        for number, one in enumerate(sorted(said, key=lambda one: int(one["session"].split()[1])))
    ]
    assert not findings(desk.url, lambda: opened_at(**at), cases)
    assert count_of(desk.url, tables.ORGS) == count_of(desk.url, tables.AUDIT_HEADS) == 1
    with opened_at(**at) as archive:
        events = Counter(entry.event for entry in archive.audit(principal=OWNER).entries)
    assert (events[KEY_CREATED], events[POLICY_LOADED]) == (1, 1)


@pytest.mark.parametrize("repetition", range(2))
def test_sixteen_processes_that_use_an_org_first_make_one_key(nursery: Nursery, desk: Desk, repetition: int) -> None:
    first_used(nursery, desk)


@pytest.mark.nightly
@pytest.mark.parametrize("repetition", range(20))
def test_sixteen_processes_that_use_an_org_first_make_one_key_every_time(
    nursery: Nursery, desk: Desk, repetition: int
) -> None:
    first_used(nursery, desk)


def test_transactions_that_read_before_they_lock_fork_or_fail(
    nursery: Nursery, sqlite_desk: Desk, record_property: Record
) -> None:
    found, refused, _ = crowded(nursery, sqlite_desk, 40, "naive", naive=True)
    record_property("violations", len(found))
    record_property("refusals", dict(refused))
    assert found or refused.keys() - REFUSALS

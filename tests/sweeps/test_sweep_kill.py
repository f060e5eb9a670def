"""An agent that is killed at random moments: what it acknowledged stays, and what it was at is whole or not there.

Every second batch has an original outside the database. The delays come from fixed seeds, the moments they fall on do
not: the claim holds for any.
"""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from invariants import Case
from nursery import Nursery
from workers import ENDLESS_BATCH, JOURNALS, endless, prepared, store_findings

ROUNDS_PER_STORE = 10
RECEIPTS_MAX = 2
"""So many are waited for at most before the time of the kill is drawn, however slow the machine is."""

DELAY_S_MAX = 0.05
"""Some batches' time; how many is the machine's affair."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


def killed(nursery: Nursery, folder: Path, mode: str, name: str, naive: str | None = None) -> Case:
    """A session that archived until it was killed, with all it acknowledged and all it may have seen."""
    child = nursery.start(
        "workers.many_batches", folder=str(folder), session_id=name, rules=JOURNALS[mode], naive=naive
    )
    child.ready()
    child.go()
    draw = random.Random(f"{mode} {name}")
    heard = [child.heard() for _ in range(draw.randint(0, RECEIPTS_MAX))]
    time.sleep(draw.uniform(0, DELAY_S_MAX))
    child.kill()
    code, said = child.ended()
    assert code == -9, said
    acknowledged = [one["receipt"] for one in heard + said]
    results_max = ENDLESS_BATCH * (len(acknowledged) + 1)
    return Case(name, endless(name)[: 1 + 3 * results_max], acknowledged)


def sweep(nursery: Nursery, tmp_path: Path, mode: str, rounds: int, record: Callable[[str, object], None]) -> None:
    acknowledged, found = 0, []
    for number in range(rounds):
        if number % ROUNDS_PER_STORE == 0:  # killed agents before it are part of a store's life
            folder = prepared(tmp_path / f"store {number}", mode)
        case = killed(nursery, folder, mode, f"round {number}")
        acknowledged += len(case.acknowledged)
        found += [f"round {number}: {one}" for one in store_findings(folder, [case], mode)]
    record("kills", rounds)
    record("acknowledged", acknowledged)
    record("violations", len(found))
    assert not found, "\n".join(found)
    assert acknowledged > rounds / 2, "few agents came as far as a receipt"


@pytest.mark.parametrize("mode", JOURNALS)
def test_no_kill_at_a_random_moment_loses_or_halves_a_batch(
    nursery: Nursery, tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    sweep(nursery, tmp_path, mode, 50, record_property)


@pytest.mark.nightly
@pytest.mark.parametrize("mode", JOURNALS)
def test_no_kill_of_many_at_a_random_moment_loses_or_halves_a_batch(
    nursery: Nursery, tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    sweep(nursery, tmp_path, mode, 1_000, record_property)


def test_a_receipt_that_goes_out_before_the_commit_is_caught(nursery: Nursery, tmp_path: Path) -> None:
    folder = prepared(tmp_path / "store", "truncate")
    found: list[str] = []
    for number in range(100):  # nearly all of the agent's time lies between such a receipt and its commit
        case = killed(nursery, folder, "truncate", f"early {number}", naive="early")
        found = store_findings(folder, [case], "truncate")
        if found:
            break
    assert any("was acknowledged, and is lost" in one for one in found)

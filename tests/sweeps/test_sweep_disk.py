"""Disks that are full, files that are away: typed errors, whole views, nothing lost, and on again without restart.

What is mounted is mounted in a child's own namespace; where that is refused the tests say so.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from disks import WAYS
from nursery import Nursery
from workers import JOURNALS

KEEPS_OPEN_FILES = {"immutable file", "immutable folder", "read-only mount", "not permitted"}


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as made:
        yield made


def told(nursery: Nursery, work: str, **given: Any) -> dict[str, Any]:
    """What a child said of its store, once it has ended."""
    code, said = nursery.start(work, **given).ended()
    assert len(said) == 1, said
    if "missing" in said[0]:
        pytest.skip(f"sweep: {said[0]['missing']}")
    assert code == 0, said
    return said[0]


@pytest.mark.parametrize("mode", JOURNALS)
def test_a_full_disk_is_a_typed_error_that_loses_nothing_and_passes(
    nursery: Nursery, tmp_path: Path, mode: str, record_property: Callable[[str, object], None]
) -> None:
    said = told(nursery, "disks.full", folder=str(tmp_path), mode=mode)
    record_property("receipts", said["receipts"])
    record_property("refusals", len(said["refusals"]))
    assert not said["found"]
    assert said["receipts"] > 10
    assert set(said["refusals"]) == {"StoreUnavailableError"}


@pytest.mark.parametrize("mode", JOURNALS)
@pytest.mark.parametrize("way", WAYS)
def test_a_database_file_that_is_not_what_it_was_is_a_typed_error_until_it_is_back(
    nursery: Nursery, tmp_path: Path, way: str, mode: str, record_property: Callable[[str, object], None]
) -> None:
    said = told(nursery, "disks.hindered", folder=str(tmp_path), mode=mode, way=way)
    record_property("receipts", said["receipts"])
    record_property("refusals", len(said["refusals"]))
    assert not said["found"]
    # Where no file has to be opened for it, archiving goes on in a folder that became read-only: these receipts hold.
    assert said["refusals"] or (way in KEEPS_OPEN_FILES and said["receipts"] == 5)


def test_an_agent_that_takes_a_full_disk_s_refusal_for_a_receipt_is_caught(nursery: Nursery, tmp_path: Path) -> None:
    said = told(nursery, "disks.full", folder=str(tmp_path), mode="truncate", naive=True)
    assert any("was acknowledged, and is lost" in one for one in said["found"])

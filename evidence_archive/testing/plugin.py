"""The pytest plugin: an archive for a test, and the faults in front of it.

Every pytest run of every environment that has the library imports this module, so it imports nothing but pytest; it
adds two fixtures and one marker, and no options.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import os

    from evidence_archive.archive import Archive
    from evidence_archive.policy import Policy
    from evidence_archive.ports import KeyProvider
    from evidence_archive.testing.faults import FaultPlan

__all__ = ["pytest_configure"]

MARKER = "evidence_archive"
ARGUMENTS = {"url", "keys", "policy", "objects"}

for _contract in ("store_contract", "key_contract", "object_contract"):
    if f"evidence_archive.testing.{_contract}" not in sys.modules:
        pytest.register_assert_rewrite(f"evidence_archive.testing.{_contract}")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known.

    Args:
        config: of the run.
    """
    config.addinivalue_line(
        "markers",
        f"{MARKER}(policy=None, url=None, keys=None, objects=None): what the fixture of this name opens; "
        "by default a new SQLite store with new keys under the built-in policy.",
    )


@pytest.fixture(name="evidence_faults")
def _evidence_faults() -> "FaultPlan":
    """The plan in front of the store, the keys and the objects of the fixture ``evidence_archive``.

    Nothing goes wrong until the test says so: ``evidence_faults.error("store.commit.before")``, ``.outage(...)``,
    ``.delay(...)``, ``.crash(...)``; after ``.clear()`` all is well again.
    """
    from evidence_archive.testing.faults import FaultPlan

    return FaultPlan()


@pytest.fixture(name="evidence_archive")
def _evidence_archive(
    request: pytest.FixtureRequest, tmp_path: Path, evidence_faults: "FaultPlan"
) -> Iterator["Archive"]:
    """An open archive over a new SQLite store in ``tmp_path``, with keys made for this test.

    ``@pytest.mark.evidence_archive(policy=..., url=..., keys=..., objects=...)`` chooses; arguments are those of
    ``Archive.open``.
    """
    from evidence_archive.testing.faults import faulted

    marker = request.node.get_closest_marker(MARKER)
    given: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    if marker is not None and (marker.args or not given.keys() <= ARGUMENTS):
        pytest.fail(f"The marker {MARKER} takes url, keys, policy and objects, each by its name.", pytrace=False)
    with faulted(_opened(tmp_path, **given), evidence_faults) as archive:
        yield archive


def _opened(
    folder: Path,
    *,
    policy: "str | os.PathLike[str] | Policy | None" = None,
    url: str | None = None,
    keys: "str | os.PathLike[str] | KeyProvider | None" = None,
    objects: Any = None,
) -> "Archive":
    from evidence_archive.archive import Archive
    from evidence_archive.keys import new_keys

    if keys is None:
        keys = folder / "evidence.keys"
        new_keys(keys)
    return Archive.open(url or f"sqlite:///{folder}/evidence.db", keys=keys, policy=policy, objects=objects)

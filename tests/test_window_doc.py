"""What docs/window.md says of the policy is what the code does."""

import re
from dataclasses import fields
from pathlib import Path

from evidence_archive.model import WindowPolicy
from evidence_archive.searching import BYTES_MAX, HITS_MAX, ORIGINALS_MAX

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "window.md").read_text("utf-8")


def test_the_page_lists_every_key_of_the_window_with_its_default():
    table = re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, re.M)
    assert table == [(one.name, str(getattr(WindowPolicy(), one.name))) for one in fields(WindowPolicy)]


def test_the_page_states_the_bounds_of_a_search_as_they_are():
    stated = re.search(r"newest (\d+) originals and spans of the session, (\d+) MiB", PAGE)
    assert stated is not None
    assert (int(stated[1]), int(stated[2]) * 1024 * 1024) == (ORIGINALS_MAX, BYTES_MAX)
    assert f"At most {HITS_MAX} lines" in PAGE

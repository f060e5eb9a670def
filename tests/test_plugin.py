"""The pytest plugin: an archive and its faults for anybody's tests, and nothing for anybody else's."""

import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from evidence_archive import Archive, Principal
from evidence_archive.errors import BatchRejectedError, KeyringError, NotAvailableError
from evidence_archive.testing import Crashed, FaultPlan, KeyProviderContract
from evidence_archive.testing.faults import FAULT_POINTS
from evidence_archive.testing.sweeping import KINDS

pytest_plugins = ["pytester"]

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
AGENT = Principal("north-clinic", "triage-agent")
LONG = "01:00 node 3 timeout, disk sdc\n" * 60
ONLY_LOGS = """
[policy]
name = "logs"
version = 1
default = "never"
[[archive]]
id = "logs"
tools = ["logs.*"]
effect = "allow"
"""


def read(archive: Archive, tool: str = "logs.search") -> tuple[Any, list[Any]]:
    """A session that has read one result."""
    session = archive.session("case", AGENT)
    call = {"id": "call_1", "type": "function", "function": {"name": tool, "arguments": "{}"}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": LONG},
        {"role": "assistant", "content": "Read."},
    ]
    session.view(messages)
    return session, messages


# --- the fixtures, as anybody uses them -------------------------------------------------------------------------


def test_an_archive_is_there_and_nothing_goes_wrong_unasked(
    evidence_archive: Archive, evidence_faults: FaultPlan
) -> None:
    session, messages = read(evidence_archive)
    session.archive([("r1", "disk sdc")])
    assert session.view(messages)[1]["content"].startswith("[archived r1 ")
    assert evidence_archive.restore("case", "r1", principal=AGENT).content == LONG
    assert evidence_faults.count("store.commit.after") == 4


def test_every_test_has_a_store_of_its_own(evidence_archive: Archive) -> None:
    with pytest.raises(NotAvailableError):
        evidence_archive.results("case", principal=AGENT)


def test_what_the_plan_says_goes_wrong_until_it_is_cleared(
    evidence_archive: Archive, evidence_faults: FaultPlan
) -> None:
    session, messages = read(evidence_archive)
    evidence_faults.error("store.commit.before")
    with pytest.raises(BatchRejectedError):
        session.archive([("r1", "disk sdc")])
    evidence_faults.clear()
    assert session.archive([("r1", "disk sdc")]).result_ids == ("r1",)
    evidence_faults.error("keys.unwrap")
    with pytest.raises(KeyringError):
        evidence_archive.session("case", Principal("south-clinic", "triage-agent"))
    evidence_faults.crash("store.peeking")
    with pytest.raises(Crashed):
        session.view(messages)


@pytest.mark.evidence_archive(policy=None)
def test_a_mark_may_say_what_is_so_anyway(evidence_archive: Archive) -> None:
    assert evidence_archive.policy.name == "default"


# --- in the run of somebody else --------------------------------------------------------------------------------


def ran(pytester: pytest.Pytester, body: str, *options: str) -> pytest.RunResult:
    pytester.makefile(".toml", logs=ONLY_LOGS)
    pytester.makepyfile(test_theirs=f"import pytest\nfrom test_plugin import AGENT, read\n{body}")
    return pytester.runpytest_inprocess("-q", "-W", "error", "--strict-markers", "-p", "no:cacheprovider", *options)


def test_a_mark_chooses_policy_keys_and_store(pytester: pytest.Pytester) -> None:
    from evidence_archive.keys import new_keys

    new_keys(pytester.path / "ours.keys")
    result = ran(
        pytester,
        """
@pytest.mark.evidence_archive(policy="logs.toml")
def test_policy(evidence_archive):
    session, _ = read(evidence_archive, "mail.read")
    assert session.results()[0].protected_by == "default"

@pytest.mark.parametrize("first", [True, False])
@pytest.mark.evidence_archive(url="sqlite:///ours.db", keys="ours.keys")
def test_store(evidence_archive, first):
    if first:
        read(evidence_archive)
    else:
        assert len(evidence_archive.results("case", principal=AGENT)) == 1
""",
    )
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize("mark", ['polcy="x"', '"logs.toml"'])
def test_a_mark_with_an_argument_that_does_not_exist_is_an_error_and_not_ignored(
    pytester: pytest.Pytester, mark: str
) -> None:
    result = ran(
        pytester,
        f"@pytest.mark.evidence_archive({mark})\ndef test_it(evidence_archive):\n    assert evidence_archive",
    )
    result.assert_outcomes(errors=1)
    said = "The marker evidence_archive takes url, keys, policy and objects, each by its name."
    assert [line for line in result.stdout.lines if line == said] == [said]
    assert "Traceback" not in result.stdout.str()
    assert "TypeError" not in result.stdout.str()


def test_the_marker_is_listed_and_no_option_was_added(pytester: pytest.Pytester) -> None:
    listed = pytester.runpytest_inprocess("--markers")
    listed.stdout.fnmatch_lines(["@pytest.mark.evidence_archive(policy=None, url=None, keys=None, objects=None):*"])
    helped = pytester.runpytest_inprocess("--help")
    assert "--evidence" not in helped.stdout.str()
    fixtures = pytester.runpytest_inprocess("--fixtures", "-q")
    fixtures.stdout.fnmatch_lines(["evidence_faults *", "evidence_archive *"])


def test_the_tests_that_the_document_shows_are_run_as_they_stand(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.M | re.S)
    shown = [block for block in blocks if "def test_" in block or "class Test" in block]
    pytester.makepyfile(**{f"test_shown_{at}": block for at, block in enumerate(shown)})
    result = pytester.runpytest_inprocess("-q", "-W", "error", "--strict-markers", "-p", "no:cacheprovider")
    contract = [name for name in dir(KeyProviderContract) if name.startswith("test_")]
    result.assert_outcomes(passed=1 + len(contract))


def test_the_document_lists_every_point_as_the_code_does() -> None:
    listed = re.findall(r"^\| `(\w+\.[\w.]+)` \| (.*) \|$", DOCUMENT.read_text("utf-8"), re.M)
    assert listed == [(point.name, point.words) for point in FAULT_POINTS]


def test_the_document_shows_lines_that_the_command_prints() -> None:
    text = DOCUMENT.read_text("utf-8")
    heads = "operation point n-th fault told outcome next view restored equal verdict"
    assert heads in " ".join(text.split())
    kinds = re.findall(r"^\| `(\w+)` \| [a-z]", text, re.M)
    assert tuple(kinds) == KINDS


# --- in every run -----------------------------------------------------------------------------------------------


def loaded(statement: str) -> set[str]:
    """Modules that a statement loads, pytest being loaded already."""
    code = f"import sys, pytest\nbefore = set(sys.modules)\n{statement}\nprint(*(sys.modules.keys() - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_loading_the_plugin_loads_nothing_but_itself() -> None:
    assert loaded("import evidence_archive.testing.plugin") == {
        "evidence_archive",
        "evidence_archive.testing",
        "evidence_archive.testing.plugin",
    }
    assert "evidence_archive.ports" in loaded("from evidence_archive.testing import FaultPlan"), "the look is blind"


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    found = [one.value for one in entry_points(group="pytest11") if one.name == "evidence_archive"]
    assert found == ["evidence_archive.testing.plugin"]


def test_everything_public_in_testing_is_loaded_on_first_use() -> None:
    from evidence_archive import testing

    assert sorted(name for names in testing._HOMES.values() for name in names) == sorted(testing.__all__)
    assert [name for name in testing.__all__ if not hasattr(testing, name)] == []
    assert set(testing.__all__) <= set(dir(testing))
    assert testing.FAULT_POINTS is FAULT_POINTS
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = testing.Nothing

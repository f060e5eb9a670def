"""Facts the host attaches: committed, never taken back, and after the first view only stricter."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone

import pytest
from doubles import UNAUDITED, UNWRITABLE, opened, policy_of

from evidence_archive import (
    BatchRejectedError,
    FormatError,
    MessageShapeError,
    NotAvailableError,
    PolicyError,
    Principal,
    StoreError,
)

LONG = "2026-11-30 worker 7: nothing to report\n" * 40
RULES = """
[[archive]]
id = "signed"
sensitivity = ["signed"]
effect = "never"
reason = "somebody put a name to it"

[[archive]]
id = "consent"
kind = ["consent"]
effect = "never"
reason = "consents stay"

[[restore]]
sensitivity = ["clinical"]
roles = ["veterinarian"]
"""
LENIENT = """
[[archive]]
id = "logs"
kind = ["log"]
effect = "allow"
reason = "read once"

[[archive]]
id = "old"
sensitivity = ["old"]
age_turns_min = 3
effect = "allow"
reason = "settled"

[[archive]]
id = "harmless"
sensitivity = ["harmless"]
effect = "allow"
reason = "harmless"

[[archive]]
id = "drug"
content = "controlled drug"
effect = "never"
reason = "it mentions a drug"
"""


@pytest.fixture
def archive(desk):
    with opened(desk, policy=policy_of(RULES)) as archive:
        yield archive


@pytest.fixture
def session(archive, owner):
    return archive.session("case", owner)


def protected_by(session, number=0):
    return session.results()[number].protected_by


def test_a_label_before_the_first_view_waits_for_its_result(desk, archive, session, owner, talk):
    message = talk.tool(LONG, "records.read")
    assert session.label(message, sensitivity="signed") == "r1"
    assert session.results() == []  # nobody has met it yet
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "n")])
    assert [target.status for target in refused.value.targets] == ["unknown"]
    talk.say()
    assert session.view(talk.messages)[2]["content"].startswith("[evidence r1 tag=")
    (info,) = session.results()
    assert (info.id, info.tool, info.protected_by) == ("r1", "records.read", "signed")
    with opened(desk, policy=policy_of(RULES)) as other:
        elsewhere = other.session("case", owner)
        elsewhere.view(talk.messages)
        assert elsewhere.results() == session.results()


def test_a_label_that_another_process_attached_before_the_first_view_counts(desk, session, owner, talk):
    with opened(desk, policy=policy_of(RULES)) as other:
        other.session("case", owner).label(talk.tool(LONG), sensitivity="signed")
    talk.say()
    session.view(talk.messages)
    assert protected_by(session) == "signed"


def test_labels_before_the_first_view_add_up_on_one_result(session, talk):
    message = talk.tool(LONG)
    assert session.label(message, sensitivity=["a", "b"]) == "r1"
    assert session.label(deepcopy(message), sensitivity="signed", kind="note") == "r1"
    talk.say()
    session.view(talk.messages)
    assert [info.id for info in session.results()] == ["r1"]
    assert protected_by(session) == "signed"


@pytest.mark.parametrize("target", ["object", "copy", "id"])
def test_a_viewed_result_is_labelled_by_its_message_an_equal_copy_or_its_id(session, talk, target):
    message = talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    named = {"object": message, "copy": deepcopy(message), "id": "r1"}[target]
    assert session.label(named, sensitivity="signed") == "r1"
    assert protected_by(session) == "signed"
    assert [info.id for info in session.results()] == ["r1"]
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "n")])
    assert "signed" in refused.value.targets[0].reason


def test_a_copy_that_may_also_be_the_next_result_labels_both(session, talk):
    first = talk.tool(LONG, call_id="call_0")
    talk.say()
    session.view(talk.messages)
    session.label(dict(first), sensitivity="signed")  # handed in before it was appended
    talk.tool(LONG, call_id="call_0")
    talk.say()
    session.view(talk.messages)
    assert [info.protected_by for info in session.results()] == ["signed", "signed"]


def test_a_label_persists_and_never_goes_away(desk, session, owner, talk):
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    session.label("r1", sensitivity="signed")
    session.label("r1", sensitivity="clinical")
    with pytest.raises(FormatError, match="at least one fact"):
        session.label("r1")
    with opened(desk, policy=policy_of(RULES)) as other:
        elsewhere = other.session("case", owner)
        elsewhere.view(talk.messages)
        assert protected_by(elsewhere) == "signed"


def test_what_another_process_labelled_counts_for_the_next_batch(desk, session, owner, talk):
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    with opened(desk, policy=policy_of(RULES)) as other:
        other.session("case", owner).label("r1", kind="consent")
    with pytest.raises(BatchRejectedError) as refused:
        session.archive([("r1", "n")])
    assert "consent" in refused.value.targets[0].reason


def test_labels_of_two_processes_at_once_add_up(desk, archive, session, owner, talk):
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    with opened(desk, policy=policy_of(RULES)) as other:
        rival = other.session("case", owner)
        archive.flaky.before_write = lambda: rival.label("r1", sensitivity="signed")
        session.label("r1", sensitivity="clinical", kind="report")
    row = session._records.rows[1]
    assert (row.sensitivity, row.kind) == ("clinical\nsigned", "report")
    assert protected_by(session) == "signed"


# --- only stricter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [{"kind": "log"}, {"sensitivity": "harmless"}, {"sensitivity": "old"}], ids=str)
def test_a_label_that_would_loosen_the_decision_counts_only_before_the_first_view(desk, owner, talk, facts):
    with opened(desk, policy=policy_of(LENIENT, default="never")) as archive:
        session = archive.session("case", owner)
        session.label(talk.tool(LONG), **facts)
        talk.tool(LONG + "!")
        for _ in range(4):
            talk.say()
            talk.messages.append({"role": "user", "content": "and?"})
        session.view(talk.messages)
        before = session.results()
        assert [info.protected_by for info in before] == [None, "default"]
        with pytest.raises(PolicyError):
            session.label("r2", **facts)
        with pytest.raises(PolicyError):
            session.label(talk.messages[4], **facts)
        assert session.results() == before
        assert session.label("r2", sensitivity="anything else") == "r2"


def test_a_kind_is_set_once(session, talk):
    talk.tool(LONG)
    session.view(talk.messages)
    session.label("r1", kind="report")
    session.label("r1", kind="report")
    with pytest.raises(PolicyError, match="set once"):
        session.label("r1", kind="consent")


def test_only_sensitivity_may_be_added_to_an_archived_result(session, owner, talk):
    talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    session.archive([("r1", "n")])
    note = session.view(talk.messages)[2]
    for facts in ({"kind": "consent"}, {"observed_at": datetime.now(UTC)}):
        with pytest.raises(PolicyError, match="archived"):
            session.label("r1", **facts)
    session.label("r1", sensitivity="clinical")
    assert session.view(talk.messages)[2] == note
    with pytest.raises(NotAvailableError):
        session.restore("r1")


def test_a_sensitivity_with_a_restore_rule_decides_who_may_have_it_back(archive, session, owner, talk):
    session.label(talk.tool(LONG), sensitivity="clinical")
    talk.say()
    session.view(talk.messages)
    assert protected_by(session) == "restore"  # the agent could not have it back
    vet = archive.session("vet's case", Principal("north-clinic", "dr", {"veterinarian"}))
    vet.label(talk.messages[2], sensitivity="clinical")
    vet.view(talk.messages)
    vet.archive([("r1", "n")])
    assert vet.restore("r1").provenance.sensitivity == ("clinical",)
    with pytest.raises(NotAvailableError):
        archive.restore("vet's case", "r1", principal=owner)


# --- when it was seen -------------------------------------------------------------------------------------------


def test_the_host_s_time_of_observation_stands_in_note_and_provenance(session, talk):
    message = talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    session.label(message, observed_at=datetime(2026, 11, 30, 2, 2, 3, 500_000, timezone(timedelta(hours=1))))
    assert session.results()[0].observed_at == "2026-11-30T01:02:03Z"
    session.archive([("r1", "n")])
    assert "| observed 2026-11-30T01:02:03Z |" in session.view(talk.messages)[2]["content"]
    provenance = session.restore("r1").provenance
    assert (provenance.observed_at_us, provenance.observed_by) == (1_796_000_523_500_000, "host")


# --- refused ----------------------------------------------------------------------------------------------------


def test_a_label_on_nothing_is_refused(session, talk):
    message = talk.tool(LONG)
    session.view(talk.messages)
    for unknown in ("r2", "r999"):
        with pytest.raises(NotAvailableError):
            session.label(unknown, sensitivity="signed")
    for other in (talk.messages[0], talk.messages[1], {"role": "tool", "tool_call_id": 7, "content": LONG}, 7):
        with pytest.raises(MessageShapeError):
            session.label(other, sensitivity="signed")
    for bad in ({"sensitivity": ""}, {"sensitivity": "a\nb"}, {"kind": "x" * 257}, {"kind": 7}, {"sensitivity": [7]}):
        with pytest.raises(FormatError):
            session.label(message, **bad)
    with pytest.raises(FormatError, match="time zone"):
        session.label(message, observed_at=datetime(2026, 11, 30))
    with pytest.raises(FormatError):
        session.label("R1", sensitivity="signed")
    assert protected_by(session) is None


@pytest.mark.parametrize("fault", [UNWRITABLE, UNAUDITED, "update_results", "update_session"])
def test_a_label_that_could_not_be_committed_is_not_attached(desk, archive, session, talk, fault):
    message = talk.tool(LONG)
    talk.say()
    session.view(talk.messages)
    before = desk.rows("results")
    archive.flaky.fault = fault
    with pytest.raises(StoreError):
        session.label(message, sensitivity="signed")
    archive.flaky.fault = None
    assert desk.rows("results") == before
    assert protected_by(session) is None
    session.label(message, sensitivity="signed")  # the control
    assert protected_by(session) == "signed"


def test_a_label_is_in_the_audit_log(archive, session, owner, talk):
    session.label(talk.tool(LONG), sensitivity=["signed", "a"], kind="consent")
    entry = archive.audit(principal=owner).entries[-1]
    assert entry.event == "label.set"
    assert entry.details == {"results": ["r1"], "sensitivity": ["a", "signed"], "kind": "consent"}

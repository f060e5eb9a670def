"""Ledgers that several agents share: who may, whose originals, and nothing lost when all post at once."""

import asyncio
import subprocess
import sys
import threading
from hashlib import sha256
from typing import Any

import pytest
from conftest import Conversation, Desk
from doubles import Characters, policy_of

from evidence_archive import Archive, AsyncArchive, Principal
from evidence_archive.errors import CheckFailedError, FormatError, NotAvailableError, ShreddedError
from evidence_archive.ledger.checks import quotes

KEEPER = Principal(org="north-clinic", subject="records", roles={"custodian"})
OTHER = Principal(org="north-clinic", subject="ward-agent", roles={"ward"})
STRANGER = Principal(org="north-clinic", subject="night-agent", roles={"agent"})
RULES = (
    '[ledger]\nroles = ["ward"]\n'
    '[[restore]]\nsensitivity = ["psychiatry"]\nroles = ["agent"]\n'
    '[[restore]]\ntools = ["hr.*"]\nroles = ["agent"]\n'
)
LOG = "".join(f"line {number}: took {number * 3} ms\n" for number in range(1, 101))


def opened(desk: Desk) -> Archive:
    return desk.open(policy=policy_of(RULES), counter=Characters())


def filled(archive: Archive, owner: Principal, tool: str = "logs.search") -> Any:
    """A session with a log that is archived (r1) and one that is still in view (r2)."""
    session, talk = archive.session("case", owner), Conversation()
    for text in (LOG, LOG.upper()):
        talk.tool(text, name=tool)
        talk.say()
        session.view(talk.messages)
    session.archive([("r1", "a note")])
    session.view(talk.messages)
    return session


# --- whose -------------------------------------------------------------------------------------------------------


def test_who_made_it_and_who_has_a_role_share_one_ledger_and_nobody_else(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        mine = archive.ledger("ward-3", owner)
        mine.store("report.md", "all is well\n")
        fact = mine.post("all is well", ["artifact:report.md#L1"], quotes("all is well"), key=True)
        theirs = archive.ledger("ward-3", OTHER)
        assert theirs.books().current() == [fact]
        assert theirs.reconcile(strong=True).agrees
        assert theirs.audit("f1")[0].part == b"all is well\n"
        second = theirs.post("again", ["artifact:report.md"], quotes("well"), supersedes="f1")
        assert mine.books().current() == [second]
        assert theirs.close().facts == ("f2",)
        assert archive.custody(KEEPER).verify("full").findings == ()
        with pytest.raises(NotAvailableError) as refused:
            archive.ledger("ward-3", STRANGER)
        with pytest.raises(NotAvailableError) as foreign:
            archive.session("case", owner) and archive.session("case", STRANGER)
        assert str(refused.value) == str(foreign.value)
        subjects = [one.subject for one in archive.audit(principal=owner).entries if one.event == "book.posted"]
        assert set(subjects) == {owner.subject, OTHER.subject}
        assert [one.subject for one in archive.audit(principal=owner).entries if one.event == "session.denied"] == [
            STRANGER.subject,
            STRANGER.subject,
        ]
    with opened(desk) as archive:
        assert archive.ledger("ward-3", OTHER).opening() == ["f2: again [r1 artifact:report.md]"]


def test_without_roles_in_the_policy_only_who_made_it_may(desk: Desk, owner: Principal):
    with desk.open(policy=policy_of()) as archive:
        archive.ledger("ward-3", owner)
        with pytest.raises(NotAvailableError):
            archive.ledger("ward-3", OTHER)


@pytest.mark.parametrize("name", ["", "x" * 250, "a\nb", 7])
def test_a_ledgers_id_is_a_name_and_no_session_has_a_ledgers_id(sqlite_desk: Desk, owner: Principal, name: Any):
    with opened(sqlite_desk) as archive:
        with pytest.raises(FormatError):
            archive.ledger(name, owner)
        with pytest.raises(FormatError):
            archive.ledger("ward-3", "triage-agent")  # type: ignore[arg-type]
        archive.ledger("x" * 249, owner)
        for taken in ("ledger:ward-3", "ledger:"):
            with pytest.raises(FormatError, match=r"archive\.ledger"):
                archive.session(taken, owner)


def test_a_ledger_of_another_org_is_another_ledger(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        archive.ledger("ward-3", owner).store("report.md", "all is well")
        other = archive.ledger("ward-3", Principal(org="south-clinic", subject=owner.subject, roles={"ward"}))
        assert not other.books().artifacts


# --- whose originals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["r1#L40", "r2#L40"])
def test_what_a_session_holds_is_kept_as_an_original_of_the_ledger(desk: Desk, owner: Principal, source: str):
    said = "line 40: took 120 ms\n" if source.startswith("r1") else "LINE 40: TOOK 120 MS\n"
    with opened(desk) as archive:
        session, ledger = filled(archive, owner), archive.ledger("ward-3", owner)
        claim = ledger.claim("line 40 took 120 ms", [source], session=session)
        assert [one.reference for one in claim.sources] == ["r1#L40"]
        assert claim.sources[0].sha256 == sha256(said.encode()).hexdigest()
        fact = ledger.verify(claim, quotes("120"), key=True)
        ledger.claim("once more", [source], session=session)
        again = ledger.post("and at once", [source], quotes("120"), session=session)
        assert again.sources == fact.sources
        assert len(ledger._records.rows) == 1, "it is there already"
        archive.custody(KEEPER).shred(session_id="case")
    with opened(desk) as archive:
        theirs = archive.ledger("ward-3", OTHER)
        assert theirs.audit(fact.id)[0].part == said.encode()
        assert theirs.close().facts == ("f1", "f2")
        assert theirs.post("seen by both", ["r1#L41"], quotes("41")).claim_id == "c4"
        with pytest.raises(NotAvailableError):
            theirs.claim("of no session", ["r2"])


def test_who_posts_needs_to_have_what_it_cites(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session = filled(archive, owner)
        other, ledger = archive.session("other", OTHER), archive.ledger("ward-3", OTHER)
        for foreign in (session, other):
            with pytest.raises(NotAvailableError):
                ledger.claim("x", ["r1"], session=foreign)
        with pytest.raises(FormatError):
            other.ledger.claim("x", ["r1"], session=session)
        assert session.ledger.claim("x", ["r1"], session=session).id == "c1", "its own is no other"
        assert not ledger.books().claims
        assert not ledger._records.rows


@pytest.mark.parametrize("by", ["sensitivity", "tool"])
def test_rules_on_what_is_cited_hold_for_the_ledgers_original(desk: Desk, owner: Principal, by: str):
    with opened(desk) as archive:
        session = filled(archive, owner, tool="hr.lookup" if by == "tool" else "logs.search")
        if by == "sensitivity":
            for result_id in ("r1", "r2"):
                session.label(result_id, sensitivity="psychiatry")
        ledger = archive.ledger("ward-3", owner)
        for number, source in enumerate(("r1#L40", "r2#L40"), 1):
            claim = ledger.claim("line 40", [source], session=session)
            ledger.verify(claim, quotes("120"), key=True)
            assert ledger.audit(f"f{number}")[0].agrees
        theirs = archive.ledger("ward-3", OTHER)
        with pytest.raises(NotAvailableError):
            theirs.audit("f1")
        with pytest.raises(NotAvailableError):
            theirs.claim("x", ["r1"])
        report = theirs.reconcile()
        assert [(one.fact_id, one.is_unread) for one in report.disagreements] == [("f1", True), ("f2", True)]
        assert theirs.books().disagreeing == frozenset(), "nothing is known to be wrong"
        with pytest.raises(CheckFailedError, match="you may not read what f1 cites"):
            theirs.close()
        assert ledger.close().facts == ("f1", "f2")


def test_a_result_that_the_list_calls_by_another_tool_now_is_not_kept_under_the_rules_of_the_first(
    desk: Desk, owner: Principal
):
    with opened(desk) as archive:
        session, talk = archive.session("case", owner), Conversation()
        talk.tool(LOG, call_id="c1")
        talk.say()
        session.view(talk.messages)
        renamed = Conversation()
        renamed.tool(LOG, name="hr.lookup", call_id="c1")
        renamed.say()
        session.view(renamed.messages)
        for ledger in (session.ledger, archive.ledger("ward-3", owner)):
            with pytest.raises((FormatError, NotAvailableError)):
                ledger.claim("line 40", ["r1#L40"], session=session)
            assert not ledger.books().claims
        assert all(row.own != "artifact" for row in session._records.rows.values())
        session.view(talk.messages)
        assert session.ledger.claim("line 40", ["r1#L40"]).id == "c1"


def test_must_fail_control_without_a_rule_on_it_the_same_original_is_everybodys(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        session, ledger = filled(archive, owner), archive.ledger("ward-3", owner)
        ledger.verify(ledger.claim("line 40", ["r2#L40"], session=session), quotes("120"), key=True)
        assert archive.ledger("ward-3", OTHER).audit("f1")[0].agrees


def test_a_ledger_that_was_shredded_takes_nothing_more(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        ledger = archive.ledger("ward-3", owner)
        ledger.store("report.md", "all is well")
        archive.custody(KEEPER).shred(session_id="ledger:ward-3")
        with pytest.raises((ShreddedError, NotAvailableError)):
            ledger.claim("x", ["artifact:report.md"])


# --- all at once ---------------------------------------------------------------------------------------------------

PER_POSTER = 8


def post(url: str, keys: str, who: str) -> None:
    """Posts its own facts to the ledger that all share."""
    from evidence_archive.policy import Policy

    rules = '[policy]\nname = "p"\nversion = 1\ndefault = "allow"\n' + RULES
    principal = Principal(org="north-clinic", subject=who, roles={"ward"})
    with Archive.open(url, keys=keys, policy=Policy.loads(rules), counter=Characters()) as archive:
        ledger = archive.ledger("ward-3", principal)
        for number in range(PER_POSTER):
            ledger.store(f"{who}/{number}", f"{who} found {number}\n")
            ledger.post(f"{who} {number}", [f"artifact:{who}/{number}#L1"], quotes(f"found {number}"))


def all_there(desk: Desk, names: list[str]) -> None:
    with opened(desk) as archive:
        ledger = archive.ledger("ward-3", OTHER)
        facts = ledger.books().current()
        expected = [(who, number) for who in names for number in range(PER_POSTER)]
        assert sorted(fact.text for fact in facts) == sorted(f"{who} {number}" for who, number in expected)
        assert [fact.id for fact in facts] == [f"f{at}" for at in range(1, len(expected) + 1)]
        assert ledger.reconcile(strong=True).agrees
        assert archive.custody(KEEPER).verify("full").findings == ()


def test_threads_that_post_at_the_same_time_lose_nothing(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        archive.ledger("ward-3", owner)
    names, failures = ["a", "b", "c"], list[BaseException]()

    def run(who: str) -> None:
        try:
            post(desk.url, str(desk.keys), who)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(who,)) for who in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    all_there(desk, names)


def test_processes_that_post_at_the_same_time_lose_nothing(desk: Desk, owner: Principal):
    with opened(desk) as archive:
        archive.ledger("ward-3", owner)
    code = "import sys; from test_ledger_shared import post; post(*sys.argv[1:])"
    path = ":".join([str(__file__).rpartition("/")[0], *sys.path])
    posters = [
        subprocess.Popen([sys.executable, "-c", code, desk.url, str(desk.keys), who], env={"PYTHONPATH": path})
        for who in "ab"
    ]
    assert [one.wait(timeout=60) for one in posters] == [0, 0]
    all_there(desk, ["a", "b"])


def test_the_twin_shares_and_takes_a_session_too(sqlite_desk: Desk, owner: Principal):
    async def shared() -> None:
        async with AsyncArchive.open(
            sqlite_desk.url, keys=sqlite_desk.keys, policy=policy_of(RULES), counter=Characters()
        ) as archive:
            session, talk = await archive.session("case", owner), Conversation()
            talk.tool(LOG)
            await session.view(talk.messages)
            ledger = await archive.ledger("ward-3", owner)
            claim = await ledger.claim("line 40", ["r1#L40"], session=session)
            with pytest.raises(CheckFailedError):
                await ledger.verify(claim, quotes("121"))
            assert (await ledger.verify(claim, quotes("120"))).id == "f1"
            assert (await (await archive.ledger("ward-3", OTHER)).audit("f1"))[0].agrees

    asyncio.run(shared())


def test_must_fail_control_a_poster_whose_facts_are_not_there_is_noticed(sqlite_desk: Desk):
    post(sqlite_desk.url, str(sqlite_desk.keys), "a")
    all_there(sqlite_desk, ["a"])
    with pytest.raises(AssertionError):
        all_there(sqlite_desk, ["a", "b"])

"""Who may have an original back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive.access import decide, may_restore
from evidence_archive.model import Principal

ROLES = st.frozensets(st.sampled_from(["agent", "veterinarian", "auditor"]))
OPENINGS = st.lists(st.none() | ROLES, max_size=4).map(tuple)


def _in_words(owner, roles, openings):
    """The rule again, as a loop that stops at the first opening that lets nobody through."""
    if len(openings) == 0:
        return False
    for opening in openings:
        if opening is None and not owner:
            return False
        if opening is not None and not any(role in opening for role in roles):
            return False
    return True


@given(st.booleans(), ROLES, OPENINGS)
def test_every_opening_must_let_the_principal_through(owner, roles, openings):
    assert may_restore(owner, roles, openings) is _in_words(owner, roles, openings)


@given(st.booleans(), ROLES, ROLES, OPENINGS, st.none() | ROLES)
def test_more_roles_never_take_away_and_more_openings_never_give(owner, roles, more, openings, opening):
    assert may_restore(owner, roles | more, openings) or not may_restore(owner, roles, openings)
    if openings:
        assert may_restore(owner, roles, openings) or not may_restore(owner, roles, (*openings, opening))


def test_no_opening_at_all_opens_to_nobody():
    naive = all(())
    assert naive, "control: 'every opening of none' is true"
    assert not may_restore(True, frozenset({"auditor"}), ())


def test_an_opening_without_roles_opens_to_nobody():
    assert not may_restore(True, frozenset({"auditor"}), (frozenset(),))


def test_being_the_owner_is_not_enough_where_roles_are_named():
    assert not may_restore(True, frozenset({"agent"}), (frozenset({"auditor"}),))
    assert may_restore(True, frozenset({"auditor"}), (frozenset({"auditor"}),))


def test_a_role_is_not_enough_where_the_owner_is_meant():
    assert not may_restore(False, frozenset({"auditor"}), (None,))
    assert not may_restore(False, frozenset({"auditor"}), (frozenset({"auditor"}), None))


@given(ROLES, OPENINGS)
def test_another_org_gets_a_no_whatever_its_roles(roles, openings):
    stranger = Principal("south-clinic", "vet", roles)
    assert not decide(stranger, "north-clinic", "vet", openings)


def test_control_a_check_that_forgets_the_org_lets_a_stranger_in():
    stranger = Principal("south-clinic", "vet")
    assert may_restore(stranger.subject == "vet", stranger.roles, (None,))
    assert not decide(stranger, "north-clinic", "vet", (None,))


@pytest.mark.parametrize("org", ["North-clinic", "north-clinic ", "north-clinic/", "\uff4eorth-clinic", "north"])
def test_orgs_are_compared_exactly(org):
    assert not decide(Principal(org, "vet"), "north-clinic", "vet", (None,))


@pytest.mark.parametrize("subject", ["Jose\u0301", "jos\u00e9", "Jos\u00e9 ", "Jos\u00e9\u200b", "*", "Jos"])
def test_subjects_are_compared_exactly(subject):
    owner = "Jos\u00e9"
    assert decide(Principal("north-clinic", owner), "north-clinic", owner, (None,))
    assert not decide(Principal("north-clinic", subject), "north-clinic", owner, (None,))


@pytest.mark.parametrize("role", ["Auditor", "auditor ", "*", "audit", "àuditor"])
def test_roles_are_compared_exactly(role):
    openings = (frozenset({"auditor"}),)
    assert decide(Principal("o", "s", ["auditor"]), "o", "s", openings)
    assert not decide(Principal("o", "s", [role]), "o", "s", openings)

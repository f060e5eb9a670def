"""Who may have an original back: yes or no, and nothing else.

Unknown, foreign and forbidden are one and the same :class:`~evidence_archive.errors.NotAvailableError` to the caller;
whoever asks here raises it, so that no reason for a "no" can leak.
"""

from collections.abc import Sequence

from evidence_archive.model import Principal

__all__ = ["decide", "may_restore"]


def may_restore(subject_is_owner: bool, roles: frozenset[str], openings: Sequence[frozenset[str] | None]) -> bool:
    """Whether every opening of a result lets these roles through.

    Args:
        subject_is_owner: the one who asks is the session's owner.
        roles: roles of the one who asks, compared exactly.
        openings: from ``Policy.restore_openings``; at least one. ``None`` opens to the owner only; a set opens to
            whoever has one of its roles, and being the owner is then not enough. No opening at all is a "no".
    """
    return bool(openings) and all(
        subject_is_owner if opening is None else not opening.isdisjoint(roles) for opening in openings
    )


def decide(principal: Principal, org: str, owner: str, openings: Sequence[frozenset[str] | None]) -> bool:
    """Whether a principal may have a result of an org's session back.

    Args:
        principal: who asks; the host vouches for it.
        org: the org the result belongs to. Another org's principal gets a "no", whatever its roles.
        owner: the subject that opened the session first, compared exactly (no case folding, no normalisation).
        openings: from ``Policy.restore_openings``, as in :func:`may_restore`.
    """
    same_org = principal.org == org
    opened = may_restore(principal.subject == owner, principal.roles, openings)
    return same_org and opened

"""Open a store to look into it: it must exist, with its own keys and, where it matters, under its own policy."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evidence_archive.errors import IntegrityError, KeyringError, NotAvailableError, PolicyError
from evidence_archive.model import Principal, format_result_id

if TYPE_CHECKING:
    from evidence_archive.archive import Archive
    from evidence_archive.custody import Custody
    from evidence_archive.ports import KeyProvider
    from evidence_archive.vault import Vault

__all__ = ["NAME_THE_POLICY", "custody_of", "opened", "provider", "suspension", "undecided"]

NAME_THE_POLICY = "name the policy with --policy or EVIDENCE_ARCHIVE_POLICY."
"""What to do where the default was taken and is not the one."""

_NOT_A_CUSTODIAN = (
    "Not available: check --org, --subject, --role and --policy, and the session, result or hold where one is named."
)
_NEW_KEYS = re.compile(r": [^:`]*`evidence-archive keys new .*", re.DOTALL)


@contextmanager
def opened(
    url: str,
    keys: str | None,
    policy: Path | None,
    objects: str | None,
    principal: Principal,
    *,
    decides: bool,
    anchors: Sequence[str] = (),
    register: Path | None = None,
) -> Iterator[tuple["Archive", "Vault"]]:
    """The archive and the vault of the principal's org; looking creates neither a store nor an org.

    Args:
        url: of the store.
        keys: where they are, as :func:`~evidence_archive.keys.open_provider` takes it; ``None`` for the environment
            variable ``EVIDENCE_ARCHIVE_KEYS``.
        policy: policy file; ``None`` for the built-in default.
        objects: folder or bucket of the large originals; ``None`` for the folder beside the database. It is opened
            when it is needed.
        principal: who asks.
        anchors: get a copy of every signed head.
        register: file outside the store that keeps holds and shreds.
        decides: what is asked depends on the policy, so that the default has to be what the org was used with.

    Raises:
        PolicyError: no policy was named, and the org was last used under another one than the default.
        KeyringError: the keys are missing or cannot be used.
        NotAvailableError: there is no such org here.
        StoreError: there is no such store, or it cannot be used.
    """
    from evidence_archive.archive import Archive
    from evidence_archive.objects import open_objects
    from evidence_archive.objects.late import LateObjects
    from evidence_archive.policy import Policy

    rules = Policy.default() if policy is None else Policy.load(policy)
    kept = None if objects is None else LateObjects("objects", lambda _: open_objects(objects, create=False))
    outside: dict[str, Any] = {"objects": kept, "anchors": anchors, "register": register}
    with Archive.open(url, keys=provider(keys), policy=rules, create=False, **outside) as archive:
        vault = archive._vault(principal)
        if decides and policy is None:
            _check_default(vault)
        yield archive, vault


def provider(keys: str | None) -> "KeyProvider":
    """The keys; whoever looks into a store is not told to make new ones.

    Args:
        keys: key file; ``None`` for the environment variable ``EVIDENCE_ARCHIVE_KEYS``.

    Raises:
        KeyringError: the keys are missing or cannot be used.
    """
    from evidence_archive.keys import EnvironmentKeys, open_provider

    try:
        return EnvironmentKeys() if keys is None else open_provider(keys)
    except KeyringError as error:
        words = _NEW_KEYS.sub(": put back the key file this store was sealed with (--keys).", str(error))
        raise type(error)(words) from error


@contextmanager
def custody_of(
    url: str,
    keys: str | None,
    policy: Path | None,
    objects: str | None,
    principal: Principal,
    *,
    damaged: bool = False,
    anchors: Sequence[str] = (),
    register: Path | None = None,
) -> Iterator["Custody"]:
    """What a custodian may do: the policy says who is one, so that it has to be the one the org was used under.

    Args:
        url, keys, policy, objects, anchors, register: as for :func:`opened`.
        principal: who acts; without a role of its own a ``custodian``.
        damaged: go on where the head of the log cannot be read, because finding that out is what is asked.

    Raises:
        PolicyError: no policy was named, and the org was last used under another one than the default.
        NotAvailableError: there is no such org here, or the principal has none of the roles; says which options.
        KeyringError, StoreError, IntegrityError: as for :func:`opened`.
    """
    who = Principal(principal.org, principal.subject, principal.roles or ("custodian",))
    options: dict[str, Any] = {"decides": False, "anchors": anchors, "register": register}
    try:
        with opened(url, keys, policy, objects, who, **options) as (archive, vault):
            if policy is None:
                _check_default(vault, damaged=damaged)
            yield archive.custody(who)
    except NotAvailableError as error:
        error.args = (_NOT_A_CUSTODIAN,)
        raise


def _check_default(vault: "Vault", *, damaged: bool = False) -> None:
    try:
        with vault.store.reading(vault.store_wait_ms) as reader:
            loaded = reader.head().policy_digest
    except IntegrityError:
        if not damaged:
            raise
        return
    if loaded not in (None, vault.policy.digest):
        raise PolicyError(
            f"This org was last used under another policy (digest {str(loaded)[:12]}) than the built-in default: "
            f"{NAME_THE_POLICY}"
        )


def undecided(vault: "Vault", session_id: str) -> set[str]:
    """IDs of live results whose protection depends on their words or age, which only the messages tell."""
    from evidence_archive.labelling import AGE_TURNS_MAX
    from evidence_archive.vault import asked_session, facts_of

    with vault.store.reading(vault.store_wait_ms) as reader:
        session = reader.session(asked_session(session_id))
        rows = {} if session is None else {row.number: row for row in reader.results(session.scope_id, -1)}
    found = set()
    for row in rows.values():
        origin = rows.get(row.origin or row.number, row)
        decisions = [
            vault.policy.decide_archive(facts_of(origin, age_turns=age_turns, text=text))
            for age_turns in (0, AGE_TURNS_MAX)
            for text in (None, "")
        ]
        rules = {decision.rule_id if decision.effect == "never" else None for decision in decisions}
        if row.state == "live" and len(rules) > 1:
            found.add(format_result_id(row.number))
    return found


def suspension(vault: "Vault", session_id: str) -> str | None:
    """Why a session is suspended, or ``None``.

    Raises:
        NotAvailableError: there is no such session here.
    """
    from evidence_archive.vault import asked_session

    with vault.store.reading(vault.store_wait_ms) as reader:
        session = reader.session(asked_session(session_id))
    if session is None:
        raise NotAvailableError
    return session.suspended

"""Open a store to look into it: it must exist, with its own keys and, where it matters, under its own policy."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from evidence_archive.cli.options import Custodians, Keys, Objects, Org, PolicyFile, Roles, Subject, Url
from evidence_archive.errors import FormatError, IntegrityError, KeyringError, NotAvailableError, PolicyError
from evidence_archive.model import Principal, format_result_id

if TYPE_CHECKING:
    from evidence_archive.archive import Archive
    from evidence_archive.custody import Custody
    from evidence_archive.ledger.keeping import Ledger
    from evidence_archive.ports import KeyProvider, SessionRow
    from evidence_archive.session import Session
    from evidence_archive.vault import Vault

__all__ = ["NAME_THE_POLICY", "Access", "CustodyAccess", "provider", "suspension", "undecided", "with_options"]

NAME_THE_POLICY = "name the policy with --policy or EVIDENCE_ARCHIVE_POLICY."
"""What to do where the default was taken and is not the one."""

_NOT_A_CUSTODIAN = (
    "Not available: check --org, --subject, --role and --policy, and the session, result or hold where one is named."
)
_NEW_KEYS = re.compile(r": [^:`]*`evidence-archive keys new .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Access:
    """A store that is there already and who looks into it, as the options of a command say; see :func:`with_options`.

    Args:
        url: of the store.
        org, subject, role: who asks.
        keys: where they are, as :func:`~evidence_archive.keys.open_provider` takes it; ``None`` for the environment
            variable ``EVIDENCE_ARCHIVE_KEYS``.
        policy: policy file; ``None`` for the built-in default.
        objects: folder or bucket of the large originals; ``None`` for the folder beside the database. It is opened
            when it is needed.
    """

    url: Url
    org: Org
    subject: Subject
    keys: Keys = None
    policy: PolicyFile = None
    objects: Objects = None
    role: Roles = None

    @property
    def principal(self) -> Principal:
        """Who asks.

        Raises:
            FormatError: a name cannot be used.
        """
        return Principal(self.org, self.subject, self.role or ())

    @contextmanager
    def opened(
        self, *, decides: bool, anchors: Sequence[str] = (), register: Path | None = None
    ) -> Iterator[tuple["Archive", "Vault"]]:
        """The archive and the vault of the principal's org; looking creates neither a store nor an org.

        Args:
            decides: what is asked depends on the policy, so that the default has to be what the org was used with.
            anchors: get a copy of every signed head.
            register: file outside the store that keeps holds and shreds.

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

        principal, where = self.principal, self.objects
        rules = Policy.default() if self.policy is None else Policy.load(self.policy)
        kept = None if where is None else LateObjects("objects", lambda _: open_objects(where, create=False))
        outside: dict[str, Any] = {"objects": kept, "anchors": anchors, "register": register}
        with Archive.open(self.url, keys=provider(self.keys), policy=rules, create=False, **outside) as archive:
            vault = archive._vault(principal)
            if decides and self.policy is None:
                _check_default(vault)
            yield archive, vault

    @contextmanager
    def session(self, session_id: str) -> Iterator["Session"]:
        """A session that is there already, as its owner opens it.

        Args:
            session_id: whose id is not one of a shared ledger.

        Raises:
            NotAvailableError: there is no such session for this principal.
            FormatError: the id cannot be used.
            PolicyError, KeyringError, StoreError: as for :meth:`opened`.
        """
        from evidence_archive.archive import LEDGER

        if session_id.startswith(LEDGER):  # before it is looked up: who may not may not know
            raise FormatError(
                f"A session's id does not begin with {LEDGER!r}: a shared ledger has facts alone, and 'ledger' "
                "commands name it with --shared."
            )
        with self.opened(decides=True) as (archive, vault):
            row = _row(vault, session_id)
            yield archive.session(row.session_id, self.principal, row.dialect)

    @contextmanager
    def ledger(self, session_id: str | None, shared: str | None) -> Iterator["Ledger"]:
        """A ledger that is there already: looking makes none.

        Args:
            session_id, shared: the session whose own it is, or the id of a shared one; one of the two.

        Raises:
            NotAvailableError: there is no such session or ledger for this principal.
            FormatError: the id cannot be used.
            PolicyError, KeyringError, StoreError: as for :meth:`opened`.
        """
        if session_id is not None and shared is None:
            with self.session(session_id) as session:
                yield session.ledger
        elif shared is not None and session_id is None:
            from evidence_archive.archive import LEDGER

            with self.opened(decides=True) as (archive, vault):
                _row(vault, f"{LEDGER}{shared}")
                yield archive.ledger(shared, self.principal)
        else:
            also = "" if session_id is None else ", and not both"
            raise typer.BadParameter(f"Name a session, or a shared ledger with --shared{also}.")


@dataclass(frozen=True, slots=True)
class CustodyAccess(Access):
    """The same for a custodian: who names no role has that one.

    Args:
        url, org, subject, keys, policy, objects, role: as for :class:`Access`.
    """

    role: Custodians = None

    @property
    def principal(self) -> Principal:
        """Who acts.

        Raises:
            FormatError: a name cannot be used.
        """
        return Principal(self.org, self.subject, self.role or ("custodian",))

    @contextmanager
    def custody(
        self, *, damaged: bool = False, anchors: Sequence[str] = (), register: Path | None = None
    ) -> Iterator["Custody"]:
        """What a custodian may do: the policy says who is one, so that it has to be the one the org was used under.

        Args:
            damaged: go on where the head of the log cannot be read, because finding that out is what is asked.
            anchors, register: as for :meth:`opened`.

        Raises:
            PolicyError: no policy was named, and the org was last used under another one than the default.
            NotAvailableError: there is no such org here, or the principal has none of the roles; says which options.
            KeyringError, StoreError, IntegrityError: as for :meth:`opened`.
        """
        try:
            with self.opened(decides=False, anchors=anchors, register=register) as (archive, vault):
                if self.policy is None:
                    _check_default(vault, damaged=damaged)
                yield archive.custody(self.principal)
        except NotAvailableError as error:
            error.args = (_NOT_A_CUSTODIAN,)
            raise


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of an :class:`Access` in the place of its parameter of that kind.

    Args:
        command: has one such parameter.
    """
    own = signature(command).parameters
    at, kind = next((name, one.annotation) for name, one in own.items() if _is_access(one.annotation))
    options = [one.replace(kind=Parameter.KEYWORD_ONLY) for one in signature(kind).parameters.values()]

    @wraps(command)
    def run(**given: Any) -> None:
        access = kind(**{option.name: given.pop(option.name) for option in options})
        command(**{at: access}, **given)

    shown = [option for one in own.values() for option in (options if one.name == at else [one])]
    vars(run)["__signature__"] = Signature(shown)  # what the program offers and asks for
    return run


def _is_access(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Access)


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


def _row(vault: "Vault", session_id: str) -> "SessionRow":
    """A session's row.

    Raises:
        NotAvailableError: there is no such session here.
    """
    from evidence_archive.vault import asked_session

    with vault.store.reading(vault.store_wait_ms) as reader:
        row = reader.session(asked_session(session_id))
    if row is None:
        raise NotAvailableError
    return row


def suspension(vault: "Vault", session_id: str) -> str | None:
    """Why a session is suspended, or ``None``.

    Raises:
        NotAvailableError: there is no such session here.
    """
    return _row(vault, session_id).suspended

"""The life of an org's keys: a new version, everything wrapped under it, the old one counted and destroyed.

New version durable at the provider -> self-test on a provider that was opened anew -> audit -> the auxiliary key and
every session's key wrapped again, some at a time, by compare-and-swap -> census -> the version floor rises -> the old
version may go when the census of every org that needs it is 0. Killed anywhere, a second run goes on where the first
one stopped; nothing is unreadable at any moment, because what is read names its version.
"""

import hmac
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from evidence_archive.disposal import Disposal
from evidence_archive.errors import FormatError, KeyringError, SealBrokenError, StoreBusyError
from evidence_archive.keys import unwrap_checked, wrap_checked
from evidence_archive.logged import LoggedActs
from evidence_archive.model import Principal
from evidence_archive.ports import KeyLifecycle, KeyProvider, OrgRow, ScopeRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.vault import Vault, aux_context

__all__ = ["Census", "Rekeying", "Rotation"]

SCOPES_PER_BATCH = 100
"""Session keys that are wrapped again in one transaction."""

ROUNDS_MAX = 10
"""How often a sweep starts over because other processes wrapped keys under the old version meanwhile."""


@dataclass(frozen=True, slots=True)
class Census:
    """How many keys of an org are wrapped under which version.

    Args:
        org: whose.
        current: the provider's current version.
        floor: nothing may be wrapped under an older version.
        counts: wrapped keys by version: the org's own and those of its sessions.
        available: versions the provider has; ``None`` where it does not tell.
    """

    org: str
    current: int
    floor: int
    counts: Mapping[int, int]
    available: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a rotation did.

    Args:
        org: whose keys.
        version: what everything is wrapped under now.
        rewrapped: keys that were wrapped again by this run.
        census: after it.
    """

    org: str
    version: int
    rewrapped: int
    census: Census


class Rekeying:
    """Rotates and retires the key versions of one org.

    Args:
        vault: the org's keys, store and log.
        principal: who acts; already permitted.
    """

    def __init__(self, vault: Vault, principal: Principal) -> None:
        self._vault = vault
        self._principal = principal
        self._logged = LoggedActs()

    def rotate(self, *, new_version: bool = True) -> Rotation:
        """Everything of the org wrapped under a new version, or under the current one.

        Args:
            new_version: have the provider make one; otherwise what was made elsewhere is swept to.

        Raises:
            KeyringError: the provider makes no version, or one that fails its self-test; nothing was wrapped.
            SealBrokenError: the key of a session is from before a shred, and would open again what was destroyed.
            AuditBrokenError: the log, which says what was shredded, is not what its head says.
            StoreBusyError: other processes keep wrapping under the old version: open their archives again.
        """
        keys, org = self._vault.around.keys, self._vault.org
        if new_version:
            if not isinstance(keys, KeyLifecycle):
                raise KeyringError(
                    "This key provider makes no versions: make one where the keys are kept, then rotate to it."
                )
            keys.new_version(org)
        reopened = keys.reopened() if isinstance(keys, KeyLifecycle) else keys
        version = reopened.current_version(org)
        self._test(reopened, version)
        if keys.current_version(org) != version:
            raise KeyringError("The keys at hand do not know the new version: open the archive again.")
        self._append(audit.KEY_ROTATED, {"version": version})
        rewrapped = 0
        for _ in range(ROUNDS_MAX):
            with self._logged.turn:
                rewrapped += self._sweep_org(version) + self._sweep_scopes(version)
            census = self.census()
            if all(one >= version for one in census.counts) and self._raise_floor(version):
                return Rotation(org, version, rewrapped, self.census())
        raise StoreBusyError("Other processes go on under the old key version: open their archives again.")

    def census(self) -> Census:
        """Which versions the org's keys are wrapped under; every row's seal is checked."""
        counts: Counter[int] = Counter()
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            custody = reader.custody()
        counts[self._org_row().kek_version] += 1
        after = b""
        while scopes := self._scopes(after):
            counts.update(scope.kek_version for scope in scopes if scope.wrapped)
            after = scopes[-1].scope_id
        keys = self._vault.around.keys
        return Census(
            org=self._vault.org,
            current=keys.current_version(self._vault.org),
            floor=0 if custody is None else custody.kek_floor,
            counts=dict(sorted(counts.items())),
            available=keys.versions(self._vault.org) if isinstance(keys, KeyLifecycle) else None,
        )

    def check(self) -> int:
        """How many wrapped keys of the org these keys unwrapped: all there are.

        Raises:
            WrongKeyError, KeyNotFoundError: they are not the keys of one of them.
            SealBrokenError: one was changed.
        """
        count, after = 1, b""  # the org's own was unwrapped when it was opened
        while scopes := self._scopes(after):
            for scope in scopes:
                if scope.wrapped:
                    self._vault.scope_keys(scope)
                    count += 1
            after = scopes[-1].scope_id
        return count

    def retire(self, version: int, *, others: Mapping[str, Census]) -> None:
        """A version, destroyed at the provider once nothing needs it.

        Args:
            version: not the current one.
            others: the census of every other org of this store, where the provider's versions serve all orgs.

        Raises:
            KeyringError: keys are still wrapped under it, or the provider destroys no versions.
            FormatError: it is no version, or the current one.
        """
        keys, org = self._vault.around.keys, self._vault.org
        if not isinstance(keys, KeyLifecycle):
            raise KeyringError("This key provider destroys no versions: do it where the keys are kept.")
        if type(version) is not int or version < 1 or version == keys.current_version(org):
            raise FormatError("Only a version that is not current can be retired.")
        for census in (self.census(), *others.values()):
            if census.counts.get(version):
                raise KeyringError(
                    f"{census.counts[version]} keys of an org are wrapped under version {version}: rotate first."
                )
        if version < keys.current_version(org) and not self._raise_floor(version + 1):
            raise KeyringError(f"Keys are being wrapped under version {version} or an older one: rotate first.")
        # The entry is first: what is destroyed and not logged would be a loss that nobody could explain.
        self._append(audit.KEY_RETIRED, {"version": version})
        keys.retire(org, version)
        Disposal(self._vault, self._principal).shreds()  # some may be complete now

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _test(self, keys: KeyProvider, version: int) -> None:
        """What is wrapped now can be unwrapped, by a provider that read its keys anew."""
        probe = self._vault.around.entropy(32)
        context = b"evidence-archive/v1/self-test\x00" + self._vault.deployment
        wrapped, fingerprint = wrap_checked(self._vault.around.keys, self._vault.org, version, probe, context)
        again = unwrap_checked(
            keys, self._vault.org, version=version, fingerprint=fingerprint, wrapped=wrapped, context=context
        )
        if not hmac.compare_digest(again, probe):
            raise KeyringError("The new key version does not unwrap what it wrapped: nothing was wrapped under it.")

    def _org_row(self) -> OrgRow:
        with self._vault.store.peeking(self._vault.store_wait_ms) as reader:
            return reader.org_row()

    def _sweep_org(self, version: int) -> int:
        vault, old = self._vault, self._org_row()
        if old.kek_version >= version:
            vault.row = old
            return 0
        aux = unwrap_checked(
            vault.around.keys,
            vault.org,
            version=old.kek_version,
            fingerprint=old.kek_fingerprint,
            wrapped=old.aux_wrapped,
            context=aux_context(vault.deployment, vault.org, old.kek_version),
        )
        context = aux_context(vault.deployment, vault.org, version)
        wrapped, fingerprint = wrap_checked(vault.around.keys, vault.org, version, aux, context)
        new = replace(old, aux_wrapped=wrapped, kek_version=version, kek_fingerprint=fingerprint)

        def swapped(writer: Writer) -> bool:
            if writer.org_row() != old:
                return False
            writer.update_org(new)
            return True

        if vault.transact(swapped):
            vault.row = new
            return 1
        return 0

    def _scopes(self, after: bytes) -> list[ScopeRow]:
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            return reader.scopes(after, SCOPES_PER_BATCH)

    def _sweep_scopes(self, version: int) -> int:
        """Every session's key that is wrapped under an older version, wrapped again by compare-and-swap."""
        vault, rewrapped, after = self._vault, 0, b""
        with vault.store.reading(vault.store_wait_ms) as reader:
            self._logged.read_on(reader)  # most of it here, where nobody waits for it
        names: dict[bytes, str] = {}
        while scopes := self._scopes(after):
            after = scopes[-1].scope_id
            pairs = [
                (scope, vault.wrapped_scope(vault.scope_keys(scope), scope.created_at_us))
                for scope in scopes
                if scope.wrapped and scope.kek_version < version
            ]
            if any(scope.scope_id not in names for scope, _ in pairs):
                names = {session.scope_id: session.session_id for session in vault.sessions()}

            def swapped(
                writer: Writer, pairs: list[tuple[ScopeRow, ScopeRow]] = pairs, names: dict[bytes, str] = names
            ) -> int:
                fresh = [new for old, new in pairs if writer.scope(old.scope_id) == old]
                self._logged.read_on(writer)
                for one in fresh:
                    name = names.get(one.scope_id)
                    if name is None or self._logged.generation(name) != one.generation:
                        raise SealBrokenError(
                            "The key of a session is from before a shred, or its session is gone: it was put back "
                            "and is not wrapped anew. Verify the store."
                        )
                writer.update_scopes(fresh)
                return len(fresh)

            rewrapped += vault.transact(swapped) if pairs else 0
        return rewrapped

    def _raise_floor(self, version: int) -> bool:
        """Whether nothing is wrapped under an older version, looked at under the lock that new sessions need."""
        vault = self._vault

        def raised(writer: Writer) -> bool:
            if writer.org_row().kek_version < version or writer.scopes_below(version):
                return False
            kept = writer.custody()
            if kept is None or kept.kek_floor < version:
                vault.counted(writer, kek_floor=version)
                writer.append([vault.leaf(audit.KEY_FLOOR, self._principal.subject, details={"version": version})])
            return True

        if not vault.transact(raised):
            return False
        vault.kek_floor = max(vault.kek_floor or 0, version)
        return True

    def _append(self, event: str, details: dict[str, object]) -> None:
        entry = [self._vault.leaf(event, self._principal.subject, details=details)]
        self._vault.transact(lambda writer: writer.append(entry))

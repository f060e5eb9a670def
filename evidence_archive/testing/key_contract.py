"""What every key provider has to keep: one suite that ours and anybody's inherit."""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest

from evidence_archive.errors import (
    EvidenceArchiveError,
    KeyNotFoundError,
    KeyringError,
    MisuseError,
    SealBrokenError,
)
from evidence_archive.ports import KeyLifecycle, KeyProvider

__all__ = ["KeyProviderContract"]

FINGERPRINT_BYTES = 16
KEY = bytes(range(32))
CONTEXT = b"evidence-archive/contract"
ORG, OTHER_ORG = "north-clinic", "south-clinic"

T = TypeVar("T")


class KeyProviderContract:
    """The promises of :class:`~evidence_archive.ports.KeyProvider`, as tests.

    Inherit from it in a class whose name begins with ``Test``, and say how a provider is made::

        class TestOurKeys(KeyProviderContract):
            def make(self, folder):
                return OurKeys(folder)

    Where a provider has the verbs of :class:`~evidence_archive.ports.KeyLifecycle`, those are tried as well.
    """

    makes_versions: ClassVar[bool] = True
    """Whether versions are made and retired through the provider, and not where its keys come from."""

    trials_over: ClassVar[int] = 1
    """By how much to divide the trials, where one request takes long; 1 for all of them."""

    def make(self, folder: Path) -> KeyProvider:
        """A provider with keys of its own; for another folder they are others.

        Args:
            folder: exists, is empty, and is kept for the whole test. The orgs ``north-clinic`` and ``south-clinic``
                must have keys in it.

        Raises:
            MisuseError: the class that inherits does not say how.
        """
        raise MisuseError("Say how a key provider is made: define make(folder) in your class.")

    def reopen(self, folder: Path) -> KeyProvider:
        """Another object over the keys that :meth:`make` made in this folder.

        Args:
            folder: as :meth:`make` got it.

        Raises:
            MisuseError: the class that inherits does not say how.
        """
        raise MisuseError("Say how a key provider is opened again: define reopen(folder) in your class.")

    @pytest.fixture
    def keys(self, tmp_path: Path) -> KeyProvider:
        """A provider."""
        return self.make(tmp_path)

    def test_versions_are_whole_numbers_from_1_and_known_to_every_object(
        self, keys: KeyProvider, tmp_path: Path
    ) -> None:
        """The version that new keys are wrapped under is a fact about the keys, not about an object."""
        version = keys.current_version(ORG)
        assert type(version) is int
        assert version >= 1
        assert self.reopen(tmp_path).current_version(ORG) == version

    def test_a_fingerprint_is_16_bytes_and_names_one_key_of_one_org(self, keys: KeyProvider, tmp_path: Path) -> None:
        """A fingerprint is stored beside what was wrapped, and compared before it is unwrapped."""
        version = keys.current_version(ORG)
        fingerprint = keys.fingerprint(ORG, version)
        assert type(fingerprint) is bytes
        assert len(fingerprint) == FINGERPRINT_BYTES
        assert keys.fingerprint(ORG, version) == fingerprint
        assert self.reopen(tmp_path).fingerprint(ORG, version) == fingerprint
        assert keys.fingerprint(OTHER_ORG, keys.current_version(OTHER_ORG)) != fingerprint

    def test_what_was_wrapped_is_unwrapped_by_every_object_over_the_same_keys(
        self, keys: KeyProvider, tmp_path: Path
    ) -> None:
        """A process that starts tomorrow opens what this one wrapped."""
        version = keys.current_version(ORG)
        for key in (KEY, bytes(32), b"\xff" * 32):
            wrapped = keys.wrap(ORG, version, key, CONTEXT)
            assert type(wrapped) is bytes
            assert key not in wrapped
            assert keys.unwrap(ORG, version, wrapped, CONTEXT) == key
            assert self.reopen(tmp_path).unwrap(ORG, version, wrapped, CONTEXT) == key

    def test_under_another_context_nothing_is_unwrapped(self, keys: KeyProvider) -> None:
        """The context binds a key to its place: moved elsewhere, it does not open."""
        version = keys.current_version(ORG)
        wrapped = keys.wrap(ORG, version, KEY, CONTEXT)
        for context in (b"", CONTEXT[:-1], CONTEXT + b"\0", CONTEXT.upper()):
            with pytest.raises(SealBrokenError):
                keys.unwrap(ORG, version, wrapped, context)

    def test_for_another_org_nothing_is_unwrapped(self, keys: KeyProvider) -> None:
        """The keys of one org are of no use to another."""
        wrapped = keys.wrap(ORG, keys.current_version(ORG), KEY, CONTEXT)
        with pytest.raises(EvidenceArchiveError):
            keys.unwrap(OTHER_ORG, keys.current_version(OTHER_ORG), wrapped, CONTEXT)

    def test_changed_bytes_are_never_unwrapped(self, keys: KeyProvider) -> None:
        """Every bit counts: flipped, cut short, extended, doubled or empty, nothing comes out."""
        version = keys.current_version(ORG)
        wrapped = keys.wrap(ORG, version, KEY, CONTEXT)
        flipped = (
            bytes([*wrapped[:at], wrapped[at] ^ bit, *wrapped[at + 1 :]])
            for at in range(0, len(wrapped), self.trials_over)
            for bit in (1, 128)
        )
        for damaged in (*flipped, wrapped[:-1], wrapped[1:], wrapped + b"\0", wrapped + wrapped, b""):
            with pytest.raises(SealBrokenError):
                keys.unwrap(ORG, version, damaged, CONTEXT)

    def test_a_version_that_is_missing_is_said_to_be_and_no_other_is_tried(self, keys: KeyProvider) -> None:
        """A missing version is a KeyNotFoundError, never a try with the current one."""
        current = keys.current_version(ORG)
        wrapped = keys.wrap(ORG, current, KEY, CONTEXT)
        for version in (0, -1, current + 1_000_000):
            with pytest.raises(KeyNotFoundError):
                keys.fingerprint(ORG, version)
            with pytest.raises(KeyNotFoundError):
                keys.wrap(ORG, version, KEY, CONTEXT)
            with pytest.raises(KeyNotFoundError):
                keys.unwrap(ORG, version, wrapped, CONTEXT)

    def test_other_keys_have_another_fingerprint_and_unwrap_nothing(self, keys: KeyProvider, tmp_path: Path) -> None:
        """Wrong keys are told by their fingerprint, and open nothing."""
        folder = tmp_path / "other"
        folder.mkdir()
        other, version = self.make(folder), keys.current_version(ORG)
        wrapped = keys.wrap(ORG, version, KEY, CONTEXT)
        assert other.fingerprint(ORG, other.current_version(ORG)) != keys.fingerprint(ORG, version)
        with pytest.raises(EvidenceArchiveError):
            other.unwrap(ORG, other.current_version(ORG), wrapped, CONTEXT)

    # --- versions come and go -----------------------------------------------------------------------------------

    @pytest.fixture
    def lifecycle(self, keys: KeyProvider) -> KeyLifecycle:
        """The provider's verbs for its versions; the test is skipped where it has none."""
        if not isinstance(keys, KeyLifecycle):
            pytest.skip("this provider has no verbs for its versions")
        return keys

    @pytest.fixture
    def changing(self, lifecycle: KeyLifecycle) -> KeyLifecycle:
        """Verbs that make and retire; the test is skipped where the class says that versions are made elsewhere."""
        if not self.makes_versions:
            pytest.skip("the versions of this provider are made elsewhere")
        return lifecycle

    def test_the_versions_are_those_that_unwrap_and_the_current_one_is_among_them(
        self, keys: KeyProvider, lifecycle: KeyLifecycle
    ) -> None:
        """What is listed is what can be relied on."""
        versions = lifecycle.versions(ORG)
        assert type(versions) is tuple
        assert list(versions) == sorted(set(versions))
        assert keys.current_version(ORG) in versions
        for version in versions:
            assert keys.unwrap(ORG, version, keys.wrap(ORG, version, KEY, CONTEXT), CONTEXT) == KEY

    def test_a_reopened_provider_is_another_object_over_the_same_keys(
        self, keys: KeyProvider, lifecycle: KeyLifecycle
    ) -> None:
        """What was made is tried through an object that has seen nothing of it."""
        version = keys.current_version(ORG)
        again = lifecycle.reopened()
        assert again is not keys
        assert again.current_version(ORG) == version
        assert again.unwrap(ORG, version, keys.wrap(ORG, version, KEY, CONTEXT), CONTEXT) == KEY

    def test_a_new_version_is_current_everywhere_and_the_older_ones_still_unwrap(
        self, keys: KeyProvider, changing: KeyLifecycle, tmp_path: Path
    ) -> None:
        """Made means made for good: an object that is opened now wraps under it."""
        old = keys.current_version(ORG)
        wrapped = keys.wrap(ORG, old, KEY, CONTEXT)
        new = changing.new_version(ORG)
        assert type(new) is int
        assert new > old
        for each in (keys, changing.reopened(), self.reopen(tmp_path)):
            assert each.current_version(ORG) == new
            assert each.unwrap(ORG, old, wrapped, CONTEXT) == KEY
            assert each.unwrap(ORG, new, keys.wrap(ORG, new, KEY, CONTEXT), CONTEXT) == KEY
        assert set(changing.versions(ORG)) >= {old, new}

    def test_every_version_has_a_key_of_its_own(self, keys: KeyProvider, changing: KeyLifecycle) -> None:
        """What one version wrapped, no other unwraps: otherwise retiring one would destroy nothing."""
        old = keys.current_version(ORG)
        new = changing.new_version(ORG)
        assert keys.fingerprint(ORG, old) != keys.fingerprint(ORG, new)
        for under, asked in ((old, new), (new, old)):
            with pytest.raises(SealBrokenError):
                keys.unwrap(ORG, asked, keys.wrap(ORG, under, KEY, CONTEXT), CONTEXT)

    def test_versions_that_are_made_at_once_are_all_there(
        self, keys: KeyProvider, changing: KeyLifecycle, tmp_path: Path
    ) -> None:
        """No version that was answered is lost, whoever else was making one."""
        old = keys.current_version(ORG)
        made: list[tuple[int, bytes]] = []
        failed: list[BaseException] = []
        others = [self.reopen(tmp_path) for _ in range(4)]

        def make(other: KeyProvider) -> None:
            try:
                version = other.new_version(ORG)  # type: ignore[attr-defined]  # like the one that was looked at
                made.append((version, other.wrap(ORG, version, KEY, CONTEXT)))
            except BaseException as error:
                failed.append(error)

        _at_once(make, others)
        assert failed == []
        there = self.reopen(tmp_path)
        for version, wrapped in made:
            assert old < version <= there.current_version(ORG)
            assert there.unwrap(ORG, version, wrapped, CONTEXT) == KEY
        assert changing.versions(ORG)[-1] == there.current_version(ORG)

    def test_a_retired_version_unwraps_nothing_any_more_for_anybody(
        self, keys: KeyProvider, changing: KeyLifecycle, tmp_path: Path
    ) -> None:
        """Gone is gone, also for objects that had used it; what other versions wrapped is untouched."""
        old = keys.current_version(ORG)
        earlier = self.reopen(tmp_path)
        wrapped = earlier.wrap(ORG, old, KEY, CONTEXT)
        new = changing.new_version(ORG)
        kept = keys.wrap(ORG, new, KEY, CONTEXT)
        for _ in range(2):
            changing.retire(ORG, old)
            for each in (keys, earlier, changing.reopened(), self.reopen(tmp_path)):
                with pytest.raises(KeyNotFoundError):
                    each.unwrap(ORG, old, wrapped, CONTEXT)
                with pytest.raises(KeyNotFoundError):
                    each.wrap(ORG, old, KEY, CONTEXT)
                assert each.unwrap(ORG, new, kept, CONTEXT) == KEY
            assert changing.versions(ORG) == (new,)
        assert changing.new_version(ORG) > new

    def test_the_current_version_is_never_retired(self, keys: KeyProvider, changing: KeyLifecycle) -> None:
        """An org without a key could neither store nor read."""
        for _ in range(2):
            version = keys.current_version(ORG)
            wrapped = keys.wrap(ORG, version, KEY, CONTEXT)
            with pytest.raises(KeyringError):
                changing.retire(ORG, version)
            assert keys.unwrap(ORG, version, wrapped, CONTEXT) == KEY
            changing.new_version(ORG)

    def test_what_is_done_for_one_org_is_done_for_all_only_where_that_is_said(
        self, keys: KeyProvider, changing: KeyLifecycle
    ) -> None:
        """Whoever retires a version has to know whom else it serves."""
        old = keys.current_version(OTHER_ORG)
        wrapped = keys.wrap(OTHER_ORG, old, KEY, CONTEXT)
        assert type(changing.shared_by_orgs) is bool
        gone = keys.current_version(ORG)
        new = changing.new_version(ORG)
        changing.retire(ORG, gone)
        if changing.shared_by_orgs:
            assert keys.current_version(OTHER_ORG) == new
            with pytest.raises(KeyNotFoundError):
                keys.unwrap(OTHER_ORG, old, wrapped, CONTEXT)
        else:
            assert keys.current_version(OTHER_ORG) == old
            assert keys.unwrap(OTHER_ORG, old, wrapped, CONTEXT) == KEY

    def test_threads_that_wrap_at_once_get_what_is_theirs(self, keys: KeyProvider) -> None:
        """One provider serves all threads of a process."""
        version = keys.current_version(ORG)
        wrong: list[object] = []

        def work(number: int) -> None:
            key, context = bytes([number]) * 32, b"%d" % number
            try:
                for _ in range(-(-20 // self.trials_over)):
                    if keys.unwrap(ORG, version, keys.wrap(ORG, version, key, context), context) != key:
                        wrong.append(number)
            except BaseException as error:
                wrong.append(error)

        _at_once(work, range(8))
        assert wrong == []


def _at_once(work: Callable[[T], None], arguments: Iterable[T]) -> None:
    """The work, for all arguments at the same time."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

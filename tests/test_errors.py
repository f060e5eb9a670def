"""Errors travel: between processes, into copies, and up one documented tree with one exit code each."""

import copy
import pickle
import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from evidence_archive import errors
from evidence_archive.dialects import dialect
from evidence_archive.errors import BatchRejectedError, EvidenceArchiveError, MessageShapeError, PolicyError
from evidence_archive.model import Target


def tree(root: type[EvidenceArchiveError] = EvidenceArchiveError) -> list[type[EvidenceArchiveError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


def example(kind: type[EvidenceArchiveError]) -> EvidenceArchiveError:
    if issubclass(kind, PolicyError):
        return kind("The effect is unknown.", path="rules.toml", key="archive[2].effect")
    if issubclass(kind, BatchRejectedError):
        return kind("Nothing was archived.", targets=[Target("r1", "protected", "It stays.")], reason="targets")
    return kind() if kind is errors.NotAvailableError else kind("Try again.")


def through_a_pickle(error: EvidenceArchiveError) -> Any:
    return pickle.loads(pickle.dumps(error))


TRAVELS = pytest.mark.parametrize("travel", [through_a_pickle, copy.copy, copy.deepcopy])


@TRAVELS
@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_an_error_arrives_as_it_left(kind: type[EvidenceArchiveError], travel: Callable[[Any], Any]) -> None:
    error = example(kind)
    error.add_note("asked by the night shift")
    arrived = travel(error)
    assert type(arrived) is kind
    assert (str(arrived), arrived.args, vars(arrived)) == (str(error), error.args, vars(error))
    assert arrived.exit_code == error.exit_code


class FixedText(Exception):
    """Takes no arguments and does not say how it is made again."""

    def __init__(self) -> None:
        super().__init__("Not available.")


@TRAVELS
def test_an_error_of_fixed_text_that_does_not_say_how_it_is_made_would_be_caught(
    travel: Callable[[Any], Any],
) -> None:
    with pytest.raises(TypeError):
        travel(FixedText())


def test_no_two_errors_end_a_program_with_the_same_code() -> None:
    codes = [kind.exit_code for kind in tree()]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 126 for code in codes)


def test_the_tree_is_the_one_that_is_documented() -> None:
    documented: dict[str, str] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        name = re.match(r"    [ │├└]*(\w+Error)\b", line)
        if name:
            above = {column: kind for column, kind in above.items() if column < name.start(1)}
            documented[name[1]] = above[max(above)] if above else "Exception"
            above[name.start(1)] = name[1]
    actual = {kind.__name__: kind.__base__.__name__ for kind in tree() if kind.__base__}
    assert documented == actual
    assert set(actual) == set(errors.__all__) - {"RejectedTarget"}


class Talkative:
    """A message of an SDK whose failures repeat what it holds."""

    role = "tool"
    tool_call_id = "c1"
    content = "made-up evidence"

    def model_copy(self, update: object) -> "Talkative":
        raise ValueError(f"{self.content} cannot be copied")


class Unreadable(Talkative):
    @property
    def role(self) -> str:  # type: ignore[override]
        raise ValueError(f"{self.content} has no role")


@pytest.mark.parametrize(
    "fails",
    [lambda lens: lens.read(Unreadable()), lambda lens: lens.replace(Talkative(), {0: "a note"})],
    ids=["reading", "replacing"],
)
def test_what_an_sdk_object_says_when_it_fails_is_in_no_traceback_of_ours(fails: Callable[[Any], object]) -> None:
    with pytest.raises(MessageShapeError) as caught:
        fails(dialect("chat"))
    assert "made-up" not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


def test_a_chained_exception_would_be_in_the_traceback() -> None:
    def fails() -> None:
        try:
            Talkative().model_copy({})
        except ValueError as error:
            raise MessageShapeError("It cannot be copied.") from error

    with pytest.raises(MessageShapeError) as caught:
        fails()
    assert "made-up" in "".join(traceback.format_exception(caught.value))

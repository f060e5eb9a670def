"""``strace`` attached to a child that waits for the word to go."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from nursery import Child

__all__ = ["traced"]


@contextmanager
def traced(child: Child, trace: Path, options: Sequence[str]) -> Iterator[None]:
    """Trace a child from its word to go to its end, which the block waits for.

    Args:
        child: does its work's first part meanwhile.
        trace: where the output goes.
        options: of strace.
    """
    child.ready()
    strace = subprocess.Popen(
        ["strace", *options, "-o", trace, "-p", str(child.pid)], stderr=subprocess.PIPE, text=True
    )
    with strace:
        try:
            assert strace.stderr is not None
            told = strace.stderr.readline()
            if "attached" not in told:
                pytest.skip(f"sweep: strace may not attach to processes here: {told.strip()}")
            child.go()
            yield
            strace.stderr.read()  # until it has written everything, and ends
        except BaseException:
            strace.kill()
            raise

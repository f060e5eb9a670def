"""What tests need: scripted models and clocks for agent loops, faults at every edge, contracts for backends.

Everything is loaded on first use: the pytest plugin in this package is imported by every pytest run of every
environment that has the library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evidence_archive.testing.chat_server import ChatServer
    from evidence_archive.testing.conversing import Probe
    from evidence_archive.testing.faults import (
        FAULT_POINTS,
        Crashed,
        FaultPlan,
        FaultPoint,
        FaultyKeys,
        FaultyObjects,
        FaultyStore,
        Passing,
        faulted,
    )
    from evidence_archive.testing.key_contract import KeyProviderContract
    from evidence_archive.testing.safekeeping import CustodySweep
    from evidence_archive.testing.scripted import (
        HARD_CALL_IDS,
        Call,
        FrozenClock,
        ScriptedModel,
        ScriptedObject,
        ScriptedReply,
        ScriptedRequest,
        call,
        say,
    )
    from evidence_archive.testing.store_contract import StoreContract
    from evidence_archive.testing.sweeping import Outcome, Sweep, Trial, sweep

_HOMES = {
    "chat_server": ("ChatServer",),
    "conversing": ("Probe",),
    "faults": (
        "FAULT_POINTS",
        "Crashed",
        "FaultPlan",
        "FaultPoint",
        "FaultyKeys",
        "FaultyObjects",
        "FaultyStore",
        "Passing",
        "faulted",
    ),
    "key_contract": ("KeyProviderContract",),
    "safekeeping": ("CustodySweep",),
    "scripted": (
        "HARD_CALL_IDS",
        "Call",
        "FrozenClock",
        "ScriptedModel",
        "ScriptedObject",
        "ScriptedReply",
        "ScriptedRequest",
        "call",
        "say",
    ),
    "store_contract": ("StoreContract",),
    "sweeping": ("Outcome", "Sweep", "Trial", "sweep"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "FAULT_POINTS",
    "HARD_CALL_IDS",
    "Call",
    "ChatServer",
    "Crashed",
    "CustodySweep",
    "FaultPlan",
    "FaultPoint",
    "FaultyKeys",
    "FaultyObjects",
    "FaultyStore",
    "FrozenClock",
    "KeyProviderContract",
    "Outcome",
    "Passing",
    "Probe",
    "ScriptedModel",
    "ScriptedObject",
    "ScriptedReply",
    "ScriptedRequest",
    "StoreContract",
    "Sweep",
    "Trial",
    "call",
    "faulted",
    "say",
    "sweep",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

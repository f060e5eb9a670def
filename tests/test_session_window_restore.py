"""A result that left the window with its turn, before anybody archived it, can still be read by the model."""

import json

from conftest import Conversation, Desk
from doubles import Characters, policy_of

from evidence_archive import Principal


def test_a_live_result_that_left_the_window_is_restored_when_the_model_asks_for_it(
    sqlite_desk: Desk, owner: Principal
):
    """It is too small for the host to archive while its turn is shown."""
    policy = policy_of("[window]\nwindow_tokens_max = 4000\narchive_tokens_min = 500\n")
    with sqlite_desk.open(policy=policy, counter=Characters()) as archive:
        session, talk = archive.session("case", owner), Conversation()
        for at in range(40):
            talk.tool(f"finding {at} " + "word and more " * 70)
            talk.say(f"turn {at}")
            view = session.view(talk.messages)
        assert "finding 0 " not in json.dumps(view)
        answer = talk.ours(session, "restore_evidence", json.dumps({"id": "r1"}))["content"]
        assert "finding 0 word and more" in answer

"""Rebuilds conversations with models from events: one row each, in the format of training tools.

A ModelAsked has only the messages that the call before it, of the same loop, did not have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll.agent.trajectory.events import FinalGiven, ModelAnswered, ModelAsked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from atoll.agent.trajectory.events import Event

    Messages = list[dict[str, Any]]


def conversations(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return for each loop, and each single call, its last conversation with the reply.

    A row has `messages` of role and content, and facts about the run under `metadata`.
    """
    said: dict[tuple[str, str | None], Messages] = {}
    rows: dict[tuple[str, str | None], dict[str, Any]] = {}
    asked: dict[tuple[str, str], ModelAsked] = {}
    for event in events:
        place = (event.run, event.parent)
        if isinstance(event, ModelAsked):
            said[place] = said.get(place, [])[: event.repeated] + list(event.messages)
            asked[event.run, event.call] = event
        elif isinstance(event, ModelAnswered) and (event.run, event.call) in asked:
            reply = {"role": "assistant", "content": event.text}
            row = [dict(one) for one in said[place]]
            rows[place] = _row([*row, reply], asked[event.run, event.call])
        elif isinstance(event, FinalGiven) and place in rows:
            rows[place]["metadata"] |= {"ended": event.ended, "answer": event.text}
    return list(rows.values())


def _row(messages: Messages, asked: ModelAsked) -> dict[str, Any]:
    facts = {"run": asked.run, "call": asked.call, "model": asked.model, "depth": asked.depth}
    return {"messages": messages, "metadata": facts}

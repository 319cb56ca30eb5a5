"""Emit the events of a sub-call to the trajectory: how it began, and how it ended or failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.rlm.model_calls import FREE_TOLD, usage_fields
from atoll.rlm.types import Ended
from atoll.trajectory.events import Refused, SubcallEnded, SubcallStarted

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from atoll.rlm.model_calls import ModelCalls, Totals
    from atoll.rlm.types import Ending

UNTOLD = f"more than {FREE_TOLD:,} of them cost nothing: the rest is not told"


@dataclass(frozen=True, slots=True)
class SubcallEvents:
    """The events of one sub-call that is made in the loop of `calls`."""

    calls: ModelCalls
    call: str
    quiet: bool = False

    @classmethod
    def of(cls, calls: ModelCalls, **facts: Any) -> SubcallEvents:
        """Emit the start of a new call; once too many cost nothing, no more events are emitted."""
        shared, call = calls.concurrency, calls.writer.new_call()
        one = cls(calls, call, quiet=not shared.may_tell(calls.root.totals.calls))
        if not one.quiet:
            calls.writer.emit(SubcallStarted(call=call, **one._place, **facts))
        elif not shared.hushed:
            shared.hushed = True
            calls.writer.emit(Refused(what="telling of sub-calls", why=UNTOLD))
        return one

    async def end(
        self, work: Awaitable[Ending], totals: Totals, *, downgraded: bool = False
    ) -> Ending:
        """Return what `work` gives, and emit how it ended and what it used."""
        answer, ended, error = "", Ended.UNANSWERED, None
        try:
            ending = await work
            answer, ended = ending.text, ending.ended
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            raise
        else:
            return ending
        finally:
            if not self.quiet:
                self.calls.writer.emit(
                    SubcallEnded(
                        call=self.call,
                        answer=answer,
                        ended=ended.value,
                        error=error,
                        usage=usage_fields(totals.usage),
                        usd=totals.usd,
                        downgraded=downgraded,
                        **self._place,
                    )
                )

    @property
    def _place(self) -> dict[str, Any]:
        return {"parent": self.calls.parent, "depth": self.calls.depth}

"""Tells a trajectory of a sub-call: how it began, and how it ended, also how it failed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.rlm.asking import told
from atoll.rlm.lanes import FREE_TOLD
from atoll.rlm.trajectory.events import Refused, SubcallEnded, SubcallStarted

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from atoll.rlm.asking import Asker, Totals

UNTOLD = f"more than {FREE_TOLD:,} of them cost nothing: the rest is not told"


@dataclass(frozen=True, slots=True)
class Telling:
    """The story of one sub-call that is made in the loop of `asker`."""

    asker: Asker
    call: str
    quiet: bool = False

    @classmethod
    def of(cls, asker: Asker, **facts: Any) -> Telling:
        """Begin to tell of a new call; once too many cost nothing, nothing is told of more."""
        lanes, call = asker.lanes, asker.writer.new_call()
        one = cls(asker, call, quiet=not lanes.may_tell(asker.root.totals.calls))
        if not one.quiet:
            asker.writer.emit(SubcallStarted(call=call, **one._place, **facts))
        elif not lanes.hushed:
            lanes.hushed = True
            asker.writer.emit(Refused(what="telling of sub-calls", why=UNTOLD))
        return one

    async def end(self, work: Awaitable[str], totals: Totals, *, downgraded: bool = False) -> str:
        """The answer that `work` gives, and what it used."""
        answer, error = "", None
        try:
            answer = await work
        except asyncio.CancelledError:
            error = "cancelled"
            raise
        except Exception as exc:
            error = f"{type(exc).__name__}: {exc}"
            raise
        else:
            return answer
        finally:
            if not self.quiet:
                self.asker.writer.emit(
                    SubcallEnded(
                        call=self.call,
                        answer=answer,
                        error=error,
                        usage=told(totals.usage),
                        usd=totals.usd,
                        downgraded=downgraded,
                        **self._place,
                    )
                )

    @property
    def _place(self) -> dict[str, Any]:
        return {"parent": self.asker.parent, "depth": self.asker.depth}

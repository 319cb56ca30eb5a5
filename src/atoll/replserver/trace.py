"""A debug log of requests and responses: sizes, and contents if asked for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.replserver.messages import REPLRequest, REPLResponse


class Trace:
    """Numbers and logs requests; lines outside of frames are always logged: they are mistakes."""

    def __init__(
        self, say: Callable[[str], None], *, debug: bool = False, contents: bool = False
    ) -> None:
        self._say, self._debug, self._contents = say, debug or contents, contents
        self._number = 0

    def noise(self, text: bytes) -> None:
        """Log a line that is in no frame."""
        self._say(f"ignored a line outside of a frame: {text!r}")

    def request(self, request: REPLRequest) -> None:
        """Log a request before it runs."""
        self._number += 1
        if self._debug:
            self._say(
                f"request {self._number}: code {len(request.code):,} characters, "
                f"state {len(request.state or b''):,} bytes, capture_state {request.capture_state}"
            )
        if self._contents:
            self._say(f"request {self._number} is {json.dumps(request.as_json())}")

    def response(self, response: REPLResponse, frame: bytes) -> None:
        """Log a response before it is sent."""
        if self._debug:
            self._say(
                f"response {self._number}: {response.kind}, exit code {response.exit_code}, "
                f"{len(frame):,} bytes, {response.duration_ms:.1f} ms"
            )
        if self._contents:
            self._say(f"response {self._number} is {json.dumps(response.as_json())}")

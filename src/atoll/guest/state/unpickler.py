"""How a session's values are loaded, in the guest and nowhere else.

cloudpickle is costly to import, so that waits until a value needs it: a function, a class.
"""

from __future__ import annotations

import io

from .pickler import load_cloudpickle

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def make(data: bytearray, buffers: list[bytearray], cloudpickle: str) -> Any:
    """An unpickler of `data`; the C one, whatever guest code did to the module `pickle`."""
    import _pickle

    class SessionUnpickler(_pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.split(".", maxsplit=1)[0] == "cloudpickle":
                load_cloudpickle(cloudpickle)
            return super().find_class(module, name)

    return SessionUnpickler(io.BytesIO(data), buffers=buffers)

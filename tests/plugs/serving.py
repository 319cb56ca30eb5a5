"""Starts `atoll serve` for the judges whose packages are clients of it.

The service runs by the interpreter of $ATOLL_JUDGE_PYTHON; the clients are in this one.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess

ATOLL = (os.environ["ATOLL_JUDGE_PYTHON"], "-m", "atoll.cli.main")


@contextlib.contextmanager
def atoll_serve(folder, *options):
    """Yield the address of a service whose files are in a folder."""
    command = [*ATOLL, "serve", "--port", "0", "--tier", "numeric", "--folder", str(folder)]
    command += options
    out = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **out) as serving:
        try:
            for line in serving.stdout:
                if found := re.search(r"http://[\d.]+:\d+", line):
                    break
            yield found[0]
        finally:
            serving.terminate()


def new_key(folder, *options):
    """Return a key of the service whose files are in a folder."""
    command = [*ATOLL, "keys", "add", "--folder", str(folder), *options]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return re.search(r"atl_\S+", told.stdout)[0]

"""A guest is interrupted whether or not it may start threads."""

from __future__ import annotations

import _thread
import signal

from atoll.guest.core.interrupt import InterruptGate


def test_code_is_interrupted_where_no_thread_may_be_started(monkeypatch):
    def refuse(*_args):
        raise PermissionError("an audit hook allows no thread, as in `restricted` from 3.12 on")

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    try:
        work = lambda: signal.raise_signal(signal.SIGINT)
        assert InterruptGate().run(work, lambda: "interrupted") == "interrupted"
    finally:
        signal.signal(signal.SIGINT, before)

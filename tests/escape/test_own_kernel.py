"""What gVisor's kernel lets guest code do to itself, and the host does not notice.

The attacks that are left out for gVisor ask whether a system call, a device or a file of the kernel
is in reach (corpus.OWN_KERNEL). They are, in a kernel of the guest's own. So they run here, one after
the other, and what counts is what they find and change outside.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import canaries
import corpus
import pytest
from sharing import shared_boxes

SETTINGS = (
    "kernel/core_pattern", "kernel/yama/ptrace_scope", "kernel/hostname",
    "net/ipv4/tcp_recovery", "net/ipv4/tcp_wmem", "net/ipv4/tcp_sack",
    "net/ipv4/ip_local_port_range", "vm/drop_caches",
)  # fmt: skip
"""Of the host: what the attacks write to."""
NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")
ENDS_ITSELF = frozenset({"nat-sig-kill-parent", "extra-sys-clone-newuser"})
"""Those that end their own container, or their own process: nobody else's."""


@functools.cache
def attacks() -> list[corpus.Attack]:
    return [one for one in corpus.load() if one.id in corpus.OWN_KERNEL]


def host() -> dict[str, object]:
    """The host's own settings and devices, as far as this user may see them."""
    settings = {name: Path("/proc/sys", name) for name in SETTINGS}
    found: dict[str, object] = {
        name: path.read_text() for name, path in settings.items() if os.access(path, os.R_OK)
    }
    for name in filter(os.path.exists, NODES):
        state = os.stat(name)
        found[name] = state.st_mode, state.st_uid, state.st_rdev
    return found


@pytest.mark.parametrize("backend", ["gvisor"], indirect=True)
def test_what_the_guest_s_own_kernel_grants_is_not_the_host_s(backend: str) -> None:
    planted = canaries.planted()
    before, outside = host(), planted.outside_listing()
    secret = os.environ[planted.variable]
    with shared_boxes.keep(backend) as box, shared_boxes.keep(backend) as neighbour:
        neighbour.execute("import os; kept, lines = 41, open('/proc/sys/net/ipv4/tcp_wmem').read()")
        for attack in sorted(attacks(), key=lambda one: one.id in ENDS_ITSELF):
            result = box.execute(planted.fill(attack.code))
            ended = result.kind in ("crashed", "exited")
            assert not ended or attack.id in ENDS_ITSELF, (attack.id, result)
            assert secret not in repr(result), attack.id
            assert str(planted.file) not in result.stdout, attack.id
        same = "lines == open('/proc/sys/net/ipv4/tcp_wmem').read()"
        assert neighbour.execute(f"kept + 1, {same}").value == (42, True)
        # A container whose first process was ended may take the next cell with it.
        assert 42 in [box.execute("6 * 7").value for _ in range(3)]
    assert (host(), planted.outside_listing()) == (before, outside)


def test_every_attack_that_is_left_out_is_in_the_corpus() -> None:
    assert {one.id for one in attacks()} == corpus.OWN_KERNEL

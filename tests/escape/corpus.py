"""The attack corpora as typed data: read by the harness, which runs them, and by the tests.

Standard library only: the harness also runs as an ordinary user, without any test tool.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

HERE = Path(__file__).resolve().parent
ATTACKS = HERE / "attacks.jsonl"
EXTRA = HERE / "extra.jsonl"

ENDINGS = HERE / "endings.json"

LAYERS: dict[str, tuple[str, ...]] = {
    "native": ("native", "all"),
    "gvisor": ("native", "all"),
    "daemon": ("native", "all"),
    "wasm": ("wasm", "all"),
    "pyodide": ("pyodide", "all"),
    "restricted": ("restricted", "all"),
    "remote": (),  # its guests come out of the pool whose guests `daemon` attacks
    "ray": (),  # a node's guests come out of the same pool
}
"""Which layers of a corpus concern a backend. A new backend needs a row here and in endings.json."""

OWN_KERNEL = frozenset(
    {
        "nat-sys-io_uring_setup", "nat-sys-name_to_handle_at",
        "nat-sys-personality_noaslr", "nat-priv-status",
        "nat-proc-mountinfo-leak", "nat-secret-path-proc-1-cmdline", "nat-dev-fuse",
        "extra-sys-ptrace_traceme", "extra-sys-perf_event_open", "extra-sys-setns",
        "extra-sys-open_by_handle_at", "extra-sys-memfd_create", "extra-sys-syslog_read_all",
        "extra-sys-io_setup", "extra-sys-mbind", "extra-sys-seccomp_listener",
        "extra-sys-clone-high-bits",
        "extra-sys-socket-family-truncation", "extra-proc-1-environ-and-fds",
        "extra-proc-sys-writes", "extra-proc-cgroup-release-agent", "extra-proc-host-paths",
        "extra-net-raw-and-icmp", "extra-dev-all", "extra-dev-net-tun", "extra-dev-ptmx",
        "nat-sig-kill-parent",
    }
)  # fmt: skip
"""Attacks that ask whether a system call, a device or a file of the kernel is in reach. In gVisor
they are, and are those of the guest's own kernel: that says nothing about the host's. So is the
container's first process, which guest code can end, and with it its session."""

WAITING = {"service": "its attacks are HTTP requests: tests/service sends them"}
"""Layers of the corpus that no backend answers for, and why."""

ONE_OF = 8
"""A sample has every eighth attack of each category."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What follows the attack: `session` is same, other, fresh, restore or upload:<name>."""

    session: str
    code: str

    @property
    def kind(self) -> str:
        """The session's kind, without a file's name."""
        return self.session.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One entry; `passes` says in words what a good sandbox does."""

    id: str
    category: str
    layer: str
    code: str
    passes: str
    source: str = ""
    bites: str = ""
    then: tuple[Step, ...] = ()
    needs: tuple[str, ...] = ()
    timeout_s: float | None = None
    host_check: tuple[str, ...] = ()
    expect_kind: str | None = None
    expect_stdout: str | None = None
    compare: str | None = None
    arch: str | None = None
    runs_in: str | None = None


@functools.cache
def load(file: Path | None = None) -> tuple[Attack, ...]:
    """Every entry of a corpus file, in its order; of both files without one."""
    if file is None:
        return load(ATTACKS) + load(EXTRA)
    with file.open(encoding="utf-8") as lines:
        return tuple(_attack(json.loads(line)) for line in lines if line.strip())


def for_backend(backend: str) -> tuple[Attack, ...]:
    """The entries that concern a backend; KeyError for a backend that LAYERS does not name."""
    left_out = _left_out(backend)
    return tuple(one for one in load() if one.layer in LAYERS[backend] and one.id not in left_out)


def _left_out(backend: str) -> frozenset[str]:
    return OWN_KERNEL if backend == "gvisor" else frozenset()


def sample(attacks: Sequence[Attack], one_of: int = ONE_OF) -> tuple[Attack, ...]:
    """The same few attacks each time: one of so many in every category, and at least one."""
    seen: Counter[str] = Counter()
    chosen = []
    for attack in attacks:
        if seen[attack.category] % one_of == 0:
            chosen.append(attack)
        seen[attack.category] += 1
    return tuple(chosen)


HARMLESS = frozenset(
    {
        "syscall", "devices", "network", "proc", "secrets", "js-escape", "class-walk",
        "builtins-reach", "no-call-exec", "frame-walk", "format-string", "no-attribute-node",
        "unicode", "module-gadget", "thirdparty-gadget", "serialization", "control",
    }
)  # fmt: skip
"""Categories of attacks that ask for something and print what they got; and of ordinary code."""
ALONE = frozenset({"pyo-proto-pollution", "extra-secret-memory-of-host-in-guest", "extra-dev-pty"})
"""Attacks of these categories that change what the next one would find, or that find in memory
and among terminals what an earlier one left there."""


def is_harmless(attack: Attack, backend: str) -> bool:
    """Whether an attack leaves its sandbox as it was: several of them may share one."""
    plain = not (attack.then or attack.host_check or attack.needs or attack.compare)
    ends = {way.split()[0] for way in endings(backend).get(attack.id, ())}
    return (
        attack.category in HARMLESS
        and attack.id not in ALONE
        and plain
        and ends <= {"ok", "error", "refused"}
    )


@functools.cache
def endings(backend: str) -> dict[str, tuple[str, ...]]:
    """How each attack may end in a backend: kinds of results, with the exception's type."""
    if not LAYERS[backend]:
        return {}
    recorded = json.loads(ENDINGS.read_text(encoding="utf-8"))
    own = recorded[LAYERS[backend][0]] | recorded.get(backend, {})
    left_out = _left_out(backend)
    return {one: tuple(ways.split(" | ")) for one, ways in own.items() if one not in left_out}


def _attack(row: dict[str, Any]) -> Attack:
    row["passes"] = row.pop("pass")
    row["then"] = tuple(Step(**step) for step in row.get("then", ()))
    for name in ("needs", "host_check"):
        row[name] = tuple(row.get(name, ()))
    return Attack(**row)

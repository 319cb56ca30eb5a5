"""What stands in the way of a jail is read from /proc and /run, and told as what to type."""

from __future__ import annotations

from pathlib import Path

import pytest

from atoll.jail.measure import host_facts

PLAIN = "36 35 98:0 / / rw - ext4 /dev/root rw\n37 36 0:5 / /proc rw - proc proc rw\n"
MASKED = PLAIN + "99 37 0:50 / /proc/kcore rw,nosuid - tmpfs tmpfs rw\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a host that forbids nothing."""
    for name in ("KUBERNETES_SERVICE_HOST", "container"):
        monkeypatch.delenv(name, raising=False)
    put(tmp_path, "proc/self/mountinfo", PLAIN)
    put(tmp_path, "proc/self/status", "Name:\tpython\nSeccomp:\t0\nThreads:\t1\n")
    put(tmp_path, "proc/sys/user/max_user_namespaces", "96343\n")
    return tmp_path


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def filtered(root: Path) -> None:
    put(root, "proc/self/status", "Name:\tpython\nSeccomp:\t2\nThreads:\t1\n")


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("run/.containerenv", "--security-opt seccomp=unconfined --security-opt unmask=ALL"),
        (".dockerenv", "--security-opt apparmor=unconfined --security-opt systempaths=unconfined"),
    ],
)
def test_container_is_told_every_option_that_it_lacks(host: Path, mark: str, options: str) -> None:
    put(host, mark, "")
    filtered(host)
    put(host, "proc/self/mountinfo", MASKED)
    facts = host_facts.read(host)
    assert options in facts.hint()
    assert "sysctl" not in facts.hint()
    assert facts.words.endswith(", with a seccomp filter and a masked /proc")


def test_container_is_told_only_what_it_lacks(host: Path) -> None:
    put(host, "run/.containerenv", "")
    put(host, "proc/self/mountinfo", MASKED)
    assert "seccomp" not in host_facts.read(host).hint()
    assert "--security-opt unmask=ALL" in host_facts.read(host).hint()


def test_pod_is_told_its_fields(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    filtered(host)
    assert "seccompProfile.type: Unconfined" in host_facts.read(host).hint()


def test_host_that_forbids_namespaces_is_told_the_setting(host: Path) -> None:
    put(host, "proc/sys/user/max_user_namespaces", "0\n")
    put(host, "proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
    hint = host_facts.read(host).hint()
    assert "kernel.apparmor_restrict_unprivileged_userns=0" in hint
    assert "user.max_user_namespaces=10000" in hint
    assert "unprivileged_userns_clone" not in hint


def test_unit_with_a_filter_is_told_its_options(host: Path) -> None:
    filtered(host)
    assert "SystemCallFilter" in host_facts.read(host).hint()


def test_nothing_found_is_told_as_everything_to_look_at(host: Path) -> None:
    hint = host_facts.read(host).hint()
    assert hint.startswith("Allow user namespaces (kernel.unprivileged_userns_clone=1")
    assert host_facts.read(host).words == ""


def test_a_limit_of_this_process_that_is_too_low_is_told_alone():
    facts = host_facts.HostFacts(
        container="", filtered=False, masked=False, sysctls=(), ulimits=("ulimit -n 1024",)
    )
    assert facts.hint().startswith("This process may use too little: type ulimit -n 1024.")
    assert "namespaces" not in facts.hint()

"""The configuration that runsc is given: made of data, and of nothing of the host's."""

from __future__ import annotations

import json

import pytest

import atoll
from atoll.backends.gvisor import runsc
from atoll.backends.gvisor.bundle import configuration, make_spec
from atoll.launch import interpreter

NASTY = 'a "b" \\ {"annotations":{}} \u2028 ../x'
FOUND = runsc.Runsc("/usr/bin/runsc", "1", ("ptrace",), frozenset({"network", "rootless"}))


def spec_of(**options):
    config = atoll.SandboxConfig(backend="gvisor", **options)
    return make_spec(config, interpreter.resolve(None), FOUND, "ptrace", 0)


def test_nothing_in_it_is_a_path_of_the_host_or_a_power(tmp_path):
    spec = spec_of(policy={"mounts": [(tmp_path, "/data")]}, workspace=tmp_path)
    config = json.loads(spec.container)
    assert set(config) == {"ociVersion", "process", "root", "hostname", "mounts", "linux"}
    assert set(config["linux"]) == {"namespaces"}
    assert "capabilities" not in config["process"]
    sources = {one["source"] for one in config["mounts"]}
    shown = {"/rootfs/app", "/rootfs/tmp", "/rootfs/home/guest", "/rootfs/data"}
    assert sources == shown | {"proc", "tmpfs"}
    assert str(tmp_path) not in spec.container


def test_what_the_host_binds_is_read_only_but_for_what_the_caller_opens(tmp_path):
    spec = spec_of(policy={"mounts": [(tmp_path, "/data", True), (tmp_path, "/other")]})
    assert [one.target for one in spec.binds if one.writable] == ["/data"]


def test_names_are_data_in_it():
    env = {"NAME": NASTY + "\nNEXT=1"}
    config = spec_of(policy={"env": env, "mounts": [("/usr", "/mnt/" + NASTY.replace("../", ""))]})
    read = json.loads(config.container)
    assert f"NAME={env['NAME']}" in read["process"]["env"]
    assert read["mounts"][-1]["destination"] == "/mnt/" + NASTY.replace("../", "")
    assert "annotations" not in read


def test_every_limit_of_the_policy_is_in_it():
    policy = atoll.ExecutionPolicy(
        max_processes=7, file_size_bytes=8, max_open_files=99, memory_bytes=10, disk_bytes=40
    )
    config = configuration(policy, ("x",), {}, 0)
    limits = {one["type"]: one["hard"] for one in config["process"]["rlimits"]}
    assert (limits["RLIMIT_NPROC"], limits["RLIMIT_FSIZE"], limits["RLIMIT_NOFILE"]) == (9, 8, 99)
    assert limits["RLIMIT_AS"] == 10 + (4 << 30)
    assert "size=10" in config["mounts"][1]["options"]


def test_no_limit_is_no_limit():
    policy = atoll.ExecutionPolicy(
        max_processes=None, file_size_bytes=None, memory_bytes=None, disk_bytes=None
    )
    config = configuration(policy, ("x",), {}, 0)
    kinds = {one["type"] for one in config["process"]["rlimits"]}
    assert kinds == {"RLIMIT_CORE", "RLIMIT_STACK", "RLIMIT_NOFILE"}


@pytest.mark.usefixtures("gvisor_here")
def test_a_mount_with_any_name_is_there_and_read_only(tmp_path):
    (tmp_path / "file").write_text("from the host")
    tmp_path.chmod(0o777)
    name = '/mnt/q"uote new\nline \u2028'
    env = {"NASTY": NASTY}
    policy = {"mounts": [(tmp_path, name)], "env": env}
    with atoll.create_sandbox(backend="gvisor", policy=policy) as box:
        code = f"import os; open({name!r} + '/file').read(), os.environ['NASTY']"
        assert box.execute(code).value == ("from the host", NASTY)
        assert box.execute(f"open({name!r} + '/new', 'w')").error_type == "OSError"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]

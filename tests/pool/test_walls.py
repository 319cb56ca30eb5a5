"""The walls seen from inside are the same on every path: cold start, forked guest, live clone."""

from __future__ import annotations

import json

from poolkit import said

from atoll.aio import create_sandbox

LOOK = """
import json, os, resource, subprocess
def groups():
    paths = ['/proc/%s/cgroup' % name for name in os.listdir('/proc') if name.isdigit()]
    with open('/proc/self/cgroup') as file:
        texts = [file.read(), subprocess.run(['cat', *paths], stdout=-1, text=True).stdout]
    return sorted({line.split(':', 2)[2] for text in texts for line in text.splitlines()})
def status(*names):
    with open('/proc/self/status') as file:
        lines = dict(line.split(':', 1) for line in file)
    return {name: lines[name].strip() for name in names}
def refused(path):
    try:
        os.mkdir(path)
    except OSError as exc:
        return exc.errno
kinds = ('RLIMIT_CORE', 'RLIMIT_MEMLOCK', 'RLIMIT_MSGQUEUE', 'RLIMIT_SIGPENDING', 'RLIMIT_NICE',
         'RLIMIT_RTPRIO', 'RLIMIT_STACK', 'RLIMIT_NOFILE', 'RLIMIT_FSIZE')
print(json.dumps({
    'facts': {
        **status('Uid', 'Gid', 'Groups', 'CapInh', 'CapEff', 'CapBnd', 'CapAmb', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters'),
        'rlimits': [resource.getrlimit(getattr(resource, kind)) for kind in kinds],
        'mounts': open('/proc/self/mountinfo').read(),
        'groups': groups(),
        'host': os.uname().nodename,
        'oom': open('/proc/self/oom_score_adj').read(),
        'read_only': [refused(path) for path in ('/x', '/usr/x', '/etc/x', '/proc/x', '/dev/x')],
        'owners': [os.stat(path).st_uid for path in ('/app', '/tmp', '/dev/shm', '/home/guest')],
        'disk': [os.statvfs(path).f_blocks for path in ('/app', '/tmp', '/dev/shm', '/home/guest')],
        'network': sorted(os.listdir('/sys/class/net')) if os.path.exists('/sys/class/net') else None,
    },
    'namespaces': {kind: os.readlink('/proc/self/ns/' + kind)
                   for kind in ('user', 'pid', 'mnt', 'net', 'ipc', 'uts', 'cgroup')},
}))
"""


async def test_walls_are_the_same_on_every_path(family):
    forked = await family.open()
    clone = await family.fork(forked)
    other = await family.open()
    async with create_sandbox(backend="native") as cold:
        seen = [json.loads(await said(box, LOOK)) for box in (cold, forked, clone, other)]
    for one in seen[1:]:
        assert one["facts"] == seen[0]["facts"]
    facts = seen[0]["facts"]
    assert (facts["NoNewPrivs"], facts["Seccomp"], facts["mounts"]) == ("1", "2", "")
    assert facts["groups"] == ["/"]  # a path would show pids and counts of the host
    assert facts["oom"] == "1000\n"  # the kernel ends a guest before it ends the host
    assert {facts[name] for name in ("CapInh", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    for kind in seen[0]["namespaces"]:
        spaces = [one["namespaces"][kind] for one in (seen[0], seen[1], seen[3])]
        assert len(set(spaces)) == len(spaces), kind

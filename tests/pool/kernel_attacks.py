"""Attacks on what all sandboxes share, the kernel and read-only files; each says PWNED if it bites.

Those in BITES bite wherever there is no wall.
"""

from __future__ import annotations

CALLS = """
import ctypes, errno, fcntl, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *args):
    ctypes.set_errno(0)
    args = [ctypes.c_long(one) if isinstance(one, int) else one for one in args]
    return libc.syscall(ctypes.c_long(number), *args), errno.errorcode.get(ctypes.get_errno(), 'OK')
def attempt(*work):
    for one in work:
        try: one()
        except OSError: continue
        print('PWNED')
SHARED = os.__file__
"""
BITES = {
    "a lease on a shared file": "attempt(lambda: fcntl.fcntl(open(SHARED), 1024, fcntl.F_RDLCK))",
    "notifications of a shared folder": """
signal.signal(signal.SIGIO, lambda *_: print('PWNED'))
folder = os.open(os.path.dirname(SHARED), os.O_RDONLY)
fcntl.fcntl(folder, 1026, 1 - (1 << 31))  # F_NOTIFY, DN_ACCESS and DN_MULTISHOT
open(SHARED).read(1)
time.sleep(0.05)
""",
    "a set-user-ID bit": """
for at, work in enumerate((lambda p: os.close(os.open(p, os.O_CREAT | os.O_WRONLY, 0o6755)),
                           lambda p: os.mkdir(p, 0o6755), lambda p: os.mkfifo(p, 0o6755))):
    path = f'{os.getcwd()}/set-{at}'
    try: work(path)
    except OSError: continue
    if os.stat(path).st_mode & 0o6000: print('PWNED')
""",
}
ATTACKS = {
    "rare protocols": """
for family in (2, 10):
    for kind in (1, 2, 5):
        for protocol in (33, 108, 115, 132, 136, 256, 262):
            if call(41, family, kind, protocol)[0] >= 0: print('PWNED', family, protocol)
""",
    "a driver on top of a connection": """
server = socket.socket(); server.bind(('127.0.0.1', 0)); server.listen()
client = socket.create_connection(server.getsockname())
attempt(lambda: client.setsockopt(6, 31, b'tls'), lambda: client.setsockopt(6, 31, b'espintcp'))
""",
    "calls that nobody knows": """
for number in range(337, 470):
    if number not in (424, 434, 435, 436, 439, 441, 449, 452):
        result, why = call(number, -1, -1, -1, -1, -1, -1)
        if why not in ('ENOSYS', 'EPERM', 'EACCES'): print('PWNED', number, why)
""",
    "pid 1": """
for name in ('environ', 'mem', 'maps', 'stack', 'syscall', 'auxv', 'io', 'task/1/mem'):
    attempt(lambda: open('/proc/1/' + name, 'rb').read(1))
attempt(*(lambda name=name: os.listdir('/proc/1/' + name) for name in ('fd', 'root', 'cwd')))
attempt(lambda: os.readlink('/proc/1/exe'), lambda: os.readlink('/proc/1/ns/mnt'))
""",
    "a shared file is written": """
for path in ('/proc/self/exe', sys.executable, '/proc/1/exe', SHARED, '/etc/passwd'):
    attempt(lambda: os.open(path, os.O_WRONLY), lambda: os.open(path, os.O_RDWR | os.O_TRUNC))
    attempt(lambda: os.truncate(path, 0), lambda: os.chmod(path, 0o777), lambda: os.utime(path))
    attempt(lambda: os.setxattr(path, 'user.x', b'1'), lambda: os.unlink(path))
""",
    "a shared file is taken along": "attempt(lambda: os.link(SHARED, '/app/x'))",
    "flags of a shared file": """
fd = os.open(SHARED, os.O_RDONLY)
for code in (0x40086602, 0x401C5820, 0x40049409, 0xC0045878, 0xC0045877, 0x40106614):
    if call(16, fd, code, ctypes.create_string_buffer(64))[0] == 0: print('PWNED', hex(code))
""",
    "what a child inherits": """
import subprocess
look = "import os; print([os.readlink('/proc/self/fd/%s' % n) for n in os.listdir('/proc/self/fd') if int(n) > 2][:-1])"
child = subprocess.run([sys.executable, '-S', '-c', look], close_fds=False, capture_output=True, text=True)
if 'pipe' in child.stdout or 'socket' in child.stdout: print('PWNED', child.stdout)
""",
    "real-time and high priority": """
for policy in (1, 2):
    attempt(lambda: os.sched_setscheduler(0, policy, os.sched_param(1)))
attempt(lambda: os.nice(-1), lambda: os.setpriority(0, 0, -1))
if call(251, 1, 0, 1 << 13)[0] == 0 or call(314, 0, 0, 0)[0] == 0: print('PWNED')
""",
    "capabilities, again and again": """
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
sets = (ctypes.c_uint32 * 6)(1 << 21, (1 << 18) | (1 << 21), (1 << 21), 0, 0, 0)
for _ in range(200):
    if libc.capset(header, sets) == 0: print('PWNED')
if libc.prctl(47, 2, 21, 0, 0) == 0 or libc.prctl(28, 1) == 0: print('PWNED')
""",
    "other processes": """
for pid in set(range(2, 5000)) - {os.getpid(), os.getppid()}:
    try: os.kill(pid, 0)
    except ProcessLookupError: continue
    except PermissionError: pass
    print('PWNED', pid)
""",
    "settings of the kernel": """
import glob
own = ('oom_score_adj', 'uid_map', 'setgroups', 'coredump_filter', 'attr/current', 'loginuid')
for path in glob.glob('/proc/sys/*/*') + glob.glob('/proc/sys/net/*/*') + ['/proc/self/' + n for n in own]:
    attempt(lambda: os.close(os.open(path, os.O_WRONLY)))
""",
    "devices": """
for number in (os.makedev(1, 1), os.makedev(8, 0), os.makedev(10, 200), os.makedev(5, 1)):
    for kind in (0o020666, 0o060666):
        def make(path=f'/tmp/{number}-{kind}'):
            os.mknod(path, kind, number)
            open(path, 'rb').read(1)
        attempt(make)
""",
    "devices of the network": """
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for code, name in ((0x8914, b'lo'), (0x8916, b'lo'), (0x8924, b'lo'), (0x890B, b''), (0x89A0, b'b0')):
    attempt(lambda: fcntl.ioctl(one, code, struct.pack('16s24x', name)))
""",
    "credentials of another": """
left, right = socket.socketpair()
for pid, uid in ((1, 0), (1, 1000), (2, 0)):
    attempt(lambda: left.sendmsg([b'x'], [(1, 2, struct.pack('3i', pid, uid, 0))]))
""",
    "mounts of the new interface": """
calls = (165, b'none', b'/app', b'tmpfs', 32, 0), (428, -100, b'/', 1), (430, b'tmpfs', 0), (442, -100, b'/', 0, 0, 0)
for one in calls:
    if call(*one)[0] >= 0: print('PWNED', one[0])
""",
    "higher limits": """
import resource
for name in dir(resource):
    if name.startswith('RLIMIT_'):
        kind = getattr(resource, name)
        soft, hard = resource.getrlimit(kind)
        try: resource.setrlimit(kind, (soft, hard + 1 if hard >= 0 else hard))
        except (ValueError, OSError): continue
        if hard >= 0: print('PWNED', name)
""",
    **BITES,
}


async def bitten(guest):
    """The attacks that bite, all in one guest: none of them may harm the next."""
    found = {}
    for name, code in ATTACKS.items():
        result = await guest.execute(CALLS + code)
        if result.kind != "ok" or "PWNED" in result.stdout:
            found[name] = result.error or result.stdout
    return found

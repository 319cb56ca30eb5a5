"""The system-call filters, instruction by instruction, in an interpreter of classic BPF.

A kernel runs a filter for its own machine alone; this runs both machines' on any.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import socket
import struct
from pathlib import Path

import pytest

from atoll.jail.walls import bpf, seccomp, secluded, syscalls
from atoll.jail.walls.syscall_table import ALLOWED, ASKED, REFUSED

ALLOW, KILL, ERRNO, ASK = 0x7FFF0000, 0x80000000, 0x00050000, 0x7FC00000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32 = 0x40000000
CLONE_THREAD_FLAGS = 0x003D0F00  # what glibc passes for a thread; CLONE_THREAD is in it
SIGCHLD = 17
NEW_NAMESPACE_FLAGS = {
    "CLONE_NEWTIME": 0x00000080,
    "CLONE_NEWNS": 0x00020000,
    "CLONE_NEWCGROUP": 0x02000000,
    "CLONE_NEWUTS": 0x04000000,
    "CLONE_NEWIPC": 0x08000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}
SOL_SOCKET, IPPROTO_IP, IPPROTO_TCP, IPPROTO_IPV6 = 1, 0, 6, 41
ID_CALLS = {
    "chown": (1, 2), "fchown": (1, 2), "lchown": (1, 2), "fchownat": (2, 3), "setuid": (0,),
    "setgid": (0,), "setreuid": (0, 1), "setregid": (0, 1), "setresuid": (0, 1, 2),
    "setresgid": (0, 1, 2),
}  # fmt: skip
"""Calls that take ids of users and groups, and at which places."""
OWN_IDS = (1000, 1000, 1000, 1000)
HARMLESS = {
    "socket": (socket.AF_UNIX, 1, 0),
    "socketpair": (socket.AF_UNIX, 1, 0),
    **dict.fromkeys(ID_CALLS, OWN_IDS),
}
IGNORED = {"sync", "syncfs"}
"""Calls that succeed and do nothing: errno 0."""
MODE_AT = {
    "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "open": 2, "openat": 3,
    "mkdir": 1, "mkdirat": 2, "mknod": 1, "mknodat": 2,
}  # fmt: skip
REACHES_OTHERS = {
    "fork", "vfork", "socket", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open",
    "setpgid", "setpriority", "sched_setaffinity", "sched_setparam", "sched_setscheduler",
}  # fmt: skip
DANGEROUS = """
    mount umount2 pivot_root unshare setns mount_setattr move_mount open_tree open_tree_attr fsopen
    fsconfig fsmount fspick statmount listmount chroot clone3
    bpf perf_event_open seccomp ptrace kcmp process_vm_readv process_vm_writev process_madvise
    process_mrelease pidfd_send_signal pidfd_getfd
    io_uring_setup io_uring_enter io_uring_register io_setup io_submit io_destroy
    userfaultfd keyctl add_key request_key
    kexec_load kexec_file_load init_module finit_module delete_module create_module
    open_by_handle_at name_to_handle_at openat2 memfd_create memfd_secret
    shmget shmat shmctl msgget msgsnd msgctl semget semop semctl mq_open mq_unlink
    personality reboot swapon swapoff acct iopl ioperm modify_ldt vm86 uselib
    settimeofday clock_settime clock_adjtime adjtimex stime sethostname setdomainname
    move_pages migrate_pages mbind set_mempolicy set_mempolicy_home_node
    quotactl quotactl_fd fanotify_init fanotify_mark inotify_init inotify_init1 inotify_add_watch
    landlock_create_ruleset landlock_add_rule landlock_restrict_self
    syslog lookup_dcookie vhangup nfsservctl splice vmsplice tee capset setgroups
    setxattrat mlockall sched_setattr ioprio_set remap_file_pages
""".split()


def run(
    program: bytes,
    number: int,
    args: tuple[int, ...] = (),
    arch: int | None = None,
    seen: list[int] | None = None,
) -> int:
    """What a program answers to a call: struct seccomp_data in, the verdict out.

    `seen` gets the places in the program that it came by.
    """
    arch = ARCHES[syscalls.ARCH] if arch is None else arch
    padded = [value & (1 << 64) - 1 for value in (*args, *[0] * (6 - len(args)))]
    data = struct.pack("<IIQ6Q", number, arch, 0, *padded)
    code = list(struct.iter_unpack("HBBI", program))
    accumulator = at = 0
    while True:
        operation, yes, no, k = code[at]
        if seen is not None:
            seen.append(at)
        at += 1
        if operation == 0x20:  # LD W ABS
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif operation == 0x06:  # RET K
            return k
        elif operation == 0x05:  # JA
            at += k
        else:
            tests = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}
            at += yes if tests[operation] else no


def refused(code: int) -> int:
    return ERRNO | code


def numbers() -> dict[str, int]:
    column = list(ARCHES).index(syscalls.ARCH)
    return {name: pair[column] for name, pair in ALLOWED.items() if pair[column] is not None}


@pytest.fixture(params=ARCHES)
def arch(request, monkeypatch):
    monkeypatch.setattr(syscalls, "ARCH", request.param)
    seccomp.jail_program.cache_clear()
    yield request.param
    seccomp.jail_program.cache_clear()


@pytest.fixture
def jail(arch):
    """Asks the jail's filter about a call by name."""
    return asker(seccomp.jail_program())


@pytest.fixture
def confined(arch):
    return asker(seccomp.confined_program())


@pytest.fixture
def alone(arch):
    """Asks the filter of a process that only computes."""
    return asker(secluded.program())


def asker(program):
    def ask(name: str, *args: int) -> int:
        return run(program, numbers()[name], args)

    return ask


def test_a_call_is_found_in_a_few_tests(arch):
    """The kernel runs a new filter once for each number: a long row of tests would take longer."""
    for program in (seccomp.jail_program(clones=True), seccomp.confined_program()):
        longest = max(len(_path(program, number)) for number in range(600))
        assert longest < 40


def _path(program: bytes, number: int) -> list[int]:
    """The places in a program that a call comes by."""
    seen: list[int] = []
    run(program, number, seen=seen)
    return seen


def test_a_program_is_well_formed(arch):
    for program in (seccomp.jail_program(), seccomp.confined_program(), secluded.program()):
        code = list(struct.iter_unpack("HBBI", program))
        assert len(code) <= 4096  # BPF_MAXINSNS
        assert {operation for operation, *_ in code} <= {0x20, 0x15, 0x35, 0x45, 0x05, 0x06}
        assert code[-1][0] == 0x06
        for at, (operation, yes, no, k) in enumerate(code):
            if operation in (0x15, 0x35, 0x45):
                assert at + 1 + max(yes, no) < len(code)
            if operation == 0x20:
                assert k % 4 == 0
                assert k < 64


def test_every_call_of_the_table_is_allowed_with_harmless_arguments(arch):
    program = seccomp.jail_program()
    for name, number in numbers().items():
        expected = ERRNO if name in IGNORED else ALLOW
        assert run(program, number, HARMLESS.get(name, ())) == expected, name


def test_every_number_outside_of_the_table_does_not_exist_or_is_asked_about(arch):
    known = set(numbers().values())
    passed_fd, cloning = {seccomp.asked_number("setns")}, set(map(seccomp.asked_number, ASKED))
    programs = (
        (seccomp.jail_program(), passed_fd),
        (seccomp.confined_program(), passed_fd),
        (seccomp.jail_program(clones=True), cloning),
    )
    privileged = {*bpf.numbers(REFUSED).values(), *cloning}
    for program, asked in programs:
        for number in {*range(1024), 0x3FFFFFFF} - known:
            code = errno.EPERM if number in privileged else errno.ENOSYS
            verdict = ASK if number in asked else refused(code)
            assert run(program, number) == verdict, number


def test_what_is_asked_about_is_allowed_by_no_filter(arch):
    assert not (set(ASKED) | set(REFUSED)) & set(ALLOWED)


@pytest.mark.parametrize("kind", ["jail_program", "confined_program"])
@pytest.mark.parametrize("foreign", [0, 0x40000003, 0x40000028, 0xC00000F3])
def test_a_foreign_architecture_kills(arch, kind, foreign):
    program = getattr(seccomp, kind)()
    others = {foreign, *ARCHES.values()} - {ARCHES[arch]}
    for other in others:
        assert run(program, numbers()["getpid"], arch=other) == KILL


@pytest.mark.parametrize("kind", ["jail_program", "confined_program"])
@pytest.mark.parametrize("number", [X32, X32 | 39, X32 | 520, 0xFFFFFFFF])
def test_x32_kills(arch, kind, number):
    assert run(getattr(seccomp, kind)(), number) == KILL


@pytest.mark.parametrize("name", NEW_NAMESPACE_FLAGS)
def test_clone_into_a_new_namespace_is_refused(jail, name):
    flag = NEW_NAMESPACE_FLAGS[name]
    assert jail("clone", flag | SIGCHLD) == refused(errno.EPERM)
    assert jail("clone", flag | CLONE_THREAD_FLAGS) == refused(errno.EPERM)
    assert jail("clone", 1 << 32 | flag) == refused(errno.EPERM)


def test_clone_of_a_process_and_of_a_thread_is_allowed(jail):
    assert jail("clone", SIGCHLD) == ALLOW
    assert jail("clone", CLONE_THREAD_FLAGS) == ALLOW
    assert jail("clone", 0x4100 | SIGCHLD) == ALLOW  # CLONE_VM | CLONE_VFORK: posix_spawn


def test_the_flags_of_all_namespaces_are_the_ones_refused():
    total = 0
    for flag in NEW_NAMESPACE_FLAGS.values():
        total |= flag
    assert total == seccomp._NEW_NAMESPACES


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET, socket.AF_INET6])
def test_a_socket_of_an_ordinary_family_is_allowed(jail, family):
    assert jail("socket", family, 1, 0) == ALLOW


@pytest.mark.parametrize(
    "family", [0, 3, 4, 5, 9, 15, 16, 17, 21, 29, 30, 31, 38, 40, 41, 44, 45, 46, 0xFFFF]
)
def test_a_socket_of_another_family_is_refused(jail, family):
    assert jail("socket", family, 1, 0) == refused(errno.EACCES)
    assert jail("socket", 1 << 32 | family, 1, 0) == refused(errno.EACCES)


@pytest.mark.parametrize("protocol", [2, 33, 115, 132, 136, 256, 262, 0xFFFF])  # SCTP, MPTCP ...
def test_a_socket_of_a_rare_protocol_is_refused(jail, protocol):
    for family in (socket.AF_INET, socket.AF_INET6):
        assert jail("socket", family, 1, protocol) == refused(errno.EPROTONOSUPPORT)
        assert jail("socket", family, 1, 1 << 32 | protocol) == refused(errno.EPROTONOSUPPORT)
    assert jail("socket", 16, 1, protocol) == refused(errno.EACCES)


@pytest.mark.parametrize("protocol", [0, 1, 6, 17, 58, 255])
def test_a_socket_of_an_ordinary_protocol_is_allowed(jail, protocol):
    assert jail("socket", socket.AF_INET, 1, protocol) == ALLOW


def test_no_driver_is_put_on_top_of_a_connection(jail, confined):
    for ask in (jail, confined):
        assert ask("setsockopt", 3, IPPROTO_TCP, 31) == refused(errno.ENOPROTOOPT)  # TCP_ULP
        assert ask("setsockopt", 3, IPPROTO_IP, 31) == ALLOW


def test_a_file_takes_no_lease_and_a_folder_notifies_of_nothing(jail, confined):
    for ask in (jail, confined):
        assert ask("fcntl", 3, 1024, 0) == refused(errno.EACCES)  # F_SETLEASE
        assert ask("fcntl", 3, 1026, 0) == refused(0)  # F_NOTIFY
        for command in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 36, 37, 38, 1025, 1030, 1031, 1032, 1033):
            assert ask("fcntl", 3, command, 0) == ALLOW


def test_a_pair_of_sockets_is_of_the_unix_family(jail):
    assert jail("socketpair", socket.AF_UNIX, 1, 0) == ALLOW
    for family in (socket.AF_INET, socket.AF_INET6, 16, 30):
        assert jail("socketpair", family, 1, 0) == refused(errno.EACCES)


@pytest.mark.parametrize("option", [7, 8])  # SO_SNDBUF, SO_RCVBUF
def test_asking_for_larger_socket_buffers_does_nothing(jail, confined, option):
    for ask in (jail, confined):
        assert ask("setsockopt", 3, SOL_SOCKET, option) == refused(0)


@pytest.mark.parametrize("option", [26, 27, 32, 33, 50, 51, 52])  # ATTACH, BUFFORCE, DETACH
def test_a_socket_takes_no_program_for_the_kernel(jail, confined, option):
    for ask in (jail, confined):
        assert ask("setsockopt", 3, SOL_SOCKET, option) == refused(errno.EPERM)


def test_a_socket_gives_no_handle_on_the_process_at_its_other_end(jail, confined):
    for ask in (jail, confined):
        assert ask("setsockopt", 3, SOL_SOCKET, 76) == refused(errno.EPERM)  # SO_PASSPIDFD
        assert ask("getsockopt", 3, SOL_SOCKET, 77) == refused(errno.ENOPROTOOPT)  # SO_PEERPIDFD
        assert ask("getsockopt", 3, SOL_SOCKET, socket.SO_ERROR) == ALLOW
        assert ask("getsockopt", 3, IPPROTO_IPV6, 77) == ALLOW  # IPV6_RECVFRAGSIZE


@pytest.mark.parametrize(
    ("level", "option"),
    [
        (SOL_SOCKET, socket.SO_REUSEADDR),
        (SOL_SOCKET, socket.SO_KEEPALIVE),
        (SOL_SOCKET, socket.SO_BROADCAST),
        (IPPROTO_TCP, socket.TCP_NODELAY),
        (IPPROTO_TCP, 7),  # TCP_SYNCNT: SO_SNDBUF's number on another level
        (IPPROTO_TCP, 8),  # TCP_LINGER2
        (IPPROTO_IP, 33),  # IP_MULTICAST_TTL
        (IPPROTO_IPV6, 26),  # IPV6_V6ONLY, which every asyncio server sets: SO_ATTACH_FILTER's
    ],
)
def test_ordinary_socket_options_are_allowed(jail, level, option):
    assert jail("setsockopt", 3, level, option) == ALLOW


@pytest.mark.parametrize("mode", [0o4755, 0o2755, 0o6755, 0o4000, 0o2000, 0o104755, 0o42755])
def test_a_mode_with_a_set_id_bit_is_refused(jail, confined, mode):
    for name in MODE_AT.keys() & numbers().keys():
        for ask in (jail, confined):
            assert ask(name, *([0] * MODE_AT[name]), mode) == refused(errno.EPERM), name


@pytest.mark.parametrize("mode", [0, 0o600, 0o755, 0o777, 0o1777, 0o100644, 0o10644])
def test_an_ordinary_mode_is_allowed(jail, confined, mode):
    for name in MODE_AT.keys() & numbers().keys():
        for ask in (jail, confined):
            assert ask(name, *([0] * MODE_AT[name]), mode) == ALLOW, name


def test_every_call_that_takes_a_mode_is_checked():
    takers = {name for name in ALLOWED if re.match(r"f?chmod|creat$|open|mkdir|mknod", name)}
    assert takers == set(MODE_AT)


@pytest.mark.parametrize("request_code", [0x5412, 0x541C])  # TIOCSTI, TIOCLINUX
def test_no_keystroke_is_put_into_a_terminal(jail, confined, request_code):
    for ask in (jail, confined):
        assert ask("ioctl", 0, request_code) == refused(errno.EPERM)
        assert ask("ioctl", 0, 1 << 32 | request_code) == refused(errno.EPERM)
        assert ask("ioctl", 0, 0x5401) == ALLOW  # TCGETS: isatty()


def test_without_namespaces_a_call_that_reaches_others_does_not_exist(confined):
    assert set(ALLOWED) >= REACHES_OTHERS
    for name in REACHES_OTHERS & numbers().keys():
        assert confined(name, os.getpid(), 0, 0) == refused(errno.ENOSYS), name
        assert confined(name, *HARMLESS.get(name, ())) == refused(errno.ENOSYS), name


def test_without_namespaces_clone_makes_threads_only(confined):
    assert confined("clone", CLONE_THREAD_FLAGS) == ALLOW
    for flags in (SIGCHLD, 0, 0x4100 | SIGCHLD, *NEW_NAMESPACE_FLAGS.values()):
        assert confined("clone", flags) == refused(errno.EPERM)


@pytest.mark.parametrize("name", ["kill", "tgkill"])
def test_without_namespaces_signals_reach_the_process_itself_alone(confined, name):
    assert confined(name, os.getpid(), 2) == ALLOW
    for pid in (1, 0, -1, -os.getpid(), os.getppid(), os.getpid() + 1):
        assert confined(name, pid, 9) == refused(errno.EPERM)


def test_without_namespaces_limits_are_changed_of_the_process_itself_alone(confined):
    assert confined("prlimit64", 0) == ALLOW
    assert confined("prlimit64", os.getpid()) == ALLOW
    assert confined("prlimit64", os.getppid()) == refused(errno.EPERM)


def test_the_confined_filter_allows_nothing_that_the_jail_refuses(arch):
    jail, confined = seccomp.jail_program(), seccomp.confined_program()
    for name, number in numbers().items():
        if name == "clone":
            continue  # a thread in a new namespace is what the kernel itself refuses
        if run(confined, number) == ALLOW:
            assert run(jail, number, HARMLESS.get(name, ())) == ALLOW, name


def test_ids_that_the_guest_does_not_have_are_a_lack_of_rights(jail, confined):
    calls = [(name, place) for name in ID_CALLS.keys() & numbers() for place in ID_CALLS[name]]
    for name, place in calls:
        for value in (0, 999, 1001, 65534, 0xFFFFFFFE):
            given = [*OWN_IDS[:place], value, *OWN_IDS[place + 1 :]]
            assert jail(name, *given) == refused(errno.EPERM), name
            assert confined(name, *given) == ALLOW  # the kernel itself answers so there
        for unchanged in (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF):  # -1, as 32 bits and as 64
            given = [*OWN_IDS[:place], unchanged, *OWN_IDS[place + 1 :]]
            assert jail(name, *given) == ALLOW, name


def test_a_process_that_only_computes_has_nothing_but_its_calls(alone):
    for name in numbers():
        if name not in secluded.CALLS:
            assert alone(name) == refused(errno.EPERM), name


def test_a_process_that_only_computes_reads_its_requests_and_files_by_place_alone(alone):
    assert alone("read", 0) == ALLOW
    assert alone("read", 3) == refused(errno.EPERM)
    assert alone("pread64", 3) == ALLOW


def test_a_process_that_only_computes_has_threads_and_signals_of_its_own_alone(alone):
    assert alone("clone", 0x00010000) == ALLOW
    assert alone("clone", 17) == refused(errno.EPERM)
    assert run(secluded.program(), 435) == refused(errno.ENOSYS)  # clone3
    for name in ("kill", "tgkill"):
        assert alone(name, os.getpid(), 9) == ALLOW
        assert alone(name, os.getppid(), 9) == refused(errno.EPERM)
        assert alone(name, -1, 9) == refused(errno.EPERM)
    assert alone("prlimit64", os.getppid()) == refused(errno.EPERM)


def test_a_process_that_only_computes_gets_no_code_and_shares_no_memory(alone):
    private, shared, read_write, execute = 0x22, 0x21, 0x3, 0x4
    assert alone("mmap", 0, 4096, read_write, private) == ALLOW
    assert alone("mmap", 0, 4096, read_write, shared) == refused(errno.EPERM)
    assert alone("mmap", 0, 4096, read_write, 0x3) == refused(errno.EPERM)  # MAP_SHARED_VALIDATE
    assert alone("mmap", 0, 4096, read_write | execute, private) == refused(errno.EPERM)
    assert alone("mprotect", 0, 4096, read_write) == ALLOW
    assert alone("mprotect", 0, 4096, execute) == refused(errno.EPERM)


def test_no_dangerous_call_is_in_the_table():
    assert not set(DANGEROUS) & set(ALLOWED)


def test_no_number_stands_twice_in_the_table():
    for column in range(2):
        used = [pair[column] for pair in ALLOWED.values() if pair[column] is not None]
        assert len(used) == len(set(used))


def test_the_numbers_are_those_of_the_x86_64_headers():
    _compare("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", 0)


def test_the_numbers_are_those_of_the_generic_headers_that_aarch64_uses():
    _compare("/usr/include/asm-generic/unistd.h", 1)


@pytest.mark.skipif(platform.machine() not in ARCHES, reason="no filter for this machine")
def test_the_program_of_this_machine_is_assembled_once():
    assert seccomp.jail_program() is seccomp.jail_program()


def _compare(header: str, column: int) -> None:
    if not Path(header).exists():
        pytest.skip(f"{header} is not installed (linux-libc-dev)")
    text = Path(header).read_text()
    found = {name: int(n) for name, n in re.findall(r"#define __NR3264_(\w+) (\d+)", text)}
    found |= {name: int(n) for name, n in re.findall(r"#define __NR_(\w+) (\d+)", text)}
    newer = {"fchmodat2", "futex_waitv", "epoll_pwait2"}  # not in the headers of older systems
    aliases = {"newfstatat": "fstatat"} if column else {}
    for name, pair in ALLOWED.items():
        official = found.get(name, found.get(aliases.get(name, "")))
        if official is None and name in newer:
            continue
        assert pair[column] == official, name

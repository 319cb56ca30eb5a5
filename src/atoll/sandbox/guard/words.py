"""The names that guards know, as data: forbidden, ordinary, and checked at run time."""

from __future__ import annotations

from atoll.text.tables import names_in

SEED_MODULES = names_in("""
    os sys subprocess socket shutil pathlib tempfile multiprocessing threading ctypes pickle
    importlib builtins code codeop runpy pkgutil
""")

MODULES = SEED_MODULES | names_in("""
    _ast _codecs _collections_abc _ctypes _frozen_importlib _imp _io _posixsubprocess _pickle
    _signal _socket _sqlite3 _thread _winapi _xxsubinterpreters aiohttp antigravity asyncio
    asyncore atexit bdb boto3 cProfile cffi cloudpickle cmd codecs compileall concurrent copyreg
    curses dbm dill dis distutils doctest ensurepip fabric faulthandler fcntl filecmp fileinput
    ftplib gc genericpath getpass glob grp gzip bz2 lzma http httpx idlelib imaplib imp inspect
    invoke joblib lib2to3 linecache logging.config logging.handlers mailbox marshal mmap
    modulefinder msvcrt netrc nntplib nt ntpath numpy.ctypeslib numpy.distutils numpy.f2py
    numpy.testing optparse paramiko pdb pexpect pickletools pip pipes platform plistlib poplib
    posix posixpath profile psutil pstats pty pwd py_compile pyclbr pydoc queue readline requests
    resource rlcompleter select selectors setuptools shelve signal site smtpd smtplib
    socketserver spwd sqlite3 ssl symtable sysconfig syslog tarfile telnetlib termios test
    this timeit tkinter trace tracemalloc tty turtle types unittest urllib.error
    urllib.request urllib.response urllib3 urllib.robotparser uu venv webbrowser wheel
    winreg wsgiref xdrlib xml xmlrpc zipapp zipfile zipimport zoneinfo
""")
"""Modules that the guard `ast` refuses to import: they give access to the system."""

SEED_CALLS = names_in("""
    __import__ eval exec compile open getattr setattr delattr hasattr globals locals vars dir
""")

CALLS = SEED_CALLS | {"breakpoint", "help", "memoryview", "attrgetter", "methodcaller"}
"""Names that the guard `ast` refuses wherever code reads them: an alias could be called."""

NEVER = frozenset({"eval", "exec", "compile", "open", "__import__", "breakpoint", "help", "locals"})
"""Names that the `restricted` backend lacks; it has checked versions of the others."""

FRAMES = names_in("""
    gi_frame gi_code gi_yieldfrom cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await
    tb_frame tb_next f_back f_builtins f_code f_globals f_locals f_trace f_generator
    func_globals func_code func_closure co_code co_consts co_names co_varnames co_freevars
    co_cellvars co_filename co_flags
""")
"""Attributes that lead from a generator, coroutine or traceback to frames, and to all globals."""

GADGETS = names_in("""
    os sys subprocess socket shutil builtins importlib ctypes ctypeslib threading posix _os _sys
    FileIO open_code format_map f2py modules import_module resolve_name get_type_hints
    attrgetter methodcaller mro
    get_referrers get_referents get_objects _getframe _current_frames
    fromfile tofile memmap read_pickle genfromtxt loadtxt fromregex Formatter sympify
""")
"""Attributes of harmless modules that give access to the system; the guard `ast` refuses them."""

OPERATORS = names_in("""
    __abs__ __add__ __aenter__ __aexit__ __aiter__ __and__ __anext__ __await__ __bool__ __bytes__
    __call__ __ceil__ __complex__ __contains__ __delitem__ __divmod__ __enter__ __eq__ __exit__
    __float__ __floor__ __floordiv__ __format__ __ge__ __getitem__ __gt__ __hash__ __iadd__
    __iand__ __ifloordiv__ __ilshift__ __imatmul__ __imod__ __imul__ __index__ __int__ __invert__
    __ior__ __ipow__ __irshift__ __isub__ __iter__ __itruediv__ __ixor__ __le__ __len__
    __length_hint__ __lshift__ __lt__ __matmul__ __missing__ __mod__ __mul__ __ne__ __neg__
    __next__ __or__ __pos__ __pow__ __radd__ __rand__ __rdivmod__ __repr__ __reversed__
    __rfloordiv__ __rlshift__ __rmatmul__ __rmod__ __rmul__ __ror__ __round__ __rpow__
    __rrshift__ __rshift__ __rsub__ __rtruediv__ __rxor__ __setitem__ __sizeof__ __str__ __sub__
    __truediv__ __trunc__ __xor__ __fspath__ __copy__ __deepcopy__ __replace__
""")
"""Methods that a class may define and code may call: they work on values alone."""

MAKING = names_in("""
    __init__ __new__ __post_init__ __init_subclass__ __class_getitem__ __set_name__ __get__ __set__
    __delete__ __getattr__ __setattr__ __delattr__ __dir__ __del__ __slots__ __match_args__
    __mro_entries__ __array__ __array_ufunc__ __array_priority__
""")

NOTES = names_in("""
    __name__ __qualname__ __doc__ __module__ __version__ __author__ __all__ __annotations__
    __notes__ __cause__ __context__ __suppress_context__ __members__ __debug__ __date__ __license__
    __email__ __status__
""")

DEFINABLE = (
    OPERATORS | MAKING | (NOTES - {"__name__", "__module__", "__debug__", "__annotations__"})
)
"""Double-underscore names that code may bind."""

READABLE = OPERATORS | (MAKING - {"__mro_entries__", "__set_name__"}) | NOTES | {"__main__"}
"""Double-underscore names that code may read."""

LOOKED_AT = frozenset({"__class__", "__dict__", "__traceback__", "__wrapped__", "__getattribute__"})
"""More names that code may read in the `restricted` backend, which implements them itself."""

SETTABLE = names_in("""
    __name__ __qualname__ __doc__ __notes__ __cause__ __context__ __suppress_context__ __wrapped__
    __traceback__
""")
"""Double-underscore attributes that code may set."""

AMBIGUOUS = names_in("""
    format format_map obj tofile dump ctypes cffi capsule resize setflags mro dumps baseclass
    register
""")
"""Ordinary on most objects, an escape on some: the `restricted` backend checks at run time."""

PROTOCOLS = names_in("""
    __array_interface__ __array_struct__ __dlpack__ __dlpack_device__ __buffer__ __reduce__
    __reduce_ex__ __getstate__
""")
"""Attributes that libraries read from any object and trust: addresses, how to rebuild it."""

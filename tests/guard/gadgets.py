"""Attacks on the `restricted` backend, one way out each: they print PWNED where they get through."""

from __future__ import annotations

ATTACKS: dict[str, str] = {
    "update-wrapper-globals": """
import functools, textwrap
got = []
class Spy:
    def __setattr__(self, name, value): got.append(value)
functools.update_wrapper(Spy(), textwrap.dedent, assigned=["__globals__"], updated=[])
print("PWNED" if any("__builtins__" in g for g in got if isinstance(g, dict)) else "SAFE")
""",
    "wraps-globals": """
import functools, textwrap
got = []
class Spy:
    def __setattr__(self, name, value): got.append(value)
functools.wraps(textwrap.dedent, assigned=["__globals__"], updated=[])(Spy())
print("PWNED" if any("__builtins__" in g for g in got if isinstance(g, dict)) else "SAFE")
""",
    "dataclass-annotation-injection": """
from dataclasses import dataclass
class C: pass
ann = {"x:int=print('PWNED')": int}
C = type("C", (), {"__annotations__": ann})
dataclass(C)()
""",
    "dataclass-annotations-name": """
from dataclasses import dataclass
@dataclass
class C:
    __annotations__["x=print('PWNED')"] = int
""",
    "dataclass-field-rename": """
from dataclasses import dataclass, fields
@dataclass
class B:
    x: int = 1
fields(B)[0].name = "x=print('PWNED')"
@dataclass
class D(B):
    y: int = 2
D()
""",
    "make-dataclass-injection": """
from dataclasses import make_dataclass
make_dataclass("C", [("x=print('PWNED')", int)])()
""",
    "make-dataclass-namespace": """
from dataclasses import make_dataclass
make_dataclass("C", ["x"], namespace={"__reduce_ex__": 1})
print("PWNED")
""",
    "match-args-register": """
from abc import ABC
class E(ABC):
    __match_args__ = ("gi_frame",)
E.register(type(x for x in []))
match (x for x in [1]):
    case E(f): print("PWNED", f)
""",
    "match-args-computed": """
from abc import ABC
class E(ABC):
    __match_args__ = ("gi_" + "frame",)
E.register(type(x for x in []))
match (x for x in [1]):
    case E(f): print("PWNED", f)
""",
    "match-args-namedtuple": """
from abc import ABC
from collections import namedtuple
N = namedtuple("N", "gi_frame")
class E(ABC, N): pass
E.register(type(x for x in []))
match (x for x in [1]):
    case E(f): print("PWNED", f)
""",
    "match-args-namedtuple-obj": """
from abc import ABC
from collections import namedtuple
N = namedtuple("N", "obj")
class E(ABC):
    __match_args__ = N.__match_args__
E.register(AttributeError)
import json
try: json.dumps(1, cls=5)
except Exception: pass
try: (1).x
except AttributeError as e:
    match e:
        case E(o): print("PWNED", o)
""",
    "match-args-setattr": """
class E: pass
setattr(E, "__match_args__", ("gi_frame",))
print("PWNED")
""",
    "match-kwd-frame": """
match (x for x in [1]):
    case object(gi_frame=f): print("PWNED", f)
""",
    "enum-convert": """
import enum
E = enum.IntEnum._convert_("E", "os", filter=lambda n: n == "F_OK")
print("PWNED", E)
""",
    "enum-convert-subclass": """
import enum
class X(enum.IntEnum): pass
E = X._convert_("E", "os", filter=lambda n: n == "F_OK")
print("PWNED", E)
""",
    "enum-global": """
from enum import global_enum
print("PWNED")
""",
    "enum-functional-dunder": """
import enum
E = enum.Enum("E", [("__reduce_ex__", 5)])
print("PWNED")
""",
    "singledispatch-hints": """
import functools
@functools.singledispatch
def f(x): pass
def g(x: "print('PWNED')"): pass
f.register(g)
""",
    "forwardref": """
import typing
typing.List["print('PWNED')"].__args__[0]._evaluate({}, {}, frozenset())
""",
    "typeddict-hints": """
import typing
class T(typing.TypedDict):
    x: "print('PWNED')"
typing.get_type_hints(T)
""",
    "userstring-format": """
import collections
s = collections.UserString("{0.__class__.__base__}").format(())
print("PWNED", s)
""",
    "format-super": """
class S(str):
    def f(self, *a): return super().format(*a)
print("PWNED", S("{0.__class__.__base__}").f(()))
""",
    "format-augassign": """
got = []
class S(str): pass
class G:
    def __radd__(self, other): got.append(other); return 1
s = S("{0.__class__.__base__}")
s.format += G()
print("PWNED", got[0](()))
""",
    "format-map-walk": 'print("PWNED", "{x.__class__.__base__}".format_map({"x": ()}))',
    "format-nested-spec": 'print("PWNED", "{0:{1.__class__.__base__}}".format("a", ()))',
    "format-index-then-attr": 'print("PWNED", "{0[0].__class__}".format([()]))',
    "format-via-map": 'print("PWNED", list(map("{0.__class__}".format, [()])))',
    "format-unbound-map": 'print("PWNED", list(map(str.format, ["{0.__class__}"], [()])))',
    "format-partial": """
from functools import partial
print("PWNED", partial(str.format, "{0.__class__}")(()))
""",
    "format-methodcaller": """
from operator import methodcaller
print("PWNED", methodcaller("format", ())("{0.__class__}"))
""",
    "format-getattr": 'print("PWNED", getattr("{0.__class__}", "format")(()))',
    "format-subclass-override-eq": """
class F(str):
    def __str__(self): return "{}"
print("PWNED", F("{0.__class__}").format(()))
""",
    "format-private": """
import random
print("PWNED", "{0._inst}".format(random))
""",
    "attrgetter-chain": """
import operator
print("PWNED", operator.attrgetter("real.__class__.__base__")(1))
""",
    "str-subclass-name": """
class N(str):
    def __eq__(self, o): return True
    def __hash__(self): return hash("x")
    def startswith(self, *a): return False
    def isascii(self): return True
print("PWNED", getattr((), N("__class__")))
""",
    "known-cache-poison": """
class C:
    def __init__(self): self._x = 1
c = C(); c._x
class N(str):
    def __eq__(self, o): return True
    def __hash__(self): return hash("_x")
print("PWNED", getattr(c, N("__init__")).__globals__)
""",
    "class-property": """
class Fake:
    __class__ = property(lambda self: str)
print("PWNED", isinstance(Fake(), str))
""",
    "type-of-type-call": """
T = type(type(5))
X = T("X", (), {"__reduce_ex__": 1})
print("PWNED", X)
""",
    "metaclass-own": """
class M(type(int)):
    def __getitem__(cls, x): return x
class A(metaclass=M): pass
print("PWNED")
""",
    "metaclass-function": 'class A(metaclass=lambda n, b, d: print("PWNED", list(d))): pass',
    "metaclass-abc-type": """
from abc import ABC
M = type(ABC)
X = M("X", (), {"__reduce_ex__": 1})
print("PWNED")
""",
    "build-class-name": """
__build_class__(lambda: None, "X")
print("PWNED")
""",
    "globals-builtins": 'print("PWNED", globals()["__builtins__"])',
    "globals-write": """
globals()["__builtins__"] = {}
print("PWNED")
""",
    "vars-module": """
import math
print("PWNED", vars(math))
""",
    "dict-of-class": 'print("PWNED", str.__dict__)',
    "object-getattribute": 'print("PWNED", object.__getattribute__((), "__class__"))',
    "type-getattribute": 'print("PWNED", type.__getattribute__(int, "__subclasses__"))',
    "super-getattribute": """
class A:
    def f(self): return super().__getattribute__("__class__")
print("PWNED", A().f())
""",
    "object-setattr-lib": """
import json
object.__setattr__(json, "x", 1); print("PWNED")
""",
    "monkeypatch-class": """
import json
json.JSONEncoder.default = lambda s, o: 1
print("PWNED")
""",
    "monkeypatch-module": """
import math
math.pi = 3
print("PWNED")
""",
    "monkeypatch-setattr": """
import json
setattr(json.JSONDecoder, "decode", None); print("PWNED")
""",
    "monkeypatch-for-target": """
import json
for json.JSONEncoder.default in [1]: pass
print("PWNED")
""",
    "monkeypatch-with-target": """
import json, contextlib
with contextlib.nullcontext(1) as json.JSONEncoder.default: pass
print("PWNED")
""",
    "monkeypatch-unpack": """
import json
[json.JSONEncoder.default, x] = 1, 2
print("PWNED")
""",
    "monkeypatch-del": """
import json
del json.JSONEncoder.default
print("PWNED")
""",
    "traceback-frames": """
try: 1/0
except Exception as e:
    print("PWNED", e.__traceback__.tb_frame)
""",
    "traceback-getattr": """
try: 1/0
except Exception as e:
    print("PWNED", getattr(e.__traceback__, "tb_frame"))
""",
    "generator-frame-getattr": """
g = (x for x in [1])
print("PWNED", getattr(g, "gi_" + "frame"))
""",
    "generator-frame-attrgetter": """
import operator
g = (x for x in [1])
print("PWNED", operator.attrgetter("gi_frame.f_builtins")(g))
""",
    "generator-frame-format": """
g = (x for x in [1])
print("PWNED", "{0.gi_frame.f_builtins}".format(g))
""",
    "contextmanager-gen": """
from contextlib import contextmanager
@contextmanager
def f(): yield 1
print("PWNED", f().gen.gi_frame)
""",
    "fake-traceback-file": """
import traceback
class D:
    def __init__(self, d): self.d = d
    def __getattr__(self, n):
        if n in self.d: return self.d[n]
        raise AttributeError(n)
code = D({"co_filename": "@@CANARY_PATH@@", "co_name": "x"})
frame = D({"f_code": code, "f_globals": {}, "f_lineno": 1, "f_locals": {}})
tb = D({"tb_frame": frame, "tb_lineno": 1, "tb_next": None, "tb_lasti": 0})
print("".join(traceback.format_exception(ValueError, ValueError("x"), tb)))
""",
    "np-array-interface-getattr": """
import numpy as np
class E:
    def __getattr__(self, name):
        if name == "__array_interface__":
            return {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3}
        raise AttributeError(name)
print("PWNED" if np.asarray(E()).dtype == np.uint8 else "SAFE")
""",
    "np-array-interface-class": """
import numpy as np
class E:
    __array_interface__ = {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3}
print("PWNED", np.asarray(E()))
""",
    "np-array-interface-setattr": """
import numpy as np
class E: pass
e = E()
setattr(e, "__array_" + "interface__", {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3})
print("PWNED", np.asarray(e))
""",
    "np-array-interface-namespace": """
import numpy as np, types
e = types.SimpleNamespace(**{"__array_interface__": {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3}})
print("PWNED", np.asarray(e))
""",
    "np-array-interface-dict": """
import numpy as np
class E: pass
e = E()
e.__dict__["__array_interface__"] = {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3}
print("PWNED", np.asarray(e))
""",
    "np-array-interface-copy-state": """
import numpy as np, copy
class E:
    def __getstate__(self): return {"__array_interface__": {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3}}
print("PWNED", np.asarray(copy.copy(E())))
""",
    "np-as-strided": """
import numpy as np
a = np.lib.stride_tricks.as_strided(np.zeros(1), (1000,), (8,))
print("PWNED", a[999])
""",
    "np-ctypes": """
import numpy as np
print("PWNED", np.zeros(1).ctypes.data)
""",
    "np-tofile": """
import numpy as np
np.zeros(3).tofile("@@OUTSIDE_DIR@@/PWNED"); print("PWNED")
""",
    "np-dump": """
import numpy as np
np.zeros(3).dump("@@OUTSIDE_DIR@@/PWNED"); print("PWNED")
""",
    "np-tofile-class": """
import numpy as np
np.ndarray.tofile(np.zeros(3), "@@OUTSIDE_DIR@@/PWNED"); print("PWNED")
""",
    "np-tofile-subclass-super": """
import numpy as np
class A(np.ndarray):
    def go(self): super().tofile("@@OUTSIDE_DIR@@/PWNED"); print("PWNED")
A((3,)).go()
""",
    "np-load": """
import numpy as np
np.load("@@CANARY_PATH@@", allow_pickle=True); print("PWNED")
""",
    "np-from-import": """
from numpy import load
print("PWNED")
""",
    "np-loadtxt-via-ma": """
import numpy as np
print("PWNED", np.ma.core)
""",
    "np-memmap": """
import numpy as np
print("PWNED", np.memmap("@@CANARY_PATH@@"))
""",
    "np-setstate": """
import numpy as np
np.zeros(1).__setstate__((1, (8,), np.dtype("u1"), False, b"12345678")); print("PWNED")
""",
    "np-reduce": """
import numpy as np
print("PWNED", np.zeros(1).__reduce__())
""",
    "np-testing": """
import numpy.testing
print("PWNED")
""",
    "np-bit-generator": """
import numpy as np
print("PWNED", np.random.default_rng().bit_generator.ctypes)
""",
    "np-resize-uaf": """
import numpy as np
a = np.zeros(100); b = a[:]
a.resize(10_000_000, refcheck=False); print("PWNED")
""",
    "np-vectorize-doc": """
import numpy as np
print("PWNED", np.vectorize(lambda x: x).pyfunc.__globals__)
""",
    "redirect-old-target": """
import contextlib
class R(contextlib.redirect_stdout): pass
print("PWNED")
""",
    "stdout-buffer-raw": """
import sys
print("PWNED", sys.stdout.buffer.raw)
""",
    "stdout-type": """
import sys
print("PWNED", type(sys.stdout)("@@CANARY_PATH@@"))
""",
    "stream-init": """
import io
print("PWNED", io.FileIO("@@CANARY_PATH@@").read())
""",
    "io-open": """
import io
print("PWNED", io.open("@@CANARY_PATH@@").read())
""",
    "io-wrapper-type": """
import io
print("PWNED", io.TextIOWrapper)
""",
    "hidden-print-self": 'print("PWNED", getattr(print, "__self__"))',
    "helper-self": 'print("PWNED", llm_query.__self__)',
    "helper-globals": 'print("PWNED", chunk_text.__globals__["__builtins__"])',
    "partial-func": """
import contextlib
print("PWNED", contextlib.redirect_stdout.func.__wrapped__.__globals__)
""",
    "exception-obj": """
import json
try: json.nothing
except AttributeError as e: print("PWNED", e.obj)
""",
    "exception-obj-getattr": """
try: (1).nothing
except AttributeError as e: print("PWNED", getattr(e, "obj"))
""",
    "exc-group-split": """
class EG(ExceptionGroup):
    def split(self, m): return 1
try: raise EG("g", [ValueError(1)])
except* ValueError: print("PWNED")
""",
    "import-hook-name": """
__import__ = lambda *a: 5
import math
print("PWNED" if math == 5 else "SAFE")
""",
    "shadow-dot-get": """
globals().update({".get": print})
print("PWNED")
""",
    "exec-in-class-kw": """
class A:
    def __init_subclass__(cls, run): print("PWNED", run.__globals__)
class B(A, run=lambda: 0): pass
""",
    "decorator-getattr": """
@getattr
class X: pass
print("PWNED")
""",
    "lambda-default-dunder": """
f = lambda x=().__class__.__base__: x
print("PWNED", f())
""",
    "walrus-dunder": """
(__builtins__ := {})
print("PWNED")
""",
    "global-dunder": """
def f():
    global __builtins__
    __builtins__ = {}
f(); print("PWNED")
""",
    "except-as-dunder": """
try: 1/0
except ZeroDivisionError as __builtins__: print("PWNED")
""",
    "import-as-dunder": """
import math as __builtins__
print("PWNED")
""",
    "for-dunder": """
for __builtins__ in [{}]: pass
print("PWNED")
""",
    "match-capture-dunder": """
match {}:
    case __builtins__: print("PWNED")
""",
    "arg-dunder": 'print("PWNED", (lambda __builtins__: 1)(2))',
    "class-cell": """
class A:
    def f(self): return __class__.__base__
print("PWNED", A().f())
""",
    "mangled": """
class random_:
    def f(self, m): return m.__os
import random
print("PWNED", random_().f(random))
""",
    "mangled-target": """
import json
class C:
    def f(self, x): x.__y = 1
C().f(json.JSONEncoder); print("PWNED")
""",
    "code-replace": """
def f(): pass
print("PWNED", f.__code__.replace)
""",
    "closure": """
def f():
    x = 1
    return lambda: x
print("PWNED", f().__closure__)
""",
    "init-globals": """
class A:
    def __init__(self): pass
print("PWNED", A.__init__.__globals__)
""",
    "wrapped-lib": """
import functools, statistics
print("PWNED", statistics.mean.__wrapped__)
""",
    "property-fget": """
import fractions
print("PWNED", fractions.Fraction.numerator.fget.__globals__)
""",
    "memoryview-obj": 'print("PWNED" if memoryview(b"x").obj.__class__.__subclasses__ else 0)',
    "del-hook": """
class D:
    def __del__(self): print("PWNED", open("@@CANARY_PATH@@").read())
D()
""",
    "unicode-dunder": "print('PWNED', ().__\u1d9class__)",
    "unicode-getattr": "print('PWNED', getattr((), '__\uff43lass__'))",
    "star-import": """
from math import *
print('PWNED')
""",
    "relative-import": """
from . import worker
print('PWNED')
""",
    "import-atoll": """
import atoll.backends.restricted.worker
print('PWNED')
""",
    "import-inner": """
import numpy.lib.npyio
print('PWNED')
""",
    "future": """
from __future__ import annotations
import os
print('PWNED')
""",
    "json-hook": """
import json
print("PWNED", json.JSONDecoder().parse_object.__self__)
""",
    "csv-open": """
import csv
print("PWNED", csv.DictReader.__init__.__globals__)
""",
    "html-parser": """
from html.parser import HTMLParser
class P(HTMLParser):
    def go(self): return self.feed.__func__.__globals__
print("PWNED", P().go())
""",
    "namedtuple-module": """
from collections import namedtuple
N = namedtuple("N", "a", module="os")
print("PWNED", N._make.__globals__)
""",
    "namedtuple-injection": """
from collections import namedtuple
N = namedtuple("N", ["a=print('PWNED')"])
""",
    "reduce-copy": """
import copy
class A:
    def __reduce_ex__(self, p): return (print, ("PWNED",))
copy.copy(A())
""",
    "set-builtins-fn": """
import functools
def f(): pass
setattr(f, "__globals__", {}); print("PWNED")
""",
    "function-type": """
F = type(lambda: 0)
print("PWNED", F((lambda: 0).__code__, {}))
""",
    "getattr-hook-assign": """
class A:
    __getattr__ = lambda s, n: {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3} if n == "__array_interface__" else s.no
import numpy as np
print("PWNED" if np.asarray(A()).dtype == np.uint8 else "SAFE")
""",
    "slots-interface": """
class A:
    __slots__ = ("__array_interface__",)
a = A(); a.__array_interface__ = 1
print("PWNED")
""",
    "subclass-private-library": """
import pprint
print("PWNED", pprint.PrettyPrinter)
""",
    "warnings-module": """
import warnings
class W(warnings.catch_warnings): pass
print("PWNED", W()._module)
""",
    "time-settime": """
import time
time.clock_settime(0, 0)
print('PWNED')
""",
    "uuid-node": """
import uuid
print('PWNED', uuid.getnode())
""",
    "thread-via-decimal": """
import decimal
print('PWNED', decimal.threading)
""",
    "string-formatter-subclass": """
from string import Formatter
print("PWNED")
""",
    "calendar-locale": """
import calendar
print('PWNED', calendar._locale)
""",
    "typing-modules": """
import typing
print('PWNED', typing.sys, typing.io)
""",
    "functools-cached-property": """
import functools, numpy as np
class A:
    x = functools.cached_property(lambda self: {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3})
A.x.attrname = "__array_interface__"
a = A(); a.x
print("PWNED", np.asarray(a))
""",
    "set-name-cached-property": """
import functools
c = functools.cached_property(lambda self: 1)
c.__set_name__(int, "__array_interface__")
print("PWNED")
""",
    "annotations-mutate": """
from dataclasses import dataclass
class C:
    x: int = 1
C.__annotations__["y=print('PWNED')"] = int
dataclass(C)()
""",
    "init-subclass-annotations": """
from dataclasses import dataclass
class B:
    def __init_subclass__(cls): cls.__annotations__ = {"y=print('PWNED')": int}
@dataclass
class C(B):
    x: int = 1
C()
""",
    "raw-type-get-origin": """
import typing
T = typing.get_origin(typing.Type[int])
X = T("X", (), {"__match_args__": ("gi_frame",)})
print("PWNED", X)
""",
    "raw-type-subscript": """
X = type[int]("X", (), {"__match_args__": ("gi_frame",)})
print("PWNED", X)
""",
    "raw-type-union-args": """
import typing
T = typing.get_args(type | None)[0]
print("PWNED", T("X", (), {"__match_args__": ("gi_frame",)}))
""",
    "np-forged-object": """
import numpy as np
o = np.ndarray((1,), dtype=object, buffer=id(5).to_bytes(8, "little"))[0]
print("PWNED", o)
""",
    "np-forged-object-type": """
import numpy as np
o = type(np.zeros(1))((1,), dtype=object, buffer=id(5).to_bytes(8, "little"))[0]
print("PWNED", o)
""",
    "np-forged-object-positional": """
import numpy as np
o = np.ndarray((1,), object, id(5).to_bytes(8, "little"))[0]
print("PWNED", o)
""",
    "np-forged-object-subclass": """
import numpy as np
class A(np.ndarray): pass
print("PWNED", A((1,), dtype=object, buffer=id(5).to_bytes(8, "little"))[0])
""",
    "np-forged-object-new": """
import numpy as np
print("PWNED", np.ndarray.__new__(np.ndarray, (1,), object, id(5).to_bytes(8, "little"))[0])
""",
    "np-forged-object-baseclass": """
import numpy as np
C = np.ma.array([1]).baseclass
print("PWNED", C((1,), dtype=object, buffer=id(5).to_bytes(8, "little"))[0])
""",
    "np-forged-object-recarray": """
import numpy as np
print("PWNED", np.recarray((1,), dtype=[("o", object)], buf=id(5).to_bytes(8, "little"))[0])
""",
    "register-generator": """
from abc import ABC
class E(ABC): pass
E.register(type(x for x in []))
print("PWNED")
""",
    "standin-slot": 'print("PWNED", type._of)',
    "standin-init": 'type.__init__(5); print("PWNED" if type(5) is not int else "SAFE")',
    "cg-getitem-eval": """
class A:
    __class_getitem__ = eval
A['print("PWNED")']
""",
    "license-printer": "print('PWNED', license._Printer__filenames)",
    "loader": "print('PWNED', __loader__)",
    "spec": "print('PWNED', __spec__)",
    "annotations-name": """
__annotations__['x'] = 1
print('PWNED')
""",
    "build-class-lookup": "print('PWNED', (lambda: 0).__builtins__)",
    "enum-members-proxy-or": """
import enum
class E(enum.Enum):
    A = 1
got = []
class X:
    def __ror__(self, other): got.append(other); return 1
E.__members__ | X()
got[0]["B"] = 5
print("PWNED" if False else "SAFE")
""",
    "mappingproxy-class-or": """
import functools, types
got = []
class X:
    def __ror__(self, other): got.append(other); return 1
class C: pass
C.__dict__ | X()
got[0]["__reduce__"] = 1
print("PWNED")
""",
    "singledispatch-registry": """
import functools
f = functools.singledispatch(lambda x: 1)
print("PWNED", f.registry[object].__globals__)
""",
    "cache-wrapped": """
import functools, re
print("PWNED", re.compile.__wrapped__)
""",
    "re-compile-globals": """
import re
print('PWNED', re.compile.__globals__['__builtins__'])
""",
    "getattr-partial-map": """
from functools import partial
print('PWNED', list(map(partial(getattr, ()), ['__class__'])))
""",
    "starmap-getattr": """
import itertools
print('PWNED', list(itertools.starmap(getattr, [((), '__class__')])))
""",
    "sorted-key-attrgetter": """
import operator
print('PWNED', sorted([()], key=operator.attrgetter('__class__')))
""",
    "max-key-getattr": "print('PWNED', max(['__class__'], key=lambda n: str(getattr((), n))))",
    "filter-hasattr": "print('PWNED' if list(filter(lambda n: hasattr((), n), ['__class__'])) else 'SAFE')",
    "getattr-bytes": "print('PWNED', getattr((), b'__class__'))",
    "setattr-builtin": """
setattr(str, 'x', 1)
print('PWNED')
""",
    "delattr": """
import json
delattr(json, 'loads')
print('PWNED')
""",
    "exec-via-type-call": "print('PWNED', type(print)('x'))",
    "type-frame": """
def g(): yield
import sys
print("PWNED", type(g().gi_frame))
""",
    "string-template-braces": """
import string
class T(string.Template):
    idpattern = r".*"
print("PWNED", T("${x.__class__}").substitute({"x.__class__": ().__class__}))
""",
    "json-default-frame": """
import json
def d(o): raise StopIteration(o)
try: json.dumps({1, 2}, default=d)
except Exception as e: print("PWNED", e.__traceback__.tb_next.tb_frame)
""",
    "with-exit-tb": """
class C:
    def __enter__(self): return 1
    def __exit__(self, *a): print("PWNED", getattr(a[2], "tb_frame")); return True
with C(): 1/0
""",
    "gen-throw-tb": """
def g():
    try: yield
    except Exception as e: print("PWNED", "{0.__traceback__.tb_frame}".format(e))
x = g(); next(x)
try: x.throw(ValueError("x"))
except StopIteration: pass
""",
    "async-gen": """
async def ag(): yield 1
print("PWNED", ag().ag_frame)
""",
    "fstring-eq": "print(f'{().__class__.__base__=} PWNED')",
    "fstring-conv": "print(f'{getattr((), chr(95)*2+\"class\"+chr(95)*2)!r} PWNED')",
    "percent-format": "print('PWNED' if 'class' in '%(a)s' % {'a': ().__class__} else 'SAFE')",
    "format-map-missing": """
class D(dict):
    def __missing__(self, k): return ()
print("PWNED", "{anything.__class__}".format_map(D()))
""",
    "format-builtin": "print('PWNED', format((), '').__class__.__base__)",
    "vformat": """
import string
print('PWNED', string.Formatter)
""",
    "bytes-format": "print('PWNED', b'{}'.format)",
    "str-join-format": """
f = str.format
print('PWNED', f('{0.__class__}', ()))
""",
    "str-dict-format": "print('PWNED', str.__dict__['format'])",
    "type-str-format": "print('PWNED', type('').format('{0.__class__}', ()))",
    "super-str-format": """
class S(str):
    pass
print('PWNED', super(S, S('{0.__class__}')).format(()))
""",
    "strenum-format": """
import enum
class E(enum.StrEnum):
    A = "{0.__class__.__base__}"
print("PWNED", E.A.format(()))
""",
    "numpy-str-format": """
import numpy as np
print('PWNED', np.str_('{0.__class__}').format(()))
""",
    "numpy-str-class-format": """
import numpy as np
print('PWNED', np.str_.format('{0.__class__}', ()))
""",
    "failedquery-format": "print('PWNED', FailedQuery('{0.__class__}').format(()))",
    "numpy-object-array-attr": """
import numpy as np
print('PWNED', np.vectorize(getattr)(np.array([()], dtype=object), '__class__'))
""",
    "numpy-frompyfunc": """
import numpy as np
print('PWNED', np.frompyfunc(getattr, 2, 1)((1,), '__class__'))
""",
    "numpy-core": """
import numpy as np
print('PWNED', np.core)
""",
    "numpy-_core": """
import numpy as np
print('PWNED', np._core)
""",
    "numpy-sys": """
from numpy import sys
print('PWNED')
""",
    "numpy-random-module": """
import numpy.random.mtrand
print('PWNED')
""",
    "numpy-ma-core": """
from numpy.ma import core
print('PWNED')
""",
    "numpy-linalg-mod": """
from numpy.linalg import linalg
print('PWNED')
""",
    "numpy-globals": """
import numpy as np
print('PWNED', np.mean.__globals__)
""",
    "numpy-wrapped": """
import numpy as np
print('PWNED', np.mean.__wrapped__.__globals__)
""",
    "numpy-info": """
import numpy as np
np.info(np)
print('PWNED')
""",
    "numpy-fromregex-io": """
import numpy as np
print('PWNED', np.fromregex('@@CANARY_PATH@@', '(.*)', [('a','U9')]))
""",
    "numpy-dtype-metadata": """
import numpy as np
print('PWNED', np.dtype('i4', metadata={}).__reduce__())
""",
    "numpy-poly-import": """
from numpy.polynomial import polyutils
print('PWNED', polyutils.np)
""",
    "numpy-poly-class": """
from numpy.polynomial import Polynomial
print('PWNED', Polynomial.fit.__func__.__globals__)
""",
    "contextlib-exitstack": """
import contextlib
s = contextlib.ExitStack()
print("PWNED", s.push.__func__)
""",
    "contextlib-abstract": """
from contextlib import abc
print('PWNED')
""",
    "dataclasses-inner": """
from dataclasses import sys
print('PWNED')
""",
    "dataclasses-builtins": """
from dataclasses import builtins
print('PWNED')
""",
    "dataclass-module-os": """
from dataclasses import dataclass
@dataclass
class C:
    __module__ = "os"
    x: int = 1
print("PWNED", C)
""",
    "dataclass-repr-closure": """
from dataclasses import dataclass
@dataclass
class C:
    x: int = 1
print("PWNED", C.__repr__.__closure__)
""",
    "dataclass-init-builtins": """
from dataclasses import dataclass
@dataclass
class C:
    BUILTINS: int = 1
print("PWNED" if hasattr(C().BUILTINS, "open") else "SAFE")
""",
    "functools-update-wrapper-lib": """
import functools, json
functools.update_wrapper(json.dumps, print)
print('PWNED')
""",
    "typing-newtype": """
import typing
print('PWNED', typing.NewType('X', int).__class__.__init__.__globals__)
""",
    "typing-call-eval": """
import typing
print('PWNED', typing.Optional['__import__("os")'].__args__[0].__forward_code__)
""",
    "ast-compile": """
import ast
print('PWNED', ast.parse)
""",
    "ast-literal": """
import ast
print('PWNED', ast.literal_eval('__import__("os")'))
""",
    "traceback-sys": """
import traceback
print('PWNED', traceback.sys)
""",
    "traceback-walk": """
import traceback
print('PWNED', traceback.walk_stack)
""",
    "warnings-showwarning": """
import warnings
warnings.showwarning = lambda *a, **k: print('PWNED')
warnings.warn('x')
""",
    "sys-modules": """
import sys
print('PWNED', sys.modules)
""",
    "sys-stdout-assign": """
import sys
class F:
    def write(self, t): pass
sys.stdout = F()
print('PWNED')
""",
    "sys-exit-hook": """
import sys
sys.excepthook = print
print('PWNED')
""",
    "io-file-bytes": """
import io
print('PWNED', io.BytesIO.__base__)
""",
    "stringio-raw": """
import io
print('PWNED', io.StringIO().detach())
""",
    "time-module-io": """
import time
print('PWNED', time.sys)
""",
    "collections-abc-sys": """
import collections
print('PWNED', collections.abc.sys, collections._sys)
""",
    "urllib-request": """
import urllib.request
print('PWNED')
""",
    "urllib-attr": """
import urllib.parse
print('PWNED', urllib.request)
""",
    "html-parser-module": """
import html.parser
print('PWNED', html.parser.re)
""",
    "match-star": """
match [1]:
    case [*__builtins__]: print("PWNED")
""",
    "match-mapping-rest": """
match {"a": 1}:
    case {**__builtins__}: print("PWNED")
""",
    "match-dataclass-obj": """
from dataclasses import dataclass
from abc import ABC
@dataclass
class E(ABC):
    obj: int = 1
try: (1).x
except AttributeError as e:
    match e:
        case E(o): print("PWNED", o)
print(E.__match_args__)
""",
    "getattr-alias-def": """
def f(self, n): return {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3}
class A:
    locals()["__getattr__"] = f
print("PWNED")
""",
    "class-dict-update": """
class A: pass
A.__dict__.update({"__getattr__": lambda s, n: 1})
print("PWNED")
""",
    "import-getattr-as": """
class A:
    from functools import reduce as __getattr__
print("PWNED")
""",
    "for-getattr": """
class A:
    for __getattr__ in [lambda s, n: {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3} if n == "__array_interface__" else s.no]: pass
import numpy as np
print("PWNED" if np.asarray(A()).dtype == np.uint8 else "SAFE")
""",
    "with-as-getattr": """
import contextlib
class A:
    with contextlib.nullcontext(lambda s, n: {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3} if n == "__array_interface__" else s.no) as __getattr__: pass
import numpy as np
print("PWNED" if np.asarray(A()).dtype == np.uint8 else "SAFE")
""",
    "tuple-getattr": """
class A:
    __getattr__, x = (lambda s, n: {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3} if n == "__array_interface__" else s.no), 1
import numpy as np
print("PWNED" if np.asarray(A()).dtype == np.uint8 else "SAFE")
""",
    "tuple-match-args": """
class A:
    __match_args__, x = ("gi_frame",), 1
match (x for x in [1]):
    case A(f): print("PWNED", f)
print("PWNED", A.__match_args__)
""",
    "for-match-args": """
class A:
    for __match_args__ in [("gi_frame",)]: pass
print("PWNED", A.__match_args__)
""",
    "nonlocal-match-args": """
def f():
    __match_args__ = 1
    class A:
        nonlocal __match_args__
        __match_args__ = ("gi_frame",)
    return A
print("PWNED" if hasattr(f(), "__match_args__") else "SAFE")
""",
    "decorated-match-args": """
class A:
    @(lambda f: ("gi_frame",))
    def __match_args__(self): pass
match (x for x in [1]):
    case A(f): print("PWNED", f)
print("PWNED", A.__match_args__)
""",
    "decorated-getattr": """
class A:
    @(lambda f: lambda s, n: {"shape": (8,), "typestr": "|u1", "data": (id(5), False), "version": 3} if n == "__array_interface__" else s.no)
    def __getattr__(self, n): pass
import numpy as np
print("PWNED" if np.asarray(A()).dtype == np.uint8 else "SAFE")
""",
}

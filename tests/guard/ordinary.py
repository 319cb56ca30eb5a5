"""Ordinary Python, as a model writes it: each ends with a value that is told beside it."""

from __future__ import annotations

SNIPPETS: dict[str, tuple[str, object]] = {
    "inheritance": (
        """
class Animal:
    count = 0
    def __init__(self, name):
        self._name = name
        self.__secret = len(name)
        Animal.count += 1
    @property
    def name(self): return self._name
    @name.setter
    def name(self, value): self._name = value
    def __repr__(self): return f"{self.__class__.__name__}({self._name!r})"
    def secret(self): return self.__secret
class Dog(Animal):
    def __init__(self, name):
        super().__init__(name)
        self._tricks = []
    def __eq__(self, other): return isinstance(other, Dog) and self._name == other._name
    def __hash__(self): return hash(self._name)
d = Dog("rex"); d.name = "max"; d._tricks.append(1)
repr(d), d.secret(), d == Dog("max"), Animal.count, type(d).__name__
""",
        ("Dog('max')", 3, True, 2, "Dog"),
    ),
    "dataclasses": (
        """
from dataclasses import dataclass, field, asdict, replace
@dataclass(order=True)
class P:
    x: int
    y: int = 2
    tags: list = field(default_factory=list)
    def __post_init__(self): self.total = self.x + self.y
@dataclass(frozen=True)
class F:
    v: int
    def __post_init__(self): object.__setattr__(self, "v", self.v * 2)
@dataclass(slots=True)
class S:
    a: int = 1
asdict(P(1)), replace(P(1), x=5).total, F(4).v, S().a, P(1) < P(2)
""",
        ({"x": 1, "y": 2, "tags": []}, 7, 8, 1, True),
    ),
    "enums": (
        """
from enum import Enum, IntEnum, auto, Flag
class Color(Enum):
    RED = auto()
    BLUE = auto()
    @classmethod
    def default(cls): return cls.RED
Size = Enum("Size", "S M L")
class N(IntEnum):
    A = 1
[c.name for c in Color], Color(2).value, Size.M.value, N.A + 1, Color.default().name
""",
        (["RED", "BLUE"], 2, 2, 2, "RED"),
    ),
    "namedtuples": (
        """
from collections import namedtuple
from typing import NamedTuple
P = namedtuple("P", "x y")
class Q(NamedTuple):
    a: int
    b: str = "z"
    def both(self): return f"{self.a}{self.b}"
P(1, 2)._replace(y=5)._asdict(), Q(3).both(), Q._fields
""",
        ({"x": 1, "y": 5}, "3z", ("a", "b")),
    ),
    "abstract": (
        """
from abc import ABC, ABCMeta, abstractmethod
from typing import Protocol, runtime_checkable, Generic, TypeVar, Optional
T = TypeVar("T")
class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...
class Old(metaclass=ABCMeta):
    pass
class Square(Shape):
    def __init__(self, s: float): self.s = s
    def area(self) -> float: return self.s ** 2
@runtime_checkable
class HasArea(Protocol):
    def area(self) -> float: ...
class Stack(Generic[T]):
    def __init__(self) -> None: self._items: list[T] = []
    def push(self, x: T) -> None: self._items.append(x)
    def __len__(self) -> int: return len(self._items)
s = Stack[int](); s.push(1)
try: Shape(); made = True
except TypeError: made = False
made, Square(2).area(), isinstance(Square(1), HasArea), len(s), isinstance(Shape, type)
""",
        (False, 4, True, 1, True),
    ),
    "decorators": (
        """
import functools, time
def timed(f):
    @functools.wraps(f)
    def inner(*args, **kwargs):
        inner.calls += 1
        return f(*args, **kwargs)
    inner.calls = 0
    return inner
@timed
def add(a, b=1):
    "adds"
    return a + b
@functools.lru_cache(maxsize=None)
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
@functools.singledispatch
def kind(x): return "other"
@kind.register(int)
def _(x): return "int"
class C:
    @functools.cached_property
    def slow(self): return 42
    @staticmethod
    def s(): return 1
    @classmethod
    def c(cls): return cls.__name__
add(1, b=2), add.calls, add.__name__, add.__doc__, fib(30), kind(1), kind(""), C().slow, C.c()
""",
        (3, 1, "add", "adds", 832040, "int", "other", 42, "C"),
    ),
    "contexts": (
        """
import contextlib, io, sys
@contextlib.contextmanager
def tag(name):
    log.append("<" + name)
    try: yield name
    finally: log.append(name + ">")
log = []
class Res:
    def __enter__(self): return self
    def __exit__(self, kind, exc, tb):
        log.append(kind.__name__ if kind else None)
        return True
with tag("a") as t, Res(): raise ValueError("x")
out = io.StringIO()
with contextlib.redirect_stdout(out): print("inside")
with contextlib.suppress(KeyError): {}["x"]
log, out.getvalue()
""",
        (["<a", "ValueError", "a>"], "inside\n"),
    ),
    "formatting": (
        """
from datetime import date
import decimal
class V:
    def __init__(self, x): self.x = x
    def __format__(self, spec): return f"V<{spec}>"
rows = [("a", 1.5), ("bb", 22.25)]
table = "\\n".join("{:<4}|{:>8.2f}".format(*row) for row in rows)
table, "{p.x} {d[k]} {0!r:>5}".format("s", p=V(3), d={"k": 4}), f"{V(1):abc}", "%s-%05d" % ("x", 42), \\
    "{:%Y}".format(date(2020, 1, 1)), "{name}".format_map({"name": "n"}), "{:,}".format(1234567)
""",
        (
            "a   |    1.50\nbb  |   22.25",
            "3 4   's'",
            "V<abc>",
            "x-00042",
            "2020",
            "n",
            "1,234,567",
        ),
    ),
    "attributes": (
        """
class Config:
    debug = False
    def __init__(self, **kw):
        for k, v in kw.items(): setattr(self, k, v)
    def __getattr__(self, name):
        if name.startswith("get_"): return lambda: getattr(self, name[4:])
        raise AttributeError(name)
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
c = Config(a=1, b=2)
c.a += 5
del c.b
vars(c), c.__dict__, getattr(c, "zz", None), hasattr(c, "a"), c.get_a(), Config.debug, "a" in dir(c)
""",
        ({"a": 6}, {"a": 6}, None, True, 6, False, True),
    ),
    "text": (
        """
import re, json, collections, textwrap, string, html, urllib.parse, csv, io, base64, hashlib, difflib
words = re.findall(r"\\w+", "The cat and the hat".lower())
data = json.loads('{"a": [1, {"b": null}]}')
reader = list(csv.DictReader(io.StringIO("x,y\\n1,2\\n")))
(collections.Counter(words).most_common(1), json.dumps(data, sort_keys=True), reader[0]["y"],
 html.escape("<a>"), urllib.parse.urlparse("http://h/p?q=1").path, string.capwords("ab cd"),
 base64.b64encode(b"x").decode(), hashlib.md5(b"").hexdigest()[:4], textwrap.shorten("a b c", 9),
 re.sub(r"(\\d+)", lambda m: str(int(m.group(1)) * 2), "a1b2"))
""",
        (
            [("the", 2)],
            '{"a": [1, {"b": null}]}',
            "2",
            "&lt;a&gt;",
            "/p",
            "Ab Cd",
            "eA==",
            "d41d",
            "a b c",
            "a2b4",
        ),
    ),
    "parser": (
        """
from html.parser import HTMLParser
class P(HTMLParser):
    def __init__(self):
        super().__init__()
        self._texts = []
    def handle_data(self, data): self._texts.append(data)
p = P(); p.feed("<p>hi <b>you</b></p>"); p._texts
""",
        ["hi ", "you"],
    ),
    "functional": (
        """
import itertools, operator, functools, heapq, bisect, math, statistics, random, copy
from types import SimpleNamespace
people = [SimpleNamespace(name="b", age=2), SimpleNamespace(name="a", age=1)]
people[0].age += 1
by = sorted(people, key=operator.attrgetter("name"))
groups = {k: list(g) for k, g in itertools.groupby([1, 1, 2], key=lambda x: x)}
random.seed(1)
deep = copy.deepcopy({"a": [1]})
([p.name for p in by], groups, functools.reduce(operator.add, [1, 2, 3]), heapq.nsmallest(1, [3, 1]),
 list(map(operator.methodcaller("upper"), "ab")), 0 <= random.random() < 1, deep, math.isclose(1, 1))
""",
        (["a", "b"], {1: [1, 1], 2: [2]}, 6, [1], ["A", "B"], True, {"a": [1]}, True),
    ),
    "patterns": (
        """
from dataclasses import dataclass
@dataclass
class Point:
    x: int
    y: int
def where(p):
    match p:
        case Point(0, y): return f"y axis {y}"
        case Point(x=x, y=0): return f"x axis {x}"
        case {"k": v, **rest}: return v, rest
        case [first, *others]: return first, others
        case str() | int(): return "plain"
        case _: return None
where(Point(0, 3)), where(Point(4, 0)), where({"k": 1, "z": 2}), where([1, 2, 3]), where("s")
""",
        ("y axis 3", "x axis 4", (1, {"z": 2}), (1, [2, 3]), "plain"),
    ),
    "errors": (
        """
import traceback, sys, warnings
warnings.filterwarnings("ignore")
class MyError(ValueError):
    def __init__(self, code): super().__init__(f"code {code}"); self.code = code
try:
    try: raise MyError(7)
    except MyError as e: raise RuntimeError("outer") from e
except RuntimeError as e:
    cause = e.__cause__
    text = traceback.format_exc()
    print(e, file=sys.stderr)
cause.code, str(cause), "RuntimeError: outer" in text, type(cause).__name__
""",
        (7, "code 7", True, "MyError"),
    ),
    "generators": (
        """
def walk(tree):
    if isinstance(tree, dict):
        for v in tree.values(): yield from walk(v)
    else: yield tree
class Countdown:
    def __init__(self, n): self.n = n
    def __iter__(self): return self
    def __next__(self):
        if self.n <= 0: raise StopIteration
        self.n -= 1
        return self.n
async def co(): return 5
c = co()
try: c.send(None)
except StopIteration as stop: got = stop.value
def acc():
    total = 0
    while True: total += (yield total)
g = acc(); next(g)
list(walk({"a": 1, "b": {"c": 2}})), list(Countdown(3)), got, g.send(5)
""",
        ([1, 2], [2, 1, 0], 5, 5),
    ),
    "main": (
        """
import sys
def main(argv=None):
    global result
    result = len(sys.argv)
    return 0
if __name__ == "__main__":
    main()
result
""",
        1,
    ),
    "operators": (
        """
from fractions import Fraction
import decimal
decimal.getcontext().prec = 5
class V:
    __slots__ = ("x", "y")
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, o): return V(self.x + o.x, self.y + o.y)
    __radd__ = __add__
    def __iter__(self): yield self.x; yield self.y
    def __getitem__(self, i): return (self.x, self.y)[i]
    def __call__(self, k): return self.x * k
    def __len__(self): return 2
    def __bool__(self): return True
    def __contains__(self, v): return v in (self.x, self.y)
v = V(1, 2) + V(3, 4)
x, y = v
x, y, v[0], v(10), len(v), 6 in v, Fraction(1, 3) + 1 == Fraction(4, 3), str(decimal.Decimal(1) / 3)
""",
        (4, 6, 4, 40, 2, True, True, "0.33333"),
    ),
    "numpy": (
        """
import numpy as np
from numpy.linalg import norm
a = np.arange(6, dtype=float).reshape(2, 3)
a[a > 4] = 0
b = np.array([1, 2]); b.shape = (2, 1)
rng = np.random.default_rng(0)
a.sum(), a.mean(axis=0).tolist(), float(norm(np.array([3.0, 4.0]))), (a @ a.T).shape, b.shape, rng.random(2).shape
""",
        (10.0, [1.5, 2.5, 1.0], 5.0, (2, 2), (2, 1), (2,)),
    ),
}

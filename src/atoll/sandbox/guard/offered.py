"""The modules that the `restricted` backend offers, as data: all of `__all__` with exceptions.

`only` lists the names offered from a module that also has harmful ones; `not_` those left out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The names of a module that guest code may use: public names that are not modules."""

    only: frozenset[str] | None = None
    not_: frozenset[str] = frozenset()
    made: frozenset[str] = frozenset()
    """Names that the backend implements itself, instead of the module's or in addition."""


def _only(names: str, made: str = "") -> Offer:
    return Offer(only=frozenset(names.split()), made=frozenset(made.split()))


def _all(but: str = "", made: str = "") -> Offer:
    return Offer(not_=frozenset(but.split()), made=frozenset(made.split()))


MODULES: dict[str, Offer] = {
    "abc": _only("ABC abstractmethod", made="ABCMeta"),
    "array": _all(),
    "ast": _only("literal_eval"),
    "base64": _all(but="main test"),
    "binascii": _all(),
    "bisect": _all(),
    "calendar": _all(but="different_locale LocaleTextCalendar LocaleHTMLCalendar main"),
    "cmath": _all(),
    "collections": _all(but="UserString", made="namedtuple"),
    "collections.abc": _all(but="Buffer"),
    "colorsys": _all(),
    "contextlib": _all(but="chdir redirect_stdin", made="redirect_stdout redirect_stderr"),
    "copy": _only("copy deepcopy Error replace"),
    "csv": _all(),
    "dataclasses": _all(but="make_dataclass Field", made="dataclass make_dataclass"),
    "datetime": _all(),
    "decimal": _all(),
    "difflib": _all(),
    "enum": _only(
        "Enum IntEnum StrEnum Flag IntFlag ReprEnum auto unique property member nonmember verify "
        "CONTINUOUS NAMED_FLAGS UNIQUE FlagBoundary STRICT CONFORM EJECT KEEP"
    ),
    "fractions": _all(),
    "functools": _all(but="wraps update_wrapper", made="wraps update_wrapper"),
    "graphlib": _all(),
    "hashlib": _all(but="file_digest"),
    "heapq": _all(),
    "hmac": _only("new compare_digest digest HMAC"),
    "html": _only("escape unescape"),
    "html.entities": _all(),
    "html.parser": _all(),
    "io": _only("StringIO BytesIO SEEK_SET SEEK_CUR SEEK_END UnsupportedOperation"),
    "itertools": _all(),
    "json": _all(),
    "keyword": _all(),
    "math": _all(),
    "numbers": _all(),
    "operator": _all(but="attrgetter methodcaller", made="attrgetter methodcaller"),
    "pprint": _only("pprint pp pformat saferepr isreadable isrecursive"),
    "random": _all(),
    "re": _all(but="template purge"),
    "reprlib": _all(),
    "secrets": _all(),
    "statistics": _all(),
    "string": _all(but="Formatter"),
    "struct": _all(),
    "sys": _only(
        "version version_info maxsize maxunicode byteorder float_info int_info getsizeof "
        "getrecursionlimit platform implementation hexversion",
        made="exit stdout stderr stdin argv",
    ),
    "textwrap": _all(),
    "time": _only(
        "time time_ns sleep monotonic monotonic_ns perf_counter perf_counter_ns process_time "
        "process_time_ns gmtime localtime strftime strptime mktime asctime ctime struct_time "
        "timezone altzone daylight tzname"
    ),
    "traceback": _only("format_exc print_exc format_exception format_exception_only"),
    "types": _only("MappingProxyType", made="SimpleNamespace"),
    "typing": _all(but="get_type_hints ForwardRef evaluate_forward_ref io re", made="get_origin"),
    "unicodedata": _all(),
    "urllib.parse": _all(),
    "uuid": _only(
        "UUID uuid3 uuid4 uuid5 NAMESPACE_DNS NAMESPACE_URL NAMESPACE_OID NAMESPACE_X500 SafeUUID"
    ),
    "warnings": _only("warn filterwarnings simplefilter resetwarnings"),
    "zlib": _all(),
    "numpy": _all(
        but="load save savez savez_compressed loadtxt savetxt genfromtxt fromfile fromregex "
        "fromstring memmap DataSource test testing ctypeslib f2py lib core rec show_config "
        "recfromtxt recfromcsv safe_eval show_runtime info get_include lookfor source who "
        "byte_bounds from_dlpack nested_iters distutils typing"
    ),
    "numpy.fft": _all(but="test"),
    "numpy.linalg": _all(but="test linalg"),
    "numpy.polynomial": _all(but="test"),
    "numpy.random": _all(but="test get_bit_generator set_bit_generator"),
    "numpy.ma": _all(but="test fromflex"),
    "numpy.char": _all(),
    "numpy.strings": _all(),
}

FOLDERS = {
    "collections": ("collections.abc",),
    "numpy": tuple(name for name in MODULES if name.startswith("numpy.")),
}
"""Modules that expose other modules as attributes without an import."""

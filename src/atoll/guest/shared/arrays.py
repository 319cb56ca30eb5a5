"""numpy arrays and pandas frames as tagged JSON and back. Used by `values`, on both sides.

An array crosses as dtype, shape and bytes, a frame as its columns. numpy and pandas are imported
when such a value is decoded, not before.

SECURITY: what is decoded may come from a hostile guest. Only plain dtypes are taken (no objects,
no records), sizes must agree, and texts and booleans must hold what their dtype allows.
"""

from __future__ import annotations

import sys

from .kinds import base64_of, bytes_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .messages import Tagged

    Encode = Callable[[Any], Any]

TAG = "$"
MAX_DIMENSIONS = 32
MAX_LENGTH = 1 << 31
_PLAIN_KINDS = "biufcMmSU"
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns")
_NULLABLE = frozenset(
    ["{}Int{}".format(sign, bits) for sign in ("", "U") for bits in (8, 16, 32, 64)]
    + ["Float32", "Float64", "boolean", "string", "str"]
)
_LAST_CHARACTER = 0x10FFFF


class LibraryMissingError(ValueError):
    """A value needs a library that is not installed on the receiving side."""

    def __init__(self, type_name: str, library: str, instead: str) -> None:
        self.type_name = type_name
        super().__init__(
            "a {} needs {}, which the receiving Python does not have: install it there, or send "
            "plain data: {}".format(type_name, library, instead)
        )


class NotPlainError(ValueError):
    """An array or frame holds something that cannot cross."""


def encode(value: Any, spend: Encode, items: Encode) -> Any:
    """Return the tagged form of a value of numpy or pandas; NotPlainError if it has none.

    `spend` counts the bytes of an array, `items` encodes any other value.
    """
    kind = type(value)
    name = kind.__name__
    if kind.__module__.split(".")[0] == "numpy":
        if name == "ndarray":
            return _encode_array(value, spend)
        if hasattr(value, "shape") and value.shape != ():
            text = "a {}.{} is not a plain array: use numpy.asarray(value), or its filled()"
            raise NotPlainError(text.format(kind.__module__, name))
        if hasattr(value, "dtype") and hasattr(value, "item"):
            return _encode_scalar(value, spend)
    elif name in ("DataFrame", "Series"):
        return _encode_frame(value, name, _Columns(spend, items))
    elif name.endswith("Index"):
        return {TAG: "index", "v": _Columns(spend, items).index(value)}
    raise NotPlainError("a {}.{} is not a plain array".format(kind.__module__, name))


def encode_moment(value: Any) -> Tagged | None:
    """Return the tagged form of a pandas Timestamp, Timedelta, NaT or NA; None for another."""
    name = type(value).__name__
    if name in ("NaTType", "NAType"):
        return {TAG: "missing", "v": "NaT" if name == "NaTType" else "NA"}
    if name == "Timedelta":
        return {TAG: "pandas.timedelta", "v": value.isoformat()}
    if name != "Timestamp":
        return None
    encoded = {TAG: "timestamp", "v": value.isoformat()}
    zone = getattr(value.tzinfo, "key", None)
    if isinstance(zone, str):
        encoded["zone"] = zone
    return encoded


def _encode_array(value: Any, spend: Encode) -> Tagged:
    dtype = value.dtype
    if dtype.kind not in _PLAIN_KINDS or dtype.names or (dtype.kind in "fc" and not _fits(dtype)):
        text = "an array of dtype {} cannot cross: convert it by tolist() or astype()"
        raise NotPlainError(text.format(dtype))
    if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
        value = value.astype(dtype.newbyteorder("<"))
    if value.nbytes:
        spend(_Sized(value.nbytes))  # before the bytes are made
    data = base64_of(value.tobytes())
    return {TAG: "array", "dtype": value.dtype.str, "shape": list(value.shape), "v": data}


def _fits(dtype: Any) -> bool:
    return dtype.itemsize in _SIZES[dtype.kind]


class _Sized:
    """Stands for bytes that are about to be made, where only their number counts."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size


def _encode_scalar(value: Any, spend: Encode) -> Tagged:
    encoded = _encode_array(value, spend)
    plain = value.item() if value.dtype.kind in "biuf" else None
    if isinstance(plain, float) and plain - plain != 0:  # JSON has neither infinity nor nan
        plain = {TAG: "float", "v": repr(plain)}
    return dict(encoded, **{TAG: "scalar", "plain": plain})


def _encode_frame(value: Any, name: str, columns: _Columns) -> Tagged:
    index = columns.index(value.index)
    if name == "Series":
        body = {"name": columns.items(value.name), "v": columns.column(value)}
        return dict(body, **{TAG: "series", "index": index})
    result = [columns.column(value.iloc[:, at]) for at in range(value.shape[1])]
    return {TAG: "frame", "index": index, "labels": columns.index(value.columns), "v": result}


class _Columns:
    """Encodes columns and indexes."""

    def __init__(self, spend: Encode, items: Encode) -> None:
        self._spend, self.items = spend, items

    def index(self, index: Any) -> Tagged:
        names = self.items(list(index.names))
        if type(index).__name__ == "RangeIndex":
            return {"names": names, "range": [index.start, index.stop, index.step]}
        if type(index).__name__ == "MultiIndex":
            levels = [index.get_level_values(at) for at in range(index.nlevels)]
            return {"names": names, "levels": [self.column(level.to_series()) for level in levels]}
        return {"names": names, "levels": [self.column(index.to_series())]}

    def column(self, series: Any) -> Tagged:
        dtype, name = series.dtype, str(series.dtype)
        kind = type(dtype).__name__
        if kind == "CategoricalDtype":
            codes, labels = series.cat.codes.to_numpy(), series.cat.categories.to_series()
            ordered = bool(series.cat.ordered)
            parts = {"codes": _encode_array(codes, self._spend), "labels": self.column(labels)}
            return dict(parts, dtype="category", ordered=ordered)
        if kind == "DatetimeTZDtype":
            utc = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
            return {"dtype": "zoned", "zone": str(dtype.tz), "v": _encode_array(utc, self._spend)}
        if name in _NULLABLE:
            plain = [None if lost else item for item, lost in zip(series.tolist(), series.isna())]
            return {"dtype": name, "v": self.items(plain)}
        if name == "object":
            return {"dtype": "object", "v": self.items(series.tolist())}
        if type(dtype).__module__.split(".")[0] != "numpy":
            text = "a column of dtype {} cannot cross: convert it by astype(), or write a file"
            raise NotPlainError(text.format(name))
        return {"dtype": "numpy", "v": _encode_array(series.to_numpy(), self._spend)}


def decode_array(value: Tagged) -> Any:
    """Return the array; LibraryMissingError without numpy, ValueError if it is not valid."""
    try:
        import numpy
    except ImportError:
        raise LibraryMissingError("numpy.ndarray", "numpy", "value.tolist()") from None
    dtype = numpy.dtype(_checked_dtype(value["dtype"]))
    shape = value["shape"]
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS:
        raise ValueError("an array of no known shape")
    size = dtype.itemsize
    for length in shape:
        if type(length) is not int or not 0 <= length < MAX_LENGTH:
            raise ValueError("an array of no known shape")
        size *= length
    data = bytes_of(value["v"])
    if len(data) != size:
        raise ValueError("an array of {} bytes where {} belong".format(len(data), size))
    array = numpy.frombuffer(data, dtype).reshape(shape).copy()
    _check_items(numpy, array)
    return array


def _checked_dtype(text: Any) -> str:
    """Return `text` if it names a dtype that holds plain data; ValueError if not."""
    if isinstance(text, str) and len(text) > 2 and text[0] in "<|" and text[1] in _PLAIN_KINDS:
        kind, size = text[1], text[2:]
        if kind in _SIZES and size in map(str, _SIZES[kind]):
            return text
        if kind in "SU" and size.isdigit() and size.isascii() and 0 < int(size[:9]) < MAX_LENGTH:
            return text
        if kind in "Mm" and size in ["8"] + ["8[{}]".format(unit) for unit in _UNITS]:
            return text
    raise ValueError("an array of the dtype {!r:.40}".format(text))


def _check_items(numpy: Any, array: Any) -> None:
    """Refuse bit patterns that no array of this dtype has: using them would be undefined."""
    kind = array.dtype.kind
    if not array.size or kind not in "bU":
        return
    raw = array.reshape(-1).view(numpy.uint8 if kind == "b" else numpy.dtype("<u4"))
    if raw.max() > (1 if kind == "b" else _LAST_CHARACTER):
        raise ValueError("an array of {} with an item that is not one".format(array.dtype))


def decode_scalar(value: Tagged, decode: Encode) -> Any:
    """Return the scalar of numpy; where that is not installed, the plain number."""
    try:
        array = decode_array(value)
    except LibraryMissingError:
        if value["plain"] is None:
            raise
        return decode(value["plain"])
    if array.shape != ():
        raise ValueError("a scalar with a shape")
    return array[()]


def decode_moment(value: Tagged) -> Any:
    """Return a pandas Timestamp or Timedelta; a datetime without pandas, if it can hold it."""
    try:
        import pandas
    except ImportError:
        return _plain_moment(value)
    if value[TAG] == "missing":
        return pandas.NaT if value["v"] == "NaT" else pandas.NA
    text = value["v"]
    if not isinstance(text, str) or len(text) > 100:
        raise ValueError("a time of no known shape")
    if value[TAG] == "pandas.timedelta":
        return pandas.Timedelta(text)
    moment = pandas.Timestamp(text)
    return moment.tz_convert(_zone(value["zone"])) if "zone" in value else moment


def _plain_moment(value: Tagged) -> Any:
    import datetime

    if value[TAG] == "timestamp":
        digits = value["v"].partition(".")[2].partition("+")[0].partition("-")[0]
        if len(digits) <= 6:  # a datetime has no nanoseconds
            return datetime.datetime.fromisoformat(value["v"])
    elif value[TAG] == "missing":
        return None
    raise LibraryMissingError("pandas.Timestamp", "pandas", "str(value)")


def _zone(name: Any) -> str:
    if not isinstance(name, str) or len(name) > 64 or name.startswith(("/", "dateutil")):
        raise ValueError("a time zone of no known shape")
    return name


def decode_frame(
    value: Tagged, decode: Encode, hashable: Encode, spend: Callable[[int], None]
) -> Any:
    """Return the frame, series or index; LibraryMissingError without pandas.

    `hashable` refuses labels that were made to share one hash. `spend` raises ValueError if too
    much is asked for, in units of about 60 microseconds: what a column of numbers takes.
    """
    spend(2)
    try:
        import pandas
    except ImportError:
        name = {"frame": "DataFrame", "series": "Series", "index": "Index"}[value[TAG]]
        raise LibraryMissingError("pandas." + name, "pandas", "value.to_dict()") from None
    reader = _Reader(pandas, decode, hashable, spend)
    try:
        return reader.read(value)
    except LibraryMissingError:
        raise
    except Exception as exc:  # pandas raises whatever it likes for parts that do not fit
        text = "not a frame: {}: {}".format(type(exc).__name__, str(exc)[:200])
        raise ValueError(text) from None


class _Reader:
    """Makes frames of their parts, with one pandas."""

    def __init__(
        self, pandas: Any, decode: Encode, hashable: Encode, spend: Callable[[int], None]
    ) -> None:
        self._pandas, self._decode, self._hashable = pandas, decode, hashable
        self._spend = spend

    def read(self, value: Tagged) -> Any:
        if value[TAG] == "index":
            return self._index(value["v"])
        index = self._index(value["index"])
        if value[TAG] == "series":
            series = self._column(value["v"])
            return self._with_index(series, index).rename(self._decode(value["name"]))
        columns = [self._with_index(self._column(column), index) for column in value["v"]]
        labels = self._index(value["labels"])
        if len(labels) != len(columns):
            raise ValueError("{} labels for {} columns".format(len(labels), len(columns)))
        frame = self._pandas.DataFrame(dict(enumerate(columns)), index=index)
        frame.columns = labels
        return frame

    def _with_index(self, series: Any, index: Any) -> Any:
        if len(series) != len(index):
            raise ValueError("{} rows for {} labels".format(len(series), len(index)))
        series.index = index
        return series

    def _index(self, value: Tagged) -> Any:
        names = self._decode(value["names"])
        if "range" in value:
            start, stop, step = value["range"]
            if len(range(start, stop, step)) >= MAX_LENGTH:
                raise ValueError("an index that is too long")
            return self._pandas.RangeIndex(start, stop, step, name=names[0])
        levels = [self._labels(level) for level in value["levels"]]
        if len(levels) == 1:
            return levels[0].rename(names[0])
        return self._pandas.MultiIndex.from_arrays(levels, names=names)

    def _labels(self, value: Tagged) -> Any:
        column = self._column(value)
        if column.dtype == object:
            self._hashable(column.tolist())
        return self._pandas.Index(column, dtype=column.dtype)

    def _column(self, value: Tagged) -> Any:
        pandas, dtype = self._pandas, value["dtype"]
        self._spend(1 if dtype == "numpy" else 8)
        if dtype == "numpy":
            return pandas.Series(decode_array(value["v"]))
        if dtype == "object" or dtype in _NULLABLE:
            items = self._decode(value["v"])
            if not isinstance(items, list):
                raise ValueError("a column that is not a list")
            return pandas.Series(items, dtype=dtype)
        if dtype == "zoned":
            moments = pandas.Series(decode_array(value["v"]))
            return moments.dt.tz_localize("UTC").dt.tz_convert(_zone(value["zone"]))
        if dtype == "category":
            codes, labels = decode_array(value["codes"]), self._labels(value["labels"])
            made = pandas.Categorical.from_codes(codes, labels, ordered=bool(value["ordered"]))
            return pandas.Series(made)
        raise ValueError("a column of the dtype {!r:.40}".format(dtype))

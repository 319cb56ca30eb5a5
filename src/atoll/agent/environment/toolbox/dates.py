"""date_add and date_diff: arithmetic with dates in ISO 8601; no clock and no time zone database."""

from __future__ import annotations

import calendar
import datetime as dt

LONGEST = 40
MOST = 10_000_000
"""Days, months and the like that may be added at once; dates end with the year 9999 anyway."""
_SECONDS = {"weeks": 604_800, "days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


def date_add(
    date: str,
    days: int = 0,
    *,
    months: int = 0,
    years: int = 0,
    weeks: int = 0,
    hours: int = 0,
    minutes: int = 0,
    seconds: int = 0,
) -> dict[str, object]:
    """Add a span to a date or a time, "2026-01-31" or "2026-01-31T10:00"; negative spans go back.

    Years and months come first; a day that the month does not have becomes its last.
    """
    given = {"days": days, "weeks": weeks, "hours": hours, "minutes": minutes, "seconds": seconds}
    for name, number in {**given, "months": months, "years": years}.items():
        if abs(number) > MOST:
            raise ValueError(f"{name} must be from -{MOST:,} to {MOST:,}, not {number:,}")
    start = _parsed(date, "date")
    try:
        later = _months_later(start, 12 * years + months)
        later += dt.timedelta(seconds=sum(_SECONDS[name] * n for name, n in given.items()))
    except (OverflowError, ValueError):
        raise ValueError("the result is not in the years 1 to 9999") from None
    timed = len(date.strip()) > len("2026-01-31") or hours or minutes or seconds
    text = later.isoformat() if timed else later.date().isoformat()
    return {"date": text, "weekday": calendar.day_name[later.weekday()]}


def date_diff(start: str, end: str) -> dict[str, object]:
    """Return the time from one date to another: days, seconds, and years, months and days."""
    first, last = _parsed(start, "start"), _parsed(end, "end")
    if (first.tzinfo is None) != (last.tzinfo is None):
        raise ValueError("give both dates with an offset such as +02:00, or both without one")
    span = last - first
    total = span.days * _SECONDS["days"] + span.seconds
    sign = "-" if total < 0 else ""
    return {
        "days": total / _SECONDS["days"] if total % _SECONDS["days"] else span.days,
        "seconds": total,
        "calendar": sign + _calendar(*sorted((first, last))),
    }


def _parsed(text: str, name: str) -> dt.datetime:
    try:
        if len(text) <= LONGEST:
            return dt.datetime.fromisoformat(text.strip())
    except ValueError:
        pass
    raise ValueError(f"{name} must be like 2026-01-31 or 2026-01-31T10:00:00, not {text!r:.50}")


def _months_later(start: dt.datetime, months: int) -> dt.datetime:
    if not months:
        return start
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    if not 1 <= year <= dt.MAXYEAR:
        raise OverflowError
    last = calendar.monthrange(year, month + 1)[1]
    return start.replace(year=year, month=month + 1, day=min(start.day, last))


def _calendar(first: dt.datetime, last: dt.datetime) -> str:
    """Return a span as years, months and days, counted from the first date on."""
    months = (last.year - first.year) * 12 + last.month - first.month
    if _months_later(first, months) > last:
        months -= 1
    days = (last - _months_later(first, months)).days
    return f"{months // 12} years, {months % 12} months, {days} days"

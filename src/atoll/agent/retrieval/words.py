"""Splits code and prose into words for the index and for queries; splits identifiers too.

SECURITY: a query is data. FTS5 gets quoted words of letters and digits only, so no part of a query
can be an operator of its language.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_CAMEL = re.compile(r"\b[A-Za-z]+[a-z0-9][A-Z][A-Za-z0-9]*")
_IDEOGRAPH = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff])")
_WORD = re.compile(r"[^\W_]+")
MAX_WORDS = 48
_COMMON = frozenset(
    """
    a an and are as at be been by can do does for from has have how i if in into is it its may
    of on or so such than that the their then there this to was we what when where which will
    with you your
""".split()
)


def split_words(text: str) -> str:
    """Return the text with identifiers split: `getUser` becomes `get User getuser`."""
    if _IDEOGRAPH.search(text):
        text = _IDEOGRAPH.sub(r" \1 ", text)
    whole = _CAMEL.findall(text)
    return " ".join([_HUMP.sub(" ", text), *whole]) if whole else text


def query_words(query: str) -> list[str]:
    """Return the words of a query without repeats; common ones only if there are no others."""
    split = _WORD.findall(split_words(query))
    words = list(dict.fromkeys(word.lower() for word in split))
    return ([word for word in words if word not in _COMMON] or words)[:MAX_WORDS]


def match_expression(query: str) -> str:
    """Return the FTS5 expression that matches any of the words; "" if there are none."""
    return " OR ".join(f'"{word}"' for word in query_words(query))


def related_expression(query: str) -> str:
    """Return the FTS5 expression for words that begin like those of a query, or mean the same."""
    words = query_words(query)
    stems = [
        word[: max(_STEM, len(word) - 3)] for word in words if len(word) > _STEM and word.isalpha()
    ]
    same = (f'"{word}"' for word in related_words(words))
    return " OR ".join([*(f'"{stem}" *' for stem in stems), *same])


def related_words(words: Collection[str]) -> list[str]:
    """Return words that mean the same as one of these, in order; the beginning of one will do."""
    begin = tuple(word for word in words if len(word) >= _STEM - 1)
    groups = [
        group
        for group in _SAME
        if not group.isdisjoint(words) or any(word.startswith(begin) for word in group)
    ]
    return sorted(set().union(*groups).difference(words))


_STEM = 5
"""Letters that the beginnings of two related words have in common at least."""
_SAME = tuple(
    frozenset(line.split())
    for line in """\
delete remove erase drop discard unlink purge destroy
create make build construct generate new
get fetch retrieve load read obtain download
set write store save put persist
send post emit publish dispatch transmit
find search look locate query lookup
error failure exception fault fail problem
retry repeat again reattempt backoff try attempt
login authenticate signin auth logon credential password
user account member customer person
config configuration settings options preferences setup
start begin launch run open init initialize
stop end close shutdown terminate finish quit exit
parse decode deserialize interpret unmarshal
format encode serialize dump marshal render
check validate verify test assert ensure
copy clone duplicate replicate
change update modify edit alter patch
list enumerate all items collection
count number total amount size length
wait sleep delay pause timeout
cache memoize buffer
thread concurrent parallel worker async
file document path folder directory
show display print view draw
cost price fee charge amount payment pay
fast quick speed performance slow
join merge combine concat concatenate
split divide separate chunk
buy purchase acquire bought
sell sold sale
live reside dwell home residence house
work job profession occupation employ career trade
die death died dead killed
born birth birthday birthplace
marry wife husband spouse wedding married
child son daughter children
doctor physician
car vehicle
rent lease hire tenant
salary wage income earn pay
boss manager head lead director chief supervise charge
own owner belong possess property
leave depart quit resign
arrive reach come
allow permit
forbid ban prohibit
repair fix mend
broken faulty defective damage
limit maximum cap ceiling threshold
meet gather assemble
teach school teacher taught lesson
sick ill illness disease
choose select pick decide
name call title
""".splitlines()
)
"""Words that code and documentation use for one another: a search without a model knows them."""

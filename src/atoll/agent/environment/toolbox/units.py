"""convert_units: a table of units with exact factors to the base unit of their kind."""

from __future__ import annotations

import difflib
import math
from fractions import Fraction

_TABLE = {
    kind: dict(pair.split("=") for pair in units.split())
    for kind, units in {
        "length": "m=1 km=1000 dm=0.1 cm=0.01 mm=0.001 um=1e-6 nm=1e-9 in=0.0254 ft=0.3048 "
        "yd=0.9144 mi=1609.344 nmi=1852 ly=9460730472580800 au=149597870700",
        "mass": "kg=1 g=0.001 mg=1e-6 ug=1e-9 t=1000 lb=0.45359237 oz=0.028349523125 st=6.35029318",
        "time": "s=1 ms=0.001 us=1e-6 ns=1e-9 min=60 h=3600 d=86400 week=604800 year=31557600",
        "area": "m2=1 km2=1e6 cm2=1e-4 mm2=1e-6 ha=10000 acre=4046.8564224 ft2=0.09290304 "
        "in2=0.00064516 mi2=2589988.110336",
        "volume": "l=1 ml=0.001 cl=0.01 dl=0.1 m3=1000 cm3=0.001 gal=3.785411784 qt=0.946352946 "
        "pt=0.473176473 cup=0.2365882365 floz=0.0295735295625 tbsp=0.01478676478125 "
        "tsp=0.00492892159375",
        "speed": "m/s=1 km/h=5/18 mph=0.44704 kn=463/900 ft/s=0.3048",
        "data": "b=1 kb=1000 mb=1e6 gb=1e9 tb=1e12 pb=1e15 kib=1024 mib=1048576 gib=1073741824 "
        "tib=1099511627776 bit=1/8 kbit=125 mbit=125000 gbit=125000000",
        "energy": "j=1 kj=1000 mj=1e6 wh=3600 kwh=3600000 cal=4.184 kcal=4184 ev=1.602176634e-19 "
        "btu=1055.05585262",
        "power": "w=1 kw=1000 mw=1e6 hp=745.69987158227022",
        "pressure": "pa=1 hpa=100 kpa=1000 mpa=1e6 bar=100000 mbar=100 atm=101325 "
        "psi=6894.757293168 mmhg=133.322387415",
        "angle": "deg=1 arcmin=1/60 arcsec=1/3600 turn=360",
        "frequency": "hz=1 khz=1000 mhz=1e6 ghz=1e9 rpm=1/60",
        "temperature": "k=1 c=1 f=5/9",
    }.items()
}
_ZERO = {"k": Fraction(0), "c": Fraction("273.15"), "f": Fraction("459.67") * Fraction(5, 9)}
"""Kelvins at the zero of a scale of temperature."""
_OTHER_NAMES = dict(
    pair.split("=")
    for pair in """
    meter=m metre=m kilometer=km kilometre=km centimeter=cm centimetre=cm millimeter=mm
    millimetre=mm inch=in inche=in foot=ft feet=ft yard=yd mile=mi gram=g kilogram=kg pound=lb
    ounce=oz tonne=t ton=t second=s sec=s minute=min hour=h hr=h day=d weeks=week years=year
    liter=l litre=l gallon=gal hectare=ha celsius=c fahrenheit=f kelvin=k byte=b joule=j watt=w
    degree=deg knot=kn kph=km/h kmh=km/h °c=c °f=f °=deg m²=m2 m³=m3 km²=km2 µm=um µs=us sqm=m2
""".split()
)
_UNITS = {
    unit: (kind, Fraction(factor)) for kind, row in _TABLE.items() for unit, factor in row.items()
}
LONGEST = 30


def convert_units(value: float, source: str, target: str) -> dict[str, object]:
    """Convert a value from one unit to another of its kind, such as 26.2, "mi", "km".

    Units of length, mass, time, area, volume, speed, data, energy, power, pressure, angle,
    frequency and temperature, in any case: `kB` is 1,000 bytes, `KiB` is 1,024.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"value must be a finite number, not {value}")
    if abs(value) > 1e300:
        raise ValueError("value must be at most 1e300")
    (first, factor), (second, divisor) = _unit(source), _unit(target)
    kinds = _UNITS[first][0], _UNITS[second][0]
    if kinds[0] != kinds[1]:
        raise ValueError(f"{source} is a unit of {kinds[0]} and {target} of {kinds[1]}")
    base = Fraction(value) * factor + _ZERO.get(first, 0) * (kinds[0] == "temperature")
    result = (base - _ZERO.get(second, 0) * (kinds[0] == "temperature")) / divisor
    if kinds[0] == "temperature" and base < 0:
        raise ValueError(f"{value:g} {source} is below absolute zero")
    whole = result.denominator == 1 and isinstance(value, int)
    return {"value": int(result) if whole else float(result), "unit": second, "kind": kinds[0]}


def _unit(given: str) -> tuple[str, Fraction]:
    name = given.strip().lower()
    plain = name if name in _UNITS else _OTHER_NAMES.get(name)
    plain = plain or _OTHER_NAMES.get(name.removesuffix("s"))
    if plain is None or len(given) > LONGEST:
        close = difflib.get_close_matches(name[:LONGEST], (*_UNITS, *_OTHER_NAMES), n=3)
        near = f": did you mean {', '.join(close)}?" if close else ""
        raise ValueError(f"there is no unit {given[:LONGEST]!r}{near}")
    return plain, _UNITS[plain][1]

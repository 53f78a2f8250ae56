"""Statistics as a newcomer would write them: plain loops over points, in float64."""

from __future__ import annotations

import math
from fractions import Fraction


def std(values):
    """Population deviation, in fractions: float64 has no digits left at a mean of 1e9."""
    if not values:
        return math.nan
    exact = [Fraction(v) for v in values]
    mean = sum(exact) / len(exact)
    return math.sqrt(sum((v - mean) ** 2 for v in exact) / len(exact))


def quantile(values, q):
    """Linear quantile of values without NaN."""
    if not values:
        return math.nan
    ordered = sorted(values)
    position = q * (len(ordered) - 1)
    below = int(position)
    share = position - below
    if share == 0 or ordered[below] == ordered[below + 1]:
        return ordered[below]
    return ordered[below] * (1 - share) + ordered[below + 1] * share


def reduce(values, function):
    """One function over values in their order; NaN is skipped, infinities take part."""
    values = [float(v) for v in values if not math.isnan(v)]
    if function == "count":
        return len(values)
    if function == "sum":
        return plain_sum(values)
    if not values:
        return math.nan
    if function == "mean":
        return plain_sum(values) / len(values)
    if function == "std":
        return std(values) if all(map(math.isfinite, values)) else math.nan
    if function.startswith("quantile:"):
        return quantile(values, float(function.split(":")[1]))
    return {"min": min, "max": max, "first": lambda v: v[0], "last": lambda v: v[-1]}[function](
        values
    )


def plain_sum(values):
    """Sum where infinities may be."""
    if all(map(math.isfinite, values)):
        return math.fsum(values)
    return sum(values)


def bucket(points, level):
    """{bucket number: facts} of (x, value) points in order, x by x; non-finite values apart."""
    answer = {}
    for x, value in sorted(points, key=lambda p: p[0]):
        found = answer.setdefault(x >> level, {"x": [], "finite": [], "nan": 0, "+": 0, "-": 0})
        found["x"].append(x)
        if math.isfinite(value):
            found["finite"].append(float(value))
        elif math.isnan(value):
            found["nan"] += 1
        else:
            found["+" if value > 0 else "-"] += 1
    return answer


def two_stages(points, first, functions):
    """{x: {function: number}} of (x, member, value) points: each member, then across them."""
    cells = {}
    for x, member, value in points:
        cells.setdefault(x, {}).setdefault(member, []).append(value)
    answer = {}
    for x, members in cells.items():
        numbers = [
            reduce(values, first)
            for _, values in sorted(members.items())
            if not all(map(math.isnan, values))
        ]
        answer[x] = {function: reduce(numbers, function) for function in functions}
    return answer


def close(left, right, *, relative=1e-9):
    """Equal, both NaN, or so near that only rounding can differ."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return left == right or math.isclose(left, right, rel_tol=relative, abs_tol=1e-9)

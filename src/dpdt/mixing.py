"""Numbers that look random, as functions of whole numbers alone (splitmix64).

They are made of arrays and of tensors alike, entry by entry. So what is random for one example is
the same whoever else is there. What is any type below is 64-bit whole numbers, in either form.
"""

from __future__ import annotations

from typing import Any

MIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # of splitmix64, as signed numbers
GOLDEN = -0x61C8864680B583EB


def mix(x: Any) -> Any:
    """Map 64-bit numbers to others that look random, one to one."""
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * MIX[0]
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * MIX[1]
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


def hashed(first: Any, *parts: Any) -> Any:
    """Make one number of several, entry by entry. Parts are numbers, arrays or tensors."""
    state = first
    for part in parts:
        state = mix(state + GOLDEN) ^ part
    return mix(state + GOLDEN)


def fractions(bits: Any) -> Any:
    """Make numbers from 0 to 2⁵³ − 1 of 64 bits that look random."""
    return (bits >> 11) & (2**53 - 1)

"""Training order: a pure function order(seed, epoch, position) -> sample, with no state to save and nothing to replay.

Each epoch visits each of n samples exactly once. Positions are global: epoch = position // n, so a batch may straddle
two epochs and none is dropped. The permutation is a Feistel network over the smallest even number of bits that holds
n, with cycle walking for values outside range(n): a bijection by construction, seekable in O(1).

At n < 10 the network's domain is too small for its rounds to reach all n! permutations evenly, so that they are drawn
from a list of all of them. From n = 10 to 16 its permutations of 16 values are all even, so that odd and even orders
of n are not equally frequent; single samples and pairs are uniform there, and everything is from 17 on, as far as
tests/data/test_order.py can tell. (harness.data.block_order has the order for shards read over a network.)
"""

import math

import numpy as np

ROUNDS = 8
PERMUTATION = f"feistel-{ROUNDS}-splitmix64"  # kind and version; part of a run's identity
TINY = 10  # smaller n have their permutations counted out
_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15
# splitmix64's finaliser (Steele, Lea, Flood 2014): x ^= x >> shift, then x *= factor
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
_ARRAY_STEPS = tuple((np.uint64(shift), np.uint64(factor)) for shift, factor in _STEPS)


def hash_words(*words: int) -> int:
    """One 64-bit key from integers, the same on every platform."""
    state = 0
    for word in words:
        state = (state + _GOLDEN + word) % _WORD
        for shift, factor in _STEPS:
            state = (state ^ (state >> shift)) * factor % _WORD
    return state


def permute(positions: np.ndarray, n: int, key: int) -> np.ndarray:
    """Images of `positions` (0 <= p < n) under the permutation of range(n) that `key` names; int64.

    Raises ValueError for a position outside range(n), which has no image.
    """
    positions = np.asarray(positions)
    if positions.size and (positions.min() < 0 or positions.max() >= n):
        raise ValueError(f"positions from {positions.min()} to {positions.max()}: outside range({n})")
    if n < TINY:
        return _numbered(n, hash_words(key))[positions.astype(np.int64)]
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    round_keys = [np.uint64(hash_words(key, r)) for r in range(ROUNDS)]
    with np.errstate(over="ignore"):
        values = _encrypt(positions.astype(np.uint64), half, round_keys)
        walking = np.flatnonzero(values >= n)
        while walking.size:  # cycle walking: at most a few turns, since the domain is under 4n
            images = _encrypt(values[walking], half, round_keys)
            values[walking] = images
            walking = walking[images >= n]
    return values.astype(np.int64)


def _numbered(n: int, number: int) -> np.ndarray:
    """Permutation `number` (mod n!) of range(n): its digits in the factorial number system pick what is left."""
    left = list(range(n))
    digits = [number % math.factorial(n) // math.factorial(size - 1) % size for size in range(n, 0, -1)]
    return np.array([left.pop(digit) for digit in digits], np.int64)


def _encrypt(values: np.ndarray, half: int, round_keys: list[np.uint64]) -> np.ndarray:
    """A Feistel network on 2 x `half` bits. In place: this is most of what a batch of small images costs."""
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    mixed, shifted = np.empty_like(values), np.empty_like(values)
    for round_key in round_keys:
        np.add(right, round_key, out=mixed)
        for shift, factor in _ARRAY_STEPS:
            np.right_shift(mixed, shift, out=shifted)
            np.bitwise_xor(mixed, shifted, out=mixed)
            if factor != 1:
                np.multiply(mixed, factor, out=mixed)
        np.bitwise_and(mixed, mask, out=mixed)
        np.bitwise_xor(left, mixed, out=left)
        left, right = right, left
    return (left << bits) | right


def order(seed: int, epoch: int, position: int, n: int) -> int:
    """The sample at `position` (0 <= position < n) of an epoch."""
    return int(permute(np.array([position]), n, hash_words(seed, epoch))[0])


def batch(seed: int, start: int, count: int, n: int) -> np.ndarray:
    """Samples at global positions start … start + count - 1, over as many epochs as that takes; int64 (count,)."""
    samples = np.empty(count, np.int64)
    done = 0
    while done < count:
        epoch, offset = divmod(start + done, n)
        taken = min(n - offset, count - done)
        of_epoch = np.arange(offset, offset + taken)
        samples[done : done + taken] = permute(of_epoch, n, hash_words(seed, epoch))
        done += taken
    return samples

"""Training order: a pure function order(seed, epoch, position) -> sample, with no state to save and nothing to replay.

Each epoch visits each of n samples exactly once. Positions are global: epoch = position // n, so a batch may straddle
two epochs and none is dropped. The permutation is a Feistel network over the smallest even number of bits that holds
n, with cycle walking for values outside range(n): a bijection by construction, seekable in O(1).
"""

import numpy as np

ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
PERMUTATION = f"feistel-{ROUNDS}-splitmix64"  # kind and version; part of a run's identity


def _mix(values: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele, Lea, Flood 2014), elementwise on uint64."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))


def _hash(*words: int) -> int:
    """One 64-bit key from integers, the same on every platform."""
    state = np.zeros(1, np.uint64)
    for word in words:
        state = _mix(state + _GOLDEN + np.array([word % 2**64], np.uint64))
    return int(state[0])


def permute(positions: np.ndarray, n: int, key: int) -> np.ndarray:
    """Images of `positions` (0 <= p < n) under the permutation of range(n) that `key` names; int64."""
    half = max(1, ((n - 1).bit_length() + 1) // 2)
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    round_keys = [np.uint64(_hash(key, r)) for r in range(ROUNDS)]

    def encrypt(values: np.ndarray) -> np.ndarray:
        left, right = values >> bits, values & mask
        for round_key in round_keys:
            left, right = right, left ^ (_mix(right + round_key) & mask)
        return (left << bits) | right

    with np.errstate(over="ignore"):
        values = encrypt(np.asarray(positions).astype(np.uint64))
        outside = values >= n
        while outside.any():  # cycle walking: at most a few turns, since the domain is under 4n
            values[outside] = encrypt(values[outside])
            outside = values >= n
    return values.astype(np.int64)


def order(seed: int, epoch: int, position: int, n: int) -> int:
    """The sample at `position` (0 <= position < n) of an epoch."""
    return int(permute(np.array([position]), n, _hash(seed, epoch))[0])


def batch(seed: int, start: int, count: int, n: int) -> np.ndarray:
    """Samples at global positions start … start + count - 1, over as many epochs as that takes; int64 (count,)."""
    positions = np.arange(start, start + count, dtype=np.int64)
    epochs, offsets = np.divmod(positions, n)
    samples = np.empty(count, np.int64)
    for epoch in np.unique(epochs):
        of_epoch = epochs == epoch
        samples[of_epoch] = permute(offsets[of_epoch], n, _hash(seed, int(epoch)))
    return samples

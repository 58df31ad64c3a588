"""``sstc``: structured sparse ternary compression (Mora, Foschini, Bellavista 2022, Algorithm 1).

Large changes of a convolution lie close together in few kernels. So the kernels with the largest mean
magnitude are chosen first, over all convolutions of equal kernel size in one pool; their numbers and all
dense weights then compete in one choice of the k largest, k counted on *all* weights; each survivor is sent
as plus or minus one common μ. Convolutions of size 1x1 count as dense. With ``kernels=1`` the choice is
that of ``stc``.

Chosen kernels and their maps of signs: the structured half of SSTC's wire format.

A kernel is the block of K·K numbers of one output and one input channel, contiguous in the layout's order
(output, input, height, width). Kernels of a pool are numbered from 0 in that order, tensor after tensor.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from abaton.codecs import index_coding, payload_format, sparse_codec
from abaton.codecs.base import check_choice, check_number
from abaton.layout import Role

if TYPE_CHECKING:
    from abaton.codecs.base import Key
    from abaton.codecs.sparse_codec import Places, Signs, Sparse, Stretches
    from abaton.layout import Layout, Vector


_COUNT = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Pool:
    """All kernels of one size."""

    size: int  # numbers in a kernel
    where: tuple[tuple[int, int], ...]  # the tensors they lie in

    @property
    def count(self) -> int:
        """How many kernels there are."""
        return sum(stop - start for start, stop in self.where) // self.size

    @property
    def width(self) -> int:
        """The paper's bits for a kernel's number (Sec. IV-A): b_k = 1 + ⌊log2 kernels⌋."""
        return self.count.bit_length()

    def scores(self, update: Vector) -> Vector:
        """The summed magnitude of each kernel: for equal sizes the same order as the mean."""
        from abaton.kernels.vector_ops import magnitudes

        return np.concatenate([magnitudes(update[start:stop], self.size) for start, stop in self.where])

    def stretches(self, ids: Places) -> Stretches:
        """Where some kernels lie in the vector."""
        from abaton.kernels.vector_ops import runs

        return runs(ids, self.size, np.array(self.where))


def write_maps(
    places: Places, values: Places, pool: Pool, ids: Places, stretches: Stretches, coding: str
) -> bytes:
    """How many kernels, which, and a map of signs for each; ``stretches`` are where those kernels lie."""
    from abaton.kernels.bit_packing import write_kernels, write_trits
    from abaton.kernels.vector_ops import inside

    told, signs = inside(places, values, stretches)
    head = _COUNT.pack(len(ids))
    if coding == "fixed":
        return head + write_kernels(ids, pool.width, pool.size, told, signs).tobytes()
    listed = index_coding.write_golomb(ids, np.zeros(len(ids), np.bool_), pool.count, signed=False)
    return head + listed + write_trits(told, signs, len(ids) * pool.size).tobytes()


def read_maps(
    body: memoryview, pool: Pool, allowed: int, most: int, coding: str
) -> tuple[Places, Signs, memoryview]:
    """The places of at most so many survivors, whether each is negative, and what follows."""
    from abaton.kernels.bit_packing import field_bytes, read_kernels, read_trits
    from abaton.kernels.vector_ops import outside

    if len(body) < _COUNT.size or (count := _COUNT.unpack_from(body)[0]) > allowed:
        raise index_coding.index_payload_error(f"more than {allowed:,} kernels, or none told")
    body = body[_COUNT.size :]
    most = min(most, count * pool.size)
    told, negative = np.empty(most, np.uint32), np.empty(most, np.bool_)
    if coding == "fixed":
        used, ids = field_bytes(count, pool.width + 2 * pool.size), np.empty(count, np.uint32)
        maps = np.frombuffer(body[:used], np.uint8)
        found = read_kernels(maps, pool.width, pool.size, pool.count, ids, told, negative)
    else:
        ids, _, body = index_coding.read_golomb(body, count, pool.count, signed=False)
        used = -(-count * pool.size // 5)
        found = read_trits(np.frombuffer(body[:used], np.uint8), count * pool.size, told, negative)
    if found < 0:
        raise index_coding.index_payload_error("a map of signs")
    return outside(told[:found], pool.stretches(ids)), negative[:found], body[used:]


CODINGS, BIASES = ("trit", "fixed", "context"), ("fp16", "raw")
_HEAD = struct.Struct("<fI")


@dataclass(frozen=True, slots=True)
class Sstc(sparse_codec.SparseCodec):
    """Sends the largest changes of the most changed kernels.

    Args:
        sparsity: The share of weights that is sent.
        kernels: The share of convolution kernels that may hold them.
        coding: ``fixed`` is the paper's encoding, ``trit`` five signs in a byte, ``context`` the smallest.
        biases: How biases and norms travel: as half floats, or raw as in the paper.
    """

    sparsity: float
    kernels: float
    coding: str = "trit"
    biases: str = "fp16"

    name: ClassVar[str] = "sstc"
    code: ClassVar[int] = 4

    def __post_init__(self) -> None:
        check_number("sparsity", self.sparsity, 0, 1, above=True)
        check_number("kernels", self.kernels, 0, 1, above=True)
        check_choice("coding", self.coding, CODINGS)
        check_choice("biases", self.biases, BIASES)

    @property
    def flags(self) -> int:
        """The settings that a reader of the payload must share."""
        return CODINGS.index(self.coding) | BIASES.index(self.biases) << 4

    def encode(self, update: Vector, layout: Layout, key: Key) -> bytes:
        """The chosen kernels and the survivors, μ, and the biases."""
        from abaton.kernels.topk import largest
        from abaton.kernels.vector_ops import inside

        update, parts = sparse_codec.check_fits(update, layout), sparse_codec.split(layout)
        pools, dense = pools_of(layout)
        chosen = [self._chosen(update, pool, layout) for pool in pools]
        kernels = [pool.stretches(ids) for pool, ids in zip(pools, chosen, strict=True)]
        competing = _ascending([*kernels, dense])
        # Kernels of zeros are not listed, yet count among the k as in the paper.
        k = min(self.count(parts.size), sum(self.allowed(p) * p.size for p in pools) + _total(dense))
        places, values, total = largest(update.view(np.uint32), competing, min(k, _total(competing)))
        if not math.isfinite(total):
            layout.check(update, whose="update")
        body = [_HEAD.pack(total / k if k else 0.0, len(places))]
        if self.coding == "context":
            told, negative = inside(places, values, parts.stretches())
            body.append(index_coding.write_context(told, negative, parts.weights) if parts.weights else b"")
        else:
            for pool, ids, where in zip(pools, chosen, kernels, strict=True):
                body.append(write_maps(places, values, pool, ids, where, self.coding))
            body.append(self._write_dense(places, values, dense))
        body.append(sparse_codec.write_rest(update, parts, self.biases, layout))
        return payload_format.pack(self.code, layout, *body, flags=self.flags)

    def open(self, payload: bytes, layout: Layout) -> Sparse:
        """The entries of a payload; everything is checked against the layout and the settings first."""
        from abaton.kernels.vector_ops import outside

        envelope, parts = (
            payload_format.unpack(payload, self.code, layout, flags=self.flags),
            sparse_codec.split(layout),
        )
        cut = len(envelope.body) - sparse_codec.rest_bytes(parts, self.biases)
        if envelope.flags != self.flags or cut < _HEAD.size:
            raise index_coding.index_payload_error("it is too short or was written with other settings")
        scale, count = _HEAD.unpack_from(envelope.body)
        sparse_codec.check_scale(scale)
        if count > self.count(parts.size):
            raise index_coding.index_payload_error(
                f"{count:,} entries where {self.count(parts.size):,} are allowed"
            )
        rest = sparse_codec.read_rest(envelope.body[cut:], parts, self.biases)
        body, pools, dense = envelope.body[_HEAD.size : cut], *pools_of(layout)
        lists: list[tuple[Places, Signs]] = [(np.zeros(0, np.uint32), np.zeros(0, np.bool_))]
        if self.coding == "context" and parts.weights:
            told, negative, _ = index_coding.read_context(body, count, parts.weights)
            lists.append((outside(told, parts.stretches()), negative))
        elif self.coding != "context":
            for pool in pools:
                places, negative, body = read_maps(body, pool, self.allowed(pool), count, self.coding)
                lists.append((places, negative))
                count -= len(places)
            lists.append(self._read_dense(body, count, dense))
        places, negative = (np.concatenate(part) for part in zip(*lists, strict=True))
        mu = np.float32(scale)
        return sparse_codec.Sparse(places, np.where(negative, -mu, mu), rest, parts)

    def count(self, size: int) -> int:
        """How many weights are sent: k of Algorithm 1, counted on all weights."""
        return round(sparse_codec.share(self.sparsity, size))

    def allowed(self, pool: Pool) -> int:
        """How many kernels of a pool are chosen."""
        return max(1, round(sparse_codec.share(self.kernels, pool.count)))

    def _chosen(self, update: Vector, pool: Pool, layout: Layout) -> Places:
        """The kernels with the largest mean magnitude; ties to the lowest, kernels of zeros never."""
        from abaton.kernels.topk import largest

        whole = np.array([[0, pool.count]], np.int64)
        ids, _, total = largest(pool.scores(update).view(np.uint32), whole, self.allowed(pool))
        if math.isfinite(total):
            return ids
        layout.check(update, whose="update")
        # Finite numbers with a sum that is not: compare them on a smaller scale.
        small = pool.scores(update * np.float32(2.0**-64))
        return largest(small.view(np.uint32), whole, self.allowed(pool))[0]

    def _write_dense(self, places: Places, values: Places, dense: sparse_codec.Stretches) -> bytes:
        from abaton.kernels.vector_ops import inside

        write = index_coding.write_golomb if self.coding == "trit" else index_coding.write_fixed
        return write(*inside(places, values, dense), _total(dense))

    def _read_dense(
        self, body: memoryview, count: int, dense: sparse_codec.Stretches
    ) -> tuple[Places, Signs]:
        from abaton.kernels.vector_ops import outside

        read = index_coding.read_golomb if self.coding == "trit" else index_coding.read_fixed
        told, negative, body = read(body, count, _total(dense))
        payload_format.exact(body, 0)
        return outside(told, dense), negative


@lru_cache(maxsize=64)
def pools_of(layout: Layout) -> tuple[tuple[Pool, ...], sparse_codec.Stretches]:
    """The convolutions by kernel size, in the layout's order, and the stretches of the dense weights."""
    pools: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    dense: list[tuple[int, int]] = []
    for weight in sparse_codec.split(layout).weights:
        kernel = weight.tensor.shape[2:]
        if weight.tensor.role is Role.CONV and math.prod(kernel) > 1:
            pools.setdefault(kernel, []).append((weight.start, weight.stop))
        else:
            dense.append((weight.start, weight.stop))
    made = tuple(Pool(math.prod(kernel), tuple(where)) for kernel, where in pools.items())
    return made, np.array(dense, np.int64).reshape(-1, 2)


def _total(stretches: sparse_codec.Stretches) -> int:
    return int((stretches[:, 1] - stretches[:, 0]).sum())


def _ascending(parts: list[sparse_codec.Stretches]) -> sparse_codec.Stretches:
    joined = np.concatenate(parts)
    starts = joined[:, 0]
    return joined if (starts[1:] > starts[:-1]).all() else joined[np.argsort(starts, kind="stable")]

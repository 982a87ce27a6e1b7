"""Attention in f64, position by position, from the definitions; shares no code with the library.

Tensors come as a list of sequences: q [Nq, Sq, D], k [Nkv, Skv, D], v [Nkv, Skv, D2] each; so the
layouts and the packed form are nothing but ways to make that list (see `pack` and `unpack`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

ALL = 2147483647
FMAX = float(np.finfo(np.float32).max)
LAYOUTS = ("BSH", "SBH", "BSND", "BNSD", "TND")


# ------------------------------------------------------------------------------------------ layouts


def pack(x, layout):
    """[B, N, S, D] (or a list of [N, S_b, D] for TND) in the memory order of the layout."""
    if layout == "TND":
        return np.concatenate([np.asarray(s).transpose(1, 0, 2) for s in x], 0)
    x = np.asarray(x)
    b, n, s, d = x.shape
    if layout == "BNSD":
        return x.copy()
    if layout == "BSND":
        return x.transpose(0, 2, 1, 3).copy()
    if layout == "BSH":
        return x.transpose(0, 2, 1, 3).reshape(b, s, n * d)
    return x.transpose(2, 0, 1, 3).reshape(s, b, n * d)


def unpack(x, layout, heads, lengths=None):
    """The inverse: [B, N, S, D], or the list of sequences."""
    x = np.asarray(x)
    if layout == "TND":
        ends = np.cumsum([0, *lengths])
        return [x[ends[i] : ends[i + 1]].transpose(1, 0, 2) for i in range(len(lengths))]
    if layout == "BNSD":
        return x
    if layout == "BSND":
        return x.transpose(0, 2, 1, 3)
    if layout == "BSH":
        b, s, h = x.shape
        return x.reshape(b, s, heads, h // heads).transpose(0, 2, 1, 3)
    s, b, h = x.shape
    return x.reshape(s, b, heads, h // heads).transpose(1, 2, 0, 3)


def statistic(stat, layout, heads, lengths=None, rows_first=False):
    """softmax_max or softmax_sum as [N, S_b] for each sequence; checks that the 8 copies agree."""
    stat = np.asarray(stat)
    assert (stat == stat[..., :1]).all() or np.isnan(stat).any()
    one = stat[..., 0]
    if layout != "TND":
        return list(one)
    ends = np.cumsum([0, *lengths])
    if rows_first:
        return [one[ends[i] : ends[i + 1]].T for i in range(len(lengths))]
    flat = one.reshape(-1)
    return [
        flat[ends[i] * heads : ends[i + 1] * heads].reshape(heads, lengths[i])
        for i in range(len(lengths))
    ]


# -------------------------------------------------------------------------------------- visibility


def visible(mode, sq, skv, pre=ALL, nxt=ALL, mask=None, prefix=0, edge=False):
    """Row i sees key j, from the table of the modes. edge: the sequence that modes 7 and 8 single
    out."""
    i = np.arange(sq)[:, None]
    j = np.arange(skv)[None, :]
    off = skv - sq
    if mode == 0:
        see = np.ones((sq, skv), bool)
        if mask is not None:
            see = (i - pre <= j) & (j <= i + nxt)
    elif mode == 1:
        see = np.ones((sq, skv), bool)
    elif mode == 2:
        see = j <= i
    elif mode == 3:
        see = j <= i + off
    elif mode == 4:
        see = (i + off - pre <= j) & (j <= i + off + nxt)
    elif mode in (5, 6):
        see = (j < prefix) | (j <= i + off)
    elif mode == 7:
        see = j <= i + off + (nxt if edge else 0)
    elif mode == 8:
        see = j <= (i + off + nxt if edge else i)
    else:
        raise ValueError(mode)
    if mask is not None and mode in (0, 1):
        see = see & (np.asarray(mask) == 0)
    return see


# ----------------------------------------------------------------------------------------- dropout


def philox(seed, offset, count):
    """The first `count` 32-bit words of Philox4x32-10 with counters (offset, block)."""
    blocks = (count + 3) // 4
    at = np.arange(blocks, dtype=np.uint64)
    low, high = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [
        np.full(blocks, offset & 0xFFFFFFFF, np.uint64),
        np.full(blocks, (offset >> 32) & 0xFFFFFFFF, np.uint64),
        at & low,
        at >> high,
    ]
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        a = c[0] * np.uint64(0xD2511F53)
        b = c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> high) ^ c[1] ^ np.uint64(k0),
            b & low,
            (a >> high) ^ c[3] ^ np.uint64(k1),
            a & low,
        ]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, 1).reshape(-1)[:count]


def kept(seed, offset, count, keep_prob):
    return philox(seed, offset, count) / 2.0**32 < keep_prob


# --------------------------------------------------------------------------------------- attention


@dataclass
class Sequence:
    """One sequence: results of the forward, and of the backward after `backward`."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    see: np.ndarray  # [Nq, Sq, Skv]
    pse: np.ndarray | None = None  # broadcast to [Nq, Sq, Skv]
    sink: np.ndarray | None = None
    keep: np.ndarray | None = None  # [Nq, Sq, Skv], 0 or 1 / keep_prob
    scale: float = 1.0
    out: np.ndarray = field(init=False)
    max: np.ndarray = field(init=False)
    sum: np.ndarray = field(init=False)

    def __post_init__(self):
        nq, sq, _ = self.q.shape
        nkv, skv, _ = self.v.shape
        g = nq // nkv
        kk, vv = np.repeat(self.k, g, 0), np.repeat(self.v, g, 0)
        with np.errstate(all="ignore"):
            s = np.einsum("nid,njd->nij", self.q, kk)
            if self.pse is not None:
                s = s + self.pse
            s = np.where(self.see, s * self.scale, -np.inf)
            top = np.max(s, -1, initial=-np.inf)
            if self.sink is not None:
                top = np.maximum(top, self.sink[:, None])
            p = np.exp(s - np.where(top == -np.inf, 0, top)[..., None])
            total = p.sum(-1)
            if self.sink is not None:
                total = total + np.exp(self.sink[:, None] - np.where(top == -np.inf, 0, top))
            empty = total == 0
            self.p = np.where(self.see, p / np.where(empty, 1, total)[..., None], 0)
            self.empty = empty
            z = self.p if self.keep is None else self.p * self.keep
            self.z = z
            self.out = np.einsum("nij,njd->nid", z, vv)
            if not np.isfinite(vv).all():
                # A position that is not seen takes no part, whatever stands there.
                for n, i in np.ndindex(nq, sq):
                    j = self.see[n, i]
                    self.out[n, i] = z[n, i, j] @ vv[n, j]
        self.max = np.where(empty, -FMAX, top) if skv else np.zeros_like(total)
        self.sum = np.where(empty, FMAX, total) if skv else np.zeros_like(total)
        if skv == 0:
            self.out[:] = 0

    def backward(self, do, out=None):
        """dq, dk, dv, ds (of pse, not summed), dsink. out: the rounded forward output."""
        nq = self.q.shape[0]
        nkv = self.k.shape[0]
        g = nq // nkv
        kk, vv = np.repeat(self.k, g, 0), np.repeat(self.v, g, 0)
        delta = (do * (self.out if out is None else out)).sum(-1)
        dp = np.einsum("nid,njd->nij", do, vv)
        if self.keep is not None:
            dp = dp * self.keep
        ds = np.where(self.see, self.p * (dp - delta[..., None]), 0)
        dq = self.scale * np.einsum("nij,njd->nid", ds, kk)
        dk = self.scale * np.einsum("nij,nid->njd", ds, self.q)
        dv = np.einsum("nij,nid->njd", self.z, do)
        sum_groups = lambda x: x.reshape(nkv, g, *x.shape[1:]).sum(1)
        dsink = None
        if self.sink is not None:
            with np.errstate(all="ignore"):
                share = np.exp(self.sink[:, None] - self.max) / self.sum
            share = np.where(self.sum == 0, 0, share)
            dsink = -(share * delta).sum(-1)
        return dq, sum_groups(dk), sum_groups(dv), self.scale * ds, dsink

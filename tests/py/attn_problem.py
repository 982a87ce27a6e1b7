"""A problem of attention in any layout: run through the library, and through the f64 reference."""

from __future__ import annotations

import dvm
import numpy as np
from attn_reference import ALL, Sequence, kept, pack, statistic, unpack, visible
from dvm.attn import (
    npu_fusion_attention,
    npu_fusion_attention_grad,
    swa_backward,
    swa_forward,
)

FORWARD = {"npu": npu_fusion_attention, "swa": swa_forward}
BACKWARD = {"npu": npu_fusion_attention_grad, "swa": swa_backward}


def to_dtype(x, dtype):
    """Rounds to the dtype; bfloat16 is uint16 with the raw bits, as the library wants it."""
    if dtype != "bfloat16":
        return np.asarray(x, dtype)
    u = np.asarray(x, np.float32).view(np.uint32)
    r = ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(np.asarray(x, np.float32)), np.uint16(0x7FC0), r)


def to_f64(x, dtype):
    x = np.asarray(x)
    if dtype == "bfloat16" and x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    return x.astype(np.float64)


class Problem:
    """q, k, v: [B, N, S, D] or, for TND, lists of [N, S_b, D], in f64 (rounded to dtype here)."""

    def __init__(self, q, k, v, *, layout="BNSD", dtype="float32", op="swa", mode=0, pre=ALL,
                 nxt=ALL, scale=1.0, keep=1.0, mask=None, pse=None, sink=None, prefix=None,
                 rows_first=False, pad=(0, 0), effective=None, seed=0, **extra):  # fmt: skip
        self.layout, self.dtype, self.op, self.mode = layout, dtype, op, mode
        self.pre, self.nxt, self.scale, self.keep = pre, nxt, scale, keep
        self.mask, self.prefix, self.rows_first, self.extra = mask, prefix, rows_first, extra
        self.effective = mode if effective is None else effective
        self.round = lambda x: to_f64(to_dtype(x, dtype), dtype)
        if layout == "TND" and not isinstance(q, list):
            q, k, v = list(q), list(k), list(v)
        self.q, self.k, self.v = ([self.round(s) for s in x] for x in (q, k, v))
        self.pse = None if pse is None else self.round(pse)
        self.sink = None if sink is None else np.asarray(sink, np.float32)
        self.nq, self.nkv = len(self.q[0]), len(self.k[0])
        self.qlen = [s.shape[1] for s in self.q]
        self.klen = [s.shape[1] for s in self.k]
        self.seed = seed
        self.pad = pad
        self.args = [self.send(x) for x in (self.q, self.k, self.v)]

    def send(self, x, pad=0):
        x = pack(x, self.layout)
        if self.layout == "TND" and pad:
            x = np.concatenate([x, np.full((pad, *x.shape[1:]), np.nan)])
        return to_dtype(x, self.dtype)

    def lists(self):
        """Lengths, where the layout wants them."""
        if self.layout.upper() != "TND":
            return {}
        return {
            "actual_seq_qlen": np.cumsum(self.qlen).tolist(),
            "actual_seq_kvlen": np.cumsum(self.klen).tolist(),
        }

    def keywords(self, back):
        kw = dict(
            sparse_mode=self.mode,
            pre_tockens=self.pre,
            next_tockens=self.nxt,
            keep_prob=self.keep,
            atten_mask=self.mask,
            prefix=self.prefix,
            sink=self.sink,
            softmax_layout="TND" if self.rows_first else "",
            pse=None if self.pse is None else to_dtype(self.pse, self.dtype),
            **self.extra,
        )
        kw["scale_value" if back else "scale"] = self.scale
        return self.lists() | kw

    def forward(self):
        np.random.seed(self.seed)
        self.raw = FORWARD[self.op](*self.args, self.nq, self.layout, **self.keywords(False))
        out, top, total, empty, self.drop_seed, self.offset, self.numels = self.raw
        assert empty.shape == (0,)
        self.out = unpack(to_f64(out, self.dtype), self.layout, self.nq, self.qlen)
        stat = (self.layout, self.nq, self.qlen, self.rows_first)
        self.max, self.sum = statistic(top, *stat), statistic(total, *stat)
        return self

    def backward(self, do):
        self.do = [self.round(s) for s in do]
        g = BACKWARD[self.op](
            *self.args,
            self.send(self.do),
            self.nq,
            self.layout,
            softmax_max=self.raw[1],
            softmax_sum=self.raw[2],
            attention_in=self.raw[0],
            seed=self.drop_seed,
            offset=self.offset,
            numels=self.numels,
            **self.keywords(True),
        )
        self.raw_grads = g
        wide = [to_f64(x, self.dtype) for x in g[:3]]
        self.dq = unpack(wide[0], self.layout, self.nq, self.qlen)
        self.dk = unpack(wide[1], self.layout, self.nkv, self.klen)
        self.dv = unpack(wide[2], self.layout, self.nkv, self.klen)
        self.dpse = None if g[3] is None else to_f64(g[3], self.dtype)
        self.dsink = g[4]
        return self

    # ------------------------------------------------------------------------------- the reference

    def _see(self, b):
        rows = [i for i, n in enumerate(self.qlen) if n]
        edge = bool(rows) and b == (rows[-1] if self.effective == 7 else rows[0])
        see = []
        for n in range(self.nq):
            mask = None
            if self.mask is not None and self.effective in (0, 1):
                m = np.asarray(self.mask)
                if m.ndim == 4:
                    m = m[b % m.shape[0], n % m.shape[1]]
                mask = m[: self.qlen[b], : self.klen[b]]
            see.append(
                visible(
                    self.effective,
                    self.qlen[b],
                    self.klen[b],
                    self.pre,
                    self.nxt,
                    mask,
                    self.prefix[b] if self.prefix is not None else 0,
                    edge,
                )
            )
        return np.stack(see)

    def reference(self):
        keep = None
        if self.keep < 1:
            numels = sum(self.nq * a * b for a, b in zip(self.qlen, self.klen, strict=True))
            keep = kept(self.drop_seed, self.offset, numels, self.keep) / self.keep
        at, out = 0, []
        for b in range(len(self.q)):
            shape = (self.nq, self.qlen[b], self.klen[b])
            n = int(np.prod(shape))
            pse = None
            if self.pse is not None:
                p = np.broadcast_to(self.pse, (len(self.q), *self.pse.shape[1:]))[b]
                pse = np.broadcast_to(p, shape)
            out.append(
                Sequence(
                    self.q[b],
                    self.k[b],
                    self.v[b],
                    self._see(b),
                    pse,
                    None if self.sink is None else self.sink.astype(np.float64),
                    None if keep is None else keep[at : at + n].reshape(shape),
                    self.scale,
                )
            )
            at += n
        self.refs = out
        return out

    def pse_gradient(self, ds):
        """ds of every sequence, summed over the axes along which pse was broadcast."""
        w = np.stack(ds)
        for a in range(4):
            if self.pse.shape[a] == 1 and w.shape[a] != 1:
                w = w.sum(a, keepdims=True)
        return w

    # ------------------------------------------------------------------------------------- judging

    def limits(self):
        """Error allowed per largest magnitude: forward, backward."""
        return {"float32": (2e-5, 1e-4), "float16": (2e-3, 4e-3), "bfloat16": (1.6e-2, 3.2e-2)}[
            self.dtype
        ]

    def check(self, do=None):
        """Forward, and backward if do is given, against the reference."""
        self.forward()
        if do is not None:
            self.backward(do)
        fwd, bwd = self.limits()
        ds, dsink = [], 0.0
        for b, ref in enumerate(self.reference()):
            near(self.out[b], ref.out, fwd, f"out of sequence {b}")
            near(self.max[b], ref.max, 1e-5, f"max of sequence {b}")
            near(self.sum[b], ref.sum, 2e-5, f"sum of sequence {b}")
            if do is None:
                continue
            dq, dk, dv, d, sink = ref.backward(self.do[b], self.out[b])
            near(self.dq[b], dq, bwd, f"dq of sequence {b}")
            near(self.dk[b], dk, bwd, f"dk of sequence {b}")
            near(self.dv[b], dv, bwd, f"dv of sequence {b}")
            ds.append(d)
            dsink = dsink + sink if sink is not None else dsink
        if do is not None and self.pse is not None:
            near(self.dpse, self.pse_gradient(ds), bwd, "dpse")
        if do is not None and self.sink is not None:
            near(self.dsink, dsink, bwd, "dsink")
        return self


def near(got, want, tolerance, what):
    """|got - want| <= tolerance max(1, largest |want|); huge numbers agree exactly."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape, (what, got.shape, want.shape)
    huge = np.abs(want) > 3e38
    assert (got[huge] == want[huge]).all(), what
    got, want = got[~huge], want[~huge]
    if want.size == 0:
        return
    assert np.isfinite(got).all(), what
    error = np.abs(got - want).max()
    limit = tolerance * max(1.0, float(np.abs(want).max()))
    assert error <= limit, f"{what}: error {error:.3g}, limit {limit:.3g}"


def refused(call, *args, **kw):
    """The text of the error that a call must raise, without the suffix."""
    try:
        call(*args, **kw)
    except dvm.Error as error:
        return str(error).split("\n")[0]
    raise AssertionError("not refused")

"""Bad arguments of attention: the cases K1 to K27. Every text stands here in full; the suffix of
torch_npu follows it."""

import numpy as np
import pytest

pytest.importorskip("_dvm")

import dvm
from attn_problem import refused
from dvm.attn import (
    npu_fusion_attention,
    npu_fusion_attention_grad,
    swa_backward,
    swa_forward,
)

F32 = np.float32


def zeros(*shape, dtype=F32):
    return np.zeros(shape, dtype)


def bnsd(b=1, nq=2, nkv=2, sq=8, skv=8, d=4, d2=4, dtype=F32):
    return [zeros(b, nq, sq, d, dtype=dtype), zeros(b, nkv, skv, d, dtype=dtype),
            zeros(b, nkv, skv, d2, dtype=dtype)]  # fmt: skip


def tnd(t=8, tkv=8):
    return [zeros(t, 2, 4), zeros(tkv, 2, 4), zeros(tkv, 2, 4)]


LISTS = {"actual_seq_qlen": [3, 8], "actual_seq_kvlen": [3, 8]}


def text(call, *args, **kw):
    with pytest.raises(dvm.Error) as error:
        call(*args, **kw)
    said, suffix = str(error.value).split("\n")
    assert suffix == "[ERROR] ERR01001 OPS invalid parameter"
    return said


def forward(args=None, heads=2, layout="BNSD", op=swa_forward, **kw):
    return text(op, *(args or bnsd()), heads, layout, **kw)


def backward(args=None, heads=2, layout="BNSD", op=swa_backward, dy=None, saved=True, **kw):
    args = args or bnsd()
    dy = zeros(1, heads, 8, 4) if dy is None else dy
    if saved:
        stat = zeros(1, heads, 8, 8)
        kw = {"softmax_max": stat, "softmax_sum": stat, "attention_in": zeros(*dy.shape), **kw}
    return text(op, *args, dy, heads, layout, **kw)


def both(want, args=None, heads=2, layout="BNSD", **kw):
    assert forward(args, heads, layout, **kw) == want
    kw["scale_value"] = kw.pop("scale", 1.0)
    assert backward(args, heads, layout, **kw) == want


@pytest.mark.parametrize("mode", [1, 2, 3, 5, 8, -1])
def test_case_K1(mode):
    both(f"The sparse_mode value should be 0 or 4, but got {mode}", sparse_mode=mode)


PACKED = (
    ": 7 and 8 are for packed sequences, input_layout TND with actual_seq_qlen and "
    "actual_seq_kvlen; of a single sequence both are sparse_mode 4 with the same next_tockens"
)
HELP = {
    ("BNSD", 7): PACKED,
    ("BNSD", 8): PACKED,
    ("TND", 5): ": with input_layout TND a prefix for each sequence is sparse_mode 6",
}


@pytest.mark.parametrize(
    ("layout", "mode"),
    [("BNSD", 7), ("BNSD", 8), ("BNSD", -1), ("BNSD", 9), ("TND", 5), ("TND", 9)],
)
def test_modes_of_the_general_operator(layout, mode):
    ranges = "[0,5) or (5,8]" if layout == "TND" else "[0,6]"
    args, kw = (tnd(), LISTS) if layout == "TND" else (bnsd(), {})
    want = f"The sparse_mode value must be in range of {ranges}, but got {mode}"
    want += HELP.get((layout, mode), "")
    assert forward(args, 2, layout, npu_fusion_attention, sparse_mode=mode, **kw) == want


@pytest.mark.parametrize("keep", [0.0, -0.1, 1.5, float("nan")])
def test_case_K2(keep):
    both(f"The keep_prob value must be in range of (0, 1], but got {keep:g}", keep_prob=keep)


@pytest.mark.parametrize("heads", [0, -4])
def test_case_K3(heads):
    want = f"head_num must > 0, but got {heads}"
    assert forward(heads=heads) == want
    assert backward(heads=heads, saved=False, dy=zeros(1, 2, 8, 4)) == want


@pytest.mark.parametrize("layout", ["XYZ", "", "BSN"])
def test_case_K4(layout):
    both("The input_layout should be BSH/SBH/BNSD/BSND/TND(case-insensitive), but got " + layout,
         layout=layout)  # fmt: skip


@pytest.mark.parametrize("rank", [2, 5])
@pytest.mark.parametrize("which", range(4))
def test_case_K5(which, rank):
    name = ("query", "key", "value", "dy")[which]
    args = [*bnsd(), zeros(1, 2, 8, 4)]
    args[which] = zeros(*[1] * rank)
    want = (f"The shapes of the input {name} should be 3 or 4 dimensional, but got "
            f"{rank}-dimensional")  # fmt: skip
    if which < 3:
        assert forward(args[:3]) == want
    assert backward(args[:3], dy=args[3]) == want


def test_case_K6():
    assert forward(layout="BSH") == (
        "input_layout BSH needs a 3-dimensional query, but got 4 dimensions"
    )
    assert forward(tnd(), layout="BNSD") == (
        "input_layout BNSD needs a 4-dimensional query, but got 3 dimensions"
    )


def test_case_K7():
    both("only supported softmax_layout=TND", softmax_layout="BSND")


def test_case_K8():
    both("softmax_layout=TND only supported when input_layout_str=TND", softmax_layout="TND")


@pytest.mark.parametrize(
    "lists",
    [{}, {"actual_seq_qlen": [8]}, {"actual_seq_qlen": [3, 8], "actual_seq_kvlen": [8]},
     {"actual_seq_qlen": [], "actual_seq_kvlen": []}],
)  # fmt: skip
def test_case_K9(lists):
    want = "the size of actual_seq_qlen and actual_seq_kvlen must be the same and cannot be empty."
    assert forward(tnd(), layout="TND", **lists) == want


def test_case_K9_lists_of_another_layout():
    assert forward(**LISTS) == (
        "actual_seq_qlen and actual_seq_kvlen belong to input_layout TND, but got BNSD"
    )


@pytest.mark.parametrize(
    ("ends", "want"),
    [
        ([3, 2, 5], "actual_seq_qlen must be non-decreasing (trailing zeros allowed), but entry 1 "
                    "is 2 after 3"),
        ([3, 5, 9], "the last entry 9 of actual_seq_qlen exceeds T=8"),
        ([-1, 5, 8], "actual_seq_qlen must be non-decreasing (trailing zeros allowed), but entry 0 "
                     "is -1 after 0"),
        ([3, 0, 5], "actual_seq_qlen must be non-decreasing (trailing zeros allowed), but entry 1 "
                    "is 0 after 3"),
    ],
)  # fmt: skip
def test_case_K10(ends, want):
    kw = {"actual_seq_qlen": ends, "actual_seq_kvlen": [3, 5, 8]}
    assert forward(tnd(), layout="TND", **kw) == want
    kw = {"actual_seq_kvlen": ends, "actual_seq_qlen": [3, 5, 8]}
    want = want.replace("actual_seq_qlen", "actual_seq_kvlen").replace("T=8", "Tkv=8")
    assert forward(tnd(), layout="TND", **kw) == want


def test_case_K11():
    q, k, v = bnsd(dtype=np.float16)
    want = ("query, key and value must have the same dtype (float16, bfloat16 or float32), but got "
            "float16, bfloat16, float16")  # fmt: skip
    assert forward([q, k.view(np.uint16), v]) == want
    assert forward(bnsd(dtype=np.int8)).endswith("but got int8, int8, int8")
    assert backward(dy=zeros(1, 2, 8, 4, dtype=np.float16)) == (
        "dy must have the dtype of query, float32, but got float16"
    )


def test_case_K12():
    both("query heads (6) must be a multiple of key heads (4)", bnsd(nq=6, nkv=4), heads=6)


def test_case_K13():
    assert forward(bnsd(nq=4), heads=8) == "head_num (8) must equal the query head count (4)"
    assert forward(tnd(), 8, "TND", **LISTS) == "head_num (8) must equal the query head count (2)"


def test_case_K14():
    bsh = lambda q, k, v: [zeros(1, 8, n) for n in (q, k, v)]
    assert forward(bsh(10, 8, 8), 4, "BSH") == (
        "the last dimension of query (10) must be a multiple of head_num (4)"
    )
    assert forward(bsh(8, 7, 8), 4, "BSH") == (
        "the last dimension of key (7) must be a multiple of the head dim 2, that of query (8) "
        "divided by head_num (4)"
    )
    assert forward(bsh(8, 4, 5), 4, "SBH") == (
        "the last dimension of value (5) must be a multiple of the key heads (2)"
    )


def test_head_dims_have_two_ends():
    for d, d2 in ((0, 4), (1025, 4), (4, 1025)):
        text = f"1 to 1024, that of value 0 to 1024, but got {d} and {d2}"
        assert forward([zeros(1, 2, 8, d), zeros(1, 2, 8, d), zeros(1, 2, 8, d2)]) == (
            f"the head dim of query and key is {text}"
        )


def test_swapped_bytes_say_how_to_turn_them():
    swapped = [x.astype(">f4") for x in bnsd()]
    assert forward(swapped) == (
        "query: expected a dtype of DVM, given >f4, in the byte order of another machine: "
        "pass x.astype(x.dtype.newbyteorder('='))"
    )


def test_case_K15():
    q, k, v = bnsd()
    assert forward([zeros(1, 2, 8, 64), zeros(1, 2, 8, 32), v]) == (
        "query and key must have the same head dim, but got 64 and 32"
    )
    assert forward([q, zeros(1, 2, 9, 4), v]) == (
        "key and value must have the same number of rows, but got 9 and 8"
    )
    assert forward([q, zeros(2, 2, 8, 4), zeros(2, 2, 8, 4)]) == (
        "query, key and value must have the same batch, but got 1, 2, 2"
    )
    assert forward([q, k, zeros(1, 1, 8, 4)]) == (
        "key and value must have the same head count, but got 2 and 1"
    )


def test_case_K16():
    both("atten_mask must be bool or uint8, but got float32", atten_mask=zeros(8, 8))


@pytest.mark.parametrize("shape", [(9, 8), (1, 8, 9), (8, 10), (3, 2, 8, 9), (1, 3, 8, 9)])
def test_case_K17(shape):
    both(
        f"atten_mask shape {list(shape)} is not one of [B,N,Sq,Skv], [B,1,Sq,Skv], [1,1,Sq,Skv], "
        "[Sq,Skv] with B=1, N=2, Sq=8, Skv=9",
        bnsd(skv=9),
        atten_mask=zeros(*shape, dtype=bool),
    )


def test_case_K17_packed():
    mask = zeros(3, 8, dtype=bool)
    assert forward(tnd(), layout="TND", atten_mask=mask, **LISTS) == (
        "atten_mask shape [3, 8] is not [maxSq,maxSkv] with maxSq=5, maxSkv=5"
    )


def test_case_K18():
    both("sparse_mode 4 needs atten_mask absent or [2048, 2048], but got [8, 8]", sparse_mode=4,
         atten_mask=zeros(8, 8, dtype=bool))  # fmt: skip
    mask = zeros(2048, 2048, dtype=bool)
    assert forward(op=npu_fusion_attention, sparse_mode=6, atten_mask=mask) == (
        "sparse_mode 6 needs atten_mask absent or [3072, 2048], but got [2048, 2048]"
    )


def test_case_K19():
    want = "pre_tockens + next_tockens must be >= 0, but got -3 and 2"
    both(want, sparse_mode=4, pre_tockens=-3, next_tockens=2)
    both(want, pre_tockens=-3, next_tockens=2, atten_mask=zeros(8, 8, dtype=bool))


def test_case_K20():
    want = "the band leaves no visible position: pre_tockens -100, next_tockens 200"
    both(want, sparse_mode=4, pre_tockens=-100, next_tockens=200)


@pytest.mark.parametrize("which", ["softmax_max", "softmax_sum"])
def test_case_K21(which):
    good = zeros(1, 2, 8, 8)
    want = f"{which} must be float32 [B, N, Sq, 8]"
    assert backward(**{which: None}) == want + ", but is missing"
    for bad, said in ((zeros(1, 2, 8), "float32 [1, 2, 8]"),
                      (good.astype(np.float16), "float16 [1, 2, 8, 8]")):  # fmt: skip
        assert backward(**{which: bad}) == f"{want} = [1, 2, 8, 8], but got {said}"
    assert backward(attention_in=None) == "attention_in is missing"


def test_case_K22():
    assert backward(dy=zeros(1, 2, 8, 5)) == (
        "dy must be float32 with the shape of attention_out [1, 2, 8, 4], but got float32 "
        "[1, 2, 8, 5]"
    )
    assert backward(attention_in=zeros(1, 2, 7, 4)) == (
        "attention_in must be float32 with the shape of attention_out [1, 2, 8, 4], but got "
        "float32 [1, 2, 7, 4]"
    )


def test_case_K23():
    both("sink must be float32 [2], but got float32 [3]", sink=zeros(3))
    both("sink must be float32 [2], but got float16 [2]", sink=zeros(2, dtype=np.float16))
    both(
        "pse shape [2, 8, 8] is not one of [B,N,Sq,Skv], [B,N,1,Skv], [1,N,Sq,Skv], and for "
        "Sq = Skv > 1024 [B,N,1024,Skv], [1,N,1024,Skv], with B=1, N=2, Sq=8, Skv=8",
        pse=zeros(2, 8, 8),
    )
    both("pse must have the dtype of query, float32, but got float16",
         pse=zeros(1, 2, 8, 8, dtype=np.float16))  # fmt: skip


def test_case_K24():
    q, k, v = bnsd()
    assert forward([q, None, v]) == "key is missing"
    assert backward([q, k, None]) == "value is missing"
    out = swa_forward(zeros(1, 2, 0, 4), k, v, 2, "BNSD")
    assert out[0].shape == (1, 2, 0, 4)
    out = swa_forward(q, zeros(1, 2, 0, 4), zeros(1, 2, 0, 4), 2, "BNSD")
    assert (out[0] == 0).all()
    assert (out[2] == 0).all()


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_case_K25(scale):
    both(f"scale must be finite, but got {scale:g}", scale=scale)


def test_case_K26():
    both("The keep_prob value must be in range of (0, 1], but got 2", keep_prob=2.0, sparse_mode=3)


def test_case_K27():
    torch = pytest.importorskip("torch")
    device = "cuda" if torch.cuda.is_available() else "meta"
    q = torch.zeros(1, 2, 8, 4, device=device)
    if device == "cuda":
        with pytest.raises(dvm.Error, match="in the memory of cuda"):
            swa_forward(q, q, q, 2, "BNSD")
        return
    out = swa_forward(q, q, q, 2, "BNSD")  # no data: shapes alone, nothing is touched
    assert out[0].device.type == "meta"
    with pytest.raises(dvm.Error, match="all tensors to be on the same device"):
        swa_forward(torch.zeros(1, 2, 8, 4), q, q, 2, "BNSD")


def test_the_gradient_checks_like_the_forward():
    want = "The sparse_mode value must be in range of [0,6], but got 7" + PACKED
    assert backward(op=npu_fusion_attention_grad, sparse_mode=7) == want


@pytest.mark.parametrize(
    ("prefix", "want"),
    [
        (None, "prefix must have one entry for each of 1 sequences, but got 0"),
        ([1, 2], "prefix must have one entry for each of 1 sequences, but got 2"),
        ([9], "prefix must be in range of [0, Skv], but entry 0 is 9 and Skv is 8"),
    ],
)
def test_prefix(prefix, want):
    assert forward(op=npu_fusion_attention, sparse_mode=5, prefix=prefix) == want


def test_strict_refuses_rows_without_keys():
    kw = {"sparse_mode": 4, "pre_tockens": 2, "next_tockens": -1, "strict": True,
          "atten_mask": zeros(2048, 2048, dtype=bool)}  # fmt: skip
    assert forward(**kw) == (
        "pre_tockens 2 and next_tockens -1 leave rows of sequence 0 without a visible position"
    )
    kw["strict"] = False
    swa_forward(*bnsd(), 2, "BNSD", **kw)


def test_compact_errors(monkeypatch):
    monkeypatch.setenv("TORCH_NPU_COMPACT_ERROR_OUTPUT", "1")
    with pytest.raises(dvm.Error) as error:
        swa_forward(*bnsd(), 2, "BNSD", sparse_mode=1)
    assert str(error.value) == "The sparse_mode value should be 0 or 4, but got 1"


def test_torch_tensors_are_refused_alike():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.zeros(x.shape) for x in bnsd())
    assert forward([q, k, v], sparse_mode=3) == (
        "The sparse_mode value should be 0 or 4, but got 3"
    )
    assert text(swa_backward, q, k, v, q, 2, "BNSD") == (
        "softmax_max must be float32 [B, N, Sq, 8], but is missing"
    )


def test_torch_tensors_beside_other_operands():
    torch = pytest.importorskip("torch")
    q, k, v = bnsd()
    for other in (k, k.tolist()):
        with pytest.raises(dvm.ArgumentError, match=r"tensors of torch and (ndarray|list) in one"):
            swa_forward(torch.zeros(q.shape), other, torch.zeros(v.shape), 2, "BNSD")


def test_integers_beyond_64_bits():
    for name in ("pre_tockens", "next_tockens", "sparse_mode"):
        assert forward(**{name: 1 << 70}) == f"{name}: an integer beyond 64 bits"
    assert forward(heads=1 << 64) == "head_num: an integer beyond 64 bits"
    lists = {"actual_seq_qlen": [3, 1 << 63], "actual_seq_kvlen": [3, 8]}
    assert forward(tnd(), layout="TND", **lists) == "actual_seq_qlen: an integer beyond 64 bits"


def test_arguments_of_the_wrong_kind():
    assert forward(heads="2") == "head_num: expected an integer, given '2'"
    assert forward(heads=2.0) == "head_num: expected an integer, given 2.0"
    assert forward(layout=3) == "input_layout: expected a string, given 3"
    assert forward(layout="BN\0D") == "input_layout: expected a string, given 'BN\\x00D'"
    assert forward(layout="\ud800") == "input_layout: expected a string, given '\\ud800'"
    assert forward(scale="a") == "scale: expected a number, given 'a'"
    assert forward(pre_tockens=None) == "pre_tockens: expected an integer, given None"
    for bad in ([1.5], 3):
        said = forward(tnd(), layout="TND", actual_seq_qlen=bad, actual_seq_kvlen=[8])
        assert said == f"actual_seq_qlen: expected a list of integers, given {bad}"


def test_a_single_packed_sequence_in_modes_7_and_8_is_a_band():
    """What the refusal outside TND recommends."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(n, 2, 4)).astype(np.float32) for n in (9, 13, 13))
    wide = [x.transpose(1, 0, 2)[None] for x in (q, k, v)]
    for mode, following in ((7, -2), (7, 0), (8, 1), (8, -3)):
        packed = npu_fusion_attention(
            q, k, v, 2, "TND", sparse_mode=mode, next_tockens=following,
            actual_seq_qlen=[9], actual_seq_kvlen=[13],
        )[0]  # fmt: skip
        band = npu_fusion_attention(*wide, 2, "BNSD", sparse_mode=4, next_tockens=following)[0]
        assert (packed.transpose(1, 0, 2)[None] == band).all()


# What a caller may pass that is no argument of its kind: (name, value, text).
WRONG_KINDS = [
    ("head_num", None, "head_num: expected an integer, given None"),
    ("head_num", 2.0, "head_num: expected an integer, given 2.0"),
    ("head_num", 10**30, "head_num: an integer beyond 64 bits"),
    ("input_layout", None, "input_layout: expected a string, given None"),
    ("input_layout", b"BNSD", "input_layout: expected a string, given b'BNSD'"),
    ("softmax_layout", 3, "softmax_layout: expected a string, given 3"),
    ("scale", None, "scale: expected a number, given None"),
    ("scale", 1j, "scale: expected a number, given 1j"),
    ("keep_prob", None, "keep_prob: expected a number, given None"),
    ("keep_prob", "x", "keep_prob: expected a number, given 'x'"),
    ("keep_prob", 10**400, "keep_prob: a number beyond the largest float"),
    ("pre_tockens", 1.5, "pre_tockens: expected an integer, given 1.5"),
    ("next_tockens", 2**63, "next_tockens: an integer beyond 64 bits"),
    ("sparse_mode", "1", "sparse_mode: expected an integer, given '1'"),
    ("actual_seq_qlen", 7, "actual_seq_qlen: expected a list of integers, given 7"),
    ("actual_seq_kvlen", [4.0], "actual_seq_kvlen: expected a list of integers, given [4.0]"),
    ("actual_seq_qlen", [2**63], "actual_seq_qlen: an integer beyond 64 bits"),
    ("prefix", "ab", "prefix: expected a list of integers, given 'ab'"),
    ("seed", None, "seed: expected an integer, given None"),
    ("numels", "x", "numels: expected an integer, given 'x'"),
]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize(
    ("name", "value", "text"),
    WRONG_KINDS,
    ids=[f"{n}-{i}" for i, (n, *_) in enumerate(WRONG_KINDS)],
)
def test_arguments_of_another_kind_are_named(name, value, text, kind):
    """In the same words for arrays and tensors, forward and backward."""
    x = np.zeros((1, 2, 4, 4), np.float32)
    stat = np.zeros((1, 2, 4, 8), np.float32)
    if kind == "torch":
        torch = pytest.importorskip("torch")
        x, stat = torch.from_numpy(x), torch.from_numpy(stat)
    call = {"head_num": 2, "input_layout": "BNSD"}
    saved = {"softmax_max": stat, "softmax_sum": stat, "attention_in": x}
    if name not in ("seed", "numels"):
        given = call | {name: value}
        assert refused(lambda: npu_fusion_attention(x, x, x, **given)) == text
    given = call | saved | {name: value}
    if name == "scale":
        given["scale_value"] = given.pop("scale")
    assert refused(lambda: npu_fusion_attention_grad(x, x, x, x, **given)) == text


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_what_is_no_tensor_is_named(kind):
    x = np.zeros((1, 2, 4, 4), np.float32)
    if kind == "torch":
        x = pytest.importorskip("torch").from_numpy(x)
        text = refused(lambda: npu_fusion_attention(x, x.to_sparse(), x, 2, "BNSD"))
        assert text.startswith("key") and "sparse" in text
        return
    text = refused(lambda: npu_fusion_attention(x, x, np.ma.masked_array(x), 2, "BNSD"))
    assert text.startswith("value: expected an array or tensor") and "filled" in text
    text = refused(lambda: npu_fusion_attention(x, "text", x, 2, "BNSD"))
    assert text == "key: expected an array or tensor of any dtype, given str"

"""The training example: what is wrong with data, weights, ports or ranks is named in one line."""

import importlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

TRAIN = Path(__file__).parent.parent.parent / "examples" / "train"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(TRAIN))
    for variable in ("DVM_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE", "HCCL_CONNECT_TIMEOUT",
                     "HCCL_EXEC_TIMEOUT", "NGPU", "MODULE", "CONFIG"):  # fmt: skip
        monkeypatch.delenv(variable, raising=False)


def use(name):
    return importlib.import_module(name)


def refused():
    return pytest.raises(use("refuse").Refused)


# ------------------------------------------------------------------------------------ tar


def archive(*members, form=tarfile.USTAR_FORMAT):
    """Bytes of a tar of (name, content)."""
    f = io.BytesIO()
    with tarfile.open(fileobj=f, mode="w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return f.getvalue()


def read(tmp_path, data, needed=("txt",)):
    """Names of the samples, and what was said."""
    file = tmp_path / "a.tar"
    file.write_bytes(data)
    said = []
    found = list(use("tar_stream").samples([file], needed, said.append))
    return [s["name"].removeprefix("a.tar/") for s in found], said, found


PAIRS = [
    (f"{i:04}.{e}", f"{e} {i}".encode() * (400 * i + 1)) for i in range(4) for e in ("jpg", "txt")
]


@pytest.mark.parametrize("form", (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
def test_tar(tmp_path, form):
    # A name of more than 100 bytes: split by ustar, a member of its own with the others.
    long = "d" * 60 + "/" + "e" * 60 + "/0009"
    data = archive(*PAIRS, (f"{long}.PNG", b"p"), (f"{long}.txt", b"t"), form=form)
    names, said, found = read(tmp_path, data, ("jpg", "txt"))
    assert names == ["0000", "0001", "0002", "0003", long] and not said
    assert found[3]["txt"] == PAIRS[7][1] and found[4]["jpg"] == b"p"


def test_tar_streams(tmp_path):
    """Nothing is read before it is asked for: a later fault does no harm to what comes first."""
    (tmp_path / "a.tar").write_bytes(archive(*PAIRS)[:-9000])
    said = []
    stream = use("tar_stream").samples([tmp_path / "a.tar"], ("txt",), said.append)
    assert next(stream)["name"] == "a.tar/0000" and not said


@pytest.mark.parametrize("keep", (100, 512 + 3, 3000))
def test_a_short_file_is_named(tmp_path, keep):
    names, said, _ = read(tmp_path, archive(*PAIRS)[:keep])
    assert len(names) < 4
    assert any("cut short" in s or "middle of a header" in s for s in said)


def test_a_damaged_header_costs_its_sample_only(tmp_path):
    data = bytearray(archive(*PAIRS))
    at = data.index(b"0001.txt")
    data[at] ^= 0x40
    names, said, _ = read(tmp_path, bytes(data))
    assert names == ["0000", "0002", "0003"]
    assert said[0] == f"a.tar: no tar header at byte {at} (bad checksum); looking for the next"
    assert said[1] == "a.tar/0001: has no .txt; skipped"


@pytest.mark.parametrize(
    "data", (b"", b"\0" * 600, b"not a tar at all" * 100, b"\x1f\x8b" + b"z" * 2000)
)
def test_what_is_no_tar(tmp_path, data):
    names, said, _ = read(tmp_path, data)
    assert names == []
    assert said or not data.strip(b"\0")


def test_paths(tmp_path):
    shards = use("tar_stream").shards
    with refused() as e:
        shards(str(tmp_path / "none.tar"))
    assert "no such file or folder" in str(e.value)
    with refused():
        shards(str(tmp_path))
    for n in "ba":
        (tmp_path / f"{n}.tar").write_bytes(b"")
    assert [p.name for p in shards(str(tmp_path))] == ["a.tar", "b.tar"]
    assert [p.name for p in shards(str(tmp_path / "b*.tar"))] == ["b.tar"]


# ---------------------------------------------------------------------------------- batches


def source(tmp_path, config, data, rank=0, world=1):
    file = tmp_path / "a.tar"
    file.write_bytes(data)
    said = []
    recipe = use("models").recipe(config.rpartition("_")[0], config)
    tokens = use("data").tokenizer("bytes", 260)
    return use("data").Source(recipe, [file], tokens, 2, rank, world, 0, said.append), said


def test_unreadable_images_are_named(tmp_path):
    pytest.importorskip("PIL")
    use("tar_stream").make_tiny(tmp_path / "t.tar", count=3, side=64)
    with tarfile.open(tmp_path / "t.tar") as t:
        good = [(m.name, t.extractfile(m).read()) for m in t]
    use("tar_stream").make_tiny(tmp_path / "t.tar", count=1, side=32)
    with tarfile.open(tmp_path / "t.tar") as t:
        small = t.extractfile("0000.jpg").read()
    half = good[0][1][: len(good[0][1]) // 2]
    bad = [("7.jpg", b"no picture"), ("7.txt", b"x"), ("8.jpg", half), ("8.txt", b"x"),
           ("9.jpg", small), ("9.txt", b"x")]  # fmt: skip
    s, said = source(tmp_path, "flux_tiny", archive(*bad, *good))
    batches = s.batches(0)
    first = next(batches)
    assert first["latents"].shape == (2, 16, 4) and first["text"].shape == (2, 24, 32)
    assert [x.split(":")[0] for x in said] == ["a.tar/7", "a.tar/8", "a.tar/9"]
    assert "unreadable image" in said[0] and "unreadable image" in said[1]
    assert "32x32 is below 64" in said[2]
    next(batches)
    next(batches)
    assert len(said) == 3  # once, though read again


def test_unknown_configurations():
    with pytest.raises(ValueError, match="CONFIG 'big' is not known; flux has flux_tiny"):
        use("models").recipe("flux", "big")


def test_ranks_share_the_samples(tmp_path):
    data = archive(*((f"{i}.txt", bytes([65 + i]) * 63) for i in range(8)))
    rows = []
    for rank in range(2):
        s, _ = source(tmp_path, "qwen3_5_tiny", data, rank, 2)
        rows += [
            tuple(r) for b in [next(s.batches(0)), next(s.batches(1))] for r in b["tokens"].tolist()
        ]
    assert len(set(rows)) == 8 and all(r[-1] == 2 for r in rows)


def test_text_that_is_none(tmp_path):
    s, said = source(tmp_path, "glm_tiny", archive(("1.txt", b"\xff\xfe"), ("2.txt", b"ok " * 40)))
    assert next(s.batches(0))["tokens"].shape == (2, 32)
    assert said == ["a.tar/1.txt: no UTF-8 text (invalid start byte); skipped"]
    s, said = source(tmp_path, "glm_tiny", archive(("1.txt", b"\xff")))
    with refused() as e:
        next(s.batches(0))
    assert "not one usable sample" in str(e.value)


def test_tokenizers(tmp_path):
    tokenizer = use("data").tokenizer
    assert tokenizer("bytes", 260).encode("aé") == [101, 199, 173]
    with refused() as e:
        tokenizer("bytes", 100)
    assert "has 260 tokens, the model embeds 100" in str(e.value)
    with refused() as e:
        tokenizer(str(tmp_path), 260)
    assert "tokenizer.json" in str(e.value)
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "red": 1, "blue": 2}, unk_token="[UNK]")
    t = tokenizers.Tokenizer(model)
    t.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    t.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer(str(tmp_path), 260).encode("blue red green") == [2, 1, 0]
    (tmp_path / "tokenizer.json").write_text("{")
    with refused() as e:
        tokenizer(str(tmp_path), 260)
    assert "tokenizer.json" in str(e.value)


# ---------------------------------------------------------------------------------- weights


def test_weights(tmp_path):
    pytest.importorskip("safetensors")
    w = use("weights")
    a, b = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    file = tmp_path / "w.safetensors"
    w.save_weights(a, file)
    assert list(tmp_path.iterdir()) == [file]
    w.load_weights(b, str(tmp_path), print)
    assert torch.equal(a.weight, b.weight) and torch.equal(a.bias, b.bias)
    said = []
    w.load_weights(torch.nn.Linear(3, 4, bias=False), str(file), said.append)
    assert said == ["w.safetensors: the model has no bias; left out"]
    with refused() as e:
        w.load_weights(torch.nn.Linear(3, 5), str(file), print)
    assert "the model has (5" in str(e.value)
    with refused() as e:
        w.load_weights(torch.nn.Sequential(a), str(file), lambda s: None)
    assert "lacks 0.weight, 0.bias" in str(e.value)
    file.write_bytes(file.read_bytes()[:-5])
    with refused() as e:
        w.load_weights(b, str(file), print)
    assert "not a whole safetensors file" in str(e.value)
    with refused() as e:
        w.load_weights(b, str(tmp_path / "x.safetensors"), print)
    assert "no such" in str(e.value)


def test_checkpoints(tmp_path):
    w, file = use("weights"), tmp_path / "c.pt"
    w.save_checkpoint(file, settings={"a": 1}, losses=[1.0])
    assert w.load_checkpoint(file, {"a": 1})["losses"] == [1.0]
    with refused() as e:
        w.load_checkpoint(file, {"a": 2})
    assert "was made with a 1 (now 2)" in str(e.value)
    file.write_bytes(file.read_bytes()[:-100])
    with refused() as e:
        w.load_checkpoint(file, {"a": 1})
    assert "not a whole checkpoint" in str(e.value)
    with refused():
        w.load_checkpoint(tmp_path / "none.pt", {})


# ------------------------------------------------------------------------------------ ports


def test_a_taken_port_is_named_and_the_next_used(monkeypatch):
    ports = use("ports")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = s.getsockname()[1]
        monkeypatch.setenv("HCCL_NPU_SOCKET_PORT_RANGE", f"{taken}-{min(taken + 20, 65535)}")
        said = []
        assert ports.choose(said.append) > taken
        assert re.fullmatch(
            rf"port {taken} is taken \(.*, pid {os.getpid()}\); trying the next", said[0]
        )
        monkeypatch.setenv("DVM_PORT_RANGE", str(taken))  # goes first
        with refused() as e:
            ports.choose(said.append)
        assert "is free" in str(e.value)
    monkeypatch.setenv("DVM_PORT_RANGE", "9-3")
    with refused() as e:
        ports.choose(print)
    assert "DVM_PORT_RANGE=9-3" in str(e.value)
    monkeypatch.setenv("DVM_PORT_RANGE", "")
    monkeypatch.delenv("HCCL_NPU_SOCKET_PORT_RANGE")
    assert ports.choose(print) > 0


def test_timeouts(monkeypatch):
    seconds = use("ranks").seconds
    assert seconds("HCCL_EXEC_TIMEOUT", 7).total_seconds() == 7
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "soon")
    with refused() as e:
        seconds("HCCL_EXEC_TIMEOUT", 7)
    assert "HCCL_EXEC_TIMEOUT=soon" in str(e.value)


@pytest.mark.parametrize("cuda", (False, True))
@pytest.mark.parametrize("nccl", (False, True))
def test_transports(monkeypatch, cuda, nccl):
    """Gradients lie on the CPU: whatever else a machine has, something must carry them."""
    from torch.distributed.distributed_c10d import BackendConfig

    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)
    config = BackendConfig(torch.distributed.Backend(use("ranks").transports()))
    expected = {"cpu": "gloo", "cuda": "nccl"} if cuda and nccl else {"cpu": "gloo"}
    assert dict(config.get_device_backend_map()) == expected


# ---------------------------------------------------------------------------- whole programs


def start(*args, script="launch.py", **env):
    return subprocess.Popen(
        [sys.executable, str(TRAIN / script), *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "MODULE": "flux", "CONFIG": "flux_tiny", "OMP_NUM_THREADS": "1", **env},
        start_new_session=True,
    )


def end(process, limit=240):
    """Exit code and text; what hangs is ended."""
    timer = threading.Timer(limit, lambda: os.killpg(process.pid, signal.SIGKILL))
    timer.start()
    try:
        text = process.communicate()[0]
    finally:
        timer.cancel()
    assert "Traceback" not in text, text
    return process.returncode, text


def test_wrong_settings_are_one_line(tmp_path):
    for args, env, expected in (
        ((), {"MODULE": "bert"}, "MODULE 'bert' is not known; known are flux, qwen3_5, glm"),
        ((), {"NGPU": "none"}, "NGPU=none"),
        (("--data", "nowhere.tar"), {}, "--data nowhere.tar: no such file or folder"),
    ):
        code, text = end(start(*args, "--out", tmp_path, **env))
        assert code == 2 and expected in text, text


needs_models = pytest.mark.skipif(
    not all(
        importlib.util.find_spec(m) for m in ("diffusers", "transformers", "PIL", "safetensors")
    ),
    reason="./dev exec --models brings the model classes",
)


@pytest.mark.slow
@needs_models
def test_resuming_changes_no_bit(tmp_path):
    def losses(folder, *more):
        code, text = end(start("--backend", "none", "--out", folder, *more))
        assert code == 0, text
        return json.loads((folder / "losses.json").read_text())["none"]

    whole = losses(tmp_path / "a", "--steps", 5)
    losses(tmp_path / "b", "--steps", 3)
    assert losses(tmp_path / "b", "--steps", 5, "--resume") == whole
    code, text = end(start("--out", tmp_path / "b", "--resume", "--seed", 3))
    assert code == 2 and "was made with seed 0 (now 3)" in text
    again = losses(tmp_path / "c", "--steps", 1, "--weights", tmp_path / "a/weights.safetensors")
    assert again[0] != whole[0]


@pytest.mark.slow
@needs_models
@pytest.mark.parametrize("module", ("flux", "qwen3_5", "glm"))
def test_two_ranks_with_a_curve(tmp_path, module):
    env = {"NGPU": "2", "MODULE": module, "CONFIG": f"{module}_tiny"}
    code, text = end(start("--steps", 4, "--curve", "--out", tmp_path, **env), 900)
    assert code == 0, text
    curves = json.loads((tmp_path / "losses.json").read_text())
    assert curves["dvm"] == pytest.approx(curves["eager"], rel=1e-4)
    assert curves["dvm"][-1] < curves["dvm"][0] or module == "flux"  # its noise differs by step
    assert (tmp_path / "weights.safetensors").exists()
    assert "tokens/s" in text and "peak memory" in text
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")


def ranks_of(process, seen):
    """Reads until both ranks train; rank -> process."""
    pids = {}
    for line in process.stdout:
        seen.append(line)
        found = re.match(r"rank (\d) of 2: process (\d+)", line)
        if found:
            pids[int(found[1])] = int(found[2])
        if "step 1 of" in line:
            return pids
    raise AssertionError("".join(seen))


@pytest.mark.slow
@needs_models
@pytest.mark.parametrize("victim", (0, 1))
def test_a_dead_rank_ends_the_run_with_its_name(tmp_path, victim):
    p = start("--backend", "none", "--steps", 10, "--lr", 0, "--out", tmp_path, NGPU="2")
    seen = []
    pids = ranks_of(p, seen)
    os.kill(pids[victim], signal.SIGKILL)
    code, text = end(p, 60)
    assert code == 1
    assert f"rank {victim} (process {pids[victim]}) died of SIGKILL; the run is over" in text


@pytest.mark.slow
@needs_models
def test_a_silent_rank_is_named(tmp_path):
    p = start("--backend", "none", "--steps", 9, "--out", tmp_path, NGPU="2", HCCL_EXEC_TIMEOUT="4")
    seen = []
    pids = ranks_of(p, seen)
    os.kill(pids[1], signal.SIGSTOP)
    code, text = end(p, 120)
    assert code == 1
    assert re.search(r"rank 0: step \d+: no answer.*from rank 1, last seen in step \d+", text), text


@pytest.mark.slow
def test_a_rank_that_never_comes_is_named(tmp_path):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    code, text = end(
        start("--out", tmp_path, script="train.py", HCCL_CONNECT_TIMEOUT="2", **env), 90
    )
    assert code == 3
    assert "rank 0: rank 1 did not connect within 0:00:02 (HCCL_CONNECT_TIMEOUT)" in text

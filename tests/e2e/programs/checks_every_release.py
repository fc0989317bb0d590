"""What holds in every release, from 1.1 on with Python 3.7: test_releases.py runs these with wheels of old releases."""

from __future__ import annotations

import copy
import ctypes
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data
import torch.utils.dlpack
from common import MIB, directory, in_fork, raises
from support import away, data, enable, models, no_faults, page_out, python, same, stat
from torch.utils.checkpoint import checkpoint

OUT_OF_MEMORY = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)


def train(name: str) -> list[object]:
    trainer = models().make(name)
    return [trainer.step() for _ in range(3)] + [tensor.clone() for tensor in trainer.tensors()]


def in_a_third(name: str) -> None:
    """The same bits in a third of the memory, and every access foreseen: on CUDA nothing would serve a fault."""
    expected = train(name)
    enable(1 << 40)
    train(name)
    limit = stat("allocated_bytes.peak") // 3
    enable(limit)
    moved = stat("out.bytes")
    before = stat("faults")
    same(train(name), expected)
    assert stat("out.bytes") > moved and stat("in.bytes") > 0
    # oneDNN's LSTM, from 1.13 on, writes a workspace that its schema calls an input.
    assert stat("faults") == before or name == "lstm", f"{stat('faults') - before} faults"
    torch.lms.disable("cpu")
    assert stat("away_bytes.current") == 0


def check_convnet() -> None:
    in_a_third("convnet")


def check_transformer() -> None:
    in_a_third("transformer")


def check_lstm() -> None:
    in_a_third("lstm")


def check_unet3d() -> None:
    in_a_third("unet3d")


def check_operations_foresee_their_tensors() -> None:
    values, index, mask = data(4), torch.arange(MIB - 1, -1, -1), data(1, dtype=torch.int32) > 0
    mask = torch.cat([mask] * 4)
    square, places = values.view(1024, 1024), torch.arange(1 << 15).view(1, -1)
    uses: dict[str, Callable[[], Any]] = {
        "add": lambda: away(values) + 1,
        "add_": lambda: away(values).add_(1),
        "copy_": lambda: away(values).copy_(away(values)),
        "cat": lambda: torch.cat([away(values), away(values)]),
        "stack": lambda: torch.stack([away(values), away(values)]),
        "index": lambda: values[away(index)],
        "mask": lambda: away(values)[away(mask)],
        "assign": lambda: away(values).__setitem__(slice(0, 8), away(values)[:8]),
        "assign to a mask": lambda: away(values).__setitem__(away(mask), 1.0),
        "index_put_": lambda: away(values).index_put_([away(index)], away(values)),
        "sort": lambda: away(values).sort()[1],
        "where": lambda: torch.where(away(mask), away(values), away(values)),
        "matrices": lambda: away(square) @ away(square),
        "convolution": lambda: torch.nn.functional.conv2d(away(values).view(1, 1, 1024, 1024), torch.ones(2, 1, 3, 3)),
        "embedding": lambda: torch.nn.functional.embedding(torch.tensor([1, 2]), away(square)),
        "sparse": lambda: torch.sparse_coo_tensor(away(places), away(values[: 1 << 15]), (1 << 15,)).to_dense(),
        "type": lambda: away(values).double(),
        "copied": lambda: copy.deepcopy(away(values)),
    }
    expected = {}
    enable()
    stock, globals()["away"] = away, lambda tensor: tensor.clone()  # the same without anything away
    try:
        expected = {name: use() for name, use in uses.items()}
    finally:
        globals()["away"] = stock
    for name, use in uses.items():
        before = stat("faults")
        same(use(), expected[name])
        # Before 2.0 storages copy outside of operations.
        assert stat("faults") <= before + (name == "copied"), f"{name}: {stat('faults') - before} faults"


def check_backward_foresees_its_tensors() -> None:
    index = torch.arange(MIB - 1, -1, -1)

    def gradients() -> list[torch.Tensor]:
        x, y = (data(4, seed).requires_grad_() for seed in (1, 2))
        for _ in range(2):  # the second adds to what the first left
            both = torch.cat([x, y]).view(2, -1)[:, index]
            parts = torch.stack([both, both * 2]).unbind(0)
            loss = sum((part.chunk(4, 1)[1] ** 2).sum() for part in parts)
            if torch.lms.is_enabled("cpu"):
                torch.lms.reclaim("cpu")
            loss.backward()
        return [x.grad, y.grad]

    expected = gradients()
    enable()
    with no_faults():
        same(gradients(), expected)


def check_views_for_numpy() -> None:
    enable()
    values = data(4)
    tensor = away(values)
    with no_faults():
        view = tensor.numpy()
        torch.lms.reclaim("cpu")
        assert stat("pinned_bytes.current") == 4 * MIB and float(view[-1]) == float(values[-1])
    view[0] = 5.0
    assert float(tensor[0]) == 5.0
    del view
    gc.collect()
    assert stat("pinned_bytes.current") == 0 and torch.lms.reclaim("cpu") >= 4 * MIB
    capsule = torch.utils.dlpack.to_dlpack(tensor)
    assert torch.lms.reclaim("cpu") == 0
    other = torch.utils.dlpack.from_dlpack(capsule)
    assert float(other[0]) == 5.0
    del capsule, other
    gc.collect()
    assert stat("pinned_bytes.current") == 0


def check_raw_pointers_fault_their_block_in() -> None:
    enable()
    tensor = away(data(1, dtype=torch.int32))
    first = int(tensor[0])
    page_out()
    assert ctypes.c_int32.from_address(tensor.data_ptr()).value == first
    assert stat("faults") == 1


def check_pin() -> None:
    enable()
    tensor = away(data(4))
    with torch.lms.pin(tensor):
        assert torch.lms.reclaim("cpu") == 0 and stat("pinned_bytes.current") == 4 * MIB
    assert torch.lms.reclaim("cpu") == 4 * MIB


def check_files() -> None:
    values = data(8)
    with directory() as folder:
        enable(store=folder)
        path = os.path.join(folder, "tensor")
        for options in ({}, {"_use_new_zipfile_serialization": True}, {"_use_new_zipfile_serialization": False}):
            tensor = away(values)
            try:
                torch.save(tensor, path, **options)
            except TypeError:
                continue  # before 1.4 there is one format
            page_out()
            same(torch.load(path), values)


def check_limits_and_errors() -> None:
    enable(MIB)
    torch.lms.reset_peak_stats("cpu")
    tensor = data(4)
    assert stat("over_limit_bytes.peak") >= 3 * MIB
    enable(5 * MIB, strict=True)
    with torch.lms.pin(tensor), raises(OUT_OF_MEMORY, "limit"):
        torch.ones(MIB)
    torch.lms.set_limit("cpu", 64 * MIB)
    same(tensor, data(4))
    for error, name, options in (
        (ValueError, "limit", {"limit": 1.5}),
        (ValueError, "limit", {"limit": 1}),
        (ValueError, "limit", {"limit": -1}),
        (ValueError, "min_size", {"limit": 0, "min_size": 0}),
        (ValueError, "store", {"limit": 0, "store": "/nowhere/at/all"}),
        (ValueError, "policy", {"limit": 0, "policy": "fifo"}),
    ):
        with raises(error, name):
            torch.lms.enable("cpu", **options)
    with raises(TypeError, "limit"):
        torch.lms.enable("cpu")
    with raises(ValueError, "device"):
        torch.lms.enable("nonsense", limit=0)
    assert torch.lms.limit("cpu") == 64 * MIB


def check_exception_in_an_operation() -> None:
    enable()
    tensor = away(data(4))
    with raises(RuntimeError):
        torch.mm(tensor.view(1024, 1024), tensor.view(512, 2048))
    assert stat("pinned_bytes.current") == 0 and stat("protected_bytes.current") == 0
    same(tensor, data(4))
    assert torch.lms.reclaim("cpu") >= 4 * MIB


def check_threads() -> None:
    enable(24 * MIB)
    shared = [data(4, seed) for seed in range(4)]
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for step in range(20):
                index = (seed + step) % 4
                same(shared[index] + 0, data(4, index))
        except BaseException as error:  # noqa: BLE001  reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert stat("out.bytes") > 0 and stat("pinned_bytes.current") == 0


def check_checkpointing() -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(512, 512) for _ in range(6)]
        y = torch.randn(512, 512, requires_grad=True)
        for layer in layers:
            y = checkpoint(lambda x, layer=layer: torch.relu(layer(x)), y)
        y.sum().backward()
        return [layer.weight.grad for layer in layers]

    expected = gradients()
    enable(7 * MIB)
    torch.lms.reset_peak_stats("cpu")
    with no_faults():
        same(gradients(), expected)
    # What runs inside of a node of the backward pass is not protected until the node ends.
    assert stat("out.bytes") > 0 and stat("over_limit_bytes.peak") == 0, torch.lms.stats("cpu")


def check_fork() -> None:
    enable()
    tensor = away(data(4))

    def child() -> None:
        torch.set_num_threads(1)
        same(tensor, data(4))
        tensor.zero_()
        page_out()

    in_fork(child)
    same(tensor, data(4))


class _Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.rows[index] * 2


def check_data_loader_workers() -> None:
    enable(8 * MIB)
    rows = data(4).view(8, -1)
    page_out()
    for workers in (0, 2):
        batches = list(torch.utils.data.DataLoader(_Rows(rows), batch_size=2, num_workers=workers))
        same(torch.cat(batches), data(4).view(8, -1) * 2)


def check_collectives() -> None:
    from torch import distributed

    if not distributed.is_available():
        return
    with directory() as folder:

        def work(rank: int) -> None:
            distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
            enable(6 * MIB)
            values = away(data(4, rank))
            started = distributed.all_reduce(values, async_op=True)
            torch.lms.reclaim("cpu")
            started.wait()
            same(values, data(4, 0) + data(4, 1))
            received = away(data(4, 7)) if rank else away(data(4, 9))
            distributed.broadcast(received, 0)
            same(received, data(4, 9))
            gathered = [away(data(1, 5)) for _ in range(2)]
            distributed.all_gather(gathered, away(data(1, rank)))
            same(gathered, [data(1, 0), data(1, 1)])
            torch.ones(4)
            distributed.barrier()

        other = os.fork()
        if other == 0:
            status = 1
            try:
                work(1)
                status = 0
            finally:
                os._exit(status)
        work(0)
        assert os.waitpid(other, 0)[1] == 0


def check_profiler() -> None:
    enable()
    torch.lms.disable("cpu")
    with torch.autograd.profiler.profile() as profile:
        enable()
        tensor = away(data(4))
        tensor + 1
    assert "add" in profile.key_averages().table()
    with no_faults():
        same(away(data(4)) + 0, data(4))
    assert stat("out.bytes") > 0


def check_named_parts_of_a_program() -> None:
    record = getattr(torch.autograd.profiler, "record_function", None)
    if record is None:
        return
    enable(6 * MIB)
    torch.lms.reset_peak_stats("cpu")
    with record("add"), record("a step"):
        parts = [data(1, seed) for seed in range(12)]
        for seed, part in enumerate(parts):
            same(part + 0, data(1, seed))
        assert stat("out.bytes") > 0


def check_scripts() -> None:
    @torch.jit.script
    def both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * 2, y])

    expected = [both(data(4), data(4, 1)) for _ in range(3)]
    enable()
    before = stat("faults")
    same([both(away(data(4)), away(data(4, 1))) for _ in range(3)], expected)
    # Before 1.4 the lists in scripts are not foreseen, and from 1.6 on fused kernels bypass the dispatcher.
    if hasattr(torch.jit, "ScriptFunction") and not hasattr(torch._C, "_jit_set_texpr_fuser_enabled"):
        assert stat("faults") == before, f"{stat('faults') - before} faults"


def check_scripts_compiled_later() -> None:
    def scripted() -> torch.Tensor:
        def joined(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.stack([torch.cat([x, y]), torch.cat([y, x])])

        return torch.jit.script(joined)(data(1, 1), data(1, 2))

    enable()
    actual = scripted()
    torch.lms.disable("cpu")
    same(scripted(), actual)
    enable()
    same(scripted(), actual)
    same(actual, torch.stack([torch.cat([data(1, 1), data(1, 2)]), torch.cat([data(1, 2), data(1, 1)])]))


def check_numbers_above_a_signed_word() -> None:
    if not hasattr(torch, "uint64"):  # before 2.3
        return
    most = 2**64 - 1

    def use() -> list[Any]:
        wide = torch.full((MIB,), most, dtype=torch.uint64)
        floats = data(4).fill_(2.0**63).clamp(0, most)
        bounded = torch.nn.functional.hardtanh(data(1), 0, most)
        torch.use_deterministic_algorithms(True)
        filled = [torch.empty(MIB, dtype=torch.uint64), wide[:9].clone().resize_(MIB), wide.new_empty(9)]
        torch.use_deterministic_algorithms(False)
        numbers = [wide[3].item(), wide[:9].tolist(), repr(wide)]
        return [
            wide,
            wide == most,
            torch.full_like(wide, 7).fill_(2**63),
            floats,
            bounded,
            most - floats,
            *filled,
            *numbers,
        ]

    expected = use()
    functions = [torch.full, torch.tanh, torch.Tensor.fill_, torch.nn.functional.gelu]
    known = {function: id(function) for function in functions}
    enable()
    same(use(), expected)
    assert [known.get(function) for function in functions] == list(map(id, functions))
    assert [torch.full, torch.tanh, torch.Tensor.fill_, torch.nn.functional.gelu] == functions
    with raises(RuntimeError, "int64_t"):
        int(torch.tensor(most, dtype=torch.uint64))  # as without LMS
    with raises(TypeError, "clamp"):
        torch.clamp()
    torch.lms.disable("cpu")
    same(use(), expected)


def check_signals_while_numbers_are_refused() -> None:
    if not hasattr(torch, "uint64"):  # before 2.3
        return

    class Ended(BaseException):
        pass

    def end(*_: object) -> None:
        raise Ended

    signal.signal(signal.SIGALRM, end)
    enable()
    for _ in range(200):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            while True:
                torch.full((2,), 2**63, dtype=torch.uint64)
        except Ended:
            pass
    with no_faults():
        same(away(data(1)) + 1, data(1) + 1)  # what is called is observed


def check_functions_pickle_as_in_stock() -> None:
    def is_pickled(function: Any) -> bool:
        try:
            return pickle.loads(pickle.dumps(function)) is not None
        except (pickle.PicklingError, AttributeError, RuntimeError, TypeError):
            return False

    def pickled() -> set[tuple[str, str]]:
        owners = {
            "torch": torch,
            "Tensor": torch.Tensor,
            "functional": torch.nn.functional,
            "dlpack": torch.utils.dlpack,
        }
        found = [(owner, name) for owner, has in owners.items() for name in dir(has) if not name.startswith("__")]
        return {(owner, name) for owner, name in found if is_pickled(getattr(owners[owner], name))}

    expected = pickled()
    enable()
    assert len(expected) > 100 and not expected - pickled()


def check_traces_have_the_programs_operators() -> None:
    def use(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        with torch.lms.pin(first):
            both = torch.cat([first, second])
        return both * float(first.numpy()[0])

    def trace() -> tuple[torch.Tensor, list[str], list[str]]:
        inputs = data(1, 1), data(1, 2)
        with warnings.catch_warnings(record=True) as said:
            traced = torch.jit.trace(use, inputs, check_trace=False)
        return (
            traced(*inputs),
            [node.kind() for node in traced.graph.nodes()],
            [f"{each.filename} {each.message}" for each in said],
        )

    expected = trace()
    enable(MIB)
    same(list(trace()), list(expected))


def check_off_is_stock() -> None:
    enable()
    managed = data(4)
    torch.lms.disable("cpu")
    held = stat("allocated_bytes.current")
    other = data(4)
    assert stat("allocated_bytes.current") == held > 0
    same(managed + other, other * 2)
    del managed
    assert stat("allocated_bytes.current") == 0


def check_import_loads_no_library() -> None:
    result = python(
        "import torch\n"
        "assert not torch.lms.is_enabled('cpu')\n"
        "with torch.lms.pin(torch.ones(2)): pass\n"
        "assert 'libtorch_lms' not in open('/proc/self/maps').read()\n"
    )
    assert result.returncode == 0, result.stderr


def check_shutdown_with_blocks_away() -> None:
    result = python(
        "import torch\n"
        "torch.lms.enable('cpu', limit=1 << 20)\n"
        "kept = [torch.full((1 << 18,), float(i)) + 0 for i in range(8)]\n"
        "used = [tensor.view(-1) for tensor in kept]\n"
        "torch.lms.reclaim('cpu')\n"
        "assert torch.lms.stats('cpu')['away_bytes.current'] >= 6 << 20\n"
        "conv = torch.nn.Conv2d(8, 8, 3)(torch.ones(1, 8, 256, 256)).sum().backward()\n"
        "torch.lms.disable('cpu')\n"
    )
    assert (result.returncode, result.stderr) == (0, ""), result


def check_names_of_the_older_implementations() -> None:
    cuda = torch.cuda
    for name in cuda._lms.__all__:
        assert all(hasattr(module, name) for module in (cuda, getattr(cuda, "memory", cuda))), name
    assert len(cuda._lms.__all__) == 14
    assert not cuda.get_enabled_lms()
    limit, size = cuda.get_limit_lms(), cuda.get_size_lms()
    cuda.set_limit_lms(limit + MIB)
    cuda.set_size_lms(size + 1)
    assert (cuda.get_limit_lms(), cuda.get_size_lms()) == (limit + MIB, size + 1)
    cuda.set_enabled_lms(True)
    assert cuda.get_enabled_lms()
    cuda.set_enabled_lms(False)
    cuda.reclaim_inactive()
    with raises(ValueError, "limit"):
        cuda.set_limit_lms(1.5)


def check_switched_on_by_the_environment() -> None:
    with directory() as folder:
        result = python(
            "import torch\n"
            f"assert torch.lms.limit('cpu') == {8 * MIB}\n"
            "tensors = [torch.full((1 << 18,), float(index)) for index in range(24)]\n"
            "assert [float((tensor * 1)[-1]) for tensor in tensors] == list(range(24))\n"
            "assert torch.lms.stats('cpu')['out.bytes'] > 0\n",
            TORCH_LMS=f"cpu:limit=8MiB,store={folder}",
        )
    assert (result.returncode, result.stderr) == (0, ""), result
    result = python("import torch", TORCH_LMS="cpu:limit=8")
    assert result.returncode != 0 and "TORCH_LMS: limit: '8' is 8 bytes" in result.stderr, result


def check_torch_lms_run() -> None:
    with directory() as folder:
        program = os.path.join(folder, "program.py")
        with open(program, "w") as file:
            file.write("import sys, torch\nprint(sys.argv[1:], torch.lms.limit('cpu'))\nsys.exit(3)\n")
        result = subprocess.run(
            [sys.executable, "-m", "torch.lms", "run", "--limit", "8MiB", "--device", "cpu", program, "--limit", "x"],
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert (result.returncode, result.stderr) == (3, b""), result
    assert result.stdout.decode() == f"['--limit', 'x'] {8 * MIB}\n", result

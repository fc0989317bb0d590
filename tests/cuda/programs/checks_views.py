"""Memory of CUDA tensors in the hands of code that PyTorch's dispatcher does not see: views, raw pointers, launches."""

from __future__ import annotations

import ctypes
import gc
import os
import weakref

import torch
import torch.utils.dlpack
from common import raises
from cuda_support import MIB, away, data, enable, equal, lost, page_out, simulate, simulator, stand_in_for_fill, stat
from torch.nn.parallel import comm

ILLEGAL_ADDRESS = 700


def runtime() -> ctypes.CDLL:
    major = (torch.version.cuda or "").partition(".")[0]
    return ctypes.CDLL(f"libcudart.so.{major}")


def read(address: int, count: int) -> tuple[int, torch.Tensor]:
    """What a program gets that knows nothing of PyTorch: the status of its copy, and the contents."""
    target = torch.zeros(count)
    status = runtime().cudaMemcpy(
        ctypes.c_void_p(target.data_ptr()), ctypes.c_void_p(address), ctypes.c_size_t(4 * count), ctypes.c_int(2)
    )
    return status, target


def right_bytes(address: int, expected: torch.Tensor) -> None:
    status, actual = read(address, expected.numel())
    assert status == 0 and torch.equal(actual, expected), status


def pinned() -> int:
    return stat("pinned_bytes.current")


def check_dlpack_view_stays_resident() -> None:
    expected = data(4)
    enable()
    for export in (
        torch.from_dlpack,
        lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)),
        lambda t: torch.from_dlpack(torch.to_dlpack(t)),
        lambda t: torch.from_dlpack(t.__dlpack__(stream=1)),
    ):
        tensor = away(expected)
        view = export(tensor)
        assert torch.lms.reclaim("cuda") == 0 and pinned() == 4 * MIB
        right_bytes(view.data_ptr(), expected)
        view.copy_(data(4, 1))  # writes show through
        equal(tensor, data(4, 1))
        del tensor
        assert torch.lms.reclaim("cuda") == 0
        equal(view, data(4, 1))
        del view
        assert pinned() == 0 and stat("allocated_bytes.current") == 0


def check_capsule_that_is_not_taken() -> None:
    enable()
    tensor = away(data(4))
    capsule = torch.utils.dlpack.to_dlpack(tensor)
    assert pinned() == 4 * MIB
    del capsule
    assert pinned() == 0
    page_out()
    equal(tensor, data(4))


def check_exports_in_c_are_not_offered() -> None:
    stock = vars(torch.Tensor).get("__dlpack_c_exchange_api__")
    enable()
    assert not hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
    torch.lms.disable("cuda")
    assert vars(torch.Tensor).get("__dlpack_c_exchange_api__") is stock


def check_array_interface_pins_while_the_tensor_lives() -> None:
    expected = data(4)
    enable()
    tensor = away(expected)
    for _ in range(3):
        interface = tensor.__cuda_array_interface__
    assert interface["shape"] == (MIB,) and interface["typestr"] == "<f4"
    assert torch.lms.reclaim("cuda") == 0 and pinned() == 4 * MIB
    right_bytes(interface["data"][0], expected)
    part = tensor[1000:]
    owner = part.detach()  # what a consumer keeps
    other = owner.__cuda_array_interface__
    del tensor, part
    gc.collect()
    assert torch.lms.reclaim("cuda") == 0
    right_bytes(other["data"][0], expected[1000:])
    gone = weakref.ref(owner)
    del owner
    assert gone() is None and pinned() == 0 and stat("allocated_bytes.current") == 0


def check_array_interface_follows_the_memory() -> None:
    enable()
    tensor = away(data(4))
    first = tensor.__cuda_array_interface__["data"][0]
    tensor.data = away(data(8, 1))
    second = tensor.__cuda_array_interface__["data"][0]
    assert first != second and pinned() == 8 * MIB
    right_bytes(second, data(8, 1))
    from torch.lms import _handout

    del tensor
    assert pinned() == 0 and not _handout._interfaces


def check_array_interface_is_as_stock() -> None:
    enable()
    tensor = away(data(4))
    assert not hasattr(data(1), "__cuda_array_interface__")
    assert not hasattr(tensor.to_sparse() if tensor.numel() < 2 else data(1).to_sparse(), "__cuda_array_interface__")
    with raises(RuntimeError, "requires grad"):
        tensor.detach().requires_grad_().__cuda_array_interface__  # noqa: B018
    assert torch.empty(0, device="cuda").__cuda_array_interface__["data"][0] == 0
    small = torch.empty(8, device="cuda")
    assert small.__cuda_array_interface__["data"][0] == small.data_ptr()
    strided = tensor.view(1024, 1024).t()
    assert strided.__cuda_array_interface__["strides"] == (4, 4096)
    assert pinned() == 4 * MIB
    del strided
    assert pinned() == 0


def check_pin_for_raw_pointers() -> None:
    expected = data(4)
    enable()
    tensor = away(expected)
    address = tensor.data_ptr()
    with torch.lms.pin(tensor):
        assert torch.lms.reclaim("cuda") == 0
        right_bytes(address, expected)
    page_out()
    equal(tensor, expected)


def check_unforeseen_access_is_an_error_or_right() -> None:
    expected = data(4)
    enable()
    tensor = away(expected)
    status, actual = read(tensor.data_ptr(), MIB)
    if status == 0:
        assert torch.equal(actual, expected)
    else:
        assert status == ILLEGAL_ADDRESS and not actual.any()
        assert lost()


def check_unforeseen_read_is_right_where_it_is_asked_for() -> None:
    os.environ["LMS_CUDA_READABLE"] = "1"
    expected = data(4)
    enable()
    tensor = away(expected)
    for value in (expected, data(4, 1)):
        tensor.copy_(value)
        page_out()
        torch.cuda.synchronize()
        torch.empty(MIB, device="cuda")  # copies that are over are noticed now and then
        right_bytes(tensor.data_ptr(), value)
        assert stat("away_bytes.current") == 4 * MIB
        equal(tensor, value)


def check_address_of_what_is_away_shows_nothing() -> None:
    # Its memory is another block's now, and must not be seen at the old address.
    def accessible(tensor: torch.Tensor) -> bool:
        address, size = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_uint64(4 * MIB)
        return simulator().sim_accessible(0, address, size, 1) != 0

    enable(8 * MIB)
    tensors = [data(4, seed).cuda() for seed in range(4)]
    assert sum(map(accessible, tensors)) == 2
    for seed, tensor in enumerate(tensors):
        equal(tensor, data(4, seed))
    assert sum(map(accessible, tensors)) == 2


def check_graph_captured_while_its_tensors_are_away() -> None:
    stand_in_for_fill()
    enable(24 * MIB)
    source, target, other = away(data(4)), away(torch.zeros(MIB)), away(data(4, 9))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        target.copy_(source)
    assert torch.lms.reclaim("cuda") == 0  # what the graph uses stays
    source.copy_(data(4, 5))
    filler = [data(4, seed).cuda() for seed in range(6)]
    graph.replay()
    equal(target, data(4, 5))
    equal(other, data(4, 9))
    for seed, tensor in enumerate(filler):
        equal(tensor, data(4, seed))


def check_resize_of_a_storage_that_is_away() -> None:
    """FSDP does this to its parameters; it moves the contents outside of operations."""
    expected = data(4)
    enable()
    for size in (8 * MIB, 2 * MIB):
        tensor = away(expected)
        storage = tensor.untyped_storage()
        storage.resize_(size)
        count = min(size, 4 * MIB) // 4
        assert storage.nbytes() == size
        equal(torch.empty(0, device="cuda").set_(storage, 0, (count,)), expected[:count])
    assert simulator().sim_device_error(0) == 0
    tensor = away(expected)
    before = stat("in.bytes")
    tensor.untyped_storage().resize_(0)
    tensor.untyped_storage().resize_(4 * MIB)
    assert stat("in.bytes") == before  # there was nothing to move


def check_scatter_and_gather_between_devices() -> None:
    simulate(devices=2)
    expected = data(8).view(2, MIB)
    enable(16 * MIB, "cuda:0")
    enable(16 * MIB, "cuda:1")
    tensor = away(expected, "cuda:0")
    parts = comm.scatter(tensor, [0, 1])
    page_out("cuda:0")
    page_out("cuda:1")
    together = comm.gather(parts, destination=1)
    page_out("cuda:1")
    equal(together, expected)
    assert pinned() == stat("pinned_bytes.current", "cuda:1") == 0


def check_handout_is_stock_when_off() -> None:
    def attributes() -> list[object]:
        return [
            torch._C._to_dlpack,
            getattr(torch._C, "_to_dlpack_versioned", None),
            torch.to_dlpack,
            torch.utils.dlpack.to_dlpack,
            vars(torch.Tensor)["__cuda_array_interface__"],
            vars(torch.Tensor).get("__dlpack_c_exchange_api__"),
            torch._C._broadcast_coalesced,
            torch.cuda.memory_summary,
            torch.cuda.memory.memory_summary,
        ]

    stock = attributes()
    torch.lms.enable("cpu", limit=MIB)
    on_cpu = attributes()
    enable()
    assert sum(now is not before for now, before in zip(attributes(), stock, strict=True)) >= 7
    enable(8 * MIB)  # reconfiguring does not wrap twice
    torch.lms.disable("cuda")
    assert all(now is before for now, before in zip(attributes(), on_cpu, strict=True))
    torch.lms.disable("cpu")
    assert all(now is before for now, before in zip(attributes(), stock, strict=True))


def check_save_and_load() -> None:
    import io

    expected = data(4)
    enable()
    for zipped in (True, False):
        file = io.BytesIO()
        torch.save(away(expected), file, _use_new_zipfile_serialization=zipped)
        file.seek(0)
        loaded = torch.load(file)
        assert loaded.is_cuda
        page_out()
        equal(loaded, expected)

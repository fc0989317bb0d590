"""Memory handed to code that bypasses the dispatcher: NumPy, DLPack, files, sockets, raw pointers, serialisation."""

from __future__ import annotations

import copy
import ctypes
import io
import os
import pickle
import socket
import threading

import numpy
import torch
import torch.utils.dlpack
from common import MIB, directory, raises
from support import away, data, enable, no_faults, page_out, pressure, same, stat


def pinned_bytes() -> int:
    return stat("pinned_bytes.current")


def check_numpy_view_stays_resident() -> None:
    expected = data(2)
    enable()
    tensor = away(expected)
    with no_faults():
        view = tensor.numpy()
        assert pinned_bytes() == 2 * MIB
        pressure()
        torch.lms.reclaim("cpu")
        assert (view == expected.numpy()).all()
        view[5] = 42.0  # writes show through
        assert float(tensor[5]) == 42.0
        part = view[10:20]
        del view, tensor
        pressure()
        assert (part == expected.numpy()[10:20]).all()  # a view of the view keeps the memory
    del part
    assert pinned_bytes() == 0 and stat("allocated_bytes.current") == 0


def check_numpy_is_as_stock() -> None:
    def outcome(make: object) -> object:
        try:
            array = make()  # type: ignore[operator]
            return (array.dtype.str, array.shape, array.strides, array.flags.writeable, array.tobytes())
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            return (type(error), str(error))

    base = data(1).view(512, 512)
    cases = [
        lambda t: t.numpy(),
        lambda t: t.t()[3:, ::2].numpy(),
        lambda t: t.clone().requires_grad_().numpy(),
        lambda t: t.clone().requires_grad_().numpy(force=True),
        lambda t: torch.complex(t, t).conj().numpy(),
        lambda t: torch.complex(t, t).conj().numpy(force=True),
        lambda t: torch.view_as_real(torch.complex(t, t).conj())[..., 1].numpy(),
        lambda t: torch.complex(t, t).conj().imag.numpy(),
        lambda t: t.to(torch.bfloat16).numpy(),
        lambda t: t.to_sparse().numpy(),
        lambda t: t[:0].numpy(),
        lambda t: t.numpy(1, 2, 3),
        lambda t: numpy.asarray(t, dtype=numpy.float64),
        lambda t: numpy.array(t),
        lambda t: numpy.array(t, copy=False),
        lambda t: numpy.sin(t).numpy(),
        lambda t: numpy.from_dlpack(t),
        lambda t: numpy.from_dlpack(t.clone().requires_grad_()),
        lambda t: t.expand(2, 512, 512).numpy(),
        lambda t: torch.nn.Parameter(t).detach().numpy(),
        lambda t: t.bool().numpy(),
        lambda t: torch.empty(1 << 18, device="meta").numpy(),
    ]
    stock = [outcome(lambda case=case: case(base.clone())) for case in cases]
    enable()
    for index, (case, expected) in enumerate(zip(cases, stock, strict=True)):
        actual = outcome(lambda case=case: case(away(base)))
        assert actual == expected, (index, actual[:4], expected[:4])
    tensor = away(base)
    view = tensor.numpy()
    with raises(RuntimeError, "resiz"):
        tensor.resize_(10 * MIB)  # as in stock: the view must not dangle
    del view


def check_numpy_force_copies_are_pinned_too() -> None:
    enable()
    plain = data(1).view(512, 512)
    values = torch.complex(plain, plain).conj()
    array = values.numpy(force=True)  # a fresh tensor that only the array owns
    pressure()
    torch.lms.reclaim("cpu")
    with no_faults():
        assert (array.imag == -plain.numpy()).all()


def check_dlpack_view_stays_resident() -> None:
    expected = data(1)
    enable()
    with no_faults():
        for export in (
            numpy.from_dlpack,
            lambda t: numpy.from_dlpack(t, copy=True),
            lambda t: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(t)).numpy(),
            lambda t: torch.from_dlpack(torch.to_dlpack(t)).numpy(),
            lambda t: torch.from_dlpack(t).numpy(),
        ):
            view = export(away(expected))
            pressure()
            torch.lms.reclaim("cpu")
            assert (view == expected.numpy()).all()
            del view
    assert pinned_bytes() == 0


def check_array_and_memoryview() -> None:
    expected = data(1)
    enable()
    tensor = away(expected)
    with no_faults():
        asarray = numpy.asarray(tensor)
        view = memoryview(tensor.numpy()).cast("B")
        shared = torch.from_numpy(asarray)
        pressure()
        torch.lms.reclaim("cpu")
        assert bytes(view) == expected.numpy().tobytes()
        shared.add_(1)
        same(tensor, expected + 1)


def check_views_kept_across_training() -> None:
    torch.manual_seed(0)
    enable(8 * MIB)
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(12)))
    views = [parameter.detach().numpy() for parameter in model.parameters() if parameter.dim() == 2][:2]
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(data(0.5).view(256, 512)).sum().backward()
        optimizer.step()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    for view, parameter in zip(views, matrices[: len(views)], strict=True):
        assert (view == parameter.detach().clone().numpy()).all()
    assert stat("out.bytes") > 0


def check_system_calls_on_views() -> None:
    expected = data(3)
    content = expected.numpy().tobytes()
    enable()
    tensor = away(expected)
    with directory() as folder:
        path = os.path.join(folder, "data")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
        view = memoryview(tensor.numpy()).cast("B")
        torch.lms.reclaim("cpu")
        assert os.write(descriptor, view) == len(content)
        assert os.pread(descriptor, len(content), 0) == content
        os.close(descriptor)

        away(expected).numpy().tofile(path)
        with open(path, "rb") as file:
            assert file.read() == content
        with open(path, "rb", buffering=0) as file:
            target = away(torch.zeros_like(expected))
            assert file.readinto(target.numpy()) == len(content)
        page_out()
        same(target, expected)
        with open(path, "wb", buffering=0) as file:
            assert file.write(away(expected).numpy()) == len(content)


def check_socket_send_and_receive() -> None:
    expected = data(3)
    enable()
    left, right = socket.socketpair()
    target = away(torch.zeros_like(expected))
    source = away(expected)
    sender = threading.Thread(target=lambda: left.sendall(source.numpy()))
    sender.start()
    view, received = memoryview(target.numpy()).cast("B"), 0
    while received < len(view):
        received += right.recv_into(view[received:])
    sender.join()
    del view
    page_out()
    same(target, expected)


def check_raw_pointers() -> None:
    # No boundary is known here: the fault handler brings the block in, for reading and for writing.
    expected = data(2, dtype=torch.int32)
    enable()
    tensor = away(expected)
    before = stat("faults")
    values = (ctypes.c_int32 * expected.numel()).from_address(tensor.data_ptr())
    assert values[77] == int(expected[77])
    assert stat("faults") > before
    page_out()
    values[77] = 123
    page_out()
    assert values[77] == 123 and values[78] == int(expected[78])
    expected[77] = 123
    page_out()
    same(tensor, expected)
    page_out()
    ctypes.memset(tensor.data_ptr(), 0, MIB)
    page_out()
    expected.view(-1)[: MIB // 4] = 0
    same(tensor, expected)


def check_raw_read_then_write_of_a_clean_block() -> None:
    # A read brings the block in with its copy still valid; the write that follows must invalidate that copy.
    expected = data(1, dtype=torch.int32)
    enable()
    tensor = away(expected)
    values = (ctypes.c_int32 * expected.numel()).from_address(tensor.data_ptr())
    assert values[9] == int(expected[9])
    values[9] = -5
    expected[9] = -5
    page_out()
    same(tensor, expected)


def check_pin_keeps_resident() -> None:
    expected = data(2)
    enable()
    tensor = away(expected)
    read, write = os.pipe()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.write.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    with torch.lms.pin(tensor), no_faults():
        assert pinned_bytes() == 2 * MIB
        pressure()
        torch.lms.reclaim("cpu")
        assert libc.write(write, tensor.data_ptr(), 4096) == 4096
    assert pinned_bytes() == 0
    assert os.read(read, 4096) == expected.numpy().tobytes()[:4096]
    with torch.lms.pin(tensor, tensor), torch.lms.pin(tensor):
        del tensor  # the pin object holds it
        assert stat("allocated_bytes.current") >= 2 * MIB
    with raises(TypeError, "tensors[1]"):
        torch.lms.pin(expected, 3)
    with torch.lms.pin(), torch.lms.pin(expected):
        pass  # nothing to pin, and memory that is not LMS's


def check_storage_access() -> None:
    expected = data(1, dtype=torch.int32)
    enable()
    tensor = away(expected)
    storage = tensor.untyped_storage()
    assert bytes(storage[4 * 9 : 4 * 10]) == expected.numpy()[9:10].tobytes()
    page_out()
    assert away(expected).tolist() == expected.tolist()
    page_out()
    assert int(tensor[99].item()) == int(expected[99])
    page_out()
    copied = torch.UntypedStorage(storage.nbytes())
    copied.copy_(storage)
    same(torch.empty(0, dtype=torch.int32).set_(copied), expected)
    assert repr(tensor) == repr(expected)


def check_storage_files() -> None:
    expected = data(2)
    enable()
    source, target = away(expected), away(torch.zeros_like(expected))
    with directory() as folder, open(os.path.join(folder, "storage"), "w+b", buffering=0) as file, no_faults():
        source.untyped_storage()._write_file(file, True, True, 1)
        torch.lms.reclaim("cpu")
        file.seek(0)
        target.untyped_storage()._set_from_file(file, 0, True, 1)
        same(target, expected)


def saved(value: object, zipped: bool, target: str | io.BytesIO) -> None:
    torch.save(value, target, _use_new_zipfile_serialization=zipped)


def check_save_and_load_zip_file() -> None:
    save_and_load(zipped=True)


def check_save_and_load_legacy_file() -> None:
    save_and_load(zipped=False)


def save_and_load(zipped: bool) -> None:
    # Large enough that no buffer in between copies it: the system call gets the tensor's own memory.
    expected = {"a": data(8, 1), "b": data(0.01, 2), "c": data(2, 3, torch.float64)}
    enable()
    with directory() as folder:
        path = os.path.join(folder, "tensors.pt")
        value = {key: tensor.clone() for key, tensor in expected.items()}
        value["alias"] = value["a"][100:]
        expected["alias"] = expected["a"][100:]
        page_out()
        saved(value, zipped, path)
        page_out()
        loaded = torch.load(path)
        page_out()
        if zipped:  # the loader of the old format takes memory from the stock allocator
            assert stat("away_bytes.current") >= 24 * MIB  # what was loaded is pageable as well
        same([loaded[key] for key in expected], list(expected.values()))
        assert loaded["alias"].untyped_storage().data_ptr() == loaded["a"].untyped_storage().data_ptr()
        page_out()
        with open(path, "wb") as file:
            saved(value, zipped, file)  # type: ignore[arg-type]
        page_out()
        with open(path, "rb") as file:
            loaded = torch.load(file)
        same([loaded[key] for key in expected], list(expected.values()))
        memory = io.BytesIO()
        page_out()
        saved(value, zipped, memory)
        memory.seek(0)
        page_out()
        loaded = torch.load(memory)
        page_out()
        same([loaded[key] for key in expected], list(expected.values()))


class Unbuffered:
    """A file object whose write() hands the buffer straight to a system call."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def write(self, buffer: object) -> int:
        torch.lms.reclaim("cpu")
        view, done = memoryview(buffer).cast("B"), 0  # type: ignore[arg-type]
        while done < len(view):
            done += os.write(self.descriptor, view[done:])
        return done

    def flush(self) -> None:
        pass


def check_save_to_unbuffered_writer() -> None:
    expected = data(8, 1)
    enable()
    with directory() as folder:
        for zipped in (True, False):
            path = os.path.join(folder, str(zipped))
            saved([away(expected)], zipped, Unbuffered(path))  # type: ignore[arg-type]
            same(torch.load(path), [expected])


def check_load_mmap() -> None:
    expected = data(8, 1)
    enable()
    with directory() as folder:
        path = os.path.join(folder, "tensors.pt")
        torch.save({"a": away(expected)}, path)
        loaded = torch.load(path, mmap=True)
        pressure()
        torch.lms.reclaim("cpu")
        same(loaded["a"], expected)
        same(loaded["a"] + 1, expected + 1)


def check_pickle_and_deepcopy() -> None:
    expected = data(2, 1)
    enable()
    same(pickle.loads(pickle.dumps(away(expected))), expected)
    same(pickle.loads(pickle.dumps(away(expected), protocol=2)), expected)
    same(copy.deepcopy(away(expected)), expected)
    same(copy.copy(away(expected)), expected)
    torch.manual_seed(0)
    module = torch.nn.Linear(512, 512)
    page_out()
    twin = copy.deepcopy(module)
    page_out()
    same(list(twin.parameters()), list(module.parameters()))
    page_out()
    restored = pickle.loads(pickle.dumps(module.state_dict()))
    same(list(restored.values()), list(module.state_dict().values()))


def check_share_memory() -> None:
    expected = data(2, 1)
    enable()
    for strategy in ("file_descriptor", "file_system"):
        torch.multiprocessing.set_sharing_strategy(strategy)
        tensor = away(expected)
        tensor.share_memory_()
        assert tensor.is_shared()
        pressure()
        torch.lms.reclaim("cpu")
        same(tensor, expected)
        child = os.fork()
        if child == 0:
            tensor.add_(1)
            os._exit(0)
        os.waitpid(child, 0)
        same(tensor, expected + 1)  # shared it is


def check_handout_is_stock_when_off() -> None:
    def attributes() -> list[object]:
        return [
            torch.Tensor.numpy,
            vars(torch.Tensor).get("numpy"),
            torch._C._to_dlpack,
            torch._C._to_dlpack_versioned,
            torch.to_dlpack,
            torch.utils.dlpack.to_dlpack,
        ]

    stock = attributes()
    enable()
    assert all(now is not before for now, before in zip(attributes(), stock, strict=True))
    enable(8 * MIB)  # reconfiguring does not wrap twice
    tensor = away(data(1))
    view = tensor.numpy()
    torch.lms.disable("cpu")
    assert all(now is before for now, before in zip(attributes(), stock, strict=True))
    assert (view == data(1).numpy()).all()
    del view

"""Every shape of operator input and output: stock and under LMS the same bits, with inputs away, and without a fault."""

from __future__ import annotations

from typing import Any

import torch
from common import MIB, raises
from support import away, data, enable, no_faults, page_out, same, same_as_stock, stat
from torch.func import functional_call, grad, jacrev, jvp, vmap


def matrix(seed: int) -> torch.Tensor:
    return data(1, seed).view(512, 512)


def check_tensor_inputs() -> None:
    same_as_stock(lambda: [matrix(1), matrix(2)], lambda t: [t[0] + t[1], t[0] @ t[1], torch.sin(t[0]), t[1].sum()])


def check_tensor_list_inputs() -> None:
    same_as_stock(
        lambda: [matrix(i) for i in range(6)],
        lambda t: [torch.cat(t), torch.stack(t[:2]), torch.block_diag(*t[:2]), torch.einsum("ij,jk,kl->il", t[:3])],
    )


def check_foreach_lists() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        sums = torch._foreach_add(t[:3], t[3:])
        torch._foreach_mul_(sums, t[3:])
        torch._foreach_addcdiv_(sums, t[:3], torch._foreach_add(torch._foreach_abs(t[3:]), 1.0), 0.5)
        return [*sums, *torch._foreach_norm(sums)]

    same_as_stock(lambda: [matrix(i) for i in range(6)], use)


def check_optional_tensors() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        image = t[0].view(4, 16, 64, 64)
        return [
            torch.nn.functional.conv2d(image, t[1].view(-1)[: 16 * 16 * 9].view(16, 16, 3, 3), None, padding=1),
            torch.nn.functional.linear(t[0], t[1], t[2][0]),
            torch.clamp(t[0], min=t[1], max=None),
        ]

    same_as_stock(lambda: [matrix(i) for i in range(3)], use)


def check_optional_tensor_lists() -> None:
    def make() -> list[torch.Tensor]:
        rows = torch.randint(0, 512, (512, 512), generator=torch.Generator().manual_seed(0))
        return [matrix(1), rows, matrix(2)]

    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        taken = t[0][:, t[1]]  # aten::index takes a list of optional tensors
        t[0][None, t[1][:, 0]] = 0.0
        t[0].index_put_((t[1], t[1].flip(0)), t[2], accumulate=True)
        return [taken.sum(-1), t[0]]

    same_as_stock(make, use)


def check_generic_lists_and_tuples() -> None:
    @torch.jit.script
    def nested(lists: list[list[torch.Tensor]]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        total = torch.zeros_like(lists[0][0])
        for inner in lists:
            for tensor in inner:
                total = total + tensor
        return total, {"twice": total * 2}

    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        total, named = nested([t[:2], t[2:]])
        return [total, named["twice"]]

    same_as_stock(lambda: [matrix(i) for i in range(4)], use)


def check_custom_operator_with_lists() -> None:
    @torch.library.custom_op("lms_test::weighted", mutates_args={"accumulators"})
    def weighted(tensors: list[torch.Tensor], accumulators: list[torch.Tensor]) -> list[torch.Tensor]:
        for tensor, accumulator in zip(tensors, accumulators, strict=True):
            accumulator += tensor
        return [tensor * 2 for tensor in tensors]

    same_as_stock(lambda: [matrix(i) for i in range(4)], lambda t: weighted(t[:2], t[2:]))


def check_named_tuple_outputs() -> None:
    same_as_stock(
        lambda: [matrix(1)],
        lambda t: [
            *torch.max(t[0], dim=1),
            *torch.sort(t[0], dim=0, stable=True),
            *torch.topk(t[0], 200),
            *torch.linalg.qr(t[0]),
            *torch.frexp(t[0]),
        ],
    )


def check_in_place() -> None:
    def use(t: list[torch.Tensor]) -> None:
        t[0].add_(t[1]).mul_(2).clamp_(-100, 100)
        t[1].copy_(t[0].t())
        t[0].zero_()
        t[2].fill_(3).uniform_(generator=torch.Generator().manual_seed(1))
        torch.relu_(t[1])

    same_as_stock(lambda: [matrix(i) for i in range(3)], use)


def check_out_variants() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        torch.add(t[0], t[1], out=t[2])
        torch.matmul(t[0], t[1], out=t[3])
        values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
        torch.max(t[0], dim=0, out=(values, indices))
        resized = torch.empty(0)
        torch.mul(t[0], t[1], out=resized)
        return [values, indices, resized]

    same_as_stock(lambda: [matrix(i) for i in range(4)], use)


def check_views() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        view = t[0][100:300, ::3]
        view += 1
        t[0].t()[7].mul_(2)
        t[1].view(-1).as_strided((1000,), (3,), 11).neg_()
        halves = t[1].split(256)
        halves[1].copy_(halves[0])
        return [
            view.contiguous(),
            t[0].expand(3, 512, 512).sum(0),
            t[1].unfold(0, 2, 2).sum(-1),
            t[0].diagonal().clone(),
        ]

    same_as_stock(lambda: [matrix(i) for i in range(2)], use)


def check_views_bring_nothing_in() -> None:
    enable()
    whole = matrix(1)
    page_out()
    before = stat("in.blocks")
    views = [whole.t(), whole[1:, ::2], whole.view(-1), whole.detach(), *whole.split(100), whole.unfold(0, 3, 1)]
    views += [
        whole.contiguous(),
        whole.reshape(256, 1024),
        whole.to(torch.float32),
        whole.expand(2, 512, 512),
        whole.data,
    ]
    assert stat("in.blocks") == before
    same(views[1], matrix(1)[1:, ::2])
    copies = [whole.t().contiguous(), whole.t().reshape(-1), whole.to(torch.float64)]  # read by operations of their own
    page_out()
    same(copies, [matrix(1).t().contiguous(), matrix(1).t().reshape(-1), matrix(1).double()])


def check_written_data_leaves_again() -> None:
    # A block that has a clean copy in the store and is written again must not come back as that copy.
    enable()
    tensor, other = matrix(1), matrix(2)
    expected = tensor.clone()
    for round_ in range(4):
        page_out()
        same(tensor, expected)  # reading leaves the copy valid
        writes = [
            lambda t: t.add_(1.0),
            lambda t: t[3].fill_(7.0),
            lambda t: torch.mul(t, 2.0, out=t),
            lambda t: t.numpy().__setitem__((0, 0), 5.0),
        ]
        with torch.lms.pin(expected):
            writes[round_](tensor)
            writes[round_](expected)
        page_out()
        same(tensor, expected)
    same(other, matrix(2))


def check_set_and_resize() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        target = torch.empty(0)
        target.set_(t[0].untyped_storage(), 1024, (256, 512))
        target.add_(1)
        t[1].resize_(1024, 512)
        t[1][512:].fill_(1)
        t[2].resize_(10)
        t[3].data = t[0] * 2
        return [target.clone()]

    same_as_stock(lambda: [matrix(i) for i in range(4)], use)


def check_copy_on_write() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        lazy = torch._lazy_clone(t[0])
        lazy.add_(1)
        untouched = torch._lazy_clone(t[1])
        return [lazy, untouched]

    same_as_stock(lambda: [matrix(i) for i in range(2)], use)


def check_sparse_coo() -> None:
    def make() -> list[torch.Tensor]:
        indices = torch.randint(0, 4096, (2, 100_000), generator=torch.Generator().manual_seed(0))
        return [torch.sparse_coo_tensor(indices, data(1)[:100_000], (4096, 4096)), data(1, 2).view(4096, 64)]

    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        merged = t[0].coalesce()
        return [torch.sparse.mm(merged, t[1]), merged.to_dense()[::8], (merged + merged), merged * 2, merged.t()]

    same_as_stock(make, use)


def check_sparse_compressed() -> None:
    def make() -> list[torch.Tensor]:
        dense = torch.where(data(4, 3).view(1024, 1024).remainder(7) < 1, data(4, 4).view(1024, 1024), 0.0)
        return [dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((8, 8)), data(1, 5).view(1024, 256)]

    same_as_stock(
        make, lambda t: [t[0] @ t[3], t[1] @ t[3], t[2].to_dense(), t[0].to_dense(), t[0].to_sparse_coo(), t[0] * 3]
    )


def check_nested_strided() -> None:
    def make() -> list[torch.Tensor]:
        return [torch.nested.nested_tensor([matrix(1), matrix(2)[:100]]), matrix(3)]

    same_as_stock(
        make, lambda t: [t[0] * 2, torch.nn.functional.linear(t[0], t[1]), torch.nested.to_padded_tensor(t[0], 0.0)]
    )


def check_nested_jagged() -> None:
    def make() -> list[torch.Tensor]:
        return [torch.nested.nested_tensor([matrix(1), matrix(2)[:100]], layout=torch.jagged), matrix(3)]

    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        return [(t[0] * 2).values(), (t[0] @ t[1]).values(), torch.nn.functional.gelu(t[0]).sum(1)]

    expected = use(make())
    enable()
    inputs = make()
    page_out()
    with no_faults():
        actual = use(inputs)
    page_out()
    same(actual, expected)


def check_vmap() -> None:
    same_as_stock(
        lambda: [data(2, 1).view(8, 256, 256), data(2, 2).view(8, 256, 256)],
        lambda t: [vmap(torch.matmul)(*t), vmap(lambda a: torch.sin(a).sum(), in_dims=1)(t[0])],
    )


def check_func_grad() -> None:
    same_as_stock(
        lambda: [matrix(1), matrix(2)],
        lambda t: [
            grad(lambda a: torch.tanh(a @ t[1]).sum())(t[0]),
            vmap(grad(lambda a: (a * a).sum()))(t[0]),
            jvp(torch.sin, (t[0],), (t[1],)),
            jacrev(lambda a: (a @ t[0]).view(4, 128).sum(1))(t[1][0]),
        ],
    )


def check_functional_call() -> None:
    def make() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [matrix(1), matrix(2), matrix(3)[0]]

    def use(t: list[torch.Tensor]) -> torch.Tensor:
        module = torch.nn.Linear(512, 512, device="meta")
        loss = grad(
            lambda w, b: functional_call(module, {"weight": w, "bias": b}, (t[0],)).pow(2).sum(), argnums=(0, 1)
        )
        return loss(t[1], t[2])

    same_as_stock(make, use)


def check_meta_and_empty_and_small() -> None:
    def use(t: list[torch.Tensor]) -> list[object]:
        meta = torch.empty(1 << 20, device="meta") + 1
        empty = torch.empty(0, 512) + torch.empty(0, 512)
        return [meta.shape, empty, t[0][0, 0] + 1, torch.tensor(3.0) * 2]

    same_as_stock(lambda: [matrix(1)], use)


def check_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    enable()
    kept = matrix(1)
    page_out()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = torch.empty(1 << 20) + 1
        assert (fake + torch.ones(1 << 20)).shape == (1 << 20,)
    same(kept, matrix(1))


def check_tensor_subclass() -> None:
    class Tagged(torch.Tensor):
        pass

    same_as_stock(
        lambda: [matrix(1), matrix(2)],
        lambda t: [(t[0].as_subclass(Tagged) @ t[1]).as_subclass(torch.Tensor), t[0].as_subclass(Tagged).numpy().sum()],
    )


def check_wrapper_subclass_and_dispatch_mode() -> None:
    from torch.testing._internal.two_tensor import TwoTensor
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names: list[str] = []

    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        product = TwoTensor(t[0], t[1]) @ TwoTensor(t[1], t[0])
        with Log():
            t[0] + t[1]
            t[0].numpy()
        return [product.a, product.b]

    same_as_stock(lambda: [matrix(1), matrix(2)], use)
    assert names and not [name for name in names if name.startswith("lms")], names  # ours stay hidden


def check_inference_mode() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.inference_mode():
            return [t[0] @ t[1], t[0].add_(1)]

    same_as_stock(lambda: [matrix(1), matrix(2)], use)


def check_dtypes() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        kinds = (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool, torch.complex64)
        return [(t[0].to(kind) == t[1].to(kind)) for kind in kinds] + [t[0].to(torch.complex64).conj().sum()]

    same_as_stock(lambda: [matrix(1), matrix(2)], use)


def check_quantized() -> None:
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        quantized = torch.quantize_per_tensor(t[0], 0.5, 10, torch.quint8)
        return [quantized.dequantize(), quantized.int_repr()]

    same_as_stock(lambda: [matrix(1)], use)


def check_convolutions_and_rnn_workspaces() -> None:
    # Libraries behind these keep raw pointers to memory from the allocator across calls.
    def use(t: list[torch.Tensor]) -> list[torch.Tensor]:
        image = t[0].view(4, 16, 64, 64)
        weight = t[1].view(-1)[: 32 * 16 * 9].view(32, 16, 3, 3)
        torch.manual_seed(0)
        lstm = torch.nn.LSTM(512, 64)
        results = []
        for _ in range(3):
            results.append(torch.nn.functional.conv2d(image, weight, padding=1))
            results.append(lstm(t[2].view(32, 16, 512))[0].detach())
            if torch.lms.is_enabled("cpu"):
                torch.lms.reclaim("cpu")
        return results

    same_as_stock(lambda: [matrix(i) for i in range(3)], use)


def check_many_small_limits() -> None:
    # The same computation at limits from ample to nothing gives the same bits.
    def use() -> list[torch.Tensor]:
        parts = [matrix(i) for i in range(8)]
        for _ in range(3):
            parts = [torch.tanh(a @ b / 512) for a, b in zip(parts, parts[1:] + parts[:1], strict=True)]
        return parts

    expected = use()
    for limit in (64 * MIB, 6 * MIB, 4 * MIB, MIB, 4096, 0):
        enable(limit)
        same(use(), expected)
    assert stat("out.bytes") > 8 * MIB


def check_call_that_no_observer_can_be_shown() -> None:
    from torch.lms import _unsigned

    pinned = []

    class Refused:
        """An argument that takes the call over, and turns down so many of them."""

        def __init__(self, times: int) -> None:
            self.left = times

        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> torch.Tensor:
            pinned.append(stat("pinned_bytes.current"))
            self.left -= 1
            if self.left >= 0:
                raise RuntimeError("value cannot be converted to type int64_t without overflow")
            return args[0] + 1 + (kwargs or {}).get("alpha", 0)

    _unsigned._needed = True  # in every release
    enable()
    same(torch.add(away(data(4)), Refused(1), alpha=2), data(4) + 3)
    assert pinned[0] == 0 and pinned[1] == 4 * MIB == stat("pinned_bytes.current") + 4 * MIB, pinned
    del pinned[:]
    same(away(data(4)).mul(Refused(1)), data(4) + 1)
    assert pinned[0] == 0 and pinned[1] == 4 * MIB == stat("pinned_bytes.current") + 4 * MIB, pinned
    del pinned[:]
    with raises(RuntimeError, "int64_t"):
        torch.add(data(4), Refused(2))
    assert len(pinned) == 2, pinned
    with no_faults():
        same(away(data(4)) + 1, data(4) + 1)  # is observed again
    torch.lms.disable("cpu")
    with raises(RuntimeError, "int64_t"):
        torch.add(data(4), Refused(1))
    enable()
    same(torch.add(data(4), Refused(1)), data(4) + 1)

# Owner(s): ["module: memory usage"]

import ctypes
import os
import tempfile

import torch
from torch.testing._internal.common_utils import (
    TestCase,
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
)

MIB = 1 << 20


class TestLargeModelSupport(TestCase):
    def tearDown(self):
        torch.lms.disable("cpu")
        super().tearDown()

    def stat(self, name):
        return torch.lms.stats("cpu")[name]

    def away(self, values):
        """A managed copy of `values` that is not resident."""
        tensor = values.clone()
        torch.lms.reclaim("cpu")
        self.assertGreaterEqual(self.stat("away_bytes.current"), tensor.untyped_storage().nbytes())
        return tensor

    def train(self):
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
        optimizer = torch.optim.Adam(model.parameters())
        x = torch.randn(512, 256)
        for _ in range(3):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
        return [tensor for parameter in model.parameters() for tensor in (parameter.detach(), parameter.grad)]

    @parametrize("policy", ["lru", "iteration"])
    @parametrize("in_file", [False, True])
    def test_training_is_bit_equal(self, policy, in_file):
        expected = self.train()
        with tempfile.TemporaryDirectory() as directory:
            store = directory if in_file else None
            torch.lms.enable("cpu", limit=3 * MIB, policy=policy, store=store)
            torch.lms.reset_peak_stats("cpu")
            moved = self.stat("out.bytes")
            actual = self.train()
            self.assertGreater(self.stat("out.bytes"), moved)
            self.assertEqual(self.stat("over_limit_bytes.peak"), 0)
            torch.lms.disable("cpu")
        self.assertTrue(all(map(torch.equal, actual, expected)))

    def test_inputs_come_back_without_a_fault(self):
        values = torch.randn(512, 512)
        index = torch.arange(512).flip(0)
        torch.lms.enable("cpu", limit=64 * MIB)
        before = self.stat("faults")
        self.assertEqual(self.away(values) + 1, values + 1)
        self.assertEqual(torch.cat([self.away(values), self.away(values)]), torch.cat([values, values]))
        self.assertEqual(self.away(values)[:, index], values[:, index])
        self.assertEqual(torch.max(self.away(values), 1).indices, torch.max(values, 1).indices)
        self.assertEqual(self.away(values.to_sparse().values()).sum(), values.sum())
        self.assertEqual(torch.func.vmap(torch.sin)(self.away(values)), values.sin())
        self.assertEqual(self.away(values).add_(1).t_(), (values + 1).t())
        self.assertEqual(self.stat("faults"), before)

    def test_a_written_block_leaves_with_what_was_written(self):
        torch.lms.enable("cpu", limit=64 * MIB)
        tensor = self.away(torch.zeros(MIB))
        for value in range(1, 4):
            self.assertEqual(tensor[0].item(), value - 1)
            torch.lms.reclaim("cpu")
            tensor.add_(1)
            torch.lms.reclaim("cpu")
        self.assertTrue(bool((tensor == 3).all()))

    def test_raw_pointers_fault_their_block_in(self):
        torch.lms.enable("cpu", limit=64 * MIB)
        tensor = self.away(torch.ones(MIB, dtype=torch.int32))
        before = self.stat("faults")
        values = (ctypes.c_int32 * MIB).from_address(tensor.data_ptr())
        self.assertEqual(values[5], 1)
        values[5] = 7
        torch.lms.reclaim("cpu")
        self.assertEqual(tensor[5].item(), 7)
        self.assertGreater(self.stat("faults"), before)

    def test_numpy_and_dlpack_views_stay_resident(self):
        values = torch.randn(MIB)
        torch.lms.enable("cpu", limit=64 * MIB)
        for export in (torch.Tensor.numpy, torch.from_dlpack):
            view = export(self.away(values))
            torch.lms.reclaim("cpu")
            self.assertEqual(self.stat("pinned_bytes.current"), 4 * MIB)
            self.assertEqual(torch.as_tensor(view), values)
            del view
        self.assertEqual(self.stat("pinned_bytes.current"), 0)
        self.assertEqual(self.stat("faults"), 0)

    @parametrize("zipped", [False, True])
    def test_save_and_load(self, zipped):
        values = torch.randn(4 * MIB)
        torch.lms.enable("cpu", limit=64 * MIB)
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "tensor")
            torch.save(self.away(values), path, _use_new_zipfile_serialization=zipped)
            self.assertEqual(torch.load(path), values)

    def test_pin(self):
        torch.lms.enable("cpu", limit=64 * MIB)
        tensor = self.away(torch.ones(MIB))
        with torch.lms.pin(tensor):
            self.assertEqual(torch.lms.reclaim("cpu"), 0)
            self.assertEqual(self.stat("pinned_bytes.current"), 4 * MIB)
        self.assertEqual(torch.lms.reclaim("cpu"), 4 * MIB)

    def test_limit(self):
        torch.lms.enable("cpu", limit=MIB)
        torch.lms.reset_peak_stats("cpu")
        self.assertEqual(torch.lms.limit("cpu"), MIB)
        tensor = torch.ones(MIB)  # soft: 4 MiB in 1 MiB, reported
        self.assertEqual(self.stat("over_limit_bytes.peak"), 3 * MIB)
        torch.lms.enable("cpu", limit=5 * MIB, strict=True)
        with torch.lms.pin(tensor), self.assertRaisesRegex(torch.OutOfMemoryError, "limit"):
            torch.ones(MIB)
        torch.lms.set_limit("cpu", 0)
        self.assertEqual(self.stat("resident_bytes.current"), 0)
        torch.lms.set_limit("cpu", 8 * MIB)
        self.assertTrue(bool((tensor == 1).all()))

    def test_fork(self):
        torch.lms.enable("cpu", limit=64 * MIB)
        tensor = self.away(torch.ones(MIB))
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
            tensor.zero_()
            torch.lms.reclaim("cpu")
            os._exit(int(tensor.sum().item()))
        _, status = os.waitpid(child, 0)
        self.assertEqual(status, 0)
        self.assertEqual(tensor.sum().item(), MIB)

    def test_disable_brings_everything_back(self):
        torch.lms.enable("cpu", limit=64 * MIB)
        tensor = self.away(torch.ones(MIB))
        torch.lms.disable("cpu")
        self.assertFalse(torch.lms.is_enabled("cpu"))
        self.assertEqual(self.stat("away_bytes.current"), 0)
        self.assertTrue(bool((tensor == 1).all()))
        blocks = self.stat("allocated_blocks.current")
        other = torch.ones(MIB)
        self.assertEqual(self.stat("allocated_blocks.current"), blocks)
        del tensor
        self.assertEqual(self.stat("allocated_blocks.current"), blocks - 1)
        self.assertEqual(other.sum().item(), MIB)

    @parametrize(
        "error,name,arguments",
        [
            (TypeError, "limit", {"limit": 1.5}),
            (TypeError, "limit", {"limit": True}),
            (ValueError, "limit", {"limit": -1}),
            (ValueError, "min_size", {"min_size": 0}),
            (ValueError, "store", {"store": "/nowhere/at/all"}),
            (ValueError, "policy", {"policy": "fifo"}),
            (TypeError, "strict", {"strict": 1}),
        ],
        name_fn=lambda error, name, arguments: f"{name}_{arguments[name]}".replace("/", "_"),
    )
    def test_wrong_arguments_are_named(self, error, name, arguments):
        with self.assertRaisesRegex(error, f"^{name}: "):
            torch.lms.enable("cpu", **{"limit": MIB, **arguments})
        self.assertFalse(torch.lms.is_enabled("cpu"))

    def test_other_devices_are_refused(self):
        with self.assertRaisesRegex(ValueError, "^device: "):
            torch.lms.enable("meta", limit=MIB)
        self.assertFalse(torch.lms.is_enabled("meta"))

    def test_names_of_the_older_implementations(self):
        limit, size = torch.cuda.get_limit_lms(), torch.cuda.get_size_lms()
        torch.cuda.set_limit_lms(limit + 1)
        torch.cuda.set_size_lms(size + 1)
        self.assertEqual((torch.cuda.get_limit_lms(), torch.cuda.get_size_lms()), (limit + 1, size + 1))
        torch.cuda.set_limit_lms(limit)
        torch.cuda.set_size_lms(size)
        self.assertFalse(torch.cuda.get_enabled_lms())


instantiate_parametrized_tests(TestLargeModelSupport)

if __name__ == "__main__":
    run_tests()

# Owner(s): ["module: memory usage"]

import ctypes
import os
import tempfile
import unittest
import weakref

import torch

try:
    from torch.testing._internal.common_utils import (
        TestCase,
        instantiate_parametrized_tests,
        parametrize,
        run_tests,
    )
except ImportError as error:
    raise unittest.SkipTest(f"needs parametrized tests, which PyTorch has from 1.10 on: {error}") from None

MIB = 1 << 20
OUT_OF_MEMORY = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)


class TestLargeModelSupport(TestCase):
    def tearDown(self):
        torch.lms.disable("cpu")
        super().tearDown()

    def stat(self, name):
        return torch.lms.stats("cpu")[name]

    def away(self, values):
        """A managed copy of `values` that is not resident."""
        tensor = values.clone()
        tensor.view(-1)  # not every release shows what an operation returns: it is known once it is used
        torch.lms.reclaim("cpu")
        self.assertGreaterEqual(self.stat("away_bytes.current"), tensor.numel() * tensor.element_size())
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
        if hasattr(torch, "func"):
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
        with torch.lms.pin(tensor), self.assertRaisesRegex(OUT_OF_MEMORY, "limit"):
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
            (ValueError, "limit", {"limit": 1.5}),
            (TypeError, "limit", {"limit": True}),
            (ValueError, "limit", {"limit": -1}),
            (ValueError, "min_size", {"min_size": 0}),
            (ValueError, "store", {"store": "/nowhere/at/all"}),
            (ValueError, "policy", {"policy": "fifo"}),
            (TypeError, "strict", {"strict": 1}),
        ],
        name_fn=lambda error, name, arguments: f"{name}_{arguments[name]}".replace("/", "_").replace(".", "_"),
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
        torch.cuda.set_limit_lms(limit + MIB)
        torch.cuda.set_size_lms(size + 1)
        self.assertEqual((torch.cuda.get_limit_lms(), torch.cuda.get_size_lms()), (limit + MIB, size + 1))
        torch.cuda.set_limit_lms(limit)
        torch.cuda.set_size_lms(size)
        self.assertFalse(torch.cuda.get_enabled_lms())


@unittest.skipIf(not torch.cuda.is_available(), "needs a CUDA device whose driver can manage virtual memory")
class TestLargeModelSupportCuda(TestCase):
    def tearDown(self):
        torch.cuda.set_enabled_lms(False)
        torch.cuda.set_limit_lms(0)
        torch.lms.disable("cuda")
        torch.cuda.empty_cache()
        super().tearDown()

    def stat(self, name):
        return torch.lms.stats("cuda")[name]

    def away(self, values):
        """A managed copy of `values` on the device that is not resident."""
        tensor = values.cuda()
        tensor.view(-1)
        torch.lms.reclaim("cuda")
        self.assertGreaterEqual(self.stat("away_bytes.current"), tensor.numel() * tensor.element_size())
        return tensor

    @parametrize("policy", ["lru", "iteration"])
    def test_training_is_bit_equal(self, policy):
        def train():
            torch.manual_seed(0)
            model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(8))).cuda()
            optimizer = torch.optim.Adam(model.parameters())
            x = torch.randn(2048, 1024).cuda()
            for _ in range(3):
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
            return [t.cpu() for p in model.parameters() for t in (p.detach(), p.grad)]

        expected = train()
        torch.lms.enable("cuda", limit=64 * MIB, policy=policy)
        moved = self.stat("out.bytes")
        actual = train()
        self.assertGreater(self.stat("out.bytes"), moved)
        self.assertTrue(all(map(torch.equal, actual, expected)))

    def test_contents_come_back(self):
        values = [torch.randn(MIB) + i for i in range(8)]
        torch.lms.enable("cuda", limit=16 * MIB)
        tensors = [value.cuda() for value in values]
        self.assertGreater(self.stat("away_bytes.current"), 0)
        addresses = [tensor.data_ptr() for tensor in tensors]
        self.assertEqual([tensor.cpu() for tensor in tensors], values)
        self.assertEqual([tensor.data_ptr() for tensor in tensors], addresses)

    def test_a_written_block_leaves_with_what_was_written(self):
        torch.lms.enable("cuda", limit=64 * MIB)
        tensor = self.away(torch.ones(MIB))
        for value in range(1, 4):
            tensor.copy_(torch.full((MIB,), float(value)))
            torch.lms.reclaim("cuda")
            self.assertEqual(tensor.cpu(), torch.full((MIB,), float(value)))

    def test_default_limit(self):
        torch.lms.enable("cuda")
        free, total = torch.cuda.mem_get_info()
        self.assertLessEqual(torch.lms.limit("cuda"), total * 95 // 100)
        self.assertGreater(torch.lms.limit("cuda"), free * 90 // 100)
        with self.assertRaisesRegex(ValueError, f"{total + 1} .*{total}"):
            torch.lms.enable("cuda", limit=total + 1)
        with self.assertRaisesRegex(ValueError, "^device: "):
            torch.lms.enable(f"cuda:{torch.cuda.device_count()}")

    def test_views_stay_resident(self):
        values = torch.randn(MIB)
        torch.lms.enable("cuda", limit=64 * MIB)
        tensor = self.away(values)
        view = torch.from_dlpack(tensor)
        self.assertEqual(torch.lms.reclaim("cuda"), 0)
        self.assertEqual(view.cpu(), values)
        del view
        self.assertGreater(torch.lms.reclaim("cuda"), 0)
        self.assertEqual(tensor.__cuda_array_interface__["data"][0], tensor.data_ptr())
        self.assertEqual(torch.lms.reclaim("cuda"), 0)
        self.assertEqual(tensor.cpu(), values)
        gone = weakref.ref(tensor)
        del tensor
        self.assertIsNone(gone())
        self.assertEqual(self.stat("pinned_bytes.current"), 0)

    def test_streams(self):
        values = torch.randn(MIB)
        torch.lms.enable("cuda", limit=16 * MIB)
        streams = [torch.cuda.Stream() for _ in range(3)]
        tensors = [values.cuda() for _ in range(6)]
        for _ in range(4):
            for index, tensor in enumerate(tensors):
                stream = streams[index % 3]
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    tensor.copy_(tensor.clone())
                torch.cuda.current_stream().wait_stream(stream)
        for tensor in tensors:
            self.assertEqual(tensor.cpu(), values)

    def test_pin(self):
        torch.lms.enable("cuda", limit=64 * MIB)
        tensor = self.away(torch.ones(MIB))
        with torch.lms.pin(tensor):
            self.assertEqual(torch.lms.reclaim("cuda"), 0)
            self.assertGreaterEqual(self.stat("pinned_bytes.current"), 4 * MIB)
        self.assertGreaterEqual(torch.lms.reclaim("cuda"), 4 * MIB)

    def test_names_and_keys_of_the_older_implementations(self):
        torch.cuda.init()
        off = torch.cuda.memory_stats()
        self.assertLessEqual({"reclaimed", "reclaimed_bytes", "alloc_distribution.freelist"}, set(off))
        self.assertEqual(off["pinned_bytes.all.current"], off["allocated_bytes.all.current"])
        torch.cuda.set_limit_lms(16 * MIB)
        torch.cuda.set_enabled_lms(True)
        self.assertTrue(torch.cuda.get_enabled_lms() and torch.lms.is_enabled("cuda"))
        self.assertEqual(torch.lms.limit("cuda"), max(0, 16 * MIB - off["reserved_bytes.all.current"]))
        before = torch.cuda.memory_stats()
        tensors = [torch.ones(MIB).cuda() for _ in range(2)]
        allocated = torch.cuda.memory_stats()
        self.assertGreaterEqual(
            allocated["allocated_bytes.all.current"], before["allocated_bytes.all.current"] + 8 * MIB
        )
        torch.cuda.reclaim_inactive()
        after = torch.cuda.memory_stats()
        self.assertGreaterEqual(after["reclaimed"], before["reclaimed"] + 2)
        self.assertGreaterEqual(after["reclaimed_bytes"], before["reclaimed_bytes"] + 8 * MIB)
        self.assertLess(after["allocated_bytes.all.current"], allocated["allocated_bytes.all.current"])
        self.assertLessEqual(after["pinned_bytes.all.current"], after["allocated_bytes.all.current"])
        self.assertIn("Large Model Support", torch.cuda.memory_summary())
        self.assertTrue(all(bool((tensor.cpu() == 1).all()) for tensor in tensors))
        torch.cuda.set_enabled_lms(False)
        self.assertGreaterEqual(torch.cuda.memory_stats()["reclaimed"], after["reclaimed"])

    def test_disable_brings_everything_back(self):
        torch.lms.enable("cuda", limit=64 * MIB)
        tensor = self.away(torch.ones(MIB))
        torch.lms.disable("cuda")
        self.assertFalse(torch.lms.is_enabled("cuda"))
        self.assertEqual(self.stat("away_bytes.current"), 0)
        self.assertTrue(bool((tensor.cpu() == 1).all()))


instantiate_parametrized_tests(TestLargeModelSupport)
instantiate_parametrized_tests(TestLargeModelSupportCuda)

if __name__ == "__main__":
    run_tests()

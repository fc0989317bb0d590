"""The four models, larger than their memory by 2, 4 and 8 times, with either policy and either store, to the bit.

Each size goes with half of the ways, in turn; the checks "in the other ways" have the other half.
"""

from __future__ import annotations

import torch
from common import directory
from support import enable, models, same, stat

STEPS = 3


def train(name: str) -> list[object]:
    trainer = models().make(name)
    return [trainer.step() for _ in range(STEPS)] + [tensor.clone() for tensor in trainer.tensors()]


def needs(name: str) -> tuple[int, int]:
    """The peak of the model's live tensors, and the largest that one operation needs at once, in bytes."""
    enable(1 << 40)
    torch.lms.reset_peak_stats("cpu")
    trainer = models().make(name)
    trainer.step()
    trainer.step()
    peak = stat("allocated_bytes.peak")
    enable(0)
    torch.lms.reset_peak_stats("cpu")
    trainer.step()
    return peak, stat("device_bytes.peak")


def oversubscribed(name: str, times: int, others: bool = False) -> None:
    torch.use_deterministic_algorithms(True)
    expected = train(name)
    peak, largest = needs(name)
    limit = peak // times
    with directory() as folder:
        one, other = [("lru", None), ("iteration", folder)], [("iteration", None), ("lru", folder)]
        for policy, store in one if (times == 4) != others else other:
            enable(limit, policy=policy, store=store)
            torch.lms.reset_peak_stats("cpu")
            before = torch.lms.stats("cpu")
            same(train(name), expected)
            after = torch.lms.stats("cpu")
            what = (name, times, policy, store, limit, largest, after)
            assert after["out.bytes"] - before["out.bytes"] > peak - limit, what
            assert after["in.bytes"] > before["in.bytes"], what
            # Where the largest operation does not fit, it is what is resident, and the excess is reported.
            assert after["device_bytes.peak"] <= max(limit, largest), what
            assert after["over_limit_bytes.peak"] == max(0, after["device_bytes.peak"] - limit), what
            if limit >= largest and name != "lstm":
                # oneDNN's LSTM writes a workspace that its schema calls an input: each such write is a fault.
                assert after["faults"] == before["faults"], what
            torch.lms.disable("cpu")


def check_convnet_at_half() -> None:
    oversubscribed("convnet", 2)


def check_convnet_at_a_quarter() -> None:
    oversubscribed("convnet", 4)


def check_convnet_at_an_eighth() -> None:
    oversubscribed("convnet", 8)


def check_transformer_at_half() -> None:
    oversubscribed("transformer", 2)


def check_transformer_at_a_quarter() -> None:
    oversubscribed("transformer", 4)


def check_transformer_at_an_eighth() -> None:
    oversubscribed("transformer", 8)


def check_lstm_at_half() -> None:
    oversubscribed("lstm", 2)


def check_lstm_at_a_quarter() -> None:
    oversubscribed("lstm", 4)


def check_lstm_at_an_eighth() -> None:
    oversubscribed("lstm", 8)


def check_unet3d_at_half() -> None:
    oversubscribed("unet3d", 2)


def check_unet3d_at_a_quarter() -> None:
    oversubscribed("unet3d", 4)


def check_unet3d_at_an_eighth() -> None:
    oversubscribed("unet3d", 8)


def in_the_other_ways(name: str) -> None:
    for times in (2, 4, 8):
        oversubscribed(name, times, others=True)


def check_convnet_in_the_other_ways() -> None:
    in_the_other_ways("convnet")


def check_transformer_in_the_other_ways() -> None:
    in_the_other_ways("transformer")


def check_lstm_in_the_other_ways() -> None:
    in_the_other_ways("lstm")


def check_unet3d_in_the_other_ways() -> None:
    in_the_other_ways("unet3d")


def check_models_at_a_sixteenth() -> None:
    # Below the largest operation of most: runs, and says by how much.
    for name in models().MODELS:
        expected = train(name)
        peak, largest = needs(name)
        enable(peak // 16)
        torch.lms.reset_peak_stats("cpu")
        same(train(name), expected)
        assert stat("device_bytes.peak") <= max(peak // 16, largest)
        assert stat("over_limit_bytes.peak") <= max(0, largest - peak // 16)
        torch.lms.disable("cpu")

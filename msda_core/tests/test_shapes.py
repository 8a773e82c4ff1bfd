"""Every message of the tensor contract, by its text."""

import re

import pytest
import torch

from msda_core.shapes import Dims, check_dims, check_levels, level_starts, levels_of

GOOD = dict(
    value=torch.zeros(2, 26, 3, 5),
    spatial_shapes=torch.tensor([[4, 5], [2, 3]]),
    level_start_index=None,
    sampling_locations=torch.zeros(2, 7, 3, 2, 4, 2),
    attention_weights=torch.zeros(2, 7, 3, 2, 4),
)


def test_a_good_call_returns_its_sizes():
    assert check_dims(**GOOD) == Dims(B=2, S=26, M=3, D=5, Q=7, L=2, K=4)
    assert levels_of(GOOD["spatial_shapes"]) == levels_of([(4, 5), [2, 3]]) == [(4, 5), (2, 3)]
    assert level_starts([(4, 5), (2, 3)]) == [0, 20]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(value=[1]), "value must be a torch.Tensor, got list. Is it still a numpy array?"),
        (
            dict(value=torch.zeros(2, 26, 15)),
            "value must be (B, S, M, D), got (2, 26, 15). Are the heads still folded into the channels?",
        ),
        (
            dict(sampling_locations=torch.zeros(2, 7, 3, 2, 4)),
            "sampling_locations must be (B, Q, M, L, K, 2), got (2, 7, 3, 2, 4). Is the (x, y) axis missing?",
        ),
        (
            dict(sampling_locations=torch.zeros(2, 7, 3, 2, 4, 4)),
            "sampling_locations must be (B, Q, M, L, K, 2), got (2, 7, 3, 2, 4, 4). Are these boxes instead of points (x, y)?",
        ),
        (
            dict(sampling_locations=torch.zeros(7, 2, 3, 2, 4, 2)),
            "sampling_locations must have batch 2 as value has, got 7 in (7, 2, 3, 2, 4, 2). Is the query axis first",
        ),
        (
            dict(sampling_locations=torch.zeros(2, 7, 2, 3, 4, 2)),
            "sampling_locations must have 3 heads as value has, got 2 in (2, 7, 2, 3, 4, 2). Are heads and levels transposed?",
        ),
        (
            dict(attention_weights=torch.zeros(2, 7, 3, 8)),
            "attention_weights must be (B, Q, M, L, K) = (2, 7, 3, 2, 4), got (2, 7, 3, 8). Are levels and points still one axis?",
        ),
        (
            dict(attention_weights=torch.zeros(2, 7, 3, 4, 2)),
            "attention_weights must be (B, Q, M, L, K) = (2, 7, 3, 2, 4), got (2, 7, 3, 4, 2). Are two axes transposed?",
        ),
        (dict(spatial_shapes=torch.zeros(4)), "spatial_shapes must be (L, 2), got (4,)."),
        (
            dict(spatial_shapes=[(4, 5)]),
            "spatial_shapes must have one row per level, expected 2, got 1. Does sampling_locations hold another number",
        ),
        (
            dict(level_start_index=[0]),
            "level_start_index must have one entry per level, expected 2, got 1. Was it computed for another pyramid?",
        ),
        (
            dict(spatial_shapes=torch.ones(2, 2)),
            "spatial_shapes must hold int32 or int64, got float32. Was it normalised?",
        ),
        (
            dict(value=torch.zeros(2, 26, 3, 5, dtype=torch.uint8)),
            "value must be float64, float32, float16 or bfloat16, got uint8. Is it an image still in integers?",
        ),
        (
            dict(attention_weights=torch.zeros(2, 7, 3, 2, 4, device="meta")),
            "attention_weights must be on cpu as value is, got meta. Was only part of the call moved?",
        ),
    ],
)
def test_a_bad_call_says_what_was_expected_what_came_and_why(change, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_dims(**{**GOOD, **change})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([(4, 0)], "spatial_shapes must be positive, got (H, W) = (4, 0) at level 0. Is it padding?"),
        ([4, 5], "spatial_shapes must be (L, 2) rows of (H, W), got [(4,), (5,)]. Is a level missing its width?"),
        ([], "spatial_shapes must be (L, 2) rows of (H, W), got []."),
        (torch.tensor([[0.5, 0.5]]), "spatial_shapes must hold int32 or int64, got float32."),
    ],
)
def test_a_bad_level_table(table, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        levels_of(table)


@pytest.mark.parametrize(
    ("starts", "S", "message"),
    [
        (None, 27, "value must hold S = 26 pixels, the sum of H*W over [(4, 5), (2, 3)], got S = 27. Is a level missing"),
        ([0, 20], 25, "value must hold S = 26 pixels"),
        ([0, 21], 26, "level 1 of size (2, 3) must lie inside the S = 26 pixels of value, got level_start_index 21, so it ends at 27"),
        ([-1, 20], 26, "level 0 of size (4, 5) must lie inside the S = 26 pixels of value, got level_start_index -1"),
        ([0], 26, "level_start_index must have one entry per level, expected 2, got 1."),
    ],
)  # fmt: skip
def test_levels_that_do_not_fit(starts, S, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        check_levels([(4, 5), (2, 3)], starts, S)


def test_levels_with_gaps_fit():
    assert check_levels([(4, 5), (2, 3)], [6, 30], 40) == [6, 30]
    assert check_levels([(4, 5), (2, 3)], [6, 0], 26) == [6, 0]

"""Boxes and pieces, by hand."""

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.parallel.pieces import Box, Piece, chunked, cut, entire, fill_from
from torch.distributed.tensor import DTensor

WHOLE = torch.arange(24).view(6, 4)


def test_ranges_lie_one_after_the_other():
    assert cut((6, 4), 0, [(1, 2), (3, 6)]) == (Box((1, 0), (0, 0), (1, 4)), Box((3, 0), (1, 0), (3, 4)))
    assert cut((6, 4), 1, [(2, 4)]) == (Box((0, 2), (0, 0), (6, 2)),)
    assert cut((6, 4), 0, [(2, 2)]) == ()


@pytest.mark.parametrize("bounds", [(0, 7), (-1, 2), (3, 2)])
def test_a_range_outside_is_refused(bounds):
    with pytest.raises(ValueError, match=r"dimension 0 of \(6, 4\)"):
        cut((6, 4), 0, [bounds])


def test_a_chunk_of_rows_crosses_ranges():
    boxes = cut((6, 4), 0, [(0, 2), (4, 6)])  # own rows 0 1 2 3 are the whole's 0 1 4 5
    assert chunked(boxes, 1, 3) == (Box((1, 0), (0, 0), (1, 4)), Box((4, 0), (1, 0), (1, 4)))
    assert chunked(boxes, 2, 4) == (Box((4, 0), (0, 0), (2, 4)),)
    assert chunked(boxes, 4, 4) == ()


def test_a_chunk_of_rows_of_columns():
    boxes = cut((6, 4), 1, [(0, 1), (3, 4)])  # own columns 0 1 are the whole's 0 3
    assert chunked(boxes, 4, 6) == (Box((4, 0), (0, 0), (2, 1)), Box((4, 3), (0, 1), (2, 1)))


def test_pieces_are_filled_from_whole_tensors():
    rows = Piece(WHOLE.shape, chunked(cut((6, 4), 0, [(0, 2), (4, 6)]), 1, 4), torch.zeros(3, 4, dtype=torch.int64))
    columns = Piece(WHOLE.shape, cut((6, 4), 1, [(3, 4), (0, 1)]), torch.zeros(6, 2, dtype=torch.int64))
    none = Piece(WHOLE.shape, (), torch.zeros(0, 4, dtype=torch.int64))
    scalar = entire(torch.tensor(0.0))
    whole = {"rows": WHOLE, "columns": WHOLE, "none": WHOLE, "scalar": torch.tensor(2.5)}
    fill_from(whole, {"rows": rows, "columns": columns, "none": none, "scalar": scalar})
    assert rows.local.tolist() == [[4, 5, 6, 7], [16, 17, 18, 19], [20, 21, 22, 23]]
    assert columns.local.tolist() == [[3, 0], [7, 4], [11, 8], [15, 12], [19, 16], [23, 20]]
    assert scalar.local.item() == 2.5


def test_a_parameter_is_filled_without_a_gradient():
    parameter = torch.nn.Parameter(torch.zeros(2))
    fill_from({"p": torch.ones(2)}, {"p": entire(parameter)})
    assert parameter.tolist() == [1.0, 1.0]
    assert parameter.grad_fn is None


def test_other_names_shapes_and_types_are_told():
    wanted = {name: entire(torch.zeros(2)) for name in ("shape", "type", "missing")}
    whole = {"shape": torch.zeros(3), "type": torch.zeros(2, dtype=torch.int64), "over": torch.zeros(())}
    with pytest.raises(UserError) as told:
        fill_from(whole, wanted)
    lines = str(told.value).splitlines()
    assert lines[1:] == [
        "  shape: (3,) float32 there, (2,) float32 here",
        "  type: (2,) int64 there, (2,) float32 here",
        "  missing: none there, (2,) float32 here",
        "  over: () float32 there, none here",
    ]


def test_another_tensor_that_is_shared_out_alike():
    piece = Piece(WHOLE.shape, cut((6, 4), 0, [(0, 2)]), torch.zeros(2, 4))
    other = piece.alike(torch.ones(2, 4))
    assert (other.whole, other.boxes) == (piece.whole, piece.boxes)
    assert hasattr(DTensor, "to_local")  # by which a rank's own part is known
    assert other.view(other.boxes[0]).tolist() == torch.ones(2, 4).tolist()

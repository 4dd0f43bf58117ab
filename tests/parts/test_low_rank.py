"""Low-rank adapters: what they add, and that the part they serve stays as it is."""

import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.parts.linear import Linear
from bakeoff.parts.low_rank import adapted, low_rank
from torch import nn

CONTEXT = LayerContext(d_model=4, vocab_size=8, max_length=8)


class Gated(nn.Module):
    """Two layers that read one input, inside a child, and one that reads another."""

    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"gate": Linear(4, 6), "up": Linear(4, 6)})
        self.down = Linear(6, 4)

    def forward(self, x):
        return self.down(self.inner["gate"](x) * self.inner["up"](x))


@pytest.fixture
def part():
    torch.manual_seed(0)
    part = Gated()
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    return part


def serving(part, *paths, rank=2):
    adapter = low_rank(CONTEXT, part, paths, rank)
    for parameter in adapter.parameters():
        nn.init.normal_(parameter)
    return adapter


def test_a_view_is_the_part_with_merged_weights(part):
    """W + B A, as LoRA is defined, in float64."""
    part.double()
    gates, down = serving(part, "inner.gate", "inner.up").double(), serving(part, "down").double()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    y = adapted(part, [(gates, ["inner.gate", "inner.up"]), (down, ["down"])])(x)
    merged = [(part.inner.gate, gates, 0), (part.inner.up, gates, 1), (part.down, down, 0)]
    gate, up, out = (layer.weight + adapter.up[i].weight @ adapter.down.weight for layer, adapter, i in merged)
    torch.testing.assert_close(y, (x @ gate.t() * (x @ up.t())) @ out.t())


def test_a_layer_that_is_read_and_not_called_is_adapted_too(part):
    adapter = serving(part, "inner.gate", "inner.up")
    layer = adapted(part, [(adapter, ["inner.gate", "inner.up"])]).inner["up"]
    x = torch.randn(3, 4)
    torch.testing.assert_close(x @ layer.weight.t(), layer(x))
    assert not torch.equal(layer.weight, part.inner["up"].weight)


def test_the_part_stays_as_it_is(part):
    x = torch.randn(2, 3, 4)
    before, names = part(x), list(part.state_dict())
    adapted(part, [(serving(part, "down"), ["down"])])(x)
    assert torch.equal(part(x), before)
    assert list(part.state_dict()) == names


def test_gradients_reach_part_and_adapter(part):
    adapter = serving(part, "inner.gate", "inner.up")
    adapted(part, [(adapter, ["inner.gate", "inner.up"])])(torch.randn(1, 2, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in [*part.parameters(), *adapter.parameters()])


def test_layers_of_one_adapter_share_its_first_matrix(part):
    assert serving(part, "inner.gate", "inner.up", rank=2).flops(3, 3) == 2 * 3 * (2 * 4 + 2 * 2 * 6)


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["inner.gait"], "'inner.gait' is no linear layer that an adapter could serve; there are inner.gate"),
        (["inner"], "'inner' is no linear layer"),
        (["inner.up", "down"], "inner.up reads 4 channels, down reads 6 channels"),
        ([], "none is named"),
    ],
)
def test_what_an_adapter_cannot_serve(part, paths, message):
    with pytest.raises(ValueError, match=message):
        low_rank(CONTEXT, part, paths, 2)


def test_a_rank_of_nothing(part):
    with pytest.raises(ValueError, match="rank of an adapter is 0; it must be at least 1"):
        low_rank(CONTEXT, part, ["down"], 0)

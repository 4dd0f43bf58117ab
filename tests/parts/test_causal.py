"""The one owner of the shift, by hand."""

import math

import pytest
import torch
from bakeoff.interfaces import Feedback, Result
from bakeoff.parts.causal import Causal
from torch import nn


class Successor(nn.Module):
    """Predicts token + 1 with logits of +-20."""

    class Backbone(nn.Module):
        def forward(self, sequence, state=None):
            return Result(sequence.tokens)

        def layer_losses(self, aux):
            return {}

    class Head(nn.Module):
        def forward(self, hidden, targets=None, weights=None, reduce="sum", **_):
            logits = torch.full((*hidden.shape, 8), -20.0).scatter(-1, (hidden + 1)[..., None], 20.0)
            nats = logits.logsumexp(-1) - logits.gather(-1, targets[..., None])[..., 0]
            return nats if reduce == "none" else ((nats * weights).sum(), (nats * weights).sum())

    def __init__(self):
        super().__init__()
        self.backbone, self.head = self.Backbone(), self.Head()


def loss(tokens, **more):
    terms, statistics = Causal()(Successor(), {"tokens": torch.tensor(tokens), **more})
    return terms["loss"][0].item(), terms["loss"][1].item(), statistics


def test_labels_are_shifted_exactly_once():
    total, count, _ = loss([[1, 2, 3, 4, 5]])
    assert total == pytest.approx(0, abs=1e-6)
    assert count == 4


def test_a_wrong_next_token_costs_forty_nats():
    total, _, _ = loss([[1, 3]])
    assert total == pytest.approx(40, rel=1e-6)


def test_one_more_token_than_inputs():
    assert Causal().tokens_wanted(128) == 129


def test_the_first_token_of_a_document_is_no_target():
    _, count, _ = loss([[1, 2, 1, 2, 3]], documents=torch.tensor([[0, 0, 1, 1, 1]]))
    assert count == 3
    total, _, _ = loss([[1, 2, 1, 2, 3]], documents=torch.tensor([[0, 0, 1, 1, 1]]))
    assert total == pytest.approx(0, abs=1e-6)


def test_padding_is_no_target():
    total, count, _ = loss([[1, 2, 3, 0, 0]], real=torch.tensor([[True, True, True, False, False]]))
    assert count == 2
    assert total == pytest.approx(0, abs=1e-6)


def test_mask_comes_from_lengths_not_from_ids():
    # end and padding may share an id: ids 5 2 7 2 2 of length 4 have 3 targets, the middle 2 among them
    real = torch.tensor([[True, True, True, True, False]])
    _, count, _ = loss([[5, 2, 6, 2, 2]], real=real)
    assert count == 3


def test_nothing_to_predict_counts_nothing():
    total, count, _ = loss([[1, 2]], real=torch.tensor([[True, False]]))
    assert total == count == 0


def test_token_losses_agree_with_the_sum():
    batch = {"tokens": torch.tensor([[1, 2, 4, 5]])}
    losses = Causal().token_losses(Successor(), batch)
    assert losses.targets.tolist() == [[2, 4, 5]]
    assert (losses.nats * losses.weights).sum().item() == pytest.approx(40, rel=1e-6)


def test_choices_that_learn_from_what_tokens_cost_have_a_term_by_hand():
    model = Successor()
    shown = [
        Feedback(torch.tensor([[-1.0, -2.0, -3.0]]), torch.tensor([[5.0, 10.0, 7.0]]), 0.5),
        Feedback(torch.tensor([[0.0, -1.0, 0.0]]), torch.tensor([[0.0, 40.0, 0.0]]), 2.0),
    ]
    model.backbone.register_forward_pre_hook(
        lambda module, inputs: inputs[0].memory.update({f"feedback.{i}": one for i, one in enumerate(shown)})
    )
    batch = {"tokens": torch.tensor([[1, 2, 4, 5]]), "real": torch.tensor([[True, True, True, False]])}
    terms, _ = Causal()(model, batch)
    # nats 0, 40 and, of padding, whatever: 0.5 (-5 x -1 + 25 / 2 + 30 x -2 + 900 / 2) + 2 (0 + 0)
    assert terms["feedback"][0].item() == pytest.approx(203.75, rel=1e-6)
    assert terms["feedback"][1] is terms["loss"][1]


def test_nothing_is_computed_for_feedback_where_there_is_none():
    model, calls = Successor(), []
    model.head.register_forward_hook(lambda *_: calls.append(1))
    terms, _ = Causal()(model, {"tokens": torch.tensor([[1, 2, 4, 5]])})
    assert set(terms) == {"loss"}
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("arguments", "message"), [({"z_loss": -1.0}, "z_loss is -1"), ({"label_smoothing": 1.0}, "1.0")]
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Causal(**arguments)


def test_uniform_model_costs_log_v():
    from bakeoff.model import LanguageModel
    from bakeoff.parts.blocks.pre_norm import PreNorm
    from bakeoff.parts.decoder import Decoder
    from bakeoff.parts.feed_forwards.mlp import MLP

    lm = LanguageModel(
        d_model=8, vocab_size=10, max_length=16,
        backbone=lambda c: Decoder(
            c, depth=1, pattern=["a"], blocks={"a": lambda d: PreNorm(d, mixer=None, feed_forward=MLP)}
        ),
    ).initialise(seed=0)  # fmt: skip
    lm.head.projection.weight.data.zero_()
    terms, _ = Causal()(lm, {"tokens": torch.randint(10, (2, 3))})
    assert (terms["loss"][0] / terms["loss"][1]).item() == pytest.approx(math.log(10), rel=1e-6)

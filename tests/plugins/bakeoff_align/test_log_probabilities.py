"""Log-probabilities of targets against the naive twin, cross-entropy and by hand."""

import math
from functools import partial

import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff.testing.host import model
from bakeoff_align import log_probabilities
from bakeoff_align.log_probabilities import naive_of_targets, of_targets, shifted, summed, told
from torch import nn
from torch.nn import functional as F

V, D = 17, 8
HEADS = [{}, {"scale": 0.5, "soft_cap": 3.0, "bias": True}]


def inputs(B=3, T=7):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(B, T, D, generator=generator, dtype=torch.float64).requires_grad_()
    targets = torch.randint(V, (B, T), generator=generator)
    weights = (torch.rand(B, T, generator=generator) > 0.4).float() * 0.5
    return hidden, targets, weights


def head_of(**options):
    head = Vocabulary(LayerContext(d_model=D, vocab_size=V, max_length=16), **options).double()
    for i, parameter in enumerate(head.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(i))
    return head


@pytest.mark.parametrize("options", HEADS)
@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_equal_the_naive_twin_with_gradients(options, chunk, monkeypatch):
    monkeypatch.setattr(log_probabilities, "CHUNK", chunk)
    found = []
    for each in (of_targets, naive_of_targets):
        head, (hidden, targets, weights) = head_of(**options), inputs()
        log_p, entropy = each(head, hidden, targets, weights)
        (log_p * torch.linspace(-1, 2, log_p.numel()).view_as(log_p)).sum().backward()
        found.append([log_p, entropy, hidden.grad, *(p.grad for p in head.parameters())])
    for ours, twin in zip(*found, strict=True):
        torch.testing.assert_close(ours, twin, rtol=1e-12, atol=1e-12)


def test_equal_cross_entropy_where_there_is_weight_and_are_zero_elsewhere():
    head, (hidden, targets, weights) = head_of(), inputs()
    log_p, _ = of_targets(head, hidden, targets, weights)
    nats = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    torch.testing.assert_close(log_p, torch.where(weights > 0, -nats, 0.0), rtol=1e-12, atol=1e-12)


def test_entropy_of_equal_logits_is_that_of_all_ids_and_has_no_gradient():
    head, (hidden, targets, weights) = head_of(), inputs()
    _, entropy = of_targets(head, hidden * 0, targets, weights)
    assert not entropy.requires_grad
    assert entropy[weights > 0].tolist() == pytest.approx([math.log(V)] * int((weights > 0).sum()))


@pytest.mark.parametrize("logits", [[0.0, 900.0, -900.0], [0.0, -math.inf, 0.0], [1e-9, 0.0, 0.0]])
def test_entropy_is_never_negative(logits):
    given = torch.tensor(logits).expand(1, 1, 3)
    _, entropy = of_targets(lambda hidden: given, torch.zeros(1, 1, 2), torch.zeros(1, 1).long(), torch.ones(1, 1))
    p = [math.exp(x - max(logits)) for x in logits]
    by_hand = -sum(x / sum(p) * math.log(x / sum(p)) for x in p if x)
    assert float(entropy) >= 0
    assert float(entropy) == pytest.approx(by_hand, abs=1e-6)


def test_backward_keeps_no_logits():
    head, (hidden, targets, weights) = head_of(), inputs(B=4, T=200)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        of_targets(head, hidden, targets, weights)
    assert not [shape for shape in kept if V in shape]


def test_nothing_to_predict_is_zero_with_a_gradient_of_zero():
    head, (hidden, targets, weights) = head_of(), inputs()
    log_p, _ = of_targets(head, hidden, targets, weights * 0)
    log_p.sum().backward()
    assert not log_p.any()
    assert not hidden.grad.any()


def batch(**more):
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 1, 2, 0]])
    weights = torch.tensor([[0.0, 0, 1, 1, 1], [0, 1, 1, 1, 0]])
    return {"tokens": tokens, "documents": None, "real": None, "weights": weights} | more


def test_a_token_is_predicted_from_the_one_before_it():
    given = shifted(batch())
    assert given.sequence.tokens.tolist() == [[1, 2, 3, 4], [6, 7, 1, 2]]
    assert given.targets.tolist() == [[2, 3, 4, 5], [7, 1, 2, 0]]
    assert given.weights.tolist() == [[0, 1, 1, 1], [1, 1, 1, 0]]


def test_no_document_is_predicted_from_another_and_nothing_from_padding():
    documents = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    real = torch.tensor([[True] * 5, [True, True, True, False, False]])
    assert shifted(batch(documents=documents, real=real)).weights.tolist() == [[0, 0, 1, 1], [1, 1, 0, 0]]


def test_sums_count_targets_and_not_their_weights():
    assert summed(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.0, 0.25]])).tolist() == [5.0]


def test_padding_changes_nothing_for_a_model():
    network = model("head", partial(Vocabulary)).initialise(0).double().eval()
    short = batch(real=torch.tensor([[True] * 5, [True] * 4 + [False]]))
    long = {k: t if t is None else F.pad(t, (0, 7)) for k, t in short.items()}
    one, other = told(network, short).log_probabilities, told(network, long).log_probabilities
    torch.testing.assert_close(other[:, :4], one, rtol=0, atol=1e-14)
    assert not other[:, 4:].any()

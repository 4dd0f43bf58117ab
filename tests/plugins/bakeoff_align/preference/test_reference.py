"""The reference policy: it stays what it was, and no copy is made where adapters can be left out."""

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.model.recompute import recompute_blocks
from bakeoff.parts.adapters import Adapters
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff.testing.host import model
from bakeoff.testing.values import jitter
from bakeoff_align.log_probabilities import token_log_probabilities
from bakeoff_align.objectives.preference.dpo import DPO
from bakeoff_align.reference import ReferenceModel

BATCH = {
    "tokens": torch.randint(64, (2, 7), generator=torch.Generator().manual_seed(0)),
    "weights": (torch.arange(7) > 2).float().expand(2, 7),
    "real": None,
    "documents": None,
}


def network(**changes):
    made = model("head", Vocabulary, **changes).initialise(0)
    jitter(made, 0)
    return made.double()


def with_adapters():
    made = model("head", Vocabulary).double()
    Adapters(rank=2, dropout=0.5).add_to(made)
    return made.initialise(0)


@pytest.mark.parametrize("made", [network, lambda: network(tied_embedding=True), with_adapters])
def test_it_stays_what_the_model_was(made):
    policy = made()
    before = token_log_probabilities(policy.eval(), BATCH).detach()
    reference = ReferenceModel(policy, "dpo")
    for name, parameter in policy.named_parameters():
        if made is not with_adapters or "adapter" in name:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    policy.train()
    moved = token_log_probabilities(policy.eval(), BATCH).detach() - before
    assert float(moved.abs().max()) > 1e-3
    torch.testing.assert_close(reference.log_probabilities(policy, BATCH), before, rtol=1e-12, atol=1e-12)


def test_a_model_whose_blocks_are_computed_anew_is_copied_with_them():
    policy = network()
    recompute_blocks(policy.backbone, "full")
    before = token_log_probabilities(policy, BATCH).detach()
    reference = ReferenceModel(policy, "dpo")
    jitter(policy, 1)
    torch.testing.assert_close(reference.log_probabilities(policy, BATCH), before, rtol=1e-12, atol=1e-12)


def test_it_is_never_trained_and_never_in_training_mode():
    reference = ReferenceModel(network(), "dpo").train()
    assert not any(part.training for part in reference.modules())
    assert not any(parameter.requires_grad for parameter in reference.parameters())
    assert not reference.log_probabilities(network(), BATCH).requires_grad


def test_a_model_with_adapters_is_not_copied_and_is_left_in_its_mode():
    policy = with_adapters()
    policy.backbone.layers[0].eval()
    modes = [part.training for part in policy.modules()]
    reference = ReferenceModel(policy, "dpo")
    reference.log_probabilities(policy, BATCH)
    assert not list(reference.parameters())
    assert [part.training for part in policy.modules()] == modes


def test_a_model_in_pieces_is_refused_by_name():
    with torch.device("meta"):
        policy = model("head", Vocabulary)
    with pytest.raises(CapabilityError, match=r"DPO compares with a frozen copy.*trainer\.strategy: ddp"):
        DPO().attach(policy, 0)

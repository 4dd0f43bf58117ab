"""The kit on another device than the CPU: what a part is given stands there."""

from __future__ import annotations

import torch
from bakeoff.interfaces import Capabilities, LayerContext, Result, SequenceMixer, init
from bakeoff.testing.candidate import Candidate
from torch import Tensor, nn


class Elsewhere(SequenceMixer):
    """Notes where its input stands, and answers from the CPU, since tensors on meta have no values to bring back."""

    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True)

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.weight = nn.Parameter(torch.empty(3))
        self.seen: list[str] = []

    def reset_parameters(self) -> None:
        init.fill(self.weight, init.constant(1.0))

    def empty_state(self, batch, max_length, dtype=torch.float32, device=None):
        return torch.zeros(batch, 1, dtype=dtype, device=device)

    def forward(self, x, sequence, state=None) -> Result:
        told: list[Tensor] = [x, sequence.tokens, sequence.index, sequence.documents, sequence.real]
        told += [sequence.memory["embedding"], *([] if state is None else [state])]
        self.seen = [tensor.device.type for tensor in told]
        return Result(torch.zeros(x.shape, dtype=x.dtype), state, {"sum": torch.zeros(())})


def test_inputs_and_states_are_moved_and_results_come_back():
    subject = Candidate(Elsewhere, "mixer", {}, device="meta").subject
    assert subject.device.type == "meta"
    batch = subject.batch(2, 3, documents=torch.zeros(2, 3).long(), real=torch.ones(2, 3).bool())
    for held, expected in ((None, 6), (subject.begin(2, 8), 7)):
        result = subject.call(batch.x, subject.sequence(batch, held), held)
        assert subject.module.seen == ["meta"] * expected
        assert {result.y.device.type, result.aux["sum"].device.type, batch.x.device.type} == {"cpu"}
    assert subject.begin(2, 8).select(torch.tensor([1, 0, 0])).state.shape == (3, 1)

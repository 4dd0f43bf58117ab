import pytest
import torch
from bakeoff.train import fit

from .known_preferences import preferring


@pytest.fixture(autouse=True)
def one_thread(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Folders of runs by name, made when first asked for: of each mixer, and one whose head scores nothing."""
    made = {}

    def run(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("runs") / name
            if name == "plain":
                recipe = preferring(model__head={"use": "vocabulary"}, objective={"use": "sft"})
            elif name == "text":
                recipe = preferring(objective={"use": "causal"}, data__template=None)
            else:
                recipe = preferring(name)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("BAKEOFF_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
                fit(recipe, folder=folder, progress=False)
            made[name] = str(folder)
        return made[name]

    return run

"""The choice between plain torch and kernels: made once, from what is there, said once, and never silent."""

import copy
import importlib
import subprocess
import sys
import types
import warnings
from types import SimpleNamespace

import pytest
import torch
from bakeoff.errors import CapabilityError, MissingExtra
from bakeoff.parts import kernels
from bakeoff.parts.kernels import NotTaken, choices, choose
from torch import nn

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
#: What a call sees of a tensor on a GPU.
ON_GPU = SimpleNamespace(is_cuda=True, dtype=torch.float32)


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.setattr(kernels, "_SAID", set())


@pytest.fixture
def machine(monkeypatch):
    """Sets what is there: a GPU, and the package."""

    def there(*, gpu, installed):
        monkeypatch.setattr(kernels, "_gpu", lambda: gpu)
        monkeypatch.setattr(kernels, "_installed", lambda package: installed)

    return there


def chosen(backend="auto", **more):
    return choose(backend, part="gla", torch=lambda x: "torch", kernels="fast:gla", package="fla", **more)


@pytest.mark.parametrize(
    ("gpu", "installed", "limit", "told"),
    [
        (True, True, None, "kernels (fla)"),
        (False, True, None, "torch (no GPU)"),
        (False, False, None, "torch (no GPU)"),
    ],
)
def test_auto_takes_what_is_there_and_says_nothing(machine, gpu, installed, limit, told):
    machine(gpu=gpu, installed=installed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(chosen(limit=limit)) == told


def test_auto_with_a_gpu_and_no_package_warns_once_with_the_pip_line(machine):
    machine(gpu=True, installed=False)
    with pytest.warns(
        UserWarning, match=r"gla runs in plain torch on this GPU: fla .*pip install 'bakeoff\[kernels\]'"
    ):
        assert str(chosen()) == "torch (fla is not installed)"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen()


def test_auto_names_the_size_that_kernels_do_not_take(machine):
    machine(gpu=True, installed=True)
    with pytest.warns(UserWarning, match="do not take these sizes: key_width is 512, over 256"):
        assert str(chosen(limit="key_width is 512, over 256")) == "torch (key_width is 512, over 256)"


@pytest.mark.parametrize(("gpu", "installed"), [(True, True), (True, False), (False, False)])
def test_torch_is_torch(machine, gpu, installed):
    machine(gpu=gpu, installed=installed)
    assert str(chosen("torch", limit="anything")) == "torch (asked for)"


@pytest.mark.parametrize(
    ("gpu", "installed", "limit", "error", "message"),
    [
        (False, False, None, MissingExtra, r"backend 'kernels' of gla \(fla\) .*pip install 'bakeoff\[kernels\]'"),
        (True, False, None, MissingExtra, r"pip install 'bakeoff\[kernels\]'"),
        (False, True, None, CapabilityError, "gla: backend 'kernels' runs on a CUDA GPU and there is none"),
        (True, True, "N is 512, over 256", CapabilityError, "gla: .* do not take these sizes: N is 512, over 256"),
    ],
)
def test_kernels_that_cannot_be_had_are_an_error(machine, gpu, installed, limit, error, message):
    machine(gpu=gpu, installed=installed)
    with pytest.raises(error, match=message):
        chosen("kernels", limit=limit)


def test_another_backend_is_an_error():
    with pytest.raises(ValueError, match="backend is 'triton'; it is auto, torch or kernels"):
        chosen("triton")


class TestCall:
    """Which form computes a call."""

    @pytest.fixture
    def choice(self, machine, monkeypatch):
        machine(gpu=True, installed=True)
        monkeypatch.setitem(sys.modules, "fast", types.ModuleType("fast"))
        sys.modules["fast"].gla = lambda x: "kernels"
        return chosen("kernels")

    def test_a_tensor_on_a_gpu(self, choice):
        assert choice(ON_GPU) == "kernels"

    @pytest.mark.parametrize("x", [torch.zeros(1), SimpleNamespace(is_cuda=True, dtype=torch.float64)])
    def test_a_tensor_that_kernels_never_take(self, choice, x):
        assert choice(x) == "torch"

    def test_a_call_that_they_do_not_take_is_told_once(self, choice):
        def refuse(x):
            raise NotTaken("a state before the call")

        sys.modules["fast"].gla = refuse
        with pytest.warns(
            UserWarning, match="gla runs in plain torch where .* fla do not take a state before the call"
        ):
            assert choice(ON_GPU) == "torch"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert choice(ON_GPU) == "torch"

    def test_the_module_is_imported_by_the_first_call(self, machine, monkeypatch):
        machine(gpu=True, installed=True)
        asked = []
        monkeypatch.setattr(importlib, "import_module", lambda name: asked.append(name) or sys.modules["fast"])
        monkeypatch.setitem(sys.modules, "fast", SimpleNamespace(gla=lambda x: "kernels"))
        choice = chosen()
        assert not asked
        choice(ON_GPU)
        assert asked == ["fast"]


def test_choices_of_a_model_by_part(machine):
    machine(gpu=True, installed=True)
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    model[0].scan, model[1].scan, model[2].scan = chosen(), chosen(), chosen("torch")
    assert choices(model, CUDA) == {"gla": "kernels (fla); torch (asked for)"}
    assert choices(copy.deepcopy(model), CPU) == {"gla": "torch (on cpu); torch (asked for)"}
    assert choices(nn.Linear(1, 1), CUDA) == {}


def test_importing_and_building_every_mixer_imports_no_kernels():
    """Kernel packages are found even where they are not installed: an import of one would raise."""
    script = """
import sys
import bakeoff.testing
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "fla", "mamba_ssm", "causal_conv1d"):
            raise AssertionError(f"{name} is imported")
import torch
sys.meta_path.insert(0, Refuse())
from bakeoff.parts import kernels
kernels._installed, kernels._gpu = lambda package: True, lambda: True
from bakeoff.registry import find, names
from bakeoff.testing.build import built
for entry in names("mixer"):
    cls = find(entry.name)
    for arguments in cls.examples():
        built(cls, arguments)
print("done")
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout == "done\n", done.stderr

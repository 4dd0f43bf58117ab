import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest
from bakeoff.compare import figures
from bakeoff.compare.report.marks import COLOURS, dashes, paint, shape

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
SIGHT = {
    "all cones": np.eye(3),
    "no L cones": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no M cones": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no S cones": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}

# Ottosson (2020), Oklab: linear RGB -> cones -> lightness, green-red, blue-yellow.
CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
OKLAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def seen(colour, sight):
    """A hexadecimal colour in Oklab, as an eye sees it."""
    channels = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return OKLAB @ np.cbrt(CONES @ np.clip(SIGHT[sight] @ linear, 0, 1))


def scheme_of(number):
    """The colours of the light scheme, 0, or of the dark one, 1."""
    css = files("bakeoff.compare.report").joinpath("page.css").read_text()
    return re.findall(r"--c\d: (#\w+)", css)[number * COLOURS : (number + 1) * COLOURS]


def test_oklab_of_white_and_of_a_grey():
    assert seen("#ffffff", "all cones") == pytest.approx([1, 0, 0], abs=1e-4)
    assert seen("#777777", "no L cones")[1:] == pytest.approx([0, 0], abs=1e-3)


@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("scheme", [0, 1])
def test_any_two_colours_are_apart_for_any_eye(scheme, sight):
    found = scheme_of(scheme)
    assert len(found) == COLOURS
    for one, other in combinations(found, 2):
        # 0.02 is just seen
        assert np.linalg.norm(seen(one, sight) - seen(other, sight)) > 0.1, (one, other)


def test_no_two_of_64_arms_have_one_mark_nor_of_32_one_line():
    colours = [paint(i)["data_ink"] for i in range(64)]
    assert len({(colours[i], shape(i)) for i in range(64)}) == 64
    assert len({(colours[i], dashes(i)) for i in range(32)}) == 32
    assert len({shape(i) for i in range(8)}) == 8


def test_figures_have_the_colours_of_the_page():
    assert list(figures.COLOURS) == scheme_of(0)

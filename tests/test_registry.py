"""Names, clashes, near misses, broken packages."""

import subprocess
import sys
import textwrap

import bakeoff
import pytest
from bakeoff import registry
from bakeoff.errors import RegistryError, UserError
from bakeoff.interfaces import FeedForward, Result, SequenceMixer


@pytest.fixture
def unregister():
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Make made-up distributions visible: `site(name, kind, component, target, module source)`."""

    def install(name, kind, component, target, source=""):
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[bakeoff.{kind}]\n{component} = {target}\n")
        (tmp_path / f"{target.partition(':')[0]}.py").write_text(textwrap.dedent(source))
        registry.refresh()

    monkeypatch.syspath_prepend(tmp_path)
    registry.refresh()
    yield install
    registry.refresh()


def test_every_entry_point_is_a_component_of_its_kind():
    for entry in bakeoff.names():
        cls = bakeoff.find(entry.name, entry.kind)
        assert cls.kind == entry.kind


def test_listing_imports_nothing():
    code = (
        "import bakeoff, sys; assert len(bakeoff.names()) > 40; assert not {'torch', 'bakeoff_ssm'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_finding_one_imports_no_other_plugin():
    loaded = "{'bakeoff_rnn', 'bakeoff_ssm'} & set(sys.modules)"
    code = f"import bakeoff, sys; bakeoff.find('lstm'); assert {loaded} == {{'bakeoff_rnn'}}"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_name_lists_the_nearest_and_all():
    with pytest.raises(
        RegistryError, match=r"no mixer is called 'atention'; did you mean 'attention'( or '\w+')*\?.*known mixer"
    ):
        bakeoff.find("atention", "mixer")


def test_wrong_kind_is_said():
    with pytest.raises(RegistryError, match="'mlp' is a feed_forward, not a mixer"):
        bakeoff.find("mlp", "mixer")


def test_unknown_kind_is_said():
    with pytest.raises(RegistryError, match="no kind"):
        registry.interface_of("mixture")


def test_a_name_known_elsewhere_tells_the_pip_line(monkeypatch):
    monkeypatch.setitem(registry.KNOWN_ELSEWHERE, "hyena", "pip install bakeoff-hyena")
    with pytest.raises(RegistryError, match="pip install bakeoff-hyena"):
        bakeoff.find("hyena", "mixer")


@pytest.mark.usefixtures("unregister")
def test_register_in_a_script():
    @bakeoff.register("nothing_at_all")
    class Nothing(SequenceMixer):
        def forward(self, x, sequence, state=None):
            return Result(x)

    assert bakeoff.find("nothing_at_all", "mixer") is Nothing
    assert registry.name_of(Nothing) == "nothing_at_all"
    with pytest.raises(RegistryError, match="more than one owner"):

        @bakeoff.register("nothing_at_all")
        class Other(FeedForward):
            def forward(self, x, sequence, state=None):
                return Result(x)


@pytest.mark.usefixtures("unregister")
@pytest.mark.parametrize("name", ["CamelCase", "with-dash", "1st"])
def test_names_are_snake_case(name):
    with pytest.raises(RegistryError, match="snake_case"):
        bakeoff.register(name)(SequenceMixer)


def test_registering_over_an_installed_name_is_a_clash():
    with pytest.raises(RegistryError, match="more than one owner"):
        bakeoff.register("attention")(SequenceMixer)


def test_two_distributions_with_one_name(site):
    site("first-idea", "mixer", "same_name", "first_mod:A")
    site("second-idea", "mixer", "same_name", "second_mod:B")
    with pytest.raises(RegistryError, match=r"first-idea 1\.0.*second-idea 1\.0"):
        bakeoff.find("same_name")
    assert bakeoff.find("attention")  # others are not taken down


def test_names_are_unique_over_kinds(site):
    site("third-idea", "norm", "mlp", "third_mod:A")
    with pytest.raises(RegistryError, match="more than one owner"):
        bakeoff.find("mlp", "feed_forward")


def test_a_broken_package_is_named_and_takes_no_other_down(site):
    site("broken-idea", "mixer", "broken", "broken_mod:A", "import a_module_that_is_not_there")
    with pytest.raises(RegistryError, match=r"broken-idea 1\.0 cannot be imported.*a_module_that_is_not_there"):
        bakeoff.find("broken")
    assert bakeoff.find("attention")


def test_another_interface_number_is_refused(site):
    source = """
        BAKEOFF_API = 999
        from bakeoff.interfaces import SequenceMixer as A
    """
    site("future-idea", "mixer", "future", "future_mod:A", source)
    with pytest.raises(RegistryError, match="interface 999"):
        bakeoff.find("future")


def test_a_class_of_another_kind_is_refused(site):
    site("confused-idea", "mixer", "confused", "confused_mod:A", "class A: pass")
    with pytest.raises(RegistryError, match="no subclass of SequenceMixer"):
        bakeoff.find("confused")


def test_user_errors_are_value_errors():
    assert issubclass(UserError, ValueError)


def test_public_face_is_lazy():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bakeoff.nonsense  # noqa: B018
    assert bakeoff.api == 1

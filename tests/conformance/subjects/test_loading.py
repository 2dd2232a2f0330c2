"""Somebody's own layer as a subject: in which forms it is found, and one clear line for a spec that is wrong."""

import re
import sys
from pathlib import Path

import pytest

from conformance.bounds.precision import Precision
from conformance.subjects.load import check_time_limit, load_subject, load_subjects, subject_from_function
from mha_core import SpecError
from mha_core.errors import install_command
from tests.conformance.subjects.own_layer import judge

FORMS = {
    "a function": "subject = right",
    "a factory of a function": "def subject(): return right",
    "a factory that is told the dtype": "def subject(dtype):\n    assert dtype == 'float64'\n    return right",
    "an object": "subject = Right()",
    "a class": "subject = Right",
    "a factory of an object": "subject = lambda: Right()",
    "a callable object": (
        "class Callable:\n    def __call__(self, weights, queries, keys, values, mask, *, config):\n"
        "        return right(weights, queries, keys, values, mask, config=config)\n"
        "subject = Callable()"
    ),
    "a dict by stage": "def subject(weights, queries, keys, values, mask, **options):\n"
    "    output = right(weights, queries, keys, values, mask, config=options['config'])\n"
    "    return {'output': output, 'weights': None}",
    "a Trace": "def subject(weights, queries, keys, values, mask, config):\n"
    "    inputs = AttentionInputs(queries, keys, values, AttentionMask(allowed=mask))\n"
    "    return reference.run(config, weights, inputs)",
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_judged(form, module):
    result = judge(FORMS[form], module)
    assert result.status == "equal", result
    assert "output" in result.judged
    assert (result.subject, result.dtype, result.device) == ("subject", "float64", "cpu")


def test_defaults_and_what_a_subject_says_of_itself(module):
    module(
        "from conformance.bounds.precision import Precision\n"
        "class Own(Right):\n"
        "    name, device, dtypes = 'my layer', 'cuda:0', ('float32', 'bfloat16')\n"
        "    def precision(self, dtype): return Precision.of(dtype).with_multiply('tf32')\n"
        "class Fixed(Right):\n    dtype = 'float32'\n"
        "class Sure(Right):\n    precision = Precision.of('float32')\n"
    )
    plain = load_subject("mine:Right", "float32")
    assert (plain.name, plain.device, plain.precision) == ("Right", "cpu", Precision.of("float32"))
    assert plain.time_limit == 60.0
    own = load_subject("mine:Own", "float32")
    assert (own.name, own.device, own.precision.multiply) == ("my layer", "cuda:0", "tf32")
    assert load_subject("mine:Fixed", "float32").dtype == "float32"
    with pytest.raises(SpecError, match=r"'mine:Fixed' does not compute in float64 \(it does in: float32\)"):
        load_subject("mine:Fixed", "float64")
    with pytest.raises(SpecError, match="precision must be a Precision with storage='float64'"):
        load_subject("mine:Sure", "float64")


def test_dtypes_that_a_subject_lacks_are_listed(module):
    module("subject = right")
    subjects, left_out = load_subjects("mine:subject", ("float16", "float32"))
    assert [subject.dtype for subject in subjects] == ["float32"]
    assert left_out == ["left out: subject 'mine:subject' does not compute in float16 (it does in: float64, float32)"]
    with pytest.raises(
        SpecError, match="nothing to run:\nleft out: subject 'mine:subject' does not compute in float16"
    ):
        load_subjects("mine:subject", ("float16",))


def test_a_function_knows_the_dtype_that_its_arrays_cannot_tell(module):
    text = (
        "from conformance.subjects.load import subject_from_function\nfrom mha_core.dtypes import round_to\n"
        "def f(weights, queries, keys, values, mask, *, config, dtype):\n"
        "    assert dtype == 'bfloat16' and queries.dtype == np.float32\n"
        "    return round_to(right(weights, queries, keys, values, mask, config=config), dtype)\n"
        "subject = subject_from_function(f, name='half', dtypes=('float32', 'bfloat16'))"
    )
    result = judge(text, module, "bfloat16")
    assert (result.status, result.subject) == ("equal", "half"), result.message


SPECS = {
    "mine": "'mine': name what is in it, too: write mine:right (mine.py has: right, exchanged, short, demanding and",
    "absent": "'absent': it must read MODULE:NAME, such as mine:attention (`attention` in mine.py)",
    ":subject": "':subject': it must read MODULE:NAME",
    "mine:": "'mine:': name what is in it, too: write mine:right (",
    "mine:a b": "'mine:a b': it must read",
    "folder/mine.py:subject": "name the module, without .py: write folder.mine:subject; there is no",
    "nowhere:subject": "or among the installed packages; `mha check --new FILE.py` writes one to begin with",
    "mine.sub:subject": "subject 'mine.sub:subject': there is no module 'mine.sub' in ",
    "mine.py:right": "name the module, without .py: write mine:right",
    "mine.py": "name what is in it, too: write mine:right (",
    "mine:attenshun": "mine has no 'attenshun' (it has: right, Right, ",
    "mine:right.sub": "mine has no 'right.sub' (it has: no function and no class); `mha check --new FILE.py` writes",
    "mine:number": "is of type int, and no function; it must be a function f(weights, queries, keys, values, mask), "
    "or have prepare(config, weights)",
    "mine:unprepared": "is of type SimpleNamespace, and no function",
    "mine:raising": "raising() raised RuntimeError: no GPU today (mine.py:",
    "mine:exiting": "exiting() raised SystemExit: 3",
    "mine:nothing": "nothing() returned None; it must be a function f(weights, queries, keys, values, mask), or have "
    "prepare(config, weights); `mha check --new FILE.py` writes one to begin with",
    "mine:texts": "texts() returned str; it must be a function",
    "mine:Layer": "is a class that takes (embed_dim, num_heads); it must be a function f(weights, queries, keys, "
    "values, mask), or have prepare(config, weights); `mha check --new FILE.py` writes one to begin with",
    "mine:Prepared": "takes (dim); name a function that makes one: def make(): return Prepared(...)",
    "mine:Empty": "Empty() has no prepare(config, weights); it must be a function",
    "mine:maker": "takes (dim); it is called without arguments: name one that needs none, def make(): return maker(",
    "mine:other": "takes (q, k, v); it must take (weights, queries, keys, values, mask): put a function around it, "
    "def judged(weights, queries, keys, values, mask): return other(...); `mha check --new",
    "mine:Net": "'mine:Net': a layer of torch is judged in a class that gives it weights: "
    "`mha check --new FILE.py --framework torch` writes one. Or record its calls, with mha.capture(",
    "mine:exchanged": "takes (weights, keys, queries, values, mask); it must take (weights, queries, keys, values, "
    "mask), in this order",
    "mine:short": "takes (weights, queries, keys, values); it lacks mask: it must take (weights, queries, keys, "
    "values, mask), in this order; `mha check --new FILE.py` writes one to begin with",
    "mine:renaming": "'renaming' needs 'n_heads', which is not known; did you mean num_heads? (known: config,",
    "mine:masked": "'masked' needs 'attn_mask', which is not known; the mask is the fifth argument (known: config, ",
    "mine:demanding": "'demanding' needs 'causal', which is not known (known: config, num_heads,",
    "mine:Unnamed": "its name must be a text. Got 7.",
    "mine:Dtyped": "dtype 'single' is not known (known: float64",
    "mine:Texted": "dtypes must be a tuple of names, such as ('float64', 'float32'). Got 'float64'.",
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_bad_spec_is_refused_in_one_line_before_anything_runs(spec, module):
    module(
        "import types, sys\nnumber = 7\nunprepared = types.SimpleNamespace(prepare=3)\n"
        "def raising():\n    raise RuntimeError('no GPU today\\nand why')\n"
        "class Net(type('Module', (), {'__module__': 'torch.nn.modules.module'})): pass\n"
        "def exiting(): sys.exit(3)\ndef nothing(): pass\ndef texts(): return 'right'\n"
        "def exchanged(weights, keys, queries, values, mask): pass\n"
        "def short(weights, queries, keys, values): pass\n"
        "def demanding(weights, queries, keys, values, mask, causal): pass\n"
        "def masked(weights, queries, keys, values, mask, attn_mask): pass\n"
        "def renaming(weights, queries, keys, values, mask, n_heads): pass\n"
        "class Layer:\n    def __init__(self, embed_dim, num_heads): pass\n"
        "class Empty: pass\ndef maker(dim): pass\ndef other(q, k, v): pass\n"
        "class Prepared:\n    def __init__(self, dim): pass\n    def prepare(self, config, weights): pass\n"
        "class Unnamed(Right): name = 7\nclass Dtyped(Right): dtype = 'single'\n"
        "class Texted(Right): dtypes = 'float64'\n"
    )
    with pytest.raises(SpecError) as error:
        load_subject(spec, "float64")
    assert SPECS[spec] in str(error.value)
    assert spec in str(error.value) or spec in ("mine:demanding", "mine:masked", "mine:renaming")
    assert len(str(error.value).splitlines()) == 1


def test_a_module_that_is_meant_is_one_that_may_hold_a_layer(module, tmp_path):
    module("")
    [(tmp_path / f"{name}.py").touch() for name in ("noxfile", "conftest")]
    for spec, said in (
        ("mines:right", "; did you mean mine?"),
        ("noxfiles:right", "; `mha check --new FILE.py` writes"),
    ):
        with pytest.raises(SpecError, match=f"there is no module .*{re.escape(said)}"):
            load_subject(spec, "float64")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import no_such_package",
            "importing mine raised ModuleNotFoundError: No module named 'no_such_package' (mine.py:",
        ),
        (
            "raise ModuleNotFoundError(\"No module named 'keras'\", name='keras')",
            f"No module named 'keras' (mine.py:12 in <module>); {install_command('tf')}",
        ),
        ("def broken(:", "importing mine raised SyntaxError: invalid syntax"),
        ("1 / 0", "importing mine raised ZeroDivisionError: division by zero (mine.py:"),
        ("raise SystemExit(2)", "importing mine raised SystemExit: 2"),
    ],
)
def test_a_module_that_cannot_be_imported(text, message, module):
    module(text)
    with pytest.raises(SpecError) as error:
        load_subject("mine:right", "float64")
    assert message in str(error.value)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_time_limits_that_are_none(seconds):
    with pytest.raises(SpecError, match="the time limit must be a positive number of seconds"):
        check_time_limit(seconds)
    with pytest.raises(SpecError, match="time limit"):
        load_subject("mine:subject", "float64", time_limit=seconds)


def test_dtype_and_dtypes_of_a_function_must_agree():
    with pytest.raises(SpecError, match=r"'mine' does not compute in float16 \(it does in: float64, float32\)"):
        subject_from_function(lambda weights, queries, keys, values, mask: 0, name="mine", dtype="float16")


@pytest.mark.parametrize(
    ("name", "text", "library"),
    [
        ("colorsys", "import torch_of_somebody", "import colorsys\ncolorsys.rgb_to_hls\n"),
        ("imghdr", "x", "import imghdr\n"),
        ("torch", "", "import torch.nn\n"),
    ],
)
def test_a_file_that_hides_a_module_of_python_or_a_framework_is_named(name, text, library, tmp_path, monkeypatch):
    folder, installed = tmp_path / "mine", tmp_path / "site-packages"
    folder.mkdir()
    installed.mkdir()
    (folder / f"{name}.py").write_text(text)
    (folder / "hiding_one.py").write_text("import torch_of_somebody")
    (installed / "torch_of_somebody.py").write_text(library)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), str(installed), *sys.path])
    for module in list(sys.modules):
        if module.split(".")[0] in ("colorsys", "imghdr", "torch"):
            monkeypatch.delitem(sys.modules, module)
    whose = "the package" if name == "torch" else "Python's module"
    with pytest.raises(SpecError, match=f"'hiding_one:f': {name}.py here hides {whose} {name}: rename it. Importing"):
        load_subject("hiding_one:f", "float64")
    for module in ("hiding_one", "torch_of_somebody", name):
        sys.modules.pop(module, None)


def test_a_file_of_a_plain_name_with_an_error_of_its_own_hides_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("colorsys.py").write_text("absent_name")
    Path("imports_one.py").write_text("import colorsys")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(SpecError, match="'imports_one:f': importing imports_one raised NameError") as caught:
        load_subject("imports_one:f", "float64")
    assert "hides" not in str(caught.value)


def test_what_is_built_in_the_current_folder_does_not_hide_the_folder_to_install_from(tmp_path, monkeypatch):
    for folder, url in (("here/some_layer.egg-info", None), ("installed/some_layer-1.0.dist-info", "file:///a/clone")):
        (made := tmp_path / folder).mkdir(parents=True)
        (made / ("METADATA" if url else "PKG-INFO")).write_text(
            "Metadata-Version: 2.1\nName: some-layer\nVersion: 1.0\n"
        )
        if url:
            (made / "direct_url.json").write_text(f'{{"url": "{url}"}}')
    for folder in ("installed", "here"):
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert install_command("torch", "some-layer") == "pip install '/a/clone[torch]'"

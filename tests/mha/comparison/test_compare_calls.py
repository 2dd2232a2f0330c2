"""Comparison of calls in another order, of calls without a partner, and with a live port; and the command."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

import mha
from conformance.subjects.load import load_subject
from conformance.zoo.bug import BuggySubject
from conformance.zoo.registry import select
from mha.cli.porter.compare import compare as compare_command
from mha.cli.suite.diagnose import diagnose
from mha.coverage import Unread
from mha_core import AttentionMask, SpecError
from tests.mha.comparison.three_layers import LENGTHS, X, layers_of, model, part

# Other calls ----------------------------------------------------------------------------------------------


def test_another_order_of_the_batch_is_found(original):
    turned = [2, 0, 1]
    first, said = part(original, model(layers_of(), X[turned], AttentionMask(valid_lens=LENGTHS[turned])))
    assert first is None, said
    assert "The port's batch has another order: its items [1, 2, 0] are the original's." in said

    def mixed(i, x):
        return x[turned] if i == 1 else x

    assert part(original, model(layers_of(), between=mixed))[0][:2] == ("b", "inputs")


def test_other_shapes_are_said(original):
    for x, words in ((X[:2], "another batch, so these are not the same calls"), (X[:, :5], "another length")):
        first, said = part(original, model(layers_of(), x, AttentionMask()))
        assert first == ("a", "inputs", "shapes")
        assert words in said


def test_calls_without_a_partner_are_no_parity(original):
    fewer = replace(original, calls=original.calls[:2])
    found = mha.compare(original, fewer)
    assert (found.first, found.equal, found.different) == (None, False, True)
    assert found.unpaired == ("No partner has the original's c.",)
    twice = replace(original, calls=(*original.calls, original.calls[0]))
    found = mha.compare(original, twice)
    assert "a was called once; in the port, 2 times." in found.notes
    assert found.unpaired == ("No partner has the port's a#2.",)


def test_layers_are_paired_by_name_or_in_order(original):
    other = model(layers_of(names=("x", "y", "z")))
    found = mha.compare(original, other)
    assert (found.by, found.equal) == ("order", True)
    assert [pair.name for pair in found.pairs] == ["a (the port's x)", "b (the port's y)", "c (the port's z)"]
    assert mha.compare(original, original, by="order").equal
    with pytest.raises(SpecError, match="no layer of the port has a name of the original's: x, y, z; a, b, c"):
        mha.compare(original, other, by="name")
    exchanged = model([replace(layer, name=name) for layer, name in zip(layers_of(), "bac", strict=True)])
    found = mha.compare(original, exchanged)
    assert "The calls have another order: the port calls b before a." in found.notes
    assert not found.equal


def test_names_choose_what_is_reported(original):
    wrong = model(layers_of(), epsilon=1e-3)
    assert mha.compare(original, wrong, patterns=["a"]).equal
    assert [pair.name for pair in mha.compare(original, wrong, patterns=["b", "c"]).pairs] == ["b", "c"]
    with pytest.raises(SpecError, match=r"no call is named 'd' \(there are: a, b, c\)"):
        mha.compare(original, wrong, patterns=["d"])


# A live port ----------------------------------------------------------------------------------------------


class Port:
    """A subject with weights of its own."""

    def __init__(self, own, *bugs):
        self.own_weights, self.bugs = own, bugs

    def __call__(self, dtype):
        self.subject = BuggySubject(*self.bugs, dtype=dtype)
        return self

    def __getattr__(self, name):
        return getattr(self.subject, name)


def test_a_live_port_is_given_what_was_recorded(original):
    assert mha.compare(original, lambda dtype: BuggySubject(dtype=dtype)).equal
    wrong = BuggySubject(*select(("scale-missing",)), dtype="float32")
    assert part(original, lambda dtype: wrong)[0][:2] == ("a", "outputs")
    held = {layer.name: dict(layer.weights) for layer in original.layers}
    assert mha.compare(original, Port(held)).equal
    held["b"]["v_proj.weight"] = held["b"]["v_proj.weight"].T
    assert part(original, Port(held))[0] == ("b", "weights", "v_proj.weight")
    with pytest.raises(SpecError, match="lacks the layer 'a'"):
        mha.compare(original, Port({"b": held["b"]}))


def test_a_live_port_that_gives_no_answer(original):
    broken = BuggySubject(dtype="float32")
    broken.prepare = lambda config, weights: lambda inputs: inputs.queries[:1]
    found = mha.compare(original, lambda dtype: broken)
    assert (found.equal, found.different, set(found.failed)) == (False, False, {"a", "b", "c"})
    assert found.failed["a"] == "its output is float32 (1, 7, 12); it must be float32 (3, 7, 12)"


# The commands ---------------------------------------------------------------------------------------------


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def files(original, tmp_path):
    original.save(tmp_path / "original")
    model(layers_of(), mask=AttentionMask()).save(tmp_path / "port")
    return tmp_path


def test_the_command(files):
    done = run(compare_command, files / "original", files / "original")
    assert done.exit_code == 0, done.output
    assert "Equal: 3 pairs of calls" in done.output
    done = run(compare_command, files / "original", files / "port", "--json", files / "report.json")
    assert done.exit_code == 1
    assert "Different: a is the first of 3 pairs of calls to part, in mask (allowed)." in done.output
    written = json.loads((files / "report.json").read_text())
    assert (written["equal"], written["first"]["part"]) == (False, "mask")
    assert written["pairs"][0]["states"]["mask"] == "different"
    spec = "examples.subject_numpy:attention"
    assert load_subject(spec, "float32")
    assert run(compare_command, files / "original", "--subject", spec).exit_code == 0
    assert run(compare_command, files / "original", "--subject", spec, "--dtype", "float64").exit_code == 0


def test_what_the_command_can_not_use(files):
    for arguments, words in (
        (("original", "absent"), "no such file"),
        (("original",), "Give either PORT or --subject"),
        (("original", "port", "--dtype", "float64"), "--dtype belongs to --subject"),
        (("original", "port", "--case", "x"), "no call is named 'x'"),
        (("original", "--subject", "nowhere:attention"), "nowhere"),
    ):
        paths = [files / one if one in ("original", "port", "absent") else one for one in arguments]
        done = run(compare_command, *paths)
        assert (done.exit_code, words in done.output) == (2, True), done.output


def test_modules_that_were_not_read_are_said_or_refused(original, tmp_path):
    replace(original, unread=(Unread("d", "mine.Other", "unknown"),)).save(tmp_path / "original")
    arguments = compare_command, tmp_path / "original", tmp_path / "original"
    done = run(*arguments, "--json", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    for whose in ("original", "port"):
        assert f"Of the {whose}: read 3 of 4 modules that look like attention; not: d (mine.Other)." in done.output
        assert json.loads((tmp_path / "report.json").read_text())["coverage"][whose]["unread"][0]["name"] == "d"
    assert run(*arguments, "--strict").exit_code == 2
    done = run(diagnose, tmp_path / "original", "--weights", tmp_path / "original")
    assert "read 3 of 4 modules that look like attention" in done.output


def test_diagnose_sees_a_mask_that_the_port_forgets(files):
    done = run(diagnose, files / "port", "--weights", files / "original")
    assert done.exit_code == 1, done.output
    assert "it forgets the mask" in done.output
    assert "That is by its own inputs and masks, which are not the original's" in done.output
    assert run(diagnose, files / "port", "--weights", files / "original", "--no-compare").exit_code == 0
    assert run(diagnose, files / "original", "--weights", files / "original").exit_code == 0

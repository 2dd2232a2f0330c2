"""What most often is the cause of an error, and what to declare, stand beside it on the first screen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from mha.cli.main import main

pytestmark = pytest.mark.same_on_newest  # it runs subjects in NumPy alone

FEW = ("-c", "prime", "-c", "causal")


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The name of a module in the current folder, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    return f"own_{tmp_path.name}"


def said(*arguments: str) -> tuple[int, str]:
    ended = CliRunner(env={"COLUMNS": "80"}).invoke(main, [*arguments, "--workers", "0"])
    return ended.exit_code, ended.stdout


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_a_maximum_over_no_keys_is_to_have_a_start(own):
    Path(f"{own}.py").write_text(
        "import numpy as np\n\n\ndef highest(weights, queries, keys, values, mask, *, num_heads):\n"
        "    return np.ones(keys.shape).max(axis=1)\n"
    )
    text = flat(said("check", "--subject", f"{own}:highest", "-c", "no-keys", "-c", "square-causal")[1])
    assert "A call may have no keys, and they no maximum: give it a start, as in x.max(axis=-1, initial=-np" in text


def test_what_an_object_does_not_declare_is_named_where_cases_are_not_judged(own):
    Path(f"{own}.py").write_text(
        "from mha_core.subject import Capabilities\n\n\nclass Own:\n    capabilities = Capabilities('query_dim')\n\n"
        "    def prepare(self, config, weights): ...\n"
    )
    text = said("check", "--subject", f"{own}:Own", "-c", "gr*", "-d", "float64")[1]
    assert "\nNot judged without the capabilities head_dim (1), value_head_dim (1) and " in text
    Path(f"{own}_2.py").write_text(
        "from mha_core.subject import EVERYTHING\nclass Own:\n    capabilities = EVERYTHING.but(without=['rotary'])\n\n"
        "    def prepare(self, config, weights): ...\n"
    )
    alone = said("check", "--subject", f"{own}_2:Own", "-c", "rotary", "-d", "float64")[1]
    assert "\nNot judged without the capability rotary (1)\n" in alone
    assert 'No case was asked. What would have it asked the others stands below, at "Not judged"' in flat(text)


def test_an_object_of_other_arguments_is_told_how_it_is_called(own):
    Path(f"{own}.py").write_text(
        "class Alone:\n    def prepare(self, config): ...\n\n\nclass Four:\n    def prepare(self, config, weights):\n"
        "        def run(queries, keys, values, mask): ...\n        return run\n\n\n"
        "class Named(Four):\n    capabilities = {'grouped'}\n"
    )
    text = said("check", "--subject", f"{own}:Alone", *FEW)[1]
    assert "It is called as prepare(config, weights), and returns a function run(inputs)." in flat(text)
    assert "declares no" not in text  # that is not why
    text = said("check", "--subject", f"{own}:Four", *FEW)[1]
    assert "It is called as run(inputs), with inputs.queries, .keys, .values and .mask." in flat(text)
    result = CliRunner().invoke(main, ["check", "--subject", f"{own}:Named", *FEW])
    assert result.exit_code == 2
    assert "such as Capabilities('query_dim', 'grouped'). Got {'grouped'}." in result.output


def test_a_module_that_is_a_program_is_told_where_that_belongs(own):
    Path(f"{own}.py").write_text("raise SystemExit(2)\n")
    result = CliRunner().invoke(main, ["check", "--subject", f"{own}:attention", *FEW])
    assert result.exit_code == 2
    assert "raised SystemExit: 2" in result.output
    assert "what it does as a program belongs below `if __name__ == '__main__':`" in result.output


def test_an_output_of_another_width_is_told_what_its_width_is(own):
    Path(f"{own}.py").write_text(
        "def narrow(weights, queries, keys, values, mask, *, num_heads):\n    return queries[..., :1]\n"
    )
    text = flat(said("check", "--subject", f"{own}:narrow", *FEW)[1])
    assert "Its width is that of the output projection: heads @ out_proj.weight.T + out_proj.bias." in text

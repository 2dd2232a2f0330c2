"""What commands write with --json has the form that mha/schemas says, whether it is equal or not."""

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import mha.schemas
from mha.cli.main import main
from mha.schemas import schema
from mha_core import save_weights
from mha_core.files.writing import jsonable
from tests.mha.convert.test_convert_recorded import CONFIG, record
from tests.mha.infer import recorded_layers
from tests.mha.vectors import answers_of, write_answers

pytestmark = pytest.mark.same_on_newest  # what is written has the same form there

COMMANDS = {name for name, one in main.commands.items() if any("--json" in param.opts for param in one.params)}

ATTENTION = """
import numpy as np


def right(weights, queries, keys, values, mask, *, num_heads, scale=None):
    def heads(x, name):
        projected = x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)
        return projected.reshape(*x.shape[:2], num_heads, -1).swapaxes(1, 2)

    q, k, v = heads(queries, "q_proj"), heads(keys, "k_proj"), heads(values, "v_proj")
    scores = np.where(mask, q @ k.swapaxes(2, 3) * (scale or q.shape[-1] ** -0.5), -1e30)
    exp = np.exp(scores - scores.max(axis=-1, keepdims=True)) * mask
    merged = (exp / exp.sum(axis=-1, keepdims=True) @ v).swapaxes(1, 2).reshape(*queries.shape[:2], -1)
    return merged @ weights["out_proj.weight"].T + weights.get("out_proj.bias", 0.0)


def wrong(weights, queries, keys, values, mask, *, num_heads):
    return right(weights, queries, keys, values, mask, num_heads=num_heads, scale=queries.shape[-1] ** -0.5)
"""


def check_form(command: str, found: object) -> None:
    jsonschema.Draft202012Validator(schema(command)).validate(json.loads(json.dumps(jsonable(found))))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The name of a module with a right layer and a wrong one, in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"mine_{tmp_path.name}"
    Path(f"{name}.py").write_text(ATTENTION)
    return name


def ends(status: int, command: str, *arguments: object) -> dict:
    """What `mha COMMAND --json FILE` writes; it must end with this status."""
    done = CliRunner().invoke(main, [command, *map(str, arguments), "--json", "found.json"])
    assert done.exit_code == status, done.output
    found = json.loads(Path("found.json").read_text())
    check_form(command, found)
    return found


def test_each_command_that_writes_json_has_a_schema_and_no_other():
    there = {path.name.removesuffix(".json") for path in files(mha.schemas).iterdir() if path.name.endswith(".json")}
    assert there == COMMANDS | {"common", "learn"}


@pytest.mark.parametrize("command", sorted(COMMANDS | {"learn"}))
def test_schemas_are_valid_and_strict(command):
    jsonschema.Draft202012Validator.check_schema(schema(command))

    def objects(value):
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        yield from (found for part in parts for found in objects(part))
        if isinstance(value, dict) and value.get("type") == "object":
            yield value

    for one in objects(schema(command)):
        assert "additionalProperties" in one, one
        if "properties" in one:
            assert one["additionalProperties"] is False
            assert set(one["required"]) == set(one["properties"])


def test_check_and_diagnose(mine):
    for name, status in (("right", 0), ("wrong", 1)):
        chosen = ("--subject", f"{mine}:{name}", "--case", "prime", "--workers", 0)
        assert {one["status"] for one in ends(status, "check", *chosen, "--no-diagnosis")["results"]} == {
            "different" if status else "equal"
        }
        assert ends(status, "diagnose", *chosen, "--no-experiments")["differs"] is bool(status)


def test_commands_on_recordings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    right, wrong = record("right.safetensors", ("a", 0)), record("wrong.safetensors", ("a", 0), wrong=0.5)
    assert ends(0, "replay", right, "-b", "torch")["unseen"]["calls"] == 1
    assert ends(1, "replay", wrong, "-b", "torch", "--no-unseen")["recorded"][0]["status"] == "different"
    assert ends(0, "where", right, right)["undetectable"]["calls"] == 1
    assert ends(1, "where", right, wrong)["modules"][0]["differences"][0]["part"] == "outputs"
    assert ends(1, "diagnose", wrong)["differs"]
    ends(0, "diagnose", right, "--weights", right)
    assert ends(0, "audit", right, "--atol", 1e-3)["caught"]


def test_convert(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_weights("mine.safetensors", CONFIG, recorded_layers.drawn(CONFIG))
    assert ends(0, "convert", "mine.safetensors", "--list")["read"] == 1
    assert ends(0, "convert", "mine.safetensors", "--to", "torch", "--out", "out.npz")["standing"] == "known"


def test_where(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.LayerNorm(5)).eval()
    for port in (model, torch.nn.Sequential(model[0], torch.nn.ReLU(), model[2]).eval()):
        with mha.capture(port, "port.safetensors", modules=True, overwrite=True):
            port(torch.randn(4, 6))
        check_form("where", mha.where(model, "port.safetensors").to_dict())


def test_vectors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main, ["vectors", "--out", "vectors", "--case", "heads-causal-float32"], catch_exceptions=False)
    for bugs, status in (((), 0), (("scale-missing",), 1)):
        answers = write_answers(tmp_path / f"answers{status}", answers_of(tmp_path / "vectors", *bugs))
        found = ends(status, "vectors", "--judge", tmp_path / "vectors", answers)
        assert found["verdicts"][0]["status"] == ("differs" if status else "equal")


def test_port(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from tests.mha.recipes.hf_models import save_encoder

    monkeypatch.chdir(tmp_path)
    folder = save_encoder(tmp_path / "model")
    assert ends(0, "port", folder, "--backend", "torch", "--text", "the cat sleeps .", "--no-unseen")["equal"]


def test_bugs_and_deviations(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = ("--kill", "--bug", "scale-missing", "--workers", 0)
    assert ends(0, "bugs", *chosen, "--case", "prime")["smallest_set"] == ["prime"]
    assert ends(1, "bugs", "--kill", "--bug", "window-*", "--workers", 0, "--case", "one-head")["bugs"]
    assert len(ends(0, "deviations")["deviations"]) > 100
    assert ends(0, "deviations", "-f", "torch")["deviations"][0]["cases"]


def test_learn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments, status in ((("start", "mine"), 0), (("check", "--folder", "mine"), 1), (("class", "mine"), 0)):
        written = () if arguments[0] == "start" else ("--json", "found.json")
        done = CliRunner().invoke(main, ["learn", *arguments, *written])
        assert done.exit_code == status, done.output
        if written:
            check_form("learn", json.loads(Path("found.json").read_text()))

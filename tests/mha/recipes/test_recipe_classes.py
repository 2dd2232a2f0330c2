"""Classes of recipes: those of one plain family have the same code, each of a family that turns is run, others wait."""

import ast
import importlib
import inspect
import re
import textwrap

import pytest

torch = pytest.importorskip("torch")
hf = pytest.importorskip("transformers")

from mha.recipes import RECIPES, attention_layers  # noqa: E402
from mha.recipes.rows import REFUSED  # noqa: E402
from mha.recipes.rows.refused import why_refused  # noqa: E402
from mha_core import SpecError  # noqa: E402
from tests.mha.recipes.hf_models import CLASSES, NAMES  # noqa: E402
from tests.mha.recipes.test_decoders import FAMILIES as DECODERS  # noqa: E402
from tests.mha.recipes.test_decoders import SIZES  # noqa: E402
from tests.mha.recipes.test_encoders import FAMILIES as ENCODERS  # noqa: E402

PLAIN = [name for name, recipe in RECIPES.items() if recipe.turn is None]


@pytest.mark.same_on_newest  # the releases of transformers and PyTorch are the same there
@pytest.mark.parametrize("family", PLAIN)
def test_all_classes_of_a_recipe_have_the_same_code(family):
    homes = {}
    for model_type in RECIPES[family].model_types:
        config = type(hf.AutoConfig.for_model(model_type))
        module = importlib.import_module(config.__module__.replace("configuration_", "modeling_"))
        homes.update({name: kind for name, kind in vars(module).items() if inspect.isclass(kind)})
    for kind in ("Self", "Cross") if family == "bert" else ("",):
        codes = {name: _code(homes[name]) for name in RECIPES[family].classes if f"{kind}Attention" in name}
        assert len(set(codes.values())) == 1, codes.keys()


@pytest.mark.parametrize("family", [name for name in RECIPES if name not in PLAIN])
def test_every_class_of_a_recipe_that_turns_is_run(family):
    """Its classes differ in what the recipe reads, and in functions that they call: equal code would prove nothing."""
    recipe = RECIPES[family]
    assert set(recipe.model_types) <= {name.split(":")[0] for name in (*DECODERS, *ENCODERS)}
    homes = [type(hf.AutoConfig.for_model(name)).__module__.rpartition(".")[0] for name in recipe.model_types]
    owners = [[home for home in homes if _has(home, name)] for name in recipe.classes]
    assert sorted(home for (home,) in owners) == sorted(homes)


def _has(home, name):
    """Whether the models of this package have an attention class of this name."""
    return hasattr(importlib.import_module(f"{home}.modeling_{home.rpartition('.')[2]}"), name)


def _code(kind):
    """What a class computes: its functions without docstrings, annotations of types, and its own name."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    functions = []
    for function in tree.body:
        if isinstance(function, ast.FunctionDef):
            body = function.body[ast.get_docstring(function) is not None :]
            names = [argument.arg for argument in function.args.args]
            functions.append(f"{function.name}{names}" + "".join(ast.dump(part) for part in body))
    return re.sub(r"'\w+(Config|Attention)'", "", "\n".join(functions))


@pytest.mark.parametrize("family", PLAIN)
def test_a_model_of_every_plain_family_is_run(family):
    names = {name.split(":")[0] for name in (*DECODERS, *ENCODERS)} | {name.split("-")[0] for name in NAMES}
    assert names & set(RECIPES[family].model_types)
    assert set(CLASSES) <= names


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.family)
def test_model_types_of_a_refused_family_are_there(row):
    for model_type in row.model_types:
        assert hf.AutoConfig.for_model(model_type).model_type == model_type
        assert why_refused(model_type) == f"can't be expressed: {row.reason}"
        assert not any(model_type in recipe.model_types for recipe in RECIPES.values())


@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForCausalLM"])
def test_a_live_model_of_a_refused_family_is_refused_with_the_reason(name):
    model = getattr(hf, name).from_config(hf.AutoConfig.for_model("bitnet", **SIZES))
    for one in (model, torch.nn.ModuleDict({"inside": model})):
        with pytest.raises(SpecError, match=r"^BitNet\w+ can't be expressed: the definition has no norm over the merg"):
            attention_layers(one)


@pytest.mark.parametrize(
    ("model_type", "changes"), [("falcon", {"alibi": True}), ("roformer", {"rotary_value": True, "embedding_size": 36})]
)
def test_a_setting_that_asks_for_something_else_is_refused(model_type, changes):
    model = hf.AutoModel.from_config(hf.AutoConfig.for_model(model_type, **{**SIZES, **changes}))
    (name,) = set(changes) - {"embedding_size"}
    with pytest.raises(SpecError, match=f"{name}=True of the model's config has no translation"):
        attention_layers(model)

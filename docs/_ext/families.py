"""`families`: the families of transformers whose attention is read, and those that are refused, from the recipes.

    ```{families} expressed
    ```

`counts` is the sentence that says how many published models they are.
"""

from _ext import common
from _ext.common import escaped
from mha.recipes.rows import RECIPES, REFUSED
from mha.recipes.rows.table import counts, rows


def expressed() -> str:
    """A row for each family that is read."""
    return common.table(
        ["family", "published models", "model types", "adds", "what is special"],
        [
            (
                f"`{row.family}`",
                escaped(", ".join(row.models)),
                ", ".join(f"`{name}`" for name in row.model_types),
                escaped(row.adds),
                escaped(row.words),
            )
            for row in rows()[: len(RECIPES)]
        ],
    )


def refused() -> str:
    """A row for each family that is refused."""
    return common.table(
        ["published models", "model types", "why"],
        [
            (escaped(", ".join(row.models)), ", ".join(f"`{name}`" for name in row.model_types), escaped(row.reason))
            for row in REFUSED
        ],
    )


def counted() -> str:
    """How many families and published models there are of both kinds."""
    found = counts()
    return (
        f"Of {sum(found.values())} published models and groups of them in these tables, {found['expressed']} are of "
        f"the {len(RECIPES)} families that are read, and {found['refused']} are refused."
    )


def markdown(part: str) -> str:
    """One of the three."""
    return {"expressed": expressed, "refused": refused, "counts": counted}[part]()

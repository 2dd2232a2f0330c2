"""`symbols`: one function of the four backends, in four tabs, as it stands in their sources.

    ```{symbols} ops/heads.py split_heads
    ```

The file is that of each backend, `backends/NAME/ops/heads.py`. A backend that has no such symbol stops the build. Tabs
are in step over all pages.
"""

from _ext.common import FRAMEWORKS, tabs


def markdown(file: str, symbol: str) -> str:
    """The tab set: the symbol in each framework, with the numbers of its lines."""
    dedent = ":dedent: 4\n" if "." in symbol else ""  # a method
    return tabs(
        {
            name: f"```{{literalinclude}} /../backends/{name}/{file}\n"
            f":pyobject: {symbol}\n:language: python\n:caption: backends/{name}/{file}\n"
            f":lineno-match:\n{dedent}```"
            for name in FRAMEWORKS
        }
    )

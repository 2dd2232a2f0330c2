"""Pages that need nothing else: one file, and no script may run but their own."""

import base64
import hashlib
from functools import cache

import jinja2


@cache
def template(package: str, page: str, script: str = "") -> jinja2.Template:
    """Return a page's Jinja template. Its globals `script` (source text) and `policy` (CSP for this script) are set.

    Args:
        package: the package that has the folder `templates`; templates of `conformance.reports` can be included.
        page, script: names of two files in that folder; `script` "" for a page without a script.
    """
    own = jinja2.PackageLoader(package)
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([own, jinja2.PackageLoader("conformance.reports")]),
        autoescape=True,  # names and messages come from outside
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if script:
        source = own.get_source(environment, script)[0]
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        # Only this one script may run, whatever else gets into the page.
        policy += f"; script-src 'sha256-{digest}'"
        environment.globals["script"] = source
    environment.globals["policy"] = policy
    return environment.get_template(page)

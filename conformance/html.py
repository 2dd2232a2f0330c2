"""`write_html`, where scripts look for it: see `conformance.reports.html`."""

from conformance.reports.html import write_html

__all__ = ["write_html"]

"""`write_html` under its public path; it is defined in `conformance.reports.html`."""

from conformance.reports.html import write_html

__all__ = ["write_html"]

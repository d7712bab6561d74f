"""The forms in which `chorale analysis results` writes what was published."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from client.analysis.described import DescribedResults
from client.analysis.results import AnalysisResults
from client.analysis.text import comma_separated, plain_text
from client.drift import drift_records, drift_table
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from chorale.spec.analysis_spec import AnalysisSpec
    from strategies.base import Arrays


def _html(results: AnalysisResults) -> str:
    from web.report.analysis import analysis_page

    return analysis_page(results.described, results.further)


FORMS: dict[str, Callable[[AnalysisResults], str]] = {
    "text": AnalysisResults.to_text,
    "csv": AnalysisResults.to_csv,
    "html": _html,
    "json": lambda results: json.dumps(results.to_json(), indent=1, allow_nan=False) + "\n",
}


FORMS_AGAINST: dict[str, Callable[[DescribedResults, DescribedResults], str]] = {
    "text": lambda *both: plain_text(drift_table(*both)),
    "csv": lambda *both: comma_separated([*drift_records(*both)], ("column", "figure", "value")),
    "json": lambda *both: json.dumps([*drift_records(*both)], indent=1, allow_nan=False) + "\n",
}


def render(spec: AnalysisSpec, state: Arrays, form: str) -> str:
    """form: of FORMS. Raises ConfigError for another one, and for a state that is no result of the job."""
    if form not in FORMS:
        raise ConfigError(f"format: expected one of {', '.join(FORMS)}, got {form}")
    return FORMS[form](AnalysisResults.of(spec, state))

"""The forms in which `chorale analysis results` writes what was published."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from client.analysis.described import DescribedResults
from client.analysis.records import FIELDS
from client.analysis.regression import FittedModel
from client.analysis.survival import SurvivalCurves
from client.analysis.text import comma_separated
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from chorale.spec.analysis_spec import AnalysisSpec
    from strategies.base import Arrays

Further = FittedModel | SurvivalCurves
Form = Callable[[DescribedResults, Further | None], str]


def _text(results: DescribedResults, further: Further | None) -> str:
    return results.to_text() + ("" if further is None else f"\n{further.to_text()}")


def _csv(results: DescribedResults, further: Further | None) -> str:
    if further is None:
        return results.to_csv()
    return comma_separated([*results.records(), *further.figures()], FIELDS)


def _markdown(results: DescribedResults, further: Further | None) -> str:
    return results.to_markdown() + ("" if further is None else f"\n{further.to_markdown()}")


def _html(results: DescribedResults, further: Further | None) -> str:
    from web.report.analysis import analysis_page

    return analysis_page(results, further)


def _json(results: DescribedResults, further: Further | None) -> str:
    found = results.to_json()
    if further is not None:
        found["figures"] += further.figures()
        found["notes"] += further.table().notes
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


FORMS: dict[str, Form] = {"text": _text, "csv": _csv, "md": _markdown, "html": _html, "json": _json}


def render(spec: AnalysisSpec, state: Arrays, form: str) -> str:
    """form: of FORMS. Raises ConfigError for another one, and for a state that is no result of the job."""
    if form not in FORMS:
        raise ConfigError(f"format: expected one of {', '.join(FORMS)}, got {form}")
    results = DescribedResults.of(spec, state)
    further: Further | None = None
    if spec.model is not None:
        further = FittedModel.of(spec, state)
    elif spec.survival is not None:
        further = SurvivalCurves.of(spec, state)
    return FORMS[form](results, further)

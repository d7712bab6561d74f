"""The forms in which `chorale analysis results` writes what was published."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from client.analysis.described import DescribedResults
from client.analysis.records import FIELDS
from client.analysis.regression import FittedModel
from client.analysis.text import comma_separated
from crypto.errors import ConfigError

if TYPE_CHECKING:
    from chorale.spec.analysis_spec import AnalysisSpec
    from strategies.base import Arrays

Form = Callable[[DescribedResults, FittedModel | None], str]


def _text(results: DescribedResults, model: FittedModel | None) -> str:
    return results.to_text() + ("" if model is None else f"\n{model.to_text()}")


def _csv(results: DescribedResults, model: FittedModel | None) -> str:
    if model is None:
        return results.to_csv()
    return comma_separated([*results.records(), *model.figures()], FIELDS)


def _markdown(results: DescribedResults, model: FittedModel | None) -> str:
    return results.to_markdown() + ("" if model is None else f"\n{model.to_markdown()}")


def _html(results: DescribedResults, model: FittedModel | None) -> str:
    from web.report.analysis import analysis_page

    return analysis_page(results, model)


def _json(results: DescribedResults, model: FittedModel | None) -> str:
    found = results.to_json()
    if model is not None:
        found["figures"] += model.figures()
        found["notes"] += model.table().notes
    return json.dumps(found, indent=1, allow_nan=False) + "\n"


FORMS: dict[str, Form] = {"text": _text, "csv": _csv, "md": _markdown, "html": _html, "json": _json}


def render(spec: AnalysisSpec, state: Arrays, form: str) -> str:
    """form: of FORMS. Raises ConfigError for another one, and for a state that is no result of the job."""
    if form not in FORMS:
        raise ConfigError(f"format: expected one of {', '.join(FORMS)}, got {form}")
    model = None if spec.model is None else FittedModel.of(spec, state)
    return FORMS[form](DescribedResults.of(spec, state), model)

"""An analysis as coordinator and silos run it: its phases, and the state that it begins with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from crypto.errors import ConfigError
from crypto.fixed_point.layout import Quantity
from strategies.analysis.counts import COUNTS, CountsPhase
from strategies.analysis.model_values import ModelValuesPhase
from strategies.analysis.noised import NOISED, NoisedPhase
from strategies.analysis.partition import Tables
from strategies.analysis.regression import MODEL, MODEL_FIT, ModelFitPhase, ModelPhase
from strategies.analysis.subgroups import SUBGROUPS
from strategies.analysis.values import PRODUCTS, VALUES, ProductsPhase, ValuesPhase
from strategies.base import TOTAL, Array, Arrays, Phase, PhaseContext
from strategies.phases.enrollment import ENROLLMENT, EnrollmentPhase

ANALYSIS = "analysis"
# exact phases that sum cells, which a data set answers few of; that of subgroups closes a training job
KINDS = (COUNTS, VALUES, PRODUCTS, MODEL, MODEL_FIT, SUBGROUPS)
# a state holds one array at least
FIRST_STATE: Mapping[str, Array] = MappingProxyType({"method/analysis": np.zeros(0, np.uint8)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """Counts first, values of published cells then; both at once under noise. With a model these are its
    opening, and each round is a step."""

    tables: Tables
    name: str = ANALYSIS
    main_figure: str = ""
    between: tuple[str, ...] = ()
    arms: tuple[Analysis, ...] = ()
    kinds_before_training: tuple[str, ...] = ()

    @property
    def _described(self) -> tuple[str, ...]:
        if self.tables.has_noise:
            return (NOISED,)
        values = (VALUES,) if self.tables.measured else ()
        return (COUNTS, *values, *([PRODUCTS] if self.tables.has_correlations else []))

    @property
    def opening(self) -> tuple[str, ...]:
        return (ENROLLMENT,) if self.tables.model is None else (ENROLLMENT, *self._described)

    @property
    def round_phases(self) -> tuple[str, ...]:
        return () if self.tables.model is None else (MODEL,)

    @property
    def closing(self) -> tuple[str, ...]:
        return self._described if self.tables.model is None else (MODEL_FIT,)

    @property
    def phases(self) -> Mapping[str, Phase]:
        tables = self.tables
        found: list[Phase] = [EnrollmentPhase(), CountsPhase(tables=tables), NoisedPhase(tables=tables)]
        if tables.model is None:
            found += [ValuesPhase(tables=tables), ProductsPhase(tables=tables)]
        else:
            found += [
                ModelValuesPhase(tables=tables),
                ModelPhase(tables=tables),
                ModelFitPhase(tables=tables),
            ]
        kinds = (*self.opening, *self.round_phases, *self.closing)
        return {phase.kind: phase for phase in found if phase.kind in kinds}

    def phase(self, kind: str) -> Phase:
        """Raises ConfigError for a kind that it does not have."""
        try:
            return self.phases[kind]
        except KeyError:
            known = ", ".join(sorted(self.phases))
            raise ConfigError(f"phase: expected one of {known} for {self.name}, got {kind}") from None

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """All that its phases sum."""
        state = {TOTAL: np.array(1)}
        context = PhaseContext(round=0, members=1, classes=1, state=state, trained=())
        return tuple(each for phase in self.phases.values() for each in phase.quantities(context))

    def reads_state(self, kind: str) -> bool:
        """No sum is over training arrays: which sums may be taken is the ledger's rule of analyses."""
        return False

    def moves_model(self, kind: str) -> bool:
        return False

    def live_arms(self, kind: str, state: Arrays) -> list[int]:
        return []

    def training_arrays(self, state: Arrays) -> list[str]:
        return []

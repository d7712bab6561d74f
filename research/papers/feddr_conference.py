"""FedDr+, the conference paper (Kim et al. 2024, arXiv 2406.02355): its tables and figures."""

from __future__ import annotations

from research.papers.cells import Cell, Missing, Table
from research.papers.feddr import (
    BETAS,
    GLOBAL,
    NO_STAGE,
    NO_STAGE_REASON,
    READINGS,
    cell,
    column,
    global_cells,
    grid_cells,
    own_cells,
    stage_cells,
    with_beta,
)

PAPER = "FedDr+ (conference)"
ALIGNMENT = (
    "each silo's model is compared with the class vectors, or with the received model, on the test samples "
    "of its own classes and of the others: no sum of a job holds that; research.accuracy.mechanism computes "
    "it beside a simulation, of the digits"
)
LONE_TRAINING = "how long the models of one silo alone train is not printed: here as long as the federation"
SYNERGY_SHARDS = """
base | none | prox | kd | ntd | ld | fd
FedAvg | 37.22 | 30.27 | 35.14 | 35.56 | 34.83 | 37.82
FedBABU | 46.20 | 36.71 | 45.50 | 45.09 | 45.81 | 45.31
SphereFed | 43.90 | 1.36 | 41.01 | 43.47 | 41.73 | 45.21
FedETF | 32.42 | 25.18 | 32.76 | 31.98 | 32.25 | 32.77
Dot-regression | 42.52 | 5.42 | 46.60 | 45.78 | 47.52 | 48.69
"""
SYNERGY_LDA = """
base | none | prox | kd | ntd | ld | fd
FedAvg | 42.52 | 36.09 | 41.48 | 41.34 | 43.36 | 43.10
FedBABU | 47.37 | 39.04 | 45.58 | 45.56 | 46.46 | 44.77
SphereFed | 46.98 | 1.46 | 45.22 | 46.25 | 43.84 | 48.61
FedETF | 46.27 | 34.92 | 44.94 | 45.77 | 44.36 | 45.92
Dot-regression | 42.72 | 7.47 | 48.19 | 33.08 | 49.09 | 50.79
"""
SHARDS = """
method | C100 s=10 | C100 s=20 | C100 s=50 | C100 s=100 | C10 s=2 | C10 s=5 | C10 s=10
FedAvg | 36.63±0.22 | 42.25±1.42 | 45.57±0.22 | 48.20±1.36 | 72.08±0.67 | 81.53±0.35 | 82.38±0.40
SCAFFOLD | 46.08±0.37 | 48.15±1.21 | 49.31±0.62 | 50.73±0.42 | 75.49±0.42 | 84.14±0.13 | 85.11±0.29
FedNTD | 34.05±1.19 | 41.78±0.31 | 46.42±0.63 | 47.17±0.32 | 72.21±0.59 | 69.96±17.10 | 81.99±0.42
FedExP | 36.85±0.11 | 42.49±1.22 | 45.07±0.92 | 48.09±1.00 | 72.31±0.60 | 81.41±0.19 | 82.47±0.16
FedBABU | 45.97±0.48 | 45.53±0.79 | 46.52±0.51 | 46.02±0.28 | 71.99±0.52 | 81.07±0.60 | 82.32±0.06
SphereFed | 42.71±0.65 | 48.63±0.90 | 52.16±0.22 | 53.41±0.19 | 76.33±0.33 | 83.67±0.18 | 84.36±0.30
FedETF | 31.37±0.72 | 42.22±0.77 | 47.47±0.67 | 49.00±0.74 | 67.81±0.94 | 80.78±0.68 | 82.60±0.46
FedDr+ | 48.21±0.56 | 50.77±0.14 | 52.15±0.03 | 52.41±0.81 | 76.57±0.51 | 83.22±0.34 | 84.14±0.27
"""
LDA = """
method | C100 a=0.05 | C100 a=0.1 | C100 a=0.2 | C100 a=0.3 | C10 a=0.1 | C10 a=0.2 | C10 a=0.3
FedAvg | 35.58±1.35 | 42.10±0.60 | 44.78±0.72 | 45.73±0.88 | 68.71±1.82 | 77.75±0.26 | 80.76±0.51
SCAFFOLD | 40.54±0.48 | 46.14±0.70 | 47.98±0.93 | 48.06±1.08 | - | 80.15±0.29 | 82.63±0.23
FedNTD | 31.78±3.14 | 40.41±0.96 | 43.10±2.03 | 43.04±0.82 | 70.22±0.40 | 77.16±0.20 | 79.50±0.56
FedExP | 34.39±1.77 | 40.85±1.32 | 44.47±0.28 | 45.44±0.14 | 70.14±0.53 | 78.09±0.21 | 80.40±0.54
FedBABU | 41.97±1.01 | 45.77±0.28 | 44.28±0.45 | 44.80±0.63 | 65.15±3.66 | 77.03±0.25 | 79.91±0.13
SphereFed | 39.56±0.48 | 46.54±0.58 | 49.41±0.78 | 49.22±0.86 | 67.49±3.49 | 80.05±0.40 | 82.62±0.66
FedETF | 40.71±0.90 | 45.63±0.33 | 46.28±1.05 | 46.69±0.87 | 70.75±0.36 | 77.86±0.46 | 79.95±0.34
FedDr+ | 45.12±1.00 | 49.48±0.50 | 50.67±0.88 | 51.15±0.65 | 72.07±2.26 | 80.90±0.02 | 82.42±0.10
"""
PERSONAL = """
method | s=10 | s=20 | s=100 | a=0.05 | a=0.1 | a=0.3
Local only, CE | 58.05±8.11 | 42.45±6.44 | 18.69±3.28 | 55.39±8.79 | 43.76±7.46 | 27.75±5.32
Local only, CE + ETF | 58.01±7.34 | 41.62±5.91 | 18.92±3.00 | 55.34±9.13 | 43.37±7.12 | 27.87±5.34
Local only, DR | 60.68±7.77 | 44.61±6.61 | 20.98±3.49 | 58.56±9.16 | 46.72±7.29 | 30.88±5.33
FedPer | 70.67±7.19 | 57.27±6.66 | 24.30±4.34 | 62.67±7.65 | 53.43±6.60 | 35.68±4.82
Per-FedAvg | 32.13±10.90 | 36.66±8.86 | 41.27±7.43 | 28.81±8.68 | 35.56±6.56 | 42.80±4.76
FedRep | 63.14±7.63 | 51.69±6.50 | 26.31±4.74 | 57.53±8.05 | 49.60±6.25 | 37.00±4.82
Ditto | 39.26±14.43 | 38.18±9.96 | 44.53±5.08 | 35.81±14.83 | 37.81±11.80 | 43.72±5.12
FedAvg-FT | 69.81±6.78 | 56.13±5.77 | 47.66±5.20 | 63.37±9.28 | 56.79±5.96 | 50.12±3.67
FedBABU-FT | 80.14±6.25 | 70.89±5.60 | 52.14±5.09 | 75.50±6.40 | 70.83±5.06 | 56.91±3.74
SphereFed-FT | 81.90±5.86 | 71.56±5.78 | 55.83±4.67 | 73.21±7.08 | 70.00±5.09 | 60.03±3.99
FedETF-FT | 53.75±7.35 | 52.94±5.71 | 51.69±5.03 | 52.96±8.01 | 53.97±5.40 | 51.67±3.83
FedDr+ FT | 84.10±5.43 | 75.42±4.80 | 56.76±4.91 | 78.55±6.16 | 74.75±4.75 | 62.16±3.73
"""
STAGES = """
stages | s=10 | s=20 | s=100 | a=0.05 | a=0.1 | a=0.3
Dot-regression, no FT | 42.52 | 49.02 | 52.86 | 30.31±7.95 | 37.52±5.60 | 47.08±3.69
Dot-regression, FT with L_DR | 80.84±5.99 | 74.18±5.78 | 56.84±5.04 | 72.02±6.80 | 66.96±5.36 | 60.34±3.66
FedDr+, no FT | 48.69 | 51.00 | 53.23 | 39.63±9.12 | 45.83±6.18 | 48.04±3.44
FedDr+, FT with L_DR | 84.23±5.44 | 75.73±4.79 | 56.90±4.85 | 78.65±6.17 | 74.86±4.77 | 62.47±3.72
FedDr+, FT with L_Dr+ | 84.10±5.43 | 75.42±4.80 | 56.76±4.91 | 78.55±6.16 | 74.75±4.75 | 62.16±3.73
"""
TIMED = ("FedAvg", "FedBABU", "SCAFFOLD", "FedNTD", "FedExP", "FedETF", "SphereFed", "FedDr+")
SECONDS = "seconds are of the paper's machine; a report has its own, of this one"
SETTINGS = "notation and settings, no results"
CROSS_ENTROPY = "cross-entropy stands for FedBABU, as in the journal's Table 16"
NOT_SHOWN = "the values of the horizontal axis stand in the picture alone"


def curves(*rows: str) -> tuple[Cell, ...]:
    """The rows' models by round."""
    return tuple(cell(row, "C100 s=10, every round", column("C100 s=10"), GLOBAL[row]) for row in rows)


TABLES = (
    Table(
        paper=PAPER,
        number="Table 1",
        shows="five base methods, each with five regularizers (beta 0.9), accuracy of the global model",
        cells=(
            *grid_cells(SYNERGY_SHARDS, "s=10", betas={}),
            *grid_cells(SYNERGY_LDA, "a=0.1", betas={}),
        ),
        readings=(*READINGS, "the temperature of KD is not printed: 3"),
    ),
    Table(
        paper=PAPER,
        number="Table 2",
        shows="eight methods, accuracy of the global model, three seeds",
        cells=(*global_cells(SHARDS), *global_cells(LDA)),
        readings=(*READINGS, "SphereFed stands here without its closing calibration"),
    ),
    Table(
        paper=PAPER,
        number="Table 3",
        shows="twelve methods, accuracy of the silos' own models",
        cells=tuple(own_cells(PERSONAL)),
        readings=(
            *READINGS,
            LONE_TRAINING,
            "neither fine-tuning nor the one-step methods have printed settings: E epochs at the last "
            "round's rate, and the presets' values",
        ),
    ),
    Table(
        paper=PAPER,
        number="Tables 4 to 7",
        shows=SETTINGS,
        has_results=False,
    ),
    Table(
        paper=PAPER,
        number="Table 8",
        shows="which loss trains and which fine-tunes",
        cells=tuple(stage_cells(STAGES)),
        missing=(Missing(name=NO_STAGE, reason=NO_STAGE_REASON),),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Table 9",
        shows="seconds a round",
        cells=tuple(cell(row, "C100 s=10", column("C100 s=10"), GLOBAL[row]) for row in TIMED),
        readings=(*READINGS, SECONDS),
    ),
    Table(paper=PAPER, number="Figure 1", shows="the method as a picture", has_results=False),
    Table(
        paper=PAPER,
        number="Figures 2 and 3",
        shows="alignment and accuracy of the silos' models, and how far training moves them, by round: "
        "dot-regression and cross-entropy, s=10",
        cells=(*curves("FedBABU", "Dot-regression"),),
        missing=(Missing(name="alignment, and all of the silos' own models", reason=ALIGNMENT),),
        readings=(*READINGS, CROSS_ENTROPY),
    ),
    Table(
        paper=PAPER,
        number="Figure 4",
        shows="distance, angle and difference in norm between features before and after training, by round",
        cells=(*curves("Dot-regression", "FedDr+"),),
        missing=(Missing(name="distance, angle and norm", reason=ALIGNMENT),),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Figure 5",
        shows="alignment and accuracy of the silos' models with and without distillation, by round",
        cells=(*curves("Dot-regression", "FedDr+"),),
        missing=(Missing(name="alignment, and all of the silos' own models", reason=ALIGNMENT),),
        readings=READINGS,
    ),
    Table(
        paper=PAPER,
        number="Figure 6",
        shows="accuracy by sampling ratio, local epochs and beta, s=10 and a=0.1",
        cells=tuple(
            cell(f"FedDr+, beta {beta:g}", drawn, column(f"C100 {drawn}"), method, rate_of="FedDr+")
            for drawn in ("s=10", "a=0.1")
            for beta in BETAS
            for method in (with_beta(beta),)
        ),
        missing=(Missing(name="sampling ratios and local epochs", reason=NOT_SHOWN),),
        readings=READINGS,
    ),
)

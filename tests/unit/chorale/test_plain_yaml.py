"""What a plain value in a file means, and that what is written is read back, by YAML 1.1 too."""

from __future__ import annotations

import math

import pytest
import yaml

from chorale.runtime import plain_yaml
from chorale.spec.job_spec import JobSpec
from crypto.errors import ConfigError
from tests.unit.chorale.conftest import MakeSpec

# YAML 1.1 as PyYAML reads it makes texts of these, silently
NUMBERS = {"1e-3": 0.001, "1e6": 1e6, "1E+2": 100.0, "-.5": -0.5, "-2e-05": -2e-05, "1.5e3": 1500.0}
NUMBERS |= {"0o17": 15, "0x1F": 31, "-12": -12, "+7": 7, "0": 0, "1.": 1.0, ".5": 0.5, "-.inf": -math.inf}
WORDS = {"": None, "~": None, "null": None, "NULL": None, "True": True, "false": False, "FALSE": False}
TEXTS = {"'1e-3'": "1e-3", '"010"': "010", "'yes'": "yes", "'<<'": "<<"}
TEXTS |= {text: text for text in ("2027-01-31", "1.2.3", "1e", "0o8", "nO", "10.0.0.1:7", "1_a")}
VALUES = NUMBERS | WORDS | TEXTS
TWO_MEANINGS = ["y", "N", "yes", "No", "on", "OFF", "010", "-08", "00", "0b11", "-0x1f", "+0o7", "12:30"]
TWO_MEANINGS += ["1:30:00.5", "1_000", "1_0.5", "0x_f", "1._0e5", "<<", "="]


@pytest.mark.parametrize("text", VALUES)
def test_plain_value_is_that_of_yaml_1_2(text: str) -> None:
    found = plain_yaml.parse(f"a: {text}".encode(), source="x")["a"]
    assert (found, type(found)) == (VALUES[text], type(VALUES[text]))


def test_not_a_number_is_read() -> None:
    assert math.isnan(plain_yaml.parse(b"a: .nan", source="x")["a"])


@pytest.mark.parametrize("text", TWO_MEANINGS)
@pytest.mark.parametrize("form", ["b: 1\na: {0}", "b: 1\na: [{0}]", "b: 1\n{0}: 1"])
def test_value_that_means_two_things_is_refused_by_name(text: str, form: str) -> None:
    field = "a: " if form.startswith("b: 1\na") else ""
    with pytest.raises(ConfigError) as raised:
        plain_yaml.parse(form.format(text).encode(), source="x")
    assert str(raised.value).startswith(f"x: line 2: {field}{text!r} differs between YAML 1.1 and 1.2: ")


def test_what_is_written_is_read_back_also_by_yaml_1_1() -> None:
    texts = [*(text.strip("'\" ") for text in VALUES), *TWO_MEANINGS, "a: b", "# a", "\n", "1e-3\n", "é"]
    numbers = [0.00001, 1e22, 1e-300, 3.0, -0.0, math.inf, 10**30, True, None]
    values = {"texts": texts, "numbers": numbers, "names": dict.fromkeys(texts, 1)}
    for in_one_line in (False, True):
        text = plain_yaml.dump(values, in_one_line=in_one_line)
        assert repr(plain_yaml.parse(text.encode(), source="x")) == repr(values)
        assert repr(yaml.safe_load(text)) == repr(values)


def test_options_of_a_plug_in_are_signed_as_the_numbers_and_texts_that_they_are(
    make_spec: MakeSpec,
) -> None:
    # {dropout: 1e-3} was signed as the text '1e-3'
    text = make_spec(model={"name": "cnn2", "from": "hospital==1.0"}).to_yaml().decode()
    given = text.replace(
        "from: hospital==1.0\n  options: {}", "from: hospital==1.0\n  options: {dropout: 1e-3, word: '1e-3'}"
    )
    spec = JobSpec.from_yaml(given.encode(), source="job.yaml")
    for each in (spec, JobSpec.from_yaml(spec.to_yaml(), source="job.yaml")):
        assert each.model.options == {"dropout": 0.001, "word": "1e-3"}

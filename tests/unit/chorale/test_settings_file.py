from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

import pytest
from pydantic import BaseModel, ConfigDict, Field, model_validator

from chorale.spec.settings_file import MAX_BYTES, check_values, load_settings, parse_mapping
from crypto.errors import ConfigError


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: float = Field(default=1.0, gt=0)


class Square(BaseModel):
    kind: Literal["square"]


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    seconds: float = Field(default=1.0, gt=0)
    path: Path = Path("here")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.seconds == 13:
            raise ValueError("seconds: expected another number, got 13")
        if self.seconds == 14:
            raise ValueError("fourteen: no field has this name")
        return self


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    inner: Inner | None = None
    several: tuple[Inner, ...] = ()
    ports: tuple[int, ...] = ()
    source: str | None = Field(default=None, alias="from")
    pair: tuple[int, ...] = Field(default=(1, 2), min_length=2)
    options: dict[str, int | float | str] = Field(default_factory=dict)
    shapes: tuple[Annotated[Circle | Square, Field(discriminator="kind")], ...] = ()


def load(tmp_path: Path, text: str, **environment: str) -> Settings:
    path = tmp_path / "settings.yaml"
    path.write_text(text)
    return load_settings(Settings, path, "CHORALE_TEST_", environment=environment)


def test_load_settings_reads_nested_fields(tmp_path: Path) -> None:
    settings = load(tmp_path, "name: a\ninner: {seconds: 2}\nseveral:\n- path: x\n")
    assert settings == Settings(name="a", inner=Inner(seconds=2), several=(Inner(path=Path("x")),))


def test_environment_overrides_a_field_and_an_inner_field(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        "name: a\ninner: {seconds: 2, path: kept}\n",
        CHORALE_TEST_NAME="b",
        CHORALE_TEST_INNER__SECONDS="3.5",
        CHORALE_TEST_PORTS="[1, 2]",
        CHORALE_TEST_OPTIONS__LIMIT="1e-3",
        CHORALE_OTHER_NAME="c",
    )
    inner = Inner(seconds=3.5, path=Path("kept"))
    # options have no declared type: their values were texts where they came from the environment
    assert settings == Settings(name="b", inner=inner, ports=(1, 2), options={"limit": 0.001})


def test_environment_null_takes_a_field_away(tmp_path: Path) -> None:
    assert load(tmp_path, "name: a\ninner: {seconds: 2}\n", CHORALE_TEST_INNER="null").inner is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inner: {}", r"settings.yaml: name: a value is required$"),
        (
            "name: a\ncolor: red",
            r"color: unknown field, expected one of name, inner, .*, from, pair, options, shapes$",
        ),
        ("name: a\ninner: {color: red}", r"inner.color: unknown field, expected one of seconds, path$"),
        ("name: a\nseveral: [{}, {x: 1}]", r"several.1.x: unknown field, expected one of seconds, path$"),
        ("name: a\nport: 7", r"port: unknown field \(did you mean ports\?\), expected one of name, inner,"),
        ("name: a\ninner: {secs: 1}", r"inner.secs: unknown field \(did you mean seconds\?\), expected"),
        ("name: a\nseveral: true", r"several: expected a list, got true$"),
        ("name: 7", r"name: expected text, got 7$"),
        ("name: a\ninner: {seconds: 0}", r"inner.seconds: expected more than 0, got 0$"),
        ("name: a\ninner: {seconds: soon}", r"inner.seconds: expected a number, got 'soon'$"),
        ("name: [a]", r"name: expected text, got a list$"),
        ("name: a\nports: 7", r"ports: expected a list, got 7$"),
        ("name: a\ninner: x", r"inner: expected fields and values, got 'x'$"),
        (
            "name: a\na: 1\nb: 2\nc: 3\nd: 4",
            r"yaml: a, b, c and 1 more: unknown fields, expected one of name, ",
        ),
        ("name: null", r"name: expected text, got nothing$"),
        # a check of the whole part names its field as any other check does
        ("name: a\ninner: {seconds: 13}", r"inner.seconds: expected another number, got 13$"),
        ("name: a\ninner: {seconds: 14}", r"inner: fourteen: no field has this name$"),
        # pydantic counts a list without its wrong entries
        ("name: a\npair: [1, x]", r"yaml: pair.1: expected a whole number, got 'x'$"),
        ("name: a\npair: [1]", r"pair: expected at least 2 entries, got 1$"),
        (
            "name: a\nshapes: [{kind: line}]",
            r"shapes.0.kind: expected one of 'circle', 'square', got 'line'$",
        ),
        ("name: a\nshapes: [{}]", r"shapes.0.kind: a value is required$"),
        ("name: a\nports: [" + "x, " * 5000 + "]", r"ports.19: expected [^;]*; and 4980 more$"),
        ("pair: [1]\nshapes: [{}]", r"yaml: name, shapes.0.kind: values are required; pair: expected"),
    ],
)
def test_a_wrong_value_is_named_with_file_field_and_what_is_allowed(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


def test_every_wrong_field_is_named_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]*name: [^\n]*; inner.seconds: [^\n]*$"):
        load(tmp_path, "inner: {seconds: -1}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"CHORALE_TEST_PORTS": "7"}, r"^CHORALE_TEST_PORTS: expected a list, got '7'$"),
        (
            {"CHORALE_TEST_PORT": "7"},
            r"^CHORALE_TEST_PORT: unknown field \(did you mean ports\?\), expected one of name",
        ),
        (
            {"CHORALE_TEST_INNER__SECONDS": "soon"},
            r"^CHORALE_TEST_INNER__SECONDS: expected a number, got 'soon'$",
        ),
        ({"CHORALE_TEST_INNER": "{seconds: soon}"}, r"^CHORALE_TEST_INNER.seconds: expected a number"),
        ({"CHORALE_TEST_NAME__DEEPER": "b"}, "NAME__DEEPER: expected fields and values in name of the file"),
    ],
)
def test_a_wrong_value_of_the_environment_is_named_by_its_variable(
    tmp_path: Path, variables: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, "name: a\n", **variables)


def test_a_wrong_value_of_the_command_line_is_named_by_its_option() -> None:
    # it was named by the file, which did not hold it
    values = {"name": "a", "inner": {"seconds": 0}}
    with pytest.raises(ConfigError, match=r"^--seconds: expected more than 0, got 0$"):
        check_values(Settings, values, source="settings.yaml", options={"inner__seconds": "--seconds"})


def test_file_and_environment_are_distinguished(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"settings.yaml: name: a value is required; CHORALE_TEST_PORTS: "):
        load(tmp_path, "inner: {}\n", CHORALE_TEST_PORTS="7")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"- a", "expected fields and values, got a list"),
        (b"", "expected fields and values, got nothing"),
        (b"a: &x 1\nb: *x", "line 2: aliases are not allowed"),
        (b'a: !!int ""', "line 1: tags are not allowed"),
        (b"a: !!timestamp [x]", "line 1: tags are not allowed"),
        (b"a: ! {b: 1}", "line 1: tags are not allowed"),
        (b'a: "\\UFFFFFFFF"', "line 1: found invalid Unicode character escape code"),
        (b"a: [" + b"1," * 30_000 + b"]", "expected at most 20000 values"),
        (b"a: 1\nb: 2\na: 3", "line 3: a is given twice"),
        (b"a: {b: 1, b: 2}", "line 1: b is given twice"),
        (b"<<: {a: 1}", "line 1: '<<' differs between YAML 1.1 and 1.2: put the text in quotes"),
        (b"[a]: 1", "line 1: expected text as the name of a field"),
        (b"1: a", 'line 1: expected text as the name of a field: write "1"'),
        (b"a: " + b"[" * 5000, "expected at most 16 levels"),
        (b"a: " + b"{b: " * 20 + b"1" + b"}" * 20, "expected at most 16 levels"),
        (b"a: !!python/object/apply:os.system [true]", "line 1: tags are not allowed"),
        (b"a: 1\n b: 2", "line 2: expected one field and its value on a line; put text"),
        (b" a: 1\nb: 2", "line 2: expected a field, its colon and its indentation like those before it"),
        (
            b"a: b: c",
            "line 1: expected one field and its value on a line; put text that has a colon in quotes$",
        ),
        (b"a: 1\n\tb: 2", "line 2: expected spaces before the field, got a tab$"),
        (b"a: 0x" + b"f" * 5000, "line 1: expected a number of at most 40 digits"),
        (b"a: " + b"9" * 5000, "line 1: expected a number of at most 40 digits"),
        (b"a: @b", "line 1: a text begins with a character that has a meaning in YAML; put it in quotes"),
        (b"a: [b\n", r"line 2: expected ',' or '\]'"),
        (b"a: \xff", "expected UTF-8 text"),
        (b"a: \x07", "control characters are not allowed"),
        (b"%TAG ! x\n---\na: 1", "a line that begins with % is not allowed"),
        (b"a: 1\n---\nb: 2", "line 3: expected one document, got another"),
        (b"#" * (MAX_BYTES + 1), f"expected at most {MAX_BYTES} bytes, got {MAX_BYTES + 1}"),
    ],
)
def test_parse_mapping_refuses(text: bytes, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^job.yaml: .*{message}"):
        parse_mapping(text, source="job.yaml")


def test_parse_mapping_takes_sixteen_levels() -> None:
    text = b"a: " + b"[" * 15 + b"]" * 15
    assert parse_mapping(text[:-15] + b"]" * 15, source="x")["a"] is not None
